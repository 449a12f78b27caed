"""The head node's clock is set by hours while slurmctld and the agent run: by an administrator, or because the machine
was suspended. Deadlines are durations and AWS's time; what is Slurm's is compared by Slurm's own times.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rekindle.protocol.cluster.orders import Outcome, Verb
from rekindle.slurm_agent.base.clock import AwsClock, SystemClock
from tests.slurm.head import Head, bucket, lines, runs_as_one_copy, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.install import COMMANDS
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.test_disturbed_slurm import begun, cancelled

pytestmark = pytest.mark.versions
HOURS = (timedelta(hours=3), timedelta(hours=-3))
LOST = "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1"


class HostClock(SystemClock):
    """Of the machine that the agent runs on. `off`: how it was set."""

    off = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.off


class Heads(Head):
    """The agent with the clock that it has as installed, on a host whose clock slurmctld and the commands share."""

    def __init__(self, lab: SlurmLab, s3: Any, state: Path) -> None:
        self.host = HostClock()
        self.ahead = timedelta(0)  # of AWS's time to this machine's, as if the machine had stood still so long
        super().__init__(lab, s3, state, clock=AwsClock(self.host))
        assert lab.clock is not None
        for command in COMMANDS:
            self.shim(command, "")

    def shim(self, command: str, body: str) -> None:
        assert self.lab.clock is not None
        super().shim(command, f'real="{self.lab.clock.before()} $real"\n' + (body or 'exec $real "$@"'))

    def set(self, off: timedelta) -> None:
        assert self.lab.clock is not None
        self.host.off = off
        self.lab.clock.set(off)

    def restart_slurmctld(self) -> None:
        """Its scheduler stands still after its clock was set back, until that has caught up or it is started again.

        25.11.2 does not end at SIGTERM then, either, and is killed. What it had answered in the seconds before is lost.
        """
        self.lab.stop_slurmctld(patience_s=5)
        self.lab.start_slurmctld()

    def aws_answers(self) -> None:
        """Any call of the agent's, such as the next poll of its queue."""
        date = format_datetime(datetime.now(UTC) + self.ahead, usegmt=True)
        self.clock._answered(SimpleNamespace(headers={"Date": date}))


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=("n1", "n2", "n3"), timers=Timers(kill_wait_s=1), with_clock=True) as raised:
        yield raised


@pytest.fixture
def head(lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heads]:
    with bucket() as s3:
        made = Heads(lab, s3, tmp_path_factory.mktemp("head") / "state")
        made.aws_answers()
        yield made
        made.set(timedelta(0))
        made.restart_slurmctld()
    lab.run("scancel", "--user=root", fails=True)
    lab.wait(lambda: not lab.run("squeue", "-h", "-o", "%A").stdout.split(), "the jobs to be over")
    lab.wait(lambda: set(lab.node_states().values()) == {"idle"}, "the nodes")


@pytest.mark.parametrize("off", HOURS, ids=str)
def test_a_submission_whose_answer_is_lost_as_the_clock_is_set(head: Heads, off: timedelta) -> None:
    job, runs = begun(head, "exec sleep 600")
    more = cancelled(head, job)
    head.shim("sbatch", f'mv {head.shims}/sbatch {head.shims}/.done; $real "$@"; {LOST}')
    order = head.order(Verb.SUBMIT, **more)
    head.agent.executor.work()
    assert head.answer(order) is None
    head.shim("sbatch", "")
    head.set(off)
    for _ in range(3):  # before AWS has answered nothing is called late, and nothing is begun
        head.agent.executor.work()
    assert head.answer(order) is None
    head.look()
    assert abs(head.clock.now() - datetime.now(UTC)) < timedelta(seconds=10)
    head.aws_answers()
    answer = head.answered(order)
    assert answer.outcome is Outcome.DONE, answer
    assert abs(answer.at - datetime.now(UTC)) < timedelta(seconds=30)
    assert [line[:26] for line in head.problems().splitlines()] == ["clock: this host's clock is"[:26]]
    if off < timedelta(0):
        head.restart_slurmctld()
    runs_as_one_copy(head, runs, answer)


@pytest.mark.parametrize("off", HOURS, ids=str)
def test_a_stop_and_a_start_while_the_clock_is_set_at_each_command(head: Heads, off: timedelta) -> None:
    job, runs = begun(head, "exec sleep 600")
    about = {"attempt": f"slurm.lab.{job}", "slurm_job": job}
    # Before 26.05 a node refuses the next start of a job while slurmctld's clock is behind that node's.
    ran_on = tuple(head.lab.nodes_of(job))
    head.set(off)
    head.aws_answers()
    assert head.carry_out(Verb.HOLD, **about).outcome is Outcome.DONE
    head.set(-off)
    order = head.order(Verb.REQUEUE, **about, new_attempt=f"slurm.lab.{job}.r1", exclude=ran_on)
    for _ in range(3):
        head.agent.executor.work()
    assert head.answer(order) is None
    head.aws_answers()
    answer = head.answered(order)
    assert answer.outcome is Outcome.DONE, answer
    head.restart_slurmctld()
    until(lambda: len(lines(runs)) == 2, "it to run again", head.run_once)
    doc = head.doc(f"slurm.lab.{job}.r1")
    assert doc is not None
    assert head.lab.job(job)["Restarts"] == "1"


def test_a_clock_that_is_hours_slow_leaves_a_new_jobs_arguments_time_to_be_written(head: Heads) -> None:
    """AWS's time is hours after the job's submission by its host's clock; that is no sign of age."""
    lab = head.lab
    head.set(timedelta(hours=-3))
    head.restart_slurmctld()  # it saves nothing after its clock was set back, either
    head.aws_answers()
    script = lab.folder / "work/with-arguments.sh"
    script.write_text("#!/bin/bash\nexec sleep 600\n")
    told = lab.run("sbatch", "--parsable", "--comment=rekindle", str(script), "--config", "a b").stdout
    name = f"slurm.lab.{int(told)}"
    until(lambda: (doc := head.doc(name)) is not None and doc.spec is not None, "its spec", head.look)
    doc = head.doc(name)
    assert doc is not None
    assert doc.cannot_resubmit == ()


@pytest.mark.parametrize("is_right", [True, False], ids=["its clock is right at once", "its clock stood still, too"])
def test_a_machine_that_stood_still_for_an_hour_begins_nothing_that_has_expired(head: Heads, is_right: bool) -> None:
    lab = head.lab
    job, runs = begun(head, "exec sleep 600")
    order = head.order(Verb.CANCEL, attempt=f"slurm.lab.{job}", slurm_job=job)
    hour = timedelta(hours=1)
    head.ahead = hour
    # Durations went on by nothing, the wall clock by an hour; or neither did, and only AWS knows.
    if is_right:
        head.host.off = hour
        head.agent.executor.work()
        assert head.answer(order) is None
    head.aws_answers()
    answer = head.answered(order)
    assert (answer.outcome, "expired" in answer.detail) == (Outcome.REFUSED, True), answer
    assert lab.job_state(job) == "RUNNING"
    assert len(lines(runs)) == 1
