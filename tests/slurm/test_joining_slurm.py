"""Every way for a job to be protected, and the way out, read by the agent's own classes on a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rekindle.slurm_agent.base.ports import Memory, OwnActions
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.slurm.build import AgentContext, build
from rekindle.slurm_agent.watching.watcher import Watch
from tests.slurm.lab.lab import SlurmLab

pytestmark = pytest.mark.versions
OURS = "rekindle:gentle,signal=USR1"


class Nothing(Memory, OwnActions):
    """No memory, and no own_actions."""

    def items(self, prefix: str) -> dict[str, bytes]:
        return {}

    def has_ended(self, attempt: str) -> bool:
        return False

    has_requeued = is_unproven = holds = has_ended

    def copy_of(self, new_attempt: str) -> int | None:
        return None


class EmptyBucket:
    """S3 without an object: nothing was written down before."""

    def get_object(self, **_: Any) -> Any:
        from botocore.exceptions import ClientError

        raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=("n1", "n2"), extra_conf=["MaxJobCount=1000"]) as raised:
        conf = raised.folder / "etc/slurm.conf"
        conf.write_text(conf.read_text() + "PartitionName=ours Nodes=n2 MaxTime=INFINITE State=UP\n")
        raised.run("scontrol", "reconfigure")
        yield raised


def watcher(lab: SlurmLab, **rules: frozenset[str]) -> Watch:
    nothing = Nothing()
    settings = Settings(
        cluster="lab",
        cluster_from="a test",
        stack="s",
        bucket="b",
        bus="s",
        region=None,
        state_dir=lab.folder,
        poll_s=10.0,
        resource_config="/nonexistent",
        allow_file="/nonexistent",
        environ=lab.environ(),
        **rules,
    )
    return build(AgentContext(settings=settings, s3=EmptyBucket(), memory=nothing, own_actions=nothing)).watcher


def told(reading: Any) -> dict[int, dict[str, Any]]:
    docs = [json.loads(raw) for key, raw in reading.documents.items() if "/attempts/" in key]
    return {doc["slurm_job"]: doc for doc in docs}


def submit(lab: SlurmLab, *options: str, lines: str = "", **environ: str) -> int:
    script = Path(lab.folder / "work" / "job.sh")
    script.write_text(f"#!/bin/bash\n{lines}\nsleep 600\n")
    return lab.submit(script, "--hold", *options, environ=environ)


def test_each_way_in_and_the_way_out(lab: SlurmLab) -> None:
    said = {
        "comment": submit(lab, f"--comment={OURS}"),
        "environment": submit(lab, REKINDLE_PROTECT=OURS),
        "admin": submit(lab),
        "overwritten": submit(lab, lines=f"#SBATCH --comment={OURS}"),
        "partition": submit(lab, "--partition=ours"),
    }
    if lab.install.version() >= (23, 11):
        said["extra"] = submit(lab, f"--extra={OURS}")
    if lab.install.version() >= (25, 11):
        said["overwritten line"] = submit(lab, f"--comment={OURS}")
    others = {
        "plain": submit(lab),
        "out by environment": submit(lab, "--partition=ours", REKINDLE_PROTECT="norekindle"),
        "out by comment": submit(lab, "--partition=ours", "--comment=norekindle"),
        "out by admin": submit(lab, REKINDLE_PROTECT=OURS),
        "a child of ours": submit(lab, REKINDLE_ATTEMPT_NAME=f"slurm.lab.{said['comment']}-a2", REKINDLE_JOB_ID="x"),
    }
    lab.run("scontrol", "update", f"jobid={said['admin']}", f"admincomment={OURS}")
    lab.run("scontrol", "update", f"jobid={others['out by admin']}", "admincomment=norekindle")
    for name in said:
        if name.startswith("overwritten"):
            lab.run("scontrol", "update", f"jobid={said[name]}", 'comment={"APS": {"auto_resume_mode": "requeue"}}')
    look = watcher(lab, partitions=frozenset({"ours"}))
    found = told(look.read(datetime.now(UTC)))
    assert found.keys() == set(said.values()), {name: job in found for name, job in (said | others).items()}
    for name, job in said.items():
        policy = "default" if name == "partition" else "gentle"
        assert (found[job]["policy"], found[job]["attempt"]) == (policy, f"slurm.lab.{job}"), name
    before = look.commands
    assert told(look.read(datetime.now(UTC))) == {}
    assert look.commands - before <= 3, "nothing is asked again at rest"

    lab.run("scontrol", "update", f"jobid={said['comment']}", "comment=another tool's")
    assert told(look.read(datetime.now(UTC))) == {}, "it loses nothing: not even its capture is another"
    lab.run("scontrol", "update", f"jobid={said['comment']}", "comment=norekindle")
    lab.run("scontrol", "update", f"jobid={others['plain']}", f"admincomment={OURS}")
    after = told(look.read(datetime.now(UTC) + timedelta(minutes=6)))
    closed = after[said["comment"]]
    assert (closed["state"], closed["ended_by"]) == ("cancelled", "user")
    assert "norekindle" in closed["detail"]
    assert lab.job_state(said["comment"]) == "PENDING", "the job itself is left as it was"
    assert after[others["plain"]]["policy"] == "gentle", "an administrator's word counts some minutes later"
    assert said["comment"] not in told(look.read(datetime.now(UTC)))


def test_a_task_of_an_array_asks_by_what_slurmctld_keeps_for_the_array(lab: SlurmLab) -> None:
    """The script and the environment are kept once, under the array's number; most tasks have another."""
    script = lab.folder / "work" / "array.sh"
    script.write_text("#!/bin/bash\nsleep 600\n")
    array = lab.submit(script, "--array=0-1", environ={"REKINDLE_PROTECT": OURS})
    running = ("squeue", "-h", "-t", "R", "-j", str(array), "-O", "JobID")
    tasks = lab.wait(lambda: len(found := lab.run(*running).stdout.split()) == 2 and found, "its tasks to run")
    documents = told(watcher(lab).read(datetime.now(UTC)))
    lab.run("scancel", str(array))
    assert {int(task) for task in tasks} - {array}
    assert [documents[int(task)]["policy"] for task in tasks] == ["gentle", "gentle"]
