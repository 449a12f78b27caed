"""Who the monitor is on Slurm, and where a restarted job goes on."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rekindle.checkpoints.marks import QuarantineMark
from rekindle.monitor import Monitor
from rekindle.monitor.live import LiveMonitor
from rekindle.monitor.mail.boxes import DirectoryBox
from rekindle.protocol.cluster.cluster_name import cluster_named
from rekindle.protocol.keys import fence_key, manifest_key, manifest_prefix, plan_key
from rekindle.protocol.launch_orders import (
    ENV_ATTEMPT,
    ENV_CHECKPOINT_DIR,
    ENV_JOB_ID,
    ENV_MAILBOX,
    ENV_RESUME_STEP,
    ENV_RESUME_URI,
    ENV_SKIP,
    AttemptOrder,
    Plan,
    ResumePlan,
    SkipWindow,
)
from rekindle.protocol.mailbox import Fence
from rekindle.protocol.manifests import Manifest, ManifestFile, SaveKind
from rekindle.slurm_agent.base.settings import cluster_of as agents_cluster_of
from tests.checkpoints.made import layout
from tests.checkpoints.test_folders import laid_out
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor

pytestmark = pytest.mark.long

AT = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)


def cluster_of(env: dict[str, str]) -> str | None:
    named = cluster_named(env, passes_over=True)
    return None if named is None else named[0]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A job of a cluster named `hpc`, as Slurm starts it for the first time; nothing of this machine's own in it."""
    return {
        "SLURM_JOB_ID": "17",
        "SLURM_CLUSTER_NAME": "hpc",
        "SLURMD_NODENAME": "ip-10-1-0-7",
        "SAGEMAKER_RESOURCE_CONFIG_PATH": str(tmp_path / "none.json"),
        "REKINDLE_CLUSTER_FILE": str(tmp_path / "none"),
        ENV_MAILBOX: str(tmp_path / "mail"),
    }


@pytest.fixture
def started() -> Iterator[list[Monitor]]:
    monitors: list[Monitor] = []
    yield monitors
    for monitor in monitors:
        monitor.finish(timeout_s=PATIENCE_S)


def begin(started: list[Monitor], env: dict[str, str], **more: object) -> LiveMonitor:
    monitor = start_monitor(config=QUICK, env=env, signals=(), **more)  # type: ignore[arg-type]
    started.append(monitor)
    assert isinstance(monitor, LiveMonitor)
    return monitor


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"step-{step}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"w" * 10)
    return path


def sealed(box: DirectoryBox, root: Path, step: int, attempt: str = "slurm.hpc.17", **more: object) -> Manifest:
    values: dict[str, object] = {
        "job_id": "slurm.hpc.17",
        "attempt": attempt,
        "attempt_number": 1,
        "step": step,
        "kind": SaveKind.PERIODIC,
        "root": str(root),
        "files": (ManifestFile(path=".", bytes=10),),
        "world_size": 1,
        "saved_at": AT,
    }
    manifest = Manifest(**values | more)  # type: ignore[arg-type]
    box.put(manifest.key, manifest.to_json())
    return manifest


BY_US = {"REKINDLE_SUBMITTED_ON": "head", "SLURM_SUBMIT_HOST": "head"}


