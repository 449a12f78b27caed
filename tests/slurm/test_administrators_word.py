"""On a real Slurm: what an administrator or the user has said of a job stands, whatever is ordered of the agent."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.cluster.orders import NEEDED, Barred, Outcome, Repair, Signal, Verb
from rekindle.protocol.cluster.queue_place import QueueFact
from rekindle.slurm_agent.leaving import give_back
from tests.slurm.head import Head, bucket, script, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab

pytestmark = [pytest.mark.versions, pytest.mark.outermost]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    with SlurmLab(nodes=("n1", "n2"), cpus=16, timers=Timers(kill_wait_s=1)) as lab, bucket() as s3:
        yield Head(lab, s3, tmp_path / "state")


def running(head: Head, *options: str, comment: str = "rekindle", environ: dict[str, str] | None = None) -> int:
    """A protected job that runs, and whose spec is known."""
    lab = head.lab
    path = script(lab, "train.sh", "sleep 600")
    job = lab.submit(path, "-n1", f"--comment={comment}", *options, environ=environ)
    until(lambda: (doc := head.doc(f"slurm.lab.{job}")) is not None and doc.spec is not None, "its spec", head.look)
    lab.wait(lambda: lab.job_state(job) == "RUNNING", "it to run")
    return job


def test_norekindle_counts_at_the_next_order(head: Head) -> None:
    job = running(head, "--requeue")
    head.lab.run("scontrol", "update", f"jobid={job}", "admincomment=norekindle")
    for verb in (Verb.HOLD, Verb.CANCEL):
        answer = head.carry_out(verb, attempt=f"slurm.lab.{job}", slurm_job=job)
        assert (answer.outcome, head.lab.job_state(job)) == (Outcome.REFUSED, "RUNNING"), answer


def test_an_administrators_hold_over_ours_is_not_lifted(head: Head) -> None:
    lab = head.lab
    job = running(head, "--requeue")
    name = f"slurm.lab.{job}"
    assert head.carry_out(Verb.HOLD, attempt=name, slurm_job=job).outcome is Outcome.DONE
    lab.wait(lambda: lab.job_state(job) == "PENDING", "our hold")
    lab.run("scontrol", "hold", str(job))
    again = {"attempt": name, "slurm_job": job, "new_attempt": f"{name}.r1"}
    answer = head.carry_out(Verb.REQUEUE, **again)
    assert (answer.outcome, answer.is_held_by_user) == (Outcome.REFUSED, True), answer
    assert "an administrator" in answer.detail
    assert (lab.job_state(job), lab.job(job)["Priority"]) == ("PENDING", "0")
    lab.run("scontrol", "uhold", str(job))  # he gives it back to us, still held
    assert head.carry_out(Verb.REQUEUE, **again).outcome is Outcome.DONE
    lab.wait(lambda: lab.job_state(job) == "RUNNING", "its next start")


def test_the_users_comment_is_kept_and_sacct_shows_what_was_done(head: Head) -> None:
    lab = head.lab
    job = running(head, comment="grant=NSF-42", environ={"REKINDLE_PROTECT": "rekindle:gentle"})
    name = f"slurm.lab.{job}"
    assert head.carry_out(Verb.CANCEL, attempt=name, slurm_job=job, incident_id="inc-1").outcome is Outcome.DONE
    until(lambda: lab.job_state(job) == "CANCELLED", "its end", head.look)
    doc = head.doc(name)
    assert doc is not None
    about = {"attempt": name, "slurm_job": job, "new_attempt": f"{name}-a2", "spec": doc.spec, "incident_id": "inc-1"}
    copy = head.carry_out(Verb.SUBMIT, **about)
    assert (copy.outcome, copy.slurm_job is not None) == (Outcome.DONE, True), copy
    shown = lab.job(copy.slurm_job or 0)
    assert shown["Comment"].strip() == "grant=NSF-42"
    noted = shown["AdminComment"].strip()
    assert noted.startswith("rekindle:gentle,")
    assert noted.endswith(f"attempt={name}-a2,did=submit,incident=inc-1")
    assert lab.job(job)["AdminComment"].strip().endswith("did=cancel,incident=inc-1")
    head.look()
    found = head.doc(f"{name}-a2")
    assert found is not None
    assert found.policy == "gentle"


def test_anothers_words_stay_in_the_admin_comment(head: Head) -> None:
    job = running(head, "--requeue")
    head.lab.run("scontrol", "update", f"jobid={job}", "admincomment=ticket 4711")
    assert head.carry_out(Verb.HOLD, attempt=f"slurm.lab.{job}", slurm_job=job).outcome is Outcome.DONE
    assert head.lab.job(job)["AdminComment"].strip() == "ticket 4711"


def test_only_a_node_that_our_drain_has_emptied_is_marked(head: Head) -> None:
    refused = head.carry_out(Verb.MARK, node="n2", repair=Repair.REPLACE, incident_id="inc-1")
    assert (refused.outcome, "Action:" in shown_node(head)) == (Outcome.REFUSED, False), refused
    assert head.carry_out(Verb.DRAIN, node="n2", incident_id="inc-1").outcome is Outcome.DONE
    marked = head.carry_out(Verb.MARK, node="n2", repair=Repair.REPLACE, incident_id="inc-1")
    assert (marked.outcome, "Action:Replace" in shown_node(head)) == (Outcome.DONE, True), marked


def test_the_head_nodes_own_file_is_read_at_each_order(head: Head) -> None:
    lab = head.lab
    job = running(head, "--requeue")
    about = {"attempt": f"slurm.lab.{job}", "slurm_job": job}
    for text, barred in (
        ("mode = observe", Barred.OBSERVED),
        ("[deny]\npartitions = PART", Barred.NOT_ALLOWED_HERE),
        ("[allow]\nusers = nobody", Barred.NOT_ALLOWED_HERE),
        ("mode = perhaps", Barred.NOT_ALLOWED_HERE),
    ):
        head.allow(text.replace("PART", lab.job(job)["Partition"]))
        answer = head.carry_out(Verb.HOLD, **about)
        assert (answer.outcome, answer.barred, lab.job_state(job)) == (Outcome.REFUSED, barred, "RUNNING"), answer
    head.allow("mode = act")
    assert head.carry_out(Verb.DRAIN, node="n2").barred is Barred.NOT_ALLOWED_HERE, "no HyperPod"
    head.allow("[allow]\nverbs = drain resume hold\n[caps]\ndrained = 1 1")
    assert head.carry_out(Verb.DRAIN, node="n2").outcome is Outcome.DONE
    assert head.carry_out(Verb.RESUME, node="n2").outcome is Outcome.DONE
    assert head.carry_out(Verb.DRAIN, node="n1").barred is Barred.OVER_A_CAP
    head.start()
    assert head.carry_out(Verb.DRAIN, node="n1").barred is Barred.OVER_A_CAP, "counted over a restart"
    assert head.carry_out(Verb.HOLD, **about).outcome is Outcome.DONE


def test_what_is_held_is_given_back_whatever_the_file_says_by_then(head: Head) -> None:
    lab = head.lab
    job = running(head, "--requeue")
    assert head.carry_out(Verb.HOLD, attempt=f"slurm.lab.{job}", slurm_job=job).outcome is Outcome.DONE
    assert head.carry_out(Verb.DRAIN, node="n2", incident_id="inc-1").outcome is Outcome.DONE
    lab.wait(lambda: lab.job_state(job) == "PENDING", "our hold")
    head.allow("mode = observe\n[deny]\nverbs = *\n")
    said: list[str] = []
    for is_leaving in (False, True):
        head.start(is_leaving=is_leaving)
        head.look()
        assert give_back(head.agent.parts.slurm, head.agent.journal, said.append, is_dry=False) is is_leaving, said
    lab.wait(lambda: lab.job_state(job) == "RUNNING", "it to be let go")
    assert "DRAIN" not in shown_node(head)


@pytest.mark.long
def test_orders_that_the_file_forbids_change_nothing_whoever_sends_them(tmp_path: Path) -> None:
    rng = random.Random(36)
    with (
        SlurmLab(nodes=("n1", "n2"), cpus=16, timers=Timers(kill_wait_s=1), with_accounting=True) as lab,
        bucket() as s3,
    ):
        head = Head(lab, s3, tmp_path / "state")
        job = running(head, "--requeue")
        about = {"attempt": f"slurm.lab.{job}", "slurm_job": job, "new_attempt": f"slurm.lab.{job}.r1"}
        about |= {"signal": Signal.USR1, "nodes_min": 1, "nodes_max": 1, "repair": Repair.REPLACE, "exclude": ("n2",)}
        shown = lab.job(job)
        words = {"partitions": shown["Partition"], "qos": shown["QOS"], "users": shown["UserId"].partition("(")[0]}

        def state() -> list[object]:
            """What Slurm does not change by itself."""
            found, node = lab.job(job), shown_node(head)
            fields = ("Restarts", "ExcNodeList", "AdminComment", "SubmitTime")
            is_held, is_over = found["Priority"] == "0", found["JobState"] not in ("RUNNING", "PENDING")
            return [
                is_held,
                is_over,
                *map(found.get, fields),
                "DRAIN" in node,
                "FAIL" in node,
                "bob" in node,
                "rekindle" in node,
            ]

        def others_act() -> None:
            """Of an administrator, or the user."""
            rng.choice(
                (
                    lambda: lab.run("scontrol", "hold", str(job), fails=True),
                    lambda: lab.run("scontrol", "requeuehold", str(job), fails=True),
                    lambda: lab.run("scontrol", "release", str(job), fails=True),
                    lambda: lab.run("scontrol", "update", "nodename=n2", "state=drain", "reason=bob: fan", fails=True),
                    lambda: lab.run("scontrol", "update", "nodename=n2", "state=resume", fails=True),
                )
            )()
            lab.wait(lambda: lab.job_state(job) in ("RUNNING", "PENDING"), "the job to settle")

        for _ in range(40):
            others_act()
            kind, word = rng.choice(list(words.items()))
            verb = rng.choice([verb for verb in Verb if verb is not Verb.SUBMIT])
            texts = ("mode = observe", f"[deny]\nverbs = {verb}", "[allow]\nverbs =", "[caps]\nx = 1")
            texts += () if "node" in NEEDED[verb] else (f"[deny]\n{kind} = {word}", f"[allow]\n{kind} = other")
            head.allow(rng.choice(texts))
            head.look()
            before = state()
            answer = head.carry_out(verb, **{name: about.get(name, "n2") for name in NEEDED[verb]})
            assert answer.outcome in (Outcome.REFUSED, Outcome.ALREADY), answer
            assert state() == before, answer


def shown_node(head: Head) -> str:
    return str(head.lab.run("scontrol", "-o", "show", "node", "n2").stdout)


def test_the_emergency_search_finds_what_we_hold_and_nothing_that_its_user_holds(head: Head) -> None:
    lab = head.lab
    page = (Path(__file__).parents[2] / "docs/agent.md").read_text()
    search = next(line for line in page.splitlines() if line.startswith("squeue --all -h -t PD -O"))

    def found() -> list[str]:
        shown = lab.run("bash", "-c", search.partition("  #")[0], fails=True)
        return [line.split()[0] for line in shown.stdout.splitlines()]

    ours = running(head, "--requeue", comment="grant=1", environ={"REKINDLE_PROTECT": "rekindle"})
    theirs = running(head, "--requeue")
    name = f"slurm.lab.{theirs}"
    assert head.carry_out(Verb.HOLD, attempt=f"slurm.lab.{ours}", slurm_job=ours).outcome is Outcome.DONE
    assert head.carry_out(Verb.HOLD, attempt=name, slurm_job=theirs).outcome is Outcome.DONE
    again = {"attempt": name, "slurm_job": theirs, "new_attempt": f"{name}.r1"}
    assert head.carry_out(Verb.REQUEUE, **again).outcome is Outcome.DONE
    lab.run("scontrol", "update", f"jobid={theirs}", "starttime=now+1day", fails=True)
    lab.wait(lambda: lab.job_state(theirs) in ("PENDING", "RUNNING"), "its next start")
    if lab.job_state(theirs) == "PENDING":
        lab.run("scontrol", "uhold", str(theirs))
    else:
        lab.run("scontrol", "requeue", str(theirs))
        lab.wait(lambda: lab.job_state(theirs) == "PENDING", "its user's requeue")
        lab.run("scontrol", "uhold", str(theirs))
    assert found() == [str(ours)]
    assert head.carry_out(Verb.CANCEL, attempt=f"slurm.lab.{ours}.r1", slurm_job=ours).outcome is Outcome.DONE
    assert found() == []


def test_an_administrators_priority_is_given_again_and_the_time_in_the_queue_begins_anew(head: Head) -> None:
    lab = head.lab
    job = running(head, "--requeue", "--nodelist=n1", "--exclusive")
    name = f"slurm.lab.{job}"
    lab.run("scontrol", "update", f"jobid={job}", "priority=777")
    before = lab.job(job)["SubmitTime"]
    assert head.carry_out(Verb.HOLD, attempt=name, slurm_job=job).outcome is Outcome.DONE
    lab.wait(lambda: lab.job_state(job) == "PENDING", "our hold")
    blocks = lab.submit(script(lab, "other.sh", "sleep 600"), "--nodelist=n1", "--exclusive")
    lab.wait(lambda: lab.job_state(blocks) == "RUNNING", "another on its node")
    answer = head.carry_out(Verb.REQUEUE, attempt=name, slurm_job=job, new_attempt=f"{name}.r1")
    assert answer.outcome is Outcome.DONE, answer
    shown, lost = lab.job(job), {loss.fact: (loss.before, loss.now) for loss in answer.queue_losses}
    head.look()
    told = head.agent.heartbeat().queue_losses
    assert lost[QueueFact.WAITING_SINCE][0] != lost[QueueFact.WAITING_SINCE][1]
    if "priority/basic" in lab.run("scontrol", "show", "config").stdout:  # 22.05's default: each start is queued last
        assert lost[QueueFact.PRIORITY] == ("777", shown["Priority"])
        assert told == (QueueFact.WAITING_SINCE, QueueFact.PRIORITY)
        return
    assert (set(lost), told) == ({QueueFact.WAITING_SINCE}, ())  # PriorityWeightAge is 0
    assert (shown["Priority"], shown["SubmitTime"] > before) == ("777", True)
    assert "priority=" not in shown["AdminComment"]


def test_what_an_administrator_sets_while_we_hold_a_job_stays(head: Head) -> None:
    lab = head.lab

    def held(*options: str) -> dict[str, Any]:
        job = running(head, "--requeue", *options)
        name = f"slurm.lab.{job}"
        assert head.carry_out(Verb.HOLD, attempt=name, slurm_job=job).outcome is Outcome.DONE
        lab.wait(lambda: lab.job_state(job) == "PENDING", "our hold")
        return {"attempt": name, "slurm_job": job, "new_attempt": f"{name}.r1"}

    out, later = held(), held()
    lab.run("scontrol", "update", f"jobid={out['slurm_job']}", "admincomment=norekindle")
    assert head.carry_out(Verb.REQUEUE, **out).outcome is Outcome.REFUSED
    until(lambda: lab.job_state(out["slurm_job"]) == "RUNNING", "it to be given back", head.run_once)
    lab.run("scontrol", "update", f"jobid={later['slurm_job']}", "starttime=now+1day")
    begins = lab.job(later["slurm_job"])["EligibleTime"]
    assert head.carry_out(Verb.REQUEUE, **later).outcome is Outcome.DONE
    assert lab.job(later["slurm_job"])["EligibleTime"] == begins


def test_no_words_of_an_administrator_are_taken_for_ours(head: Head) -> None:
    for reason in ("rekindle: do not touch, bob", "rekindle:inc-1 until Monday", "no rekindle:inc-1"):
        head.lab.run("scontrol", "update", "nodename=n2", "state=drain", f"reason={reason}")
        for verb in (Verb.RESUME, Verb.MARK, Verb.REBOOT):
            answer = head.carry_out(verb, node="n2", repair=Repair.REPLACE, incident_id="inc-1")
            assert answer.outcome is Outcome.REFUSED, answer
        assert f"Reason={reason}" in shown_node(head)


def test_a_reservation_for_maintenance_counts_from_its_first_moment(head: Head) -> None:
    """slurmctld shows it in the node's state some seconds later."""
    lab = head.lab
    first = head.carry_out(Verb.DRAIN, node="n1", incident_id="inc-1")
    for node, flags, starts in (("n1", "maint,flex", "now"), ("n2", "maint,overlap", "now"), ("n2", "flex", "now+600")):
        reservation = ("users=root", f"nodes={node}", f"flags={flags}", f"starttime={starts}", "duration=10")
        lab.run("scontrol", "create", "reservation", *reservation)
    drained = head.carry_out(Verb.DRAIN, node="n2", incident_id="inc-1")
    assert (first.outcome, drained.outcome, "DRAIN" in shown_node(head)) == (Outcome.DONE, Outcome.ALREADY, False)
    for verb in (Verb.MARK, Verb.REBOOT):
        answer = head.carry_out(verb, node="n1", repair=Repair.REPLACE, incident_id="inc-1")
        assert answer.outcome is Outcome.REFUSED, answer
    assert head.carry_out(Verb.RESUME, node="n1", incident_id="inc-1").outcome is Outcome.DONE


@pytest.mark.parametrize("options", [("--constraint=big",), ("-n2", "-N2"), ("-n2", "-N2", "--nodelist=n[1-2]")])
def test_a_job_that_could_never_start_without_a_node_is_not_requeued_without_it(
    head: Head, options: tuple[str, ...]
) -> None:
    lab = head.lab
    lab.run("scontrol", "update", "nodename=n1", "availablefeatures=big", "activefeatures=big")
    job = running(head, "--requeue", *options)
    name = f"slurm.lab.{job}"
    assert head.carry_out(Verb.HOLD, attempt=name, slurm_job=job).outcome is Outcome.DONE
    lab.wait(lambda: lab.job_state(job) == "PENDING", "our hold")
    about = {"attempt": name, "slurm_job": job, "new_attempt": f"{name}.r1"}
    refused = head.carry_out(Verb.REQUEUE, **about, exclude=("n1",))
    assert (refused.outcome, lab.job(job)["ExcNodeList"]) == (Outcome.REFUSED, "(null)"), refused
    assert head.carry_out(Verb.REQUEUE, **about).outcome is Outcome.DONE
    lab.wait(lambda: lab.job_state(job) == "RUNNING", "its next start")
