"""On a real Slurm: what was submitted stays on the cluster's file system, and a copy of it can be made all the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekindle.protocol.cluster.orders import Outcome, Verb
from rekindle.slurm_agent.copies import capture
from tests.slurm.head import BUCKET, Head, bucket, script, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.test_disturbed_slurm import cancelled

pytestmark = pytest.mark.versions
ENVIRON = {"DATABASE_URL": "postgres://ml:hunter2@db", "MY_PASS": "hunter2", "NCCL_DEBUG": "INFO"}


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    timers = Timers(kill_wait_s=1, min_job_age_s=8)
    with SlurmLab(nodes=("n1", "n2"), cpus=16, timers=timers) as lab, bucket() as s3:
        yield Head(lab, s3, tmp_path / "state")


def everything_in(head: Head) -> str:
    pages = head.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    return "\n".join(head.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode() for key in keys)


def test_no_secret_reaches_the_bucket_and_a_forgotten_job_is_submitted_again_as_it_was(head: Head) -> None:
    lab = head.lab
    out = lab.folder / "work/out"
    text = f'T=ghp_hunter2; echo "$MY_PASS $DATABASE_URL $T $1" >>{out}; [ -e {out}.go ] || sleep 600'
    path = script(lab, "train.sh", text)
    words = ("sbatch", "--parsable", "-N1", "--comment=rekindle", str(path), "--key=hunter2")
    job = int(lab.run(*words, environ=ENVIRON).stdout)
    until(lambda: (doc := head.doc(f"slurm.lab.{job}")) is not None and doc.spec is not None, "its spec", head.look)
    until(out.exists, "it to run")
    told = everything_in(head)
    assert not [word for word in ("hunter2", "NCCL_DEBUG", "MY_PASS", str(path)) if word in told]
    kept = [*(lab.folder / "state/rekindle").glob("*.json")]
    assert [(entry.stat().st_mode & 0o777, entry.stat().st_uid) for entry in kept] == [(0o600, os.geteuid())]
    more = cancelled(head, job)
    Path(f"{out}.go").touch()
    lab.wait(lambda: lab.job_state(job) is None, "slurmctld to forget it")
    answer = head.carry_out(Verb.SUBMIT, **more)
    assert answer.outcome is Outcome.DONE, answer
    until(lambda: len(out.read_text().splitlines()) == 2, "the copy to run", head.look)
    one, two = out.read_text().splitlines()
    assert one == two == "hunter2 postgres://ml:hunter2@db ghp_hunter2 --key=hunter2"
    assert "hunter2" not in everything_in(head)


def test_of_jobs_that_are_not_protected_no_environment_is_kept(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = head.lab
    taken: list[dict[str, str]] = []
    parse = capture.parse_environment

    def parsed(*args: object) -> dict[str, str]:
        found = parse(*args)  # type: ignore[arg-type]
        taken.append(found)
        return found

    monkeypatch.setattr(capture, "parse_environment", parsed)
    for number in range(3):
        lab.submit(script(lab, f"other-{number}.sh", "sleep 600"), "-n1", environ=ENVIRON)
    head.look()
    head.look()
    assert (len(taken) >= 3, [found for found in taken if found]) == (True, [])