@pytest.mark.parametrize(
    ("extra", "attempt", "job_id", "number"),
    [
        ({}, "slurm.hpc.17", "slurm.hpc.17", 1),
        ({"SLURM_RESTART_COUNT": "2"}, "slurm.hpc.17.r2", "slurm.hpc.17", 3),
        ({"REKINDLE_CLUSTER": "named"}, "slurm.named.17", "slurm.named.17", 1),
        # Submitted again by the service: a new Slurm job of the same Job.
        (
            {"REKINDLE_ATTEMPT_NAME": "slurm.hpc.9-a4", ENV_ATTEMPT: "4", ENV_JOB_ID: "slurm.hpc.9"} | BY_US,
            "slurm.hpc.9-a4",
            "slurm.hpc.9",
            4,
        ),
        # Submitted within that one, by plain sbatch on its node.
        (
            {"REKINDLE_ATTEMPT_NAME": "slurm.hpc.9-a4", ENV_ATTEMPT: "4", ENV_JOB_ID: "slurm.hpc.9"}
            | BY_US
            | {"SLURM_SUBMIT_HOST": "node1"},
            "slurm.hpc.17",
            "slurm.hpc.17",
            1,
        ),
        (
            {"REKINDLE_ATTEMPT_NAME": "slurm.hpc.9-a4", ENV_ATTEMPT: "4", ENV_JOB_ID: "slurm.hpc.9"},
            "slurm.hpc.17",
            "slurm.hpc.17",
            1,
        ),
        (
            {
                "REKINDLE_ATTEMPT_NAME": "slurm.hpc.9-a4",
                ENV_ATTEMPT: "4",
                ENV_JOB_ID: "slurm.hpc.9",
                "SLURM_RESTART_COUNT": "1",
            }
            | BY_US,
            "slurm.hpc.9-a4.r1",
            "slurm.hpc.9",
            5,
        ),
        ({"TRAINING_JOB_NAME": "left-over-from-a-shell"}, "slurm.hpc.17", "slurm.hpc.17", 1),
    ],
)
def test_the_attempt_is_named_by_slurm(
    started: list[Monitor], env: dict[str, str], extra: dict[str, str], attempt: str, job_id: str, number: int
) -> None:
    who = begin(started, env | extra).identity
    assert (who.attempt, who.job_id, who.attempt_number) == (attempt, job_id, number)
    assert who.host == "ip-10-1-0-7"


def test_the_clusters_name_is_the_agents(tmp_path: Path, env: dict[str, str]) -> None:
    config = tmp_path / "resource_config.json"
    config.write_text(json.dumps({"ClusterConfig": {"ClusterName": "pretrain", "ClusterArn": "arn"}}))
    (tmp_path / "cluster").write_text("from-the-lifecycle-script\n")
    env |= {"REKINDLE_CLUSTER_FILE": str(tmp_path / "cluster")}
    assert cluster_of(env) == "from-the-lifecycle-script", "where only root may read SageMaker's file"
    env |= {"SAGEMAKER_RESOURCE_CONFIG_PATH": str(config)}
    assert cluster_of(env) == "pretrain"
    assert cluster_of(env | {"REKINDLE_CLUSTER": "said"}) == "said"
    for broken in ("{", "[]", '{"ClusterConfig": 3}'):
        config.write_text(broken)
        assert cluster_of(env) == "from-the-lifecycle-script"
    assert cluster_of({}) is None


