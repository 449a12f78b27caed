"""slurmdbd, as a cluster with accounts has it: QOS and limits, preemption, reservations, accounting that is away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chalicelib.domain.model.start_view import Waits
from chalicelib.platforms.slurm.pending_reasons import wait_of
from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, SlurmState
from rekindle.protocol.cluster.orders import Outcome, Verb
from rekindle.protocol.cluster.queue_place import QueueFact
from tests.slurm.day_of_faults import Day
from tests.slurm.head import Head, bucket, lines, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.test_disturbed_slurm import begun, cancelled

pytestmark = pytest.mark.versions
SILENT_S = 8
QOS = (("low", "preemptmode=requeue"), ("cheap", "preemptmode=cancel"), ("high", "preempt=low,cheap"), ("one",))


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(
        nodes=("n1", "n2"),
        timers=Timers(kill_wait_s=1, min_job_age_s=8),
        with_accounting=True,
        extra_conf=["PreemptType=preempt/qos", "PreemptMode=REQUEUE"],
    ) as raised:
        for name, *options in QOS:
            raised.run("sacctmgr", "-i", "add", "qos", name, *options)
        names = ",".join(("normal", *(name for name, *_ in QOS)))
        raised.run("sacctmgr", "-i", "modify", "user", "root", "set", f"qos={names}")
        yield raised


@pytest.fixture
def head(lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with bucket() as s3:
        made = Head(lab, s3, tmp_path_factory.mktemp("head") / "state")
        yield made
        made.no_shim()
    lab.run("scancel", "--user=root", fails=True)
    lab.wait(lambda: not lab.run("squeue", "-h", "-o", "%A").stdout.split(), "the jobs to be over")


def shown(head: Head, attempt: str) -> AttemptDoc:
    head.look()
    found = head.doc(attempt)
    assert found is not None
    return found


def limit(lab: SlurmLab, qos: str, *limits: str) -> None:
    lab.run("sacctmgr", "-i", "modify", "qos", qos, "set", *limits)


def test_a_job_that_waits_for_a_limit_is_not_held_and_what_is_let_go_waits_with_its_reason(head: Head) -> None:
    lab = head.lab
    limit(lab, "one", "maxjobsperuser=1")
    job, runs = begun(head, "exec sleep 600", options=("--qos=one",))
    other = int(lab.run("sbatch", "--parsable", "--qos=one", "--comment=rekindle", "--wrap=exit 0").stdout)
    name = f"slurm.lab.{other}"
    until(lambda: "QOSMaxJobs" in lab.job(other).get("Reason", ""), "the limit")
    doc = shown(head, name)
    assert (doc.state, doc.held, doc.reason) == (SlurmState.PENDING, False, "QOSMaxJobsPerUserLimit")
    held = {"attempt": f"slurm.lab.{job}", "slurm_job": job}
    assert head.carry_out(Verb.HOLD, **held).outcome is Outcome.DONE
    until(lambda: (one := head.doc(f"{name}")) and one.state is SlurmState.COMPLETED, "the other to run", head.look)
    third = int(lab.run("sbatch", "--parsable", "--qos=one", "--wrap=sleep 600").stdout)
    lab.wait(lambda: lab.job_state(third) == "RUNNING", "the third")
    answer = head.carry_out(Verb.REQUEUE, **held, new_attempt=f"slurm.lab.{job}.r1")
    assert answer.outcome is Outcome.DONE, answer
    until(lambda: "QOSMaxJobs" in lab.job(job).get("Reason", ""), "the limit again", head.look)
    doc = shown(head, f"slurm.lab.{job}.r1")
    assert (doc.state, doc.held) == (SlurmState.PENDING, False)
    lab.run("scancel", str(third))
    until(lambda: len(lines(runs)) == 2, "it to run again")
    limit(lab, "one", "maxjobsperuser=-1")


@pytest.mark.parametrize(
    ("most", "none", "reason", "waits"),
    [
        ("maxjobs=1", "maxjobs=-1", "AssocMaxJobsLimit", Waits.IN_QUEUE),
        ("grpjobs=1", "grpjobs=-1", "AssocGrpJobsLimit", Waits.IN_QUEUE),
        ("maxwall=1", "maxwall=-1", "AssocMaxWallDurationPerJobLimit", Waits.NEVER),
    ],
)
def test_a_copy_that_waits_for_its_association_waits_in_the_queue_unless_it_can_never_start(
    head: Head, most: str, none: str, reason: str, waits: Waits
) -> None:
    lab = head.lab
    job, runs = begun(head, "exec sleep 600", options=("--time=30",))
    more = cancelled(head, job)
    other = int(lab.run("sbatch", "--parsable", "--time=1", "--wrap=sleep 600").stdout)
    lab.wait(lambda: lab.job_state(other) == "RUNNING", "the other to run")
    lab.run("sacctmgr", "-i", "modify", "user", "root", "set", most)
    try:
        answer = head.carry_out(Verb.SUBMIT, **more)
        assert answer.outcome is Outcome.DONE, answer
        name = str(more["new_attempt"])
        until(lambda: (doc := head.doc(name)) and doc.reason == reason, f"{reason}", head.look)
        doc = shown(head, name)
        assert (doc.state, doc.held, wait_of(doc.reason).waits) == (SlurmState.PENDING, False, waits)
    finally:
        lab.run("sacctmgr", "-i", "modify", "user", "root", "set", none)
    until(lambda: len(lines(runs)) == 2, "the copy to run", head.look)
    assert lines(runs)[1] == str(answer.slurm_job)


def test_a_preempted_start_was_ended_by_slurm_and_is_over_for_orders(head: Head) -> None:
    lab = head.lab
    job, runs = begun(head, "exec sleep 600", options=("--qos=low", "-N2"))
    name = f"slurm.lab.{job}"
    high = int(lab.run("sbatch", "--parsable", "--qos=high", "-N2", "--exclusive", "--wrap=sleep 3").stdout)
    until(lambda: head.doc(f"{name}.r1") is not None, "its next start to wait", head.look)
    first = head.doc(name)
    assert first is not None
    assert (first.state, first.requeued_by, first.successor) == (SlurmState.REQUEUED, EndedBy.SLURM, f"{name}.r1")
    answer = head.carry_out(Verb.CANCEL, attempt=name, slurm_job=job)
    assert (answer.outcome, "stale" in answer.detail) == (Outcome.REFUSED, True), answer
    lab.wait(lambda: lab.job_state(high) in (None, "COMPLETED"), "the preemptor to end")
    until(lambda: len(lines(runs)) == 2, "it to run again", head.look)
    assert shown(head, f"{name}.r1").state is SlurmState.RUNNING


def test_a_start_whose_preemption_cancels_it(head: Head) -> None:
    lab = head.lab
    job, _ = begun(head, "exec sleep 600", options=("--qos=cheap", "-N2"))
    lab.run("sbatch", "--qos=high", "-N2", "--exclusive", "--wrap=sleep 3")
    name = f"slurm.lab.{job}"
    until(lambda: (doc := head.doc(name)) and doc.state is SlurmState.PREEMPTED, "it to be preempted", head.look)
    doc = shown(head, name)
    assert (doc.ended_by, doc.successor) == (EndedBy.SLURM, None)


def test_a_copy_has_the_same_qos_account_and_reservation_or_is_refused_with_slurms_reason(head: Head) -> None:
    lab = head.lab
    lab.run(
        *("scontrol", "create", "reservation", "reservationname=r1", "users=root", "nodes=n2"),
        *("starttime=now", "duration=120"),
    )
    own = ("--qos=one", "--account=all", "--reservation=r1")
    job, runs = begun(head, "exec sleep 600", options=own)
    more = cancelled(head, job)
    limit(lab, "one", "maxsubmitjobsperuser=0")
    answer = head.carry_out(Verb.SUBMIT, **more)
    assert (answer.outcome, "limit" in answer.detail.lower()) == (Outcome.REFUSED, True), answer
    limit(lab, "one", "maxsubmitjobsperuser=-1")
    answer = head.carry_out(Verb.SUBMIT, **more)
    assert (answer.outcome, answer.slurm_job is not None) == (Outcome.DONE, True), answer
    copy = lab.job(answer.slurm_job or 0)
    assert (copy["QOS"], copy["Account"], copy["Reservation"]) == ("one", "all", "r1")
    until(lambda: len(lines(runs)) == 2, "the copy to run", head.look)
    again = cancelled_copy(head, str(more["new_attempt"]), answer.slurm_job or 0)
    lab.run("scontrol", "delete", "reservationname=r1")
    answer = head.carry_out(Verb.SUBMIT, **again)
    assert (answer.outcome, "reservation" in answer.detail.lower()) == (Outcome.REFUSED, True), answer
    assert not lab.run("squeue", "-h", "-n", runs.name, "-o", "%A").stdout.split()


def cancelled_copy(head: Head, attempt: str, job: int) -> dict[str, Any]:
    """The copy is over; what an order to submit the Job once more needs."""
    until(lambda: (doc := head.doc(attempt)) is not None and doc.spec is not None, "its spec", head.look)
    doc = head.doc(attempt)
    assert doc is not None
    assert head.carry_out(Verb.CANCEL, attempt=attempt, slurm_job=job).outcome is Outcome.DONE
    head.lab.wait(lambda: head.lab.job_state(job) in (None, "CANCELLED"), "the copy to end")
    head.look()
    base = attempt.rpartition("-a")[0]
    return {"attempt": attempt, "slurm_job": job, "new_attempt": f"{base}-a3", "spec": doc.spec}


def test_a_slurmdbd_that_does_not_answer_stops_no_look_and_what_it_knows_is_waited_for(head: Head) -> None:
    """Two jobs end and are forgotten while the agent does not observe; slurmdbd accepts connections and is silent."""
    lab = head.lab
    ends = ("exit 0", "srun bash -c 'exit 7'; exit 0")
    jobs = [begun(head, f"until [ -e $SLURM_SUBMIT_DIR/go ]; do sleep 0.2; done; {end}")[0] for end in ends]
    names = [f"slurm.lab.{job}" for job in jobs]
    Path(lab.folder / "work/go").touch()
    lab.wait(lambda: not any(map(lab.job, jobs)), "slurmctld to forget them")
    lab.wait(lambda: time.time() - os.stat(lab.folder / "run/slurmctld.pid").st_mtime > 62, "slurmctld to be settled")
    pid = int((lab.folder / "run/slurmdbd.pid").read_text())
    # The agent itself waits longer for a command (test_hanging_commands_slurm), and rests for a multiple of that.
    head.shim("sacct", f'echo "$$" >>{head.state}-asked; exec timeout -s KILL {SILENT_S} "$real" "$@"')
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            head.look()
            assert [shown_.is_known for name in names if (shown_ := head.doc(name))] == [True, True]
        asked = len(Path(f"{head.state}-asked").read_text().splitlines())
        assert asked == 1
        assert "sacct does not answer" in head.problems()
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: all((doc := head.doc(name)) and not doc.is_known for name in names), "their ends", head.look)
    for name in names:
        doc = head.doc(name)
        assert doc is not None
        assert (doc.state, "sacct says COMPLETED" in doc.detail) == (SlurmState.COMPLETED, True), doc
    assert [(doc := head.doc(name)) and doc.step_exit_code for name in names] == [0, 7]


def test_sacct_tells_what_was_done_for_which_incident_and_whose_a_cancel_was(head: Head) -> None:
    """docs/slurm-costs.md has a longer day."""
    day = Day(head)
    for fault in (Day.node_fault, Day.copy, Day.others):
        fault(day)
    rows = [(row["State"].split()[0], row["AdminComment"].partition("did=")[2]) for row in day.rows()]
    assert rows == [
        ("REQUEUED", "hold,incident=inc-a"),
        ("CANCELLED", "cancel,incident=inc-a2"),
        ("CANCELLED", "cancel,incident=inc-c"),
        ("CANCELLED", "submit,incident=inc-c"),
        ("CANCELLED", ""),
    ]


def test_a_copy_has_the_priority_and_the_nice_value_of_its_original_as_far_as_slurm_lets_it(head: Head) -> None:
    lab = head.lab
    submit = ("sbatch", "--parsable", "--hold", "--comment=rekindle", "--nice=30", "--wrap=exec sleep 600")
    original = int(lab.run(*submit).stdout)
    name = f"slurm.lab.{original}"
    until(lambda: (doc := head.doc(name)) is not None and doc.spec is not None, "its spec", head.look)
    lab.run("scontrol", "update", f"jobid={original}", "nice=40", "qos=high")
    lab.run("scontrol", "release", str(original))
    until(lambda: lab.job_state(original) == "RUNNING", "it to run", head.look)
    nice = lab.job(original)["Nice"]
    assert nice == "40" or lab.install.version() < (23, 2)  # 22.05 sets it to 0 as it releases a job
    more = cancelled(head, original)
    answer = head.carry_out(Verb.SUBMIT, **more)
    assert (answer.outcome, answer.slurm_job is not None) == (Outcome.DONE, True), answer
    shown_ = lab.job(answer.slurm_job or 0)
    lost = {loss.fact for loss in answer.queue_losses}
    assert (shown_["Nice"], shown_["QOS"], QueueFact.WAITING_SINCE in lost) == (nice, "high", True)
    assert not lost & {QueueFact.NICE, QueueFact.QOS}
