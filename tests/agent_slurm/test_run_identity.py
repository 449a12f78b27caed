"""Which jobs are starts of one run, and which of them Slurm will start by itself: chains, sweeps, and neither."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.orders import RunTie, Standing
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.workers import Workers
from rekindle.slurm_agent.reading.comment import parse
from rekindle.slurm_agent.reading.run_identity import NEVER, RunFacts, same_run, standing

END = datetime(2035, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SCRIPT = "#!/bin/bash\nsrun train --lr $LR\n"


def job(number: int, **more: Any) -> RunFacts:
    told: dict[str, Any] = {
        "user": "ada",
        "name": "lm",
        "folder": "/w",
        "output": "o",
        "script": SCRIPT,
        "arguments": (),
    }
    return RunFacts(job=number, **(told | {"state": SlurmState.PENDING, "is_protected": True} | more))


def failed(number: int = 1, **more: Any) -> RunFacts:
    return job(number, **({"state": SlurmState.FAILED, "started_at": END - 60 * SECOND, "ended_at": END} | more))


def tie(old: RunFacts, other: RunFacts) -> RunTie | None:
    return same_run(old, other, str)


# ---- chains ----------------------------------------------------------------------------------------------------------

# The job's second link, and how it stands once the first has failed; None: it does not begin by itself.
LINKS: dict[str, tuple[RunFacts, Standing | None]] = {
    "afterany": (job(2, dependency="afterany:1"), Standing.WILL_RUN),
    "afternotok": (job(2, dependency="afternotok:1(unfulfilled)"), Standing.WILL_RUN),
    "singleton": (job(2, dependency="singleton"), Standing.WILL_RUN),
    "submitted within it": (job(2, environment={"SLURM_JOB_ID": "1"}), Standing.WILL_RUN),
    "one of two": (job(2, dependency="afterok:1?afterany:1"), Standing.WILL_RUN),
    "it has begun": (
        job(2, state=SlurmState.RUNNING, environment={"SLURM_JOB_DEPENDENCY": "afterany:1"}),
        Standing.HAS_NODES,
    ),
    "it waits for another as well": (job(2, dependency="afterany:1,afterok:3"), None),
    "in vain": (job(2, dependency="afterany:1", reason=NEVER), None),
    "its user holds it": (job(2, dependency="afterany:1", is_held=True), None),
}


@pytest.mark.parametrize("name", LINKS)
def test_a_link_of_a_chain_is_the_run_s_own_and_stands_as_slurm_will_let_it(name: str) -> None:
    link, stands = LINKS[name]
    link = replace(link, script="#!/bin/bash\nanother\n", name="lm")
    first, fails = failed(), failed(3)
    assert tie(first, link) is RunTie.CHAIN
    assert standing(link, {1: first, 2: link, 3: fails}) is stands


def test_a_third_link_begins_when_the_second_will() -> None:
    first, second, third = failed(), job(2, dependency="afterany:1"), job(3, dependency="afterany:2")
    assert standing(third, {1: first, 2: second, 3: third}) is Standing.WILL_RUN
    held = replace(second, is_held=True)
    assert standing(third, {1: first, 2: held, 3: third}) is None
    assert standing(third, {3: third}) is Standing.WILL_RUN, "what slurmctld has forgotten has ended"


def test_links_that_wait_for_each_other_never_begin() -> None:
    one, other = job(1, dependency="afterany:2"), job(2, dependency="afterany:1")
    assert standing(one, {1: one, 2: other}) is None


def test_what_waits_for_success_or_is_another_user_s_is_no_link() -> None:
    others = {"script": "#!/bin/bash\neval\n", "is_protected": False}
    assert tie(failed(), job(2, dependency="afterok:1", **others)) is None
    assert tie(failed(), job(2, dependency="afterany:1", name="cleans", **others)) is None
    assert tie(failed(), job(2, dependency="afterany:1", user="bob")) is None


# ---- the same script -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (job(2, submitted_at=END), True),  # by hand, since it failed
        (job(2, submitted_at=END + 60 * SECOND, state=SlurmState.RUNNING, started_at=END + 61 * SECOND), True),
        (job(2, submitted_at=END - SECOND), False),  # a sweep: it waited beside it for nodes
        (job(2, submitted_at=END - SECOND, state=SlurmState.RUNNING, started_at=END + SECOND), False),
        (job(2, state=SlurmState.RUNNING, started_at=END - SECOND), False),  # requeued since, and ran beside it
        (job(2, submitted_at=END, environment={"LR": "2"}), False),
        (job(2, submitted_at=END, is_task=True), False),
        (job(2, submitted_at=END, name="lm-2"), False),
        (job(2, submitted_at=END, script=f"{SCRIPT}# two"), False),
    ],
)
def test_the_same_script_is_the_same_run_where_it_was_submitted_after_the_end(other: RunFacts, is_same: bool) -> None:
    assert tie(failed(environment={"LR": "1"}), replace(other, environment={"LR": "1"} | dict(other.environment))) is (
        RunTie.SCRIPT if is_same else None
    )


@pytest.mark.parametrize(
    ("one", "two", "is_same"),
    [
        ("/w/1/slurm-%j.out", "/w/1/slurm-%j.out", True),  # the folder of job 1, as its number happens to be
        ("/w/run-1/slurm-1.out", "/w/run-1/slurm-2.out", True),
        ("/w/lm-%8j.out", "/w/lm-00000002.out", True),
        ("/w/lm-%A.out", "/w/lm-%j.out", True),
        ("/w/lm-%N.out", "/w/lm-%N.out", True),
        ("/w/1/slurm-%j.out", "/w/3/slurm-%j.out", False),
    ],
)
def test_an_output_is_compared_but_for_the_job_s_own_number(one: str, two: str, is_same: bool) -> None:
    found = tie(failed(output=one), job(2, submitted_at=END, output=two))
    assert found is (RunTie.SCRIPT if is_same else None)


def test_a_place_is_found_from_its_job_s_folder() -> None:
    says = (parse("rekindle,mailbox=/w/a"),)
    for named in ("a", "./a/", "../w/a", "/w/b/../a"):
        assert tie(failed(says=says), job(2, says=(parse(f"rekindle,mailbox={named}"),))) is RunTie.MAILBOX, named
    assert tie(failed(says=says), job(2, folder="/x", says=(parse("rekindle,mailbox=a"),))) is None


def test_a_sweep_s_job_with_the_run_s_mailbox_is_the_run() -> None:
    says = (parse("rekindle,mailbox=/fsx/a"),)
    early = job(2, submitted_at=END - SECOND, says=says)
    assert tie(failed(says=says), early) is RunTie.MAILBOX


def test_a_folder_that_is_mounted_twice_is_one(tmp_path: Path) -> None:
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    for folder in (one, two, other):
        folder.mkdir()
    if subprocess.run(["mount", "--bind", one, two], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    files = UserFiles(Workers(soft_s=60.0))
    try:
        real, folder = files.resolved_folder("ada", str(one), os.getuid(), os.getgid())
        assert (real, folder) == (str(one), files.resolved_folder("ada", str(two), os.getuid(), os.getgid())[1])
        assert folder != files.resolved_folder("ada", str(other), os.getuid(), os.getgid())[1]
        gone = str(tmp_path / "gone")
        assert files.resolved_folder("ada", gone, os.getuid(), os.getgid()) == (gone, gone)
    finally:
        subprocess.run(["umount", two], check=True)
        files.workers.close()