@pytest.mark.parametrize("named", ["(null)", "", None])
@pytest.mark.parametrize("line", ["ClusterName=HPC", "clustername = hpc # ours", 'ClusterName="hpc"'])
def test_a_cluster_that_slurm_does_not_name_is_read_from_its_file_as_by_the_agent(
    tmp_path: Path, env: dict[str, str], named: str | None, line: str
) -> None:
    """Slurm 23.11.4 gives jobs `SLURM_CLUSTER_NAME=(null)`; and what slurm.conf writes in capitals, jobs have in lower
    case."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"# ClusterName=other\nSlurmctldHost=n0\n{line}\n")
    env = {name: value for name, value in env.items() if name != "SLURM_CLUSTER_NAME"} | {"SLURM_CONF": str(conf)}
    env |= {"SLURM_CLUSTER_NAME": named} if named is not None else {}
    assert cluster_of(env) == "hpc"
    assert agents_cluster_of(env, None)[0] == "hpc"
    assert cluster_of(env | {"SLURM_CONF": str(tmp_path / "none")}) is None


def test_a_cluster_name_that_cannot_be_one_is_told_and_training_goes_on(
    started: list[Monitor], env: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    monitor = begin(started, env | {"REKINDLE_CLUSTER": "a b", ENV_JOB_ID: "job"})
    assert monitor.identity.attempt == "job-a1"
    assert "REKINDLE_CLUSTER" in caplog.text


def test_a_restart_takes_its_plan_and_not_the_environment_of_its_submission(
    started: list[Monitor], env: dict[str, str], tmp_path: Path
) -> None:
    box = DirectoryBox(env[ENV_MAILBOX])
    old, planned = checkpoint(tmp_path, 10), checkpoint(tmp_path, 40)
    checkpoint(tmp_path, 60)  # newer, and not what was planned
    plan = Plan.of(
        attempt="slurm.hpc.17.r1",
        order=AttemptOrder(
            job_id="slurm.hpc.17",
            attempt_number=2,
            mailbox="s3://bucket/clusters/hpc/jobs/slurm.hpc.17",  # the service's copy, not where this run writes
            resume=ResumePlan(step=40, uri=str(planned), skip=(SkipWindow(from_step=50, to_step=53),)),
        ),
        written_at=AT,
    )
    box.put(plan_key(plan.attempt), plan.to_json())
    env |= {ENV_RESUME_STEP: "10", ENV_RESUME_URI: str(old), ENV_SKIP: "[[1,2]]", "SLURM_RESTART_COUNT": "1"}
    env |= {ENV_CHECKPOINT_DIR: str(tmp_path)}
    monitor = begin(started, env)
    assert (monitor.resume.step, monitor.resume_path) == (40, str(planned))
    assert monitor.should_skip(52)
    assert not monitor.should_skip(1)
    assert monitor.identity.attempt_number == 2
    assert (tmp_path / "mail" / "rekindle").is_dir()
    first = {**env}
    del first["SLURM_RESTART_COUNT"]
    assert begin(started, first).resume.step == 10, "at the first start the environment is right"


def test_a_run_that_is_not_watched_is_still_told_its_plan(env: dict[str, str], tmp_path: Path) -> None:
    plan = Plan.of(
        attempt="slurm.hpc.17.r1",
        order=AttemptOrder(job_id="j", attempt_number=2, resume=ResumePlan(step=40, uri=str(checkpoint(tmp_path, 40)))),
        written_at=AT,
    )
    DirectoryBox(env[ENV_MAILBOX]).put(plan_key(plan.attempt), plan.to_json())
    silent = start_monitor(env=env | {"SLURM_RESTART_COUNT": "1", "REKINDLE_MONITOR": "off"})
    assert silent.is_silent
    assert silent.resume.step == 40


def test_a_run_that_has_sealed_very_many_checkpoints_goes_on_from_the_newest(
    started: list[Monitor], env: dict[str, str], tmp_path: Path
) -> None:
    """A month of them, one in three minutes."""
    box = DirectoryBox(env[ENV_MAILBOX])
    sealed(box, newest := checkpoint(tmp_path, 60_000), 60_000)
    for step in range(1, 14_401):
        (tmp_path / "mail" / manifest_key(step, "slurm.hpc.17")).touch()
    monitor = begin(started, env | {"SLURM_RESTART_COUNT": "1"})
    assert (monitor.resume.step, monitor.resume_path) == (60_000, str(newest))


@pytest.mark.parametrize("plan", [None, b"{", b'{"v":1,"attempt":"slurm.hpc.17.r9"}'])
def test_a_restart_that_nobody_planned_goes_on_from_the_newest_good_checkpoint_and_keeps_skipping(
    started: list[Monitor], env: dict[str, str], tmp_path: Path, plan: bytes | None
) -> None:
    box = DirectoryBox(env[ENV_MAILBOX])
    if plan is not None:
        box.put(plan_key("slurm.hpc.17.r1"), plan)
    good = checkpoint(tmp_path, 30)
    sealed(box, checkpoint(tmp_path, 20), 20)
    sealed(box, good, 30)
    damaged = checkpoint(tmp_path, 40)
    sealed(box, damaged, 40)
    damaged.write_bytes(b"half")
    quarantined = checkpoint(tmp_path, 50)
    sealed(box, quarantined, 50)
    mark = QuarantineMark(root=str(quarantined), why="NaN", by="i-1", at=AT)
    box.put(mark.key, mark.to_json())
    sealed(box, checkpoint(tmp_path, 60), 60, request_id="i-1-f2", kind=SaveKind.EMERGENCY)  # for forensics
    sealed(box, checkpoint(tmp_path, 70), 70, job_id="another", attempt="slurm.hpc.18")
    fence = Fence(
        job_id="slurm.hpc.17",
        attempt="slurm.hpc.17.r1",
        attempt_number=2,
        superseded=("slurm.hpc.17",),
        written_at=AT + timedelta(minutes=1),
    )
    box.put(fence_key(), fence.to_json())
    sealed(box, checkpoint(tmp_path, 80), 80, saved_at=AT + timedelta(minutes=2))  # by a zombie
    box.put("rekindle/manifests/step-000000000090-slurm.hpc.17.json", b"not a manifest")
    env |= {ENV_RESUME_STEP: "20", ENV_RESUME_URI: str(tmp_path / "step-20.bin"), ENV_SKIP: "[[25,27]]"}
    monitor = begin(started, env | {"SLURM_RESTART_COUNT": "1"})
    assert (monitor.resume.step, monitor.resume_path) == (30, str(good))
    assert monitor.should_skip(26)


def sent_back(box: DirectoryBox, folder: Path) -> None:
    """The first restart is planned: from step 100, without the data of the 20 steps after it."""
    back = ResumePlan(step=100, uri=str(checkpoint(folder, 100)), skip=(SkipWindow(from_step=101, to_step=120),))
    order = AttemptOrder(job_id="slurm.hpc.17", attempt_number=2, resume=back)
    box.put(plan_key("slurm.hpc.17.r1"), Plan.of(attempt="slurm.hpc.17.r1", order=order, written_at=AT).to_json())


def test_a_restart_that_nobody_planned_does_not_go_back_to_what_the_last_plan_left_behind(
    started: list[Monitor], env: dict[str, str], tmp_path: Path
) -> None:
    box = DirectoryBox(env[ENV_MAILBOX])
    sealed(box, checkpoint(tmp_path, 300), 300)  # of the first start; its loss had diverged
    sent_back(box, tmp_path)
    monitor = begin(started, env | {"SLURM_RESTART_COUNT": "2"})
    assert monitor.resume.step == 100
    assert monitor.should_skip(110)
    sealed(box, checkpoint(tmp_path, 150), 150, attempt="slurm.hpc.17.r1", attempt_number=2)
    monitor = begin(started, env | {"SLURM_RESTART_COUNT": "2"})
    assert monitor.resume.step == 150
    assert monitor.should_skip(110)


def test_however_often_slurm_has_restarted_a_job_since_its_last_plan_still_holds(
    started: list[Monitor], env: dict[str, str], tmp_path: Path
) -> None:
    """As on a partition whose jobs are preempted every day."""
    box = DirectoryBox(env[ENV_MAILBOX])
    sealed(box, checkpoint(tmp_path, 300), 300)  # of the first start; its loss had diverged
    sent_back(box, tmp_path)
    monitor = begin(started, env | {"SLURM_RESTART_COUNT": "30"})
    assert monitor.resume.step == 100
    assert monitor.should_skip(110)


def test_however_many_the_last_plan_left_behind_what_was_saved_since_is_gone_on_from(
    started: list[Monitor], env: dict[str, str], tmp_path: Path
) -> None:
    box = DirectoryBox(env[ENV_MAILBOX])
    for step in range(300, 400):
        sealed(box, checkpoint(tmp_path, step), step)  # of the first start; its loss had diverged
    sent_back(box, tmp_path)
    sealed(box, checkpoint(tmp_path, 150), 150, attempt="slurm.hpc.17.r1", attempt_number=2)
    assert begin(started, env | {"SLURM_RESTART_COUNT": "2"}).resume.step == 150


def test_the_newer_of_manifest_and_own_folder_wins_and_a_forensic_one_is_found_in_neither(
    started: list[Monitor], env: dict[str, str], tmp_path: Path
) -> None:
    box = DirectoryBox(env[ENV_MAILBOX])
    own = laid_out(tmp_path / "own", layout("hf_trainer"))  # checkpoint-2, -4 and -6
    env |= {"SLURM_RESTART_COUNT": "1", ENV_CHECKPOINT_DIR: str(own)}
    sealed(box, checkpoint(tmp_path, 5), 5)
    assert begin(started, env).resume.uri == str(own / "checkpoint-6")
    files = (ManifestFile(path="trainer_state.json", bytes=1),)
    sealed(box, own / "checkpoint-6", 6, request_id="i-1-f1", kind=SaveKind.EMERGENCY, files=files)
    assert begin(started, env).resume.uri == str(tmp_path / "step-5.bin")
    newer = checkpoint(tmp_path, 7)
    sealed(box, newer, 7)
    assert begin(started, env).resume.uri == str(newer)


def test_a_mailbox_that_cannot_be_read_leaves_the_old_plan_rather_than_none(
    started: list[Monitor], env: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(ObservedBox):
        def get(self, key: str) -> bytes | None:
            raise OSError("the file system is away")

    env |= {ENV_RESUME_STEP: "10", ENV_RESUME_URI: str(checkpoint(tmp_path, 10)), "SLURM_RESTART_COUNT": "3"}
    with caplog.at_level(logging.INFO):
        monitor = begin(started, env, mailbox=Away(tmp_path / "away"))
    assert monitor.resume.step == 10
    assert monitor.identity.attempt == "slurm.hpc.17.r3"


ZOMBIE = """
import json, os, sys, time
from pathlib import Path
import rekindle.monitor as rekindle

