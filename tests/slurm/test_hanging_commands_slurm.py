"""A command of Slurm's that never ends: it costs its own time limit, and the look, the orders and the relay continue.

slurmctld is stopped while commands wait for its answer longer than the agent waits for them; and commands stand in the
way that have acted and then never end, with a child that ignores SIGTERM and keeps their output open.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.cluster.orders import Outcome, Verb
from rekindle.slurm_agent.reading.run import KILLED_S, PATIENCE_S
from tests.slurm.head import Head, bucket, lines, runs_as_one_copy, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.test_disturbed_slurm import begun, cancelled

SLACK_S = 60.0  # of a busy machine
# It is carried out, then neither the command nor its child ends, whatever they are sent but SIGKILL.
NEVER = """echo "$*" >>{calls}; mv "$0" "$0.done"; "$real" "$@"; trap '' TERM INT HUP
setsid bash -c 'trap "" TERM INT HUP; echo $$ >>{left}; exec sleep 100000' &
exec sleep 100000"""


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=("n1", "n2", "n3"), timers=Timers(kill_wait_s=1, message_timeout_s=100)) as raised:
        yield raised


@pytest.fixture
def head(lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with bucket() as s3:
        made = Head(lab, s3, tmp_path_factory.mktemp("head") / "state")
        yield made
        made.no_shim()
        left = made.state.with_name("left")
        for pid in left.read_text().split() if left.exists() else ():
            os.kill(int(pid), signal.SIGKILL)
    lab.run("scancel", "--user=root", fails=True)


def never_ends(head: Head, command: str) -> Path:
    """The next call of it. Returns the file of its calls."""
    calls, left = head.state.with_name("calls"), head.state.with_name("left")
    head.shim(command, NEVER.format(calls=calls, left=left))
    return calls


def took(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def beside(work: Callable[[], Any]) -> threading.Thread:
    made = threading.Thread(target=work)
    made.start()
    return made


@pytest.mark.versions
@pytest.mark.outermost
def test_an_order_whose_command_never_ends_is_carried_out_once_and_holds_up_no_look(head: Head) -> None:
    job, runs = begun(head, "exec sleep 600")
    about = {"attempt": f"slurm.lab.{job}", "slurm_job": job}
    calls = never_ends(head, "scontrol")
    order = head.order(Verb.HOLD, **about)
    waits: list[float] = []
    hung = beside(lambda: waits.append(took(head.agent.executor.work)))
    until(calls.exists, "the command")
    head.look()
    assert head.agent.relaying is not None
    head.agent.relaying.run_once(head.clock.now())
    assert hung.is_alive()
    hung.join()
    assert PATIENCE_S - 1 < waits[0] < PATIENCE_S + KILLED_S + SLACK_S
    assert head.answer(order) is None
    answer = head.answered(order)
    assert answer.outcome is Outcome.DONE, answer
    head.lab.wait(lambda: head.lab.job_state(job) == "PENDING", "it to wait")
    assert (head.lab.job(job)["Restarts"], len(lines(runs))) == ("1", 1)
    assert len(lines(calls)) == 1


def test_a_look_that_never_ends_holds_up_no_order_and_the_next_one_is_whole(head: Head) -> None:
    job, _ = begun(head, "exec sleep 600")
    calls = never_ends(head, "squeue")
    waits: list[float] = []
    hung = beside(lambda: waits.append(took(head.look)))
    until(calls.exists, "the look")
    answer = head.carry_out(Verb.CANCEL, attempt=f"slurm.lab.{job}", slurm_job=job)
    assert (answer.outcome, hung.is_alive()) == (Outcome.DONE, True), answer
    hung.join()
    assert PATIENCE_S - 1 < waits[0] < PATIENCE_S + KILLED_S + SLACK_S
    assert f"squeue did not end within {PATIENCE_S:g} s" in head.problems()
    head.look()
    assert not head.problems()


@pytest.mark.versions
@pytest.mark.outermost
def test_a_slurmctld_that_is_silent_for_longer_than_the_agent_waits(head: Head) -> None:
    """Under the order's sbatch, which is killed at its limit; slurmctld finds its request when it wakes."""
    lab = head.lab
    job, runs = begun(head, "exec sleep 600")
    more = cancelled(head, job)
    pid = int((lab.folder / "run/slurmctld.pid").read_text())
    stopped = head.state.with_name("stopped")
    head.shim("sbatch", f'mv "$0" "$0.done"; kill -STOP {pid}; touch {stopped}; exec "$real" "$@"')
    order = head.order(Verb.SUBMIT, **more)
    waits: list[float] = []
    hung = beside(lambda: waits.append(took(head.agent.executor.work)))
    until(stopped.exists, "slurmctld to be stopped")
    look_s = took(head.look)
    assert f"did not end within {PATIENCE_S:g} s" in head.problems()
    assert look_s < PATIENCE_S + KILLED_S + SLACK_S
    hung.join()
    assert waits[0] > PATIENCE_S - 1
    assert head.answer(order) is None
    os.kill(pid, signal.SIGCONT)
    answer = head.answered(order)
    assert answer.outcome is Outcome.DONE, answer
    runs_as_one_copy(head, runs, answer, works=True)
    assert not head.problems()
