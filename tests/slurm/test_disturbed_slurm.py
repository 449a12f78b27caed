"""What other tools, clocks, users and a slow or failing slurmctld do while the agent works: one attempt lives, and what
was protected stays so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.cluster.orders import Outcome, Verb
from tests.slurm.head import Head, alive, bucket, lines, runs_as_one_copy, saved, script, spec_of, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab

THEIRS = '{"APS": {"auto_resume_mode": "requeue"}}'  # what HyperPod's own agent writes
OURS = "rekindle:gentle,mailbox=s3://b/lm,signal=B:USR1,min_nodes=1"


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
    lab.run("scancel", "--full", "--signal=KILL", "--user=root", fails=True)
    lab.run("scancel", "--user=root", fails=True)


def begun(head: Head, then: str, comment: str = "rekindle", options: Sequence[str] = ()) -> tuple[int, Path]:
    """As `started`, of a script whose arguments need not be waited for: it has none."""
    lab = head.lab
    runs = lab.folder / "work" / f"runs-{time.monotonic_ns()}"
    told = lab.run(
        *("sbatch", "--parsable", "-N1", "--exclusive", f"--job-name={runs.name}", f"--comment={comment}"),
        *options,
        f'--wrap=echo "$SLURM_JOB_ID" >>{runs}; {then}',
    )
    job = int(told.stdout)
    until(lambda: (doc := head.doc(f"slurm.lab.{job}")) is not None and doc.spec is not None, "its spec", head.look)
    until(runs.exists, "it to run")
    return job, runs


def overwrite(lab: SlurmLab, job: int, comment: str = THEIRS) -> None:
    lab.run("scontrol", "update", f"jobid={job}", f"comment={comment}")


def policies(head: Head, *attempts: str) -> list[tuple[str, str]]:
    found = [head.doc(attempt) for attempt in attempts]
    return [(doc.policy, doc.mailbox) for doc in found if doc is not None]


def cancelled(head: Head, job: int) -> dict[str, Any]:
    """The first start is over; what an order to submit it again needs."""
    lab, name = head.lab, f"slurm.lab.{job}"
    assert head.carry_out(Verb.CANCEL, attempt=name, slurm_job=job).outcome is Outcome.DONE
    lab.wait(lambda: lab.job_state(job) == "CANCELLED", "the first to end")
    head.look()
    return {"attempt": name, "slurm_job": job, "new_attempt": f"{name}-a2", "spec": spec_of(head, job)}


@pytest.mark.versions
@pytest.mark.outermost
def test_a_comment_that_another_tool_overwrites_loses_neither_the_hold_nor_the_protection(head: Head) -> None:
    lab = head.lab
    job, runs = begun(head, "exec sleep 600", OURS)
    name, next_ = f"slurm.lab.{job}", f"slurm.lab.{job}.r1"
    assert head.carry_out(Verb.HOLD, attempt=name, slurm_job=job).outcome is Outcome.DONE
    until(lambda: (doc := head.doc(next_)) is not None and doc.held, "the hold", head.look)
    overwrite(lab, job)
    head.look()
    head.start()  # another process on the same directory
    head.look()
    assert policies(head, next_) == [("gentle", "s3://b/lm")]
    assert [doc.attempt for doc in head.agent.parts.slurm.waiting()] == [next_], "it can be given back"
    kept = head.agent.parts.kept.get(spec_of(head, job, next_))
    assert kept is not None
    assert (kept.options["comment"] or "").startswith("rekindle:gentle,"), "a copy asks for the same"
    answer = head.carry_out(Verb.REQUEUE, attempt=name, slurm_job=job, new_attempt=next_)
    assert answer.outcome is Outcome.DONE, answer
    until(lambda: len(lines(runs)) == 2, "it to run again", head.look)

    overwrite(lab, job, "norekindle")  # while it runs: its start is over for the service, and it goes on
    head.look()
    assert (closed := head.doc(next_)) is not None
    assert (closed.state, closed.ended_by) == (SlurmState.CANCELLED, EndedBy.USER)
    assert alive(lab, job)


def test_a_job_that_leaves_while_we_hold_it_is_let_go_once(head: Head) -> None:
    lab = head.lab
    job, runs = begun(head, "exec sleep 600")
    assert head.carry_out(Verb.HOLD, attempt=f"slurm.lab.{job}", slurm_job=job).outcome is Outcome.DONE
    until(lambda: (doc := head.doc(f"slurm.lab.{job}.r1")) is not None and doc.held, "the hold", head.look)
    overwrite(lab, job, "norekindle")
    head.look()
    head.start()
    head.look()
    head.agent.executor.work()
    lab.wait(lambda: lab.job(job)["Priority"] != "0", "it to be let go")
    head.look()
    lab.run("scontrol", "hold", str(job), fails=True)
    held = lab.job(job)["Priority"]
    head.look()
    head.agent.executor.work()
    assert lab.job(job)["Priority"] == held, "its owner's own hold stays"
    assert len(lines(runs)) <= 2


@pytest.mark.versions
@pytest.mark.outermost
def test_a_copy_whose_comment_is_overwritten_before_its_answer_came_is_found_again(head: Head) -> None:
    """sbatch's answer is lost as well: without its comment it must be neither submitted twice nor left held."""
    lab = head.lab
    job, runs = begun(head, "exec sleep 600", OURS)
    more = cancelled(head, job)
    head.shim(
        "sbatch",
        f"""mv {head.shims}/sbatch {head.shims}/.done
number=$("$real" "$@") && scontrol update jobid=$number comment='{THEIRS}'
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1""",
    )
    order = head.order(Verb.SUBMIT, **more)
    head.agent.executor.work()
    head.look()
    assert head.answer(order) is None
    answer = head.answered(order)
    assert (answer.outcome, alive(lab, answer.slurm_job or 0)) == (Outcome.DONE, True), answer
    runs_as_one_copy(head, runs, answer)
    until(lambda: head.doc(f"slurm.lab.{job}-a2"), "its document", head.look)
    assert policies(head, f"slurm.lab.{job}-a2") == [("gentle", "s3://b/lm")]
    assert head.doc(f"slurm.lab.{answer.slurm_job}") is None, "it is no Job of its own"