here = Path(sys.argv[1])
os.environ["REKINDLE_POLL_S"] = "0.02"
mon = rekindle.start(lambda step, kind: None)
mon.step(1, loss=1.0)
print(mon.identity.attempt, flush=True)
sys.stdin.readline()
end = time.monotonic() + 120
while not mon.superseded and time.monotonic() < end:
    time.sleep(0.02)
path = here / "zombie.bin"
path.write_bytes(b"x")
mon.saved(path, 2)
print(json.dumps({"superseded": mon.superseded, "flushed": mon.flush(120)}), flush=True)
"""


def test_a_zombie_of_an_earlier_start_stops_saving_when_the_fence_names_the_restart(
    started: list[Monitor], env: dict[str, str], tmp_path: Path
) -> None:
    saves: list[int] = []

    def save(step: int, _: str) -> Path:
        saves.append(step)
        return checkpoint(tmp_path / "ckpt", step)

    zombie = subprocess.Popen(
        [sys.executable, "-c", ZOMBIE, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ) | env | {ENV_JOB_ID: "job", "REKINDLE_MAILBOX": str(tmp_path / "mail")},
    )
    assert zombie.stdin is not None
    assert zombie.stdout is not None
    old_attempt = zombie.stdout.readline().strip()
    assert old_attempt == "slurm.hpc.17"
    box = ObservedBox(tmp_path / "mail")
    successor = begin(started, env | {ENV_JOB_ID: "job", "SLURM_RESTART_COUNT": "1"}, mailbox=box, save=save)
    box.fence(successor.identity.attempt, 2, old_attempt)
    zombie.stdin.write("go on\n")
    zombie.stdin.flush()
    assert json.loads(zombie.stdout.readline()) == {"superseded": True, "flushed": True}
    assert box.names(manifest_prefix()) == ()
    assert zombie.wait(PATIENCE_S) == 0
    box.wait_polls()
    assert not successor.superseded
    box.ask("r1", successor.identity.attempt)
    box.wait_polls()
    successor.step(3, loss=1.0)
    assert box.reply("r1").step == 3
    assert len(box.manifests) == 1
