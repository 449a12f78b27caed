"""slurmctld is killed in the middle of each order, and comes back: one attempt lives, nothing is lost, and the answer
is what is so. Killed before the command reaches it, and after it has acted but before its answer, without saving.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from rekindle.protocol.cluster.orders import OrderResult, Outcome, Repair, Verb
from tests.slurm.head import Head, alive, bucket, lines, saved, spec_of, started, until
from tests.slurm.lab.lab import SlurmLab

# Kills slurmctld once, around the first command whose arguments begin so.
SHIM = """case "$*" in "{words}"*)
  if mv {armed} {armed}.gone 2>/dev/null; then {acts}
    kill -9 $(cat {pid}); {then}
  fi;;
esac
exec "$real" "$@"
"""
WHEN = {
    "before": ("", ""),
    "after": ('"$real" "$@" >/dev/null', "echo 'Unable to contact slurm controller' >&2; exit 1"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    reboots = tmp_path_factory.mktemp("reboots") / "reboot"
    reboots.write_text("#!/bin/sh\nexit 0\n")
    reboots.chmod(0o755)
    with SlurmLab(nodes=("n1", "n2", "n3"), extra_conf=[f"RebootProgram={reboots}"]) as raised:
        yield raised


@pytest.fixture(scope="module")
def head(lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with bucket() as s3:
        yield Head(lab, s3, tmp_path_factory.mktemp("head") / "state")


@pytest.fixture(autouse=True)
def _a_quiet_cluster(lab: SlurmLab, head: Head) -> Iterator[None]:
    yield
    head.no_shim()
    if not lab.is_running("slurmctld"):
        lab.start_slurmctld()
    lab.run("scancel", "--user=root", fails=True)
    lab.wait(lambda: not lab.run("squeue", "-h", "-o", "%A").stdout.split(), "the jobs to be over")


def interrupted(head: Head, when: str, words: str, verb: Verb, **about: Any) -> OrderResult:
    """The order's answer; `words`: the command's name, and with what its arguments begin."""
    lab = head.lab
    command, _, rest = words.partition(" ")
    armed = head.state.with_name("armed")
    armed.touch()
    acts, then = WHEN[when]
    pid = lab.folder / "run/slurmctld.pid"
    head.shim(command, SHIM.format(words=rest, armed=armed, pid=pid, acts=acts, then=then))
    order = head.order(verb, **about)
    until(lambda: not armed.exists() or head.answer(order), words, head.agent.executor.work)
    assert not armed.exists(), head.answer(order)
    head.no_shim()
    lab.wait(lambda: not lab.is_running("slurmctld"), "slurmctld to end")
    # A command that may fail without failing its order (the start's time) may have been the one that was interrupted.
    waits = head.answer(order) is None
    head.agent.watch.run_once()
    assert "slurm: " in head.problems()
    lab.start_slurmctld()
    head.look()
    answer = head.answered(order)
    assert waits or "update" in words, answer
    return answer


@pytest.mark.parametrize(
    ("when", "words"), [("before", "sbatch --"), ("after", "sbatch --"), ("after", "scontrol release")]
)
def test_submit(head: Head, when: str, words: str) -> None:
    lab = head.lab
    job, runs = started(head, "exec sleep 600")
    name = f"slurm.lab.{job}"
    assert head.carry_out(Verb.CANCEL, attempt=name, slurm_job=job).outcome is Outcome.DONE
    lab.wait(lambda: lab.job_state(job) == "CANCELLED", "the first to end")
    saved(lab)
    head.look()
    more = {"attempt": name, "slurm_job": job, "new_attempt": f"{name}-a2"}
    answer = interrupted(head, when, words, Verb.SUBMIT, spec=spec_of(head, job), **more)
    assert answer.outcome is Outcome.DONE, answer
    assert answer.slurm_job is not None
    until(lambda: len(lines(runs)) >= 2, "the copy to run", head.look)
    named = lab.run("squeue", "-h", "-t", "PD,R,CG", "-n", f"{runs.name}.sh", "-o", "%A").stdout.split()
    assert named == [str(answer.slurm_job)]
    assert lines(runs) == [str(job), str(answer.slurm_job)]


def test_a_stop_that_slurmctld_forgot_leaves_one_attempt(head: Head) -> None:
    """It was answered, then slurmctld was killed before it had saved it, and the original may be there again."""
    lab = head.lab
    job, runs = started(head, "exec sleep 600")
    name = f"slurm.lab.{job}"
    saved(lab)
    assert head.carry_out(Verb.CANCEL, attempt=name, slurm_job=job).outcome is Outcome.DONE
    lab.stop_slurmctld(kills=True)
    lab.start_slurmctld()
    was_there = alive(lab, job)
    more = {"attempt": name, "slurm_job": job, "new_attempt": f"{name}-a2"}
    answer = head.carry_out(Verb.SUBMIT, spec=spec_of(head, job), **more)
    if answer.outcome is Outcome.DONE:  # slurmctld may have found out in between that no process of it is left
        assert not alive(lab, job)
        until(lambda: len(lines(runs)) == 2, "the copy to run")
    else:
        assert was_there
        assert "the run would be there twice" in answer.detail
        assert not lab.run("squeue", "-h", "-o", "%k").stdout.count("-a2")


@pytest.mark.parametrize(("when", "words"), [("after", "requeuehold"), ("after", "release")])
def test_requeue(head: Head, when: str, words: str) -> None:
    lab = head.lab
    job, runs = started(head, '[ -n "$SLURM_RESTART_COUNT" ] || exit 3; exec sleep 600')
    lab.wait(lambda: lab.job_state(job) == "FAILED", "it to fail")
    saved(lab)
    head.look()
    more = {"attempt": f"slurm.lab.{job}", "slurm_job": job, "new_attempt": f"slurm.lab.{job}.r1", "exclude": ("n3",)}
    answer = interrupted(head, when, f"scontrol {words}", Verb.REQUEUE, **more)
    assert answer.outcome is Outcome.DONE, answer
    until(lambda: lab.job_state(job) == "RUNNING" and len(lines(runs)) >= 2, "it to run again", head.look)
    shown = lab.job(job)
    assert (shown["Restarts"], shown["ExcNodeList"]) == ("1", "n3")
    assert len(lines(runs)) == 2


def test_a_start_that_slurmctld_forgot_to_let_go_is_let_go_again(head: Head) -> None:
    """It was answered; then slurmctld was killed, and comes back with what it had saved while the start was held."""
    lab = head.lab
    job, runs = started(head, '[ -n "$SLURM_RESTART_COUNT" ] || exit 3; exec sleep 600')
    lab.wait(lambda: lab.job_state(job) == "FAILED", "it to fail")
    head.look()
    state, kept = lab.folder / "state", lab.folder / "state.kept"
    seen = f'old=$(stat -c %Y {state}/job_state); sleep 1; "$real" "$@"; code=$?'
    waits = f"while [ $(stat -c %Y {state}/job_state) -le $old ]; do sleep 0.2; done; cp -r {state} {kept}"
    head.shim("scontrol", f'case "$*" in requeuehold*) {seen}; {waits}; exit $code;; esac\nexec "$real" "$@"')
    more = {"attempt": f"slurm.lab.{job}", "slurm_job": job, "new_attempt": f"slurm.lab.{job}.r1", "exclude": ("n3",)}
    assert head.carry_out(Verb.REQUEUE, **more).outcome is Outcome.DONE
    head.no_shim()
    lab.stop_slurmctld(kills=True)
    shutil.rmtree(state)
    kept.rename(state)
    lab.start_slurmctld()
    assert lab.job(job)["Priority"] == "0"
    until(lambda: lab.job_state(job) == "RUNNING", "it to run again", head.run_once)
    shown = lab.job(job)
    assert (shown["Restarts"], shown["ExcNodeList"]) == ("1", "n3")
    lab.wait(lambda: lines(runs) == [str(job)] * 2, "its script to begin")


@pytest.mark.parametrize(
    ("when", "verb", "words"), [("after", Verb.CANCEL, "scancel "), ("after", Verb.HOLD, "scontrol requeuehold")]
)
def test_stop(head: Head, when: str, verb: Verb, words: str) -> None:
    lab = head.lab
    job, runs = started(head, "exec sleep 600")
    saved(lab)
    answer = interrupted(head, when, words, verb, attempt=f"slurm.lab.{job}", slurm_job=job)
    assert answer.outcome is Outcome.DONE, answer
    wanted = "CANCELLED" if verb is Verb.CANCEL else "PENDING"
    lab.wait(lambda: lab.job_state(job) == wanted, f"it to be {wanted}")
    assert verb is Verb.CANCEL or lab.job(job)["Priority"] == "0"
    assert len(lines(runs)) == 1


@pytest.mark.parametrize(
    ("when", "verb", "words", "wanted"),
    [
        ("after", Verb.DRAIN, "update nodename=n2", "DRAIN"),
        ("before", Verb.MARK, "update nodename=n2", "FAIL"),
        ("after", Verb.REBOOT, "reboot", ""),
    ],
)
def test_nodes(head: Head, when: str, verb: Verb, words: str, wanted: str) -> None:
    lab = head.lab
    more = {"repair": Repair.REPLACE} if verb is Verb.MARK else {}
    if verb is Verb.MARK:
        assert head.carry_out(Verb.DRAIN, node="n2", incident_id="i1").outcome is Outcome.DONE
    answer = interrupted(head, when, f"scontrol {words}", verb, node="n2", incident_id="i1", **more)
    assert answer.outcome is Outcome.DONE, answer
    shown = lab.run("scontrol", "-o", "show", "node", "n2").stdout
    lab.run("scontrol", "cancel_reboot", "n2", fails=True)
    lab.run("scontrol", "update", "nodename=n2", "state=resume", fails=True)
    assert wanted in shown


def test_a_node_is_given_back_right_after_slurmctlds_start(head: Head) -> None:
    """Before it has registered again: 22.05 resumes it then, and answers "Invalid node state specified"."""
    lab = head.lab
    assert head.carry_out(Verb.DRAIN, node="n3", incident_id="i1").outcome is Outcome.DONE
    lab.stop_slurmctld()
    lab.start_slurmctld()
    answer = head.carry_out(Verb.RESUME, node="n3", incident_id="i1")
    assert answer.outcome in (Outcome.DONE, Outcome.ALREADY), answer
    lab.wait(lambda: lab.node_states()["n3"] == "idle", "it to be in service")
    assert "rekindle" not in lab.run("scontrol", "-o", "show", "node", "n3").stdout
