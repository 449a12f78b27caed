"""A mailbox on a file system that never answers, on a real Slurm: it costs its own job, and no other."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import pytest

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.orders import Outcome, Verb
from rekindle.slurm_agent.watching.relay import MailboxRelay
from tests.agent_slurm.conftest import Kept
from tests.agent_slurm.test_hangs import heartbeat_in, s3  # noqa: F401
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.never_answers import CannotMount, never_answers
from tests.slurm.test_numbers_slurm import HeadNode

LOOK_S = 120.0  # commands, and some seconds for each path that hangs; before, it never ended


def test_a_hanging_mailbox_holds_up_neither_looks_nor_orders_nor_the_other_mailbox(s3: object) -> None:  # noqa: F811
    with SlurmLab(nodes=("n1", "n2")) as lab:
        script = lab.folder / "work" / "job.sh"
        script.write_text("#!/bin/sh\nsrun sleep 600\n")
        hung, box = lab.folder / "hung", heartbeat_in(lab.folder / "box")
        try:
            with never_answers(hung):
                bad = lab.submit(script, "-N1", "--exclusive", f"--comment=rekindle,mailbox=file://{hung}/box")
                good = lab.submit(script, "-N1", "--exclusive", f"--comment=rekindle,mailbox=file://{box}")
                lab.wait(lambda: {lab.job_state(bad), lab.job_state(good)} == {"RUNNING"}, "both to run")
                head = HeadNode(lab, {})
                lab.wait(lambda: head.commands.steps(bad) and head.commands.steps(good), "their steps")
                relay = MailboxRelay(
                    cluster="lab", bucket="stack", s3=s3, memory=Kept(), followed_jobs=head.watch_roster
                )
                for _ in range(3):
                    began = time.monotonic()
                    reading = head.look()
                    assert time.monotonic() - began < LOOK_S
                    assert any(f"job {bad}" in line and f"{hung}/box" in line for line in reading.problems)
                    began = time.monotonic()
                    carried = relay.run_once(datetime.now(UTC))
                    assert time.monotonic() - began < LOOK_S
                    assert any(f"slurm.lab.{bad}" in line and f"{hung}/box" in line for line in carried.problems)
                assert head.doc(f"slurm.lab.{bad}").state is SlurmState.RUNNING
                began = time.monotonic()
                for number in (good, bad):
                    assert head.hands.cancel(head.order_try(Verb.CANCEL, number)).outcome is Outcome.DONE
                assert time.monotonic() - began < LOOK_S
                lab.wait(lambda: {lab.job_state(bad), lab.job_state(good)} == {"CANCELLED"}, "both to be cancelled")
        except CannotMount as err:
            pytest.skip(f"no file system of our own can be mounted here: {err}")
        assert os.listdir(hung) == [], "it is gone again"
