"""A slurmctld that takes longer than its commands wait: what it carries out late must start nothing twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from rekindle.protocol.cluster.orders import Outcome, Verb
from tests.slurm.head import Head, alive, bucket, lines, runs_as_one_copy, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.test_disturbed_slurm import begun, cancelled

STANDS_S = 35.0
# sbatch gives up, and what it has asked for is carried out only once {go} is there: slurmctld queues requests by kind.
LATE = """mv {shims}/sbatch {shims}/.done
for one in "$@"; do case $one in */rekindle-sbatch-*/batch) script=$one; cp "$one" {kept};; esac; done
setsid bash -c 'until [ -e {go} ]; do sleep 0.05; done; mkdir -p "$(dirname "$0")"; cp {kept} "$0"; "$@" >{late}.new
mv {late}.new {late}' "$script" "$real" "$@" </dev/null >/dev/null 2>&1 &
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"""


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=("n1", "n2", "n3"), timers=Timers(kill_wait_s=1)) as raised:
        yield raised


@pytest.fixture
def head(lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with bucket() as s3:
        made = Head(lab, s3, tmp_path_factory.mktemp("head") / "state")
        yield made
        made.no_shim()
    lab.run("scancel", "--user=root", fails=True)


@pytest.mark.parametrize("is_between", [False, True], ids=["after the second", "before the second"])
def test_a_submission_that_is_carried_out_late_leaves_one_job(head: Head, is_between: bool) -> None:
    """sbatch has given up, the agent has found no copy and has submitted another; then there are two."""
    lab = head.lab
    job, runs = begun(head, "exec sleep 600")
    more = cancelled(head, job)
    names = {name: head.state.with_name(name) for name in ("go", "late", "kept")}
    head.shim("sbatch", LATE.format(shims=head.shims, **names))
    order = head.order(Verb.SUBMIT, **more)
    head.agent.executor.work()
    assert head.answer(order) is None
    go, late = names["go"], names["late"]
    if is_between:  # the second has looked for a copy, and begins to submit
        head.shim("sbatch", f'touch {go}; until [ -e {late} ]; do sleep 0.05; done; exec "$real" "$@"')
    answer = head.answered(order)
    assert answer.outcome is Outcome.DONE, answer
    go.touch()
    until(late.exists, "the late one")
    surplus = int(late.read_text())
    assert surplus != answer.slurm_job
    until(lambda: len(lines(runs)) == 2, "the copy to run", head.look)

    def run_once() -> None:
        head.look()
        head.agent.executor.work()

    until(lambda: not alive(lab, surplus), "the surplus one to be taken back", run_once)
    run_once()
    assert lines(runs) == [str(job), str(answer.slurm_job)]
    assert head.doc(f"slurm.lab.{surplus}") is None, "it is no Job of its own"
    copy = head.doc(f"slurm.lab.{job}-a2")
    assert copy is not None
    assert copy.slurm_job == answer.slurm_job


def test_a_slurmctld_that_stands_still_for_longer_than_a_command_waits(head: Head) -> None:
    """It is stopped under the order's sbatch, and then goes on with all that was asked of it meanwhile."""
    lab = head.lab
    job, runs = begun(head, "exec sleep 600")
    more = cancelled(head, job)
    pid = int((lab.folder / "run/slurmctld.pid").read_text())
    stopped = head.state.with_name("stopped")
    stops = f'mv {head.shims}/sbatch {head.shims}/.done; kill -STOP {pid}; touch {stopped}; exec "$real" "$@"'
    head.shim("sbatch", stops)
    order = head.order(Verb.SUBMIT, **more)

    def go_on() -> None:
        until(stopped.exists, "slurmctld to be stopped")
        time.sleep(STANDS_S)
        os.kill(pid, signal.SIGCONT)

    goes_on = threading.Thread(target=go_on)
    goes_on.start()
    answer = head.answered(order)
    goes_on.join()
    assert answer.outcome is Outcome.DONE, answer
    runs_as_one_copy(head, runs, answer, works=True)
    assert not head.problems()