def test_a_copy_that_a_slurmctld_lost_is_submitted_again_and_who_has_its_number_is_left_alone(head: Head) -> None:
    """It fails over between the submission and the comparison, with the state of some seconds before."""
    lab = head.lab
    job, runs = begun(head, "exec sleep 600")
    more = cancelled(head, job)
    saved(lab)
    asked, go = head.state.with_name("asked"), head.state.with_name("go")
    head.shim("sbatch", f'"$real" "$@" && mv {head.shims}/sbatch {head.shims}/.done')
    head.shim(
        "squeue",
        f"""case "$*" in *"--jobs "*) if [ -e {head.shims}/.done ] && [ ! -e {go} ]; then touch {asked}
while [ ! -e {go} ]; do sleep 0.05; done; fi;; esac; exec "$real" "$@\"""",
    )
    order = head.order(Verb.SUBMIT, **more)
    turn = threading.Thread(target=head.agent.executor.work)
    turn.start()
    until(asked.exists, "the comparison")
    lab.stop_slurmctld(kills=True)
    lab.start_slurmctld()
    stranger = lab.submit(script(lab, "bob.sh", "exit 0"), "--hold", "--comment=bob's")
    go.touch()
    turn.join()
    answer = head.answered(order)
    assert answer.outcome is Outcome.DONE, answer
    assert answer.slurm_job not in (None, stranger)
    until(lambda: len(lines(runs)) == 2, "the copy to run")
    assert (lab.job_state(stranger), lab.job(stranger)["Priority"]) == ("PENDING", "0")


def test_the_head_nodes_clock_is_set_forward_and_back_in_the_middle_of_orders(head: Head) -> None:
    job, runs = begun(head, "exec sleep 600")
    more = cancelled(head, job)
    head.shim(
        "sbatch",
        f"""mv {head.shims}/sbatch {head.shims}/.done; "$real" "$@"
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1""",
    )
    order = head.order(Verb.SUBMIT, **more)
    head.agent.executor.work()
    assert head.answer(order) is None
    head.clock.off = timedelta(minutes=10)
    head.look()
    answer = head.answered(order)
    assert answer.outcome is Outcome.DONE, answer
    until(lambda: len(lines(runs)) == 2, "the copy to run", head.look)
    name = f"slurm.lab.{job}-a2"
    hold = head.order(Verb.HOLD, attempt=name, slurm_job=answer.slurm_job)
    head.shim(
        "scontrol", f"mv {head.shims}/scontrol {head.shims}/.done; sleep 0.2; echo 'Socket timed out' >&2; exit 1"
    )
    head.agent.executor.work()
    head.clock.off = -timedelta(minutes=10)
    assert head.answered(hold).outcome is Outcome.DONE
    until(lambda: (doc := head.doc(f"{name}.r1")) is not None and doc.held, "the hold", head.look)
    assert not head.problems()


SLOW = """n=$(($(cat {count} 2>/dev/null || echo 0) + 1)); echo $n >{count}; sleep 0.3
if [ $(($(printf %s $n | cksum | cut -d' ' -f1) % 7)) -eq 0 ]; then sleep 0.5
[ $((n % 2)) -eq 0 ] || "$real" "$@" >/dev/null 2>&1
echo 'error: Socket timed out on send/recv operation' >&2; exit 1; fi
exec "$real" "$@"
"""


def test_a_slow_slurmctld_that_times_out_now_and_then_costs_time_only(head: Head) -> None:
    """One command in seven seems to fail, at no fixed distance: it has not reached slurmctld, or its answer is lost."""
    lab = head.lab
    job, runs = begun(head, '[ -n "$SLURM_RESTART_COUNT" ] || exit 3; exec sleep 600')
    lab.wait(lambda: lab.job_state(job) == "FAILED", "it to fail")
    head.look()
    for command in ("squeue", "scontrol", "scancel", "sbatch"):
        head.shim(command, SLOW.format(count=head.state.with_name("count")))
    more = {"attempt": f"slurm.lab.{job}", "slurm_job": job, "new_attempt": f"slurm.lab.{job}.r1"}
    answer = head.carry_out(Verb.REQUEUE, **more)
    assert answer.outcome is Outcome.DONE, answer
    until(lambda: len(lines(runs)) == 2, "it to run again", head.look)
    name = f"slurm.lab.{job}.r1"
    until(lambda: (doc := head.doc(name)) and doc.state is SlurmState.RUNNING, "it to be shown", head.look)
    assert (first := head.doc(f"slurm.lab.{job}")) is not None
    assert (first.successor, first.is_known) == (name, True)
    assert lab.job(job)["Restarts"] == "1"


# What an administrator does at the worst moment of an order: around the first command whose arguments begin so.
# `{job}` is the run's job, `{copy}` the newest one of its name.
ADMINISTRATOR = """case "$1" in {word}*) if mkdir {armed} 2>/dev/null; then
  job={job} copy=$(squeue -h -n {name} -o %A | sort -n | tail -1)
  {before}
  "$real" "$@"; code=$?
  {after}
  exit $code
fi;; esac
exec "$real" "$@"
"""
RECONFIGURE = "scontrol reconfigure"
MEANWHILE = [
    (Verb.SUBMIT, "sbatch", "", "", RECONFIGURE, {Outcome.DONE}),
    (Verb.SUBMIT, "scontrol", "release", RECONFIGURE, "", {Outcome.DONE}),
    (Verb.SUBMIT, "scontrol", "release", "scontrol release $copy", "", {Outcome.DONE}),
    (Verb.SUBMIT, "scontrol", "release", "scancel $copy", "", {Outcome.REFUSED, Outcome.FAILED}),
    (Verb.SUBMIT, "scontrol", "release", "scontrol update jobid=$copy nice=5", "", {Outcome.DONE}),
    (Verb.REQUEUE, "scontrol", "requeuehold", RECONFIGURE, "", {Outcome.DONE}),
    (Verb.REQUEUE, "scontrol", "requeuehold", "scontrol requeue $job", "", {Outcome.DONE, Outcome.ALREADY}),
    (Verb.REQUEUE, "scontrol", "requeuehold", "", "scontrol release $job", {Outcome.DONE, Outcome.ALREADY}),
    (Verb.REQUEUE, "scontrol", "release", "scontrol release $job", RECONFIGURE, {Outcome.DONE, Outcome.ALREADY}),
    (Verb.REQUEUE, "scontrol", "release", "scancel $job", "", {Outcome.ALREADY}),  # the start is shown as cancelled
]


@pytest.mark.parametrize(
    ("verb", "command", "word", "before", "after", "outcomes"),
    MEANWHILE,
    ids=[f"{verb} {command} {word} {before} {after}" for verb, command, word, before, after, _ in MEANWHILE],
)
def test_an_administrator_acts_in_the_middle_of_an_order(
    head: Head, verb: Verb, command: str, word: str, before: str, after: str, outcomes: set[Outcome]
) -> None:
    """One start lives, or none and none is left held where he cancelled it; the answer is what is so."""
    lab = head.lab
    job, runs = begun(
        head, '[ -n "$SLURM_RESTART_COUNT" ] || exit 3; exec sleep 600' if verb is Verb.REQUEUE else "sleep 600"
    )
    name = f"slurm.lab.{job}"
    if verb is Verb.REQUEUE:
        lab.wait(lambda: lab.job_state(job) == "FAILED", "it to fail")
        head.look()
        more: dict[str, Any] = {"attempt": name, "slurm_job": job, "new_attempt": f"{name}.r1"}
    else:
        more = cancelled(head, job)
    armed = head.state.with_name("acted")
    head.shim(
        command,
        ADMINISTRATOR.format(word=word, armed=armed, job=job, name=runs.name, before=before, after=after),
    )
    answer = head.carry_out(verb, **more)
    assert armed.exists()
    head.no_shim()
    assert answer.outcome in outcomes, answer
    head.look()
    is_there = "scancel" not in before
    if is_there:
        until(lambda: len(lines(runs)) == 2, "it to run again", head.look)
    named = lab.run("squeue", "-h", "-t", "PD,R", "-n", runs.name, "-o", "%A").stdout.split()
    assert len(named) == is_there, (answer, named)
    assert len(lines(runs)) == 1 + is_there


@pytest.mark.versions
@pytest.mark.outermost
def test_what_slurm_does_not_take_is_refused_with_its_reason(head: Head) -> None:
    lab = head.lab
    job, runs = begun(head, "exec sleep 600")
    more = cancelled(head, job)
    head.shim(
        "scontrol",
        'case "$1" in release) echo "Access/permission denied for job" >&2; exit 1;; esac; exec "$real" "$@"',
    )
    answer = head.carry_out(Verb.SUBMIT, **more)
    assert (answer.outcome, "was cancelled before it could start" in answer.detail) == (Outcome.REFUSED, True), answer
    assert not lab.run("squeue", "-h", "-n", runs.name, "-o", "%A").stdout.split(), "no copy is left held"
    head.no_shim()
    again = head.carry_out(Verb.SUBMIT, **more)
    assert (again.outcome, "was cancelled before it could start" in again.detail) == (Outcome.REFUSED, True), again
    more["new_attempt"] = f"slurm.lab.{job}-a3"
    lab.run("scontrol", "update", "partitionname=main", "state=inactive")
    try:
        answer = head.carry_out(Verb.SUBMIT, **more)
        assert (answer.outcome, "inactive" in answer.detail) == (Outcome.REFUSED, True), answer
        lab.run("scontrol", "update", "partitionname=main", "state=down")
        answer = head.carry_out(Verb.SUBMIT, **more)
        assert answer.outcome is Outcome.DONE, answer
        name = str(more["new_attempt"])
        until(lambda: (doc := head.doc(name)) is not None and "Partition" in doc.reason, "why it waits", head.look)
    finally:
        lab.run("scontrol", "update", "partitionname=main", "state=up")
    until(lambda: len(lines(runs)) == 2, "it to run")


def test_a_node_that_is_no_more_keeps_no_job_from_starting_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It was replaced under another name, or removed: Slurm refuses each list that names it."""
    with SlurmLab(nodes=("n1", "n2", "n4"), spares=("n3",), timers=Timers(kill_wait_s=1)) as lab, bucket() as s3:
        head = Head(lab, s3, tmp_path_factory.mktemp("head") / "state")
        path = script(lab, "own.sh", f"#SBATCH --exclude=n3\necho x >>{lab.folder}/work/own; exec sleep 600")
        own = lab.submit(path, "-N1", "--exclusive", "--comment=rekindle")
        until(lambda: (doc := head.doc(f"slurm.lab.{own}")) and doc.spec, "its spec", head.look)
        fails = '[ -n "$SLURM_RESTART_COUNT" ] || exit 3; exec sleep 600'
        failed, _ = begun(head, fails)
        lab.wait(lambda: lab.job_state(failed) == "FAILED", "it to fail")
        more = cancelled(head, own)
        lab.remove_node("n3")
        answer = head.carry_out(Verb.SUBMIT, **more, exclude=("n3",))
        assert answer.outcome is Outcome.DONE, answer
        attempt = {"attempt": f"slurm.lab.{failed}", "slurm_job": failed, "new_attempt": f"slurm.lab.{failed}.r1"}
        answer = head.carry_out(Verb.REQUEUE, **attempt, exclude=("n3", "n2"))
        assert answer.outcome is Outcome.DONE, answer
        assert lab.job(failed)["ExcNodeList"] == "n2"
        until(lambda: lab.job_state(failed) == "RUNNING", "it to run again", head.look)
        until(lambda: (lab.folder / "work/own").read_text().split() == ["x", "x"], "the copy to run", head.look)
