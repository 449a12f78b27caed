"""Each verb against each state of what it is about: what is run, and how it is answered."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, SlurmState
from rekindle.protocol.cluster.orders import Outcome, Repair, Signal, Verb
from rekindle.slurm_agent.base.ports import NodeNow
from tests.agent.ctld import job
from tests.agent.world import World

DONE, ALREADY, REFUSED, FAILED = Outcome.DONE, Outcome.ALREADY, Outcome.REFUSED, Outcome.FAILED
S = SlurmState
FOUR: dict[str, Any] = {"node_count": 4, "min_nodes": 2}
OURS, THEIRS = "rekindle:inc-9", "NHC: check_hw_ib failed"
GPUS_LOST, DRAINED = "gres/gpu count reported lower than configured (7 < 8)", "drain n1 rekindle:inc-1"


def about_job(**changes: Any) -> dict[str, Any]:
    return {"attempt": "slurm.lab.7", "slurm_job": 7, **changes}


JOBS: list[tuple[str, Verb, dict[str, Any], AttemptDoc | None, Outcome, list[str]]] = [
    ("cancel running", Verb.CANCEL, {}, job(), DONE, ["cancel 7"]),
    ("cancel pending", Verb.CANCEL, {}, job(state=S.PENDING), DONE, ["cancel 7"]),
    ("cancel ended", Verb.CANCEL, {}, job(state=S.FAILED), ALREADY, []),
    ("cancel unknown", Verb.CANCEL, {}, None, ALREADY, []),
    ("cancel a start that is over", Verb.CANCEL, {}, job(restart=1), REFUSED, []),
    ("cancel a start that is over, job ended", Verb.CANCEL, {}, job(restart=1, state=S.COMPLETED), ALREADY, []),
    ("cancel a start to come", Verb.CANCEL, {"attempt": "slurm.lab.7.r3"}, job(restart=1), REFUSED, []),
    ("cancel another's job", Verb.CANCEL, {"attempt": "slurm.lab.6-a2"}, job(), REFUSED, []),
    ("hold running", Verb.HOLD, {}, job(), DONE, ["requeue_hold 7"]),
    ("hold pending", Verb.HOLD, {}, job(state=S.PENDING), DONE, ["hold 7"]),
    ("hold held", Verb.HOLD, {}, job(restart=1, state=S.PENDING, held=True), ALREADY, []),
    ("hold ended", Verb.HOLD, {}, job(state=S.NODE_FAIL), ALREADY, []),
    ("hold requeued by Slurm", Verb.HOLD, {}, job(restart=1), REFUSED, []),
    ("requeue held", Verb.REQUEUE, {}, job(restart=1, state=S.PENDING, held=True), DONE, ["release 7", "start_now 7"]),
    (
        "requeue held without bad nodes",
        Verb.REQUEUE,
        {"exclude": ("node2",)},
        job(restart=1, state=S.PENDING, held=True, exclude=("node9",)),
        DONE,
        ["exclude 7 node9,node2", "release 7", "start_now 7"],
    ),
    (
        "requeue ended",
        Verb.REQUEUE,
        {"exclude": ("node2",)},
        job(state=S.FAILED),
        DONE,
        ["requeue_hold 7", "exclude 7 node2", "release 7", "start_now 7"],
    ),
    ("requeue queued by Slurm", Verb.REQUEUE, {}, job(restart=1, state=S.PENDING), ALREADY, ["start_now 7"]),
    ("requeue started by Slurm", Verb.REQUEUE, {}, job(restart=1), ALREADY, []),
    ("requeue running", Verb.REQUEUE, {}, job(), REFUSED, []),
    ("requeue never started", Verb.REQUEUE, {}, job(state=S.PENDING, held=True), REFUSED, []),
    ("requeue further on", Verb.REQUEUE, {}, job(restart=2), REFUSED, []),
    ("requeue unknown", Verb.REQUEUE, {}, None, REFUSED, []),
    ("requeue not the next", Verb.REQUEUE, {"new_attempt": "slurm.lab.7.r2"}, job(state=S.FAILED), REFUSED, []),
    ("requeue as another", Verb.REQUEUE, {"new_attempt": "slurm.lab.8.r1"}, job(state=S.FAILED), REFUSED, []),
    ("submit after the end", Verb.SUBMIT, {}, job(state=S.CANCELLED), DONE, ["submit slurm.lab.7-a2", "release 8"]),
    ("submit after it is forgotten", Verb.SUBMIT, {}, None, DONE, ["submit slurm.lab.7-a2", "release 101"]),
    ("submit beside a running one", Verb.SUBMIT, {}, job(), REFUSED, []),
    ("submit beside a waiting one", Verb.SUBMIT, {}, job(restart=1, state=S.PENDING), REFUSED, []),
    ("exclude", Verb.EXCLUDE, {"exclude": ("node2",)}, job(state=S.PENDING), DONE, ["exclude 7 node2"]),
    ("exclude lifted", Verb.EXCLUDE, {}, job(state=S.PENDING, exclude=("node2",)), DONE, ["exclude 7 "]),
    ("exclude the same", Verb.EXCLUDE, {"exclude": ("b", "a")}, job(state=S.PENDING, exclude=("a", "b")), ALREADY, []),
    ("exclude running", Verb.EXCLUDE, {"exclude": ("node2",)}, job(), REFUSED, []),
    ("shrink", Verb.SHRINK, {}, job(state=S.PENDING, **FOUR), DONE, ["resize 7 2-4"]),
    ("shrink what is small", Verb.SHRINK, {}, job(state=S.PENDING, node_count=2, min_nodes=1), ALREADY, []),
    ("shrink, never said that it can", Verb.SHRINK, {}, job(state=S.PENDING, node_count=4), REFUSED, []),
    ("shrink below what it can", Verb.SHRINK, {}, job(state=S.PENDING, node_count=4, min_nodes=3), REFUSED, []),
    ("shrink is not growing", Verb.SHRINK, {"nodes_min": 6, "nodes_max": 6}, job(state=S.PENDING, **FOUR), REFUSED, []),
    ("shrink running", Verb.SHRINK, {}, job(**FOUR), REFUSED, []),
    ("shrink held", Verb.SHRINK, {}, job(state=S.PENDING, held=True, **FOUR), REFUSED, []),
    ("shrink a start that is over", Verb.SHRINK, {}, job(restart=1, state=S.PENDING, **FOUR), REFUSED, []),
    ("shrink unknown", Verb.SHRINK, {}, None, REFUSED, []),
    (
        "requeue a job that was made smaller",
        Verb.REQUEUE,
        {"nodes_min": 4, "nodes_max": 4},
        job(restart=1, state=S.PENDING, held=True, node_count=2, min_nodes=1),
        DONE,
        ["resize 7 4-4", "release 7", "start_now 7"],
    ),
    ("signal running", Verb.SIGNAL, {}, job(), DONE, ["signal 7 USR1"]),
    ("signal, whether it is caught unknown", Verb.SIGNAL, {}, job(is_ready=None), DONE, ["signal 7 USR1"]),
    ("signal not ready", Verb.SIGNAL, {}, job(is_ready=False), REFUSED, []),
    ("signal another than it traps", Verb.SIGNAL, {}, job(signal="USR2"), REFUSED, []),
    ("signal pending", Verb.SIGNAL, {}, job(state=S.PENDING), REFUSED, []),
    ("signal ended", Verb.SIGNAL, {}, job(state=S.COMPLETED), REFUSED, []),
    ("signal a start that is over", Verb.SIGNAL, {}, job(restart=1), REFUSED, []),
]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(None, tmp_path / "state")


@pytest.mark.parametrize(
    ("verb", "changes", "there", "outcome", "commands"), [row[1:] for row in JOBS], ids=[r[0] for r in JOBS]
)
def test_orders_about_jobs(
    world: World, verb: Verb, changes: dict[str, Any], there: AttemptDoc | None, outcome: Outcome, commands: list[str]
) -> None:
    if there is not None:
        world.ctld.put(there)
        world.ctld.written["slurm.lab.7"] = job(ended_by=EndedBy.AGENT)  # what is held is held by us
    needed: dict[Verb, dict[str, Any]] = {
        Verb.REQUEUE: {"new_attempt": "slurm.lab.7.r1"},
        Verb.SUBMIT: {"new_attempt": "slurm.lab.7-a2", "spec": world.spec()},
        Verb.SIGNAL: {"signal": Signal.USR1},
        Verb.SHRINK: {"nodes_min": 2, "nodes_max": 4},
    }
    answer = world.obey(world.order(verb, **about_job(**needed.get(verb, {}) | changes)))
    assert (answer.outcome, world.ctld.commands) == (outcome, commands), answer.detail
    assert answer.detail


@pytest.mark.parametrize(
    ("verb", "there"),
    [
        (Verb.SUBMIT, job(state=S.CANCELLED)),
        (Verb.REQUEUE, job(state=S.FAILED)),
        (Verb.REQUEUE, job(restart=1, state=S.PENDING, held=True)),
    ],
)
@pytest.mark.parametrize(
    ("theirs", "is_there"),
    [
        ({"mailbox": "/fsx/lm"}, True),
        ({"mailbox": "/fsx/lm", "state": S.PENDING}, True),
        ({"mailbox": "/fsx/lm", "state": S.PENDING, "held": True}, False),
        ({"mailbox": "/fsx/lm", "state": S.COMPLETED}, False),
        ({"mailbox": "/fsx/other"}, False),
    ],
)
def test_nothing_is_started_beside_a_run_that_its_user_has_submitted_since_the_order(
    world: World, verb: Verb, there: AttemptDoc, theirs: dict[str, Any], is_there: bool
) -> None:
    world.ctld.put(there)
    world.ctld.put(job(9, **theirs))
    world.ctld.written["slurm.lab.7"] = job(7, mailbox="/fsx/lm", requeued_by=EndedBy.AGENT)
    names = {"new_attempt": "slurm.lab.7.r1" if verb is Verb.REQUEUE else "slurm.lab.7-a2", "spec": world.spec()}
    answer = world.obey(world.order(verb, **about_job(**names)))
    assert answer.outcome is (REFUSED if is_there else DONE), answer.detail
    assert (answer.sibling is not None) is is_there
    if is_there:
        assert world.ctld.commands == []
        assert "job 9" in answer.detail


@pytest.mark.parametrize("verb", [Verb.REQUEUE, Verb.SUBMIT])
@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "job requeued in held state"])
def test_a_hold_that_is_not_ours_is_left_and_nothing_is_started_beside_it(
    world: World, verb: Verb, reason: str
) -> None:
    world.ctld.put(job(restart=1, state=S.PENDING, held=True, reason=reason))
    names = {"new_attempt": "slurm.lab.7.r1" if verb is Verb.REQUEUE else "slurm.lab.7-a2", "spec": world.spec()}
    answer = world.obey(world.order(verb, **about_job(**names)))
    assert (answer.outcome, answer.is_held_by_user, world.ctld.commands) == (REFUSED, True, []), answer.detail


def test_a_hold_of_slurm_itself_is_lifted(world: World) -> None:
    world.ctld.put(job(restart=1, state=S.PENDING, held=True, reason="launch failed requeued held"))
    answer = world.obey(world.order(Verb.REQUEUE, **about_job(new_attempt="slurm.lab.7.r1")))
    assert answer.outcome is DONE, answer.detail


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.HOLD, Verb.REQUEUE, Verb.SUBMIT])
def test_an_order_about_a_completing_job_waits_until_slurm_knows_how_it_ended(world: World, verb: Verb) -> None:
    world.ctld.put(job(state=S.COMPLETING))
    names = {"new_attempt": "slurm.lab.7.r1" if verb is Verb.REQUEUE else "slurm.lab.7-a2", "spec": world.spec()}
    order = world.order(verb, **about_job(**names))
    world.agent.executor.take(order.to_json().decode())
    for _ in range(5):
        assert world.agent.executor.work() is not None
        world.clock.forward(2)
    assert world.ctld.commands == []
    world.ctld.put(job(state=S.FAILED))
    answer = world.obey(order)
    assert answer.outcome is (ALREADY if verb in {Verb.CANCEL, Verb.HOLD} else DONE)


def test_a_job_that_completes_until_the_order_expires_gets_nothing(world: World) -> None:
    world.ctld.put(job(state=S.COMPLETING))
    answer = world.obey(world.order(Verb.CANCEL, **about_job()))
    assert answer.outcome is REFUSED
    assert world.ctld.commands == []


def test_a_signal_while_no_step_runs_is_refused_since_it_would_be_lost(world: World) -> None:
    world.ctld.put(job(is_ready=None), steps=0)
    answer = world.obey(world.order(Verb.SIGNAL, signal=Signal.USR1, **about_job()))
    assert answer.outcome is REFUSED
    assert "lost" in answer.detail


def test_a_signal_whose_answer_was_lost_is_not_sent_again(world: World) -> None:
    world.ctld.put(job())
    world.ctld.loses_answers = 1
    answer = world.obey(world.order(Verb.SIGNAL, signal=Signal.USR1, **about_job()))
    assert answer.outcome is FAILED
    assert world.ctld.commands == ["signal 7 USR1"]


def test_jobs_that_waited_for_the_old_one_wait_for_the_new_one(world: World) -> None:
    world.ctld.put(job(state=S.FAILED))
    world.ctld.waiting_for[7] = (20, 21)
    names = {"new_attempt": "slurm.lab.7-a2", "spec": world.spec()}
    answer = world.obey(world.order(Verb.SUBMIT, **about_job(**names)))
    assert world.ctld.waiting_for == {answer.slurm_job: (20, 21)}
    assert "20, 21" in answer.detail


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.HOLD, Verb.REQUEUE])
def test_a_command_whose_answer_was_lost_counts_as_done_by_what_it_did(world: World, verb: Verb) -> None:
    world.ctld.put(job(state=S.FAILED if verb is Verb.REQUEUE else S.RUNNING))
    world.ctld.loses_answers = 1
    new = {"new_attempt": "slurm.lab.7.r1"} if verb is Verb.REQUEUE else {}
    answer = world.obey(world.order(verb, **about_job(**new)))
    assert answer.outcome is DONE
    first = {Verb.CANCEL: "cancel 7", Verb.HOLD: "requeue_hold 7", Verb.REQUEUE: "requeue_hold 7"}[verb]
    assert world.ctld.commands.count(first) == 1
    if verb is Verb.REQUEUE:
        assert world.ctld.commands == ["requeue_hold 7", "release 7", "start_now 7"]


Node = tuple[str, tuple[str, ...], str]
NODES: list[tuple[str, Verb, Node | None, Outcome, list[str]]] = [
    ("drain idle", Verb.DRAIN, ("idle", (), ""), DONE, ["drain n1 rekindle:inc-1"]),
    ("drain silent", Verb.DRAIN, ("down", (), "Not responding"), DONE, ["drain n1 rekindle:inc-1"]),
    ("drain drained by us", Verb.DRAIN, ("idle", ("drain",), OURS), ALREADY, []),
    ("drain drained by others", Verb.DRAIN, ("idle", ("drain",), THEIRS), ALREADY, []),
    ("drain downed by others", Verb.DRAIN, ("down", (), THEIRS), ALREADY, []),
    ("drain failing", Verb.DRAIN, ("mixed", ("fail",), "Action:Replace"), ALREADY, []),
    ("drain unknown", Verb.DRAIN, None, REFUSED, []),
    (
        "drain what slurmctld drained for its GPUs",
        Verb.DRAIN,
        ("idle", ("drain", "invalid_reg"), GPUS_LOST),
        DONE,
        [f"{DRAINED} : {GPUS_LOST}"],
    ),
    (
        "drain what slurmctld drained for a defect",
        Verb.DRAIN,
        ("idle", ("drain",), "Kill task failed"),
        DONE,
        [f"{DRAINED} : Kill task failed"],
    ),
    ("resume a defect that Slurm saw", Verb.RESUME, ("idle", ("drain",), f"{OURS} : Prolog error"), REFUSED, []),
    (
        "resume it once it was rebooted",
        Verb.RESUME,
        ("idle", ("drain",), f"{OURS} : Prolog error : reboot complete"),
        DONE,
        ["resume n1"],
    ),
    ("drain drained by others, then down", Verb.DRAIN, ("down", ("drain",), f"{THEIRS} : Not responding"), ALREADY, []),
    ("drain down with a reason from before", Verb.DRAIN, ("down", (), f"{THEIRS} : Not responding"), DONE, [DRAINED]),
    ("resume ours, rebooted", Verb.RESUME, ("down", ("drain",), f"{OURS} : reboot complete"), DONE, ["resume n1"]),
    ("resume ours, GPUs lost", Verb.RESUME, ("idle", ("drain", "invalid_reg"), OURS), REFUSED, []),
    ("resume ours, then theirs", Verb.RESUME, ("idle", ("drain",), f"{OURS} : keep it out, bob"), REFUSED, []),
    ("mark downed by others", Verb.MARK, ("down", (), THEIRS), REFUSED, []),
    ("mark marked and silent", Verb.MARK, ("down", ("fail",), "Action:Replace : Not responding"), ALREADY, []),
    ("mark in maintenance", Verb.MARK, ("down", ("maintenance", "reserved"), "Not responding"), REFUSED, []),
    ("mark powered down", Verb.MARK, ("idle", ("cloud", "powered_down"), ""), REFUSED, []),
    ("reboot downed by others", Verb.REBOOT, ("down", (), THEIRS), REFUSED, []),
    ("reboot failed by others", Verb.REBOOT, ("idle", ("fail",), THEIRS), REFUSED, []),
    ("reboot in maintenance", Verb.REBOOT, ("idle", ("maintenance", "reserved"), ""), REFUSED, []),
    ("reboot silent", Verb.REBOOT, ("down", (), "Not responding"), DONE, ["reboot n1 rekindle:inc-1"]),
    ("resume ours", Verb.RESUME, ("idle", ("drain",), OURS), DONE, ["resume n1"]),
    ("resume ours, down", Verb.RESUME, ("down", ("drain",), OURS), DONE, ["resume n1"]),
    ("resume in service", Verb.RESUME, ("idle", (), ""), ALREADY, []),
    ("resume theirs", Verb.RESUME, ("idle", ("drain",), THEIRS), REFUSED, []),
    ("resume without reason", Verb.RESUME, ("idle", ("drain",), ""), REFUSED, []),
    ("resume HyperPod's", Verb.RESUME, ("idle", ("fail",), "Action:Replace"), REFUSED, []),
    ("mark idle", Verb.MARK, ("idle", (), ""), REFUSED, []),
    ("mark down, not drained", Verb.MARK, ("down", (), "Not responding"), REFUSED, []),
    ("mark down, ours", Verb.MARK, ("down", ("drain",), f"{OURS} : Not responding"), DONE, ["mark n1 Action:Replace"]),
    ("drain in maintenance", Verb.DRAIN, ("idle", ("maintenance", "reserved"), ""), ALREADY, []),
    ("mark ours", Verb.MARK, ("idle", ("drain",), OURS), DONE, ["mark n1 Action:Replace"]),
    ("mark marked", Verb.MARK, ("idle", ("fail",), "Action:Replace"), ALREADY, []),
    ("mark otherwise marked", Verb.MARK, ("idle", ("fail",), "Action:Reboot"), REFUSED, []),
    ("mark theirs", Verb.MARK, ("idle", ("drain",), THEIRS), REFUSED, []),
    ("reboot ours", Verb.REBOOT, ("idle", ("drain",), OURS), DONE, ["reboot n1 rekindle:inc-1"]),
    ("reboot rebooting", Verb.REBOOT, ("idle", ("reboot_issued",), ""), ALREADY, []),
    ("reboot theirs", Verb.REBOOT, ("idle", ("drain",), THEIRS), REFUSED, []),
]


@pytest.mark.parametrize(
    ("verb", "there", "outcome", "commands"), [row[1:] for row in NODES], ids=[r[0] for r in NODES]
)
def test_orders_about_nodes(
    world: World, verb: Verb, there: Node | None, outcome: Outcome, commands: list[str]
) -> None:
    if there is not None:
        state, flags, reason = there
        world.ctld.put_node("n1", state, *flags, reason=reason)
    repair = Repair.REPLACE if verb is Verb.MARK else None
    answer = world.obey(world.order(verb, node="n1", repair=repair, incident_id="inc-1"))
    assert (answer.outcome, world.ctld.commands) == (outcome, commands), answer.detail
    assert answer.node == "n1"


def put_for(world: World, verb: Verb, is_: str = "") -> None:
    """A node that the order may be carried out on: only one that our drain has emptied is marked."""
    is_drained = verb is Verb.MARK
    world.ctld.put_node("n1", "idle", *(["drain"] * is_drained), reason=OURS if is_drained else "", is_=is_)


@pytest.mark.parametrize("verb", [Verb.DRAIN, Verb.MARK, Verb.REBOOT])
@pytest.mark.parametrize(("stands", "is_meant"), [("i-0b", False), ("i-0a", True), ("", True)])
def test_an_order_about_a_machine_does_not_reach_the_one_that_took_its_name(
    world: World, verb: Verb, stands: str, is_meant: bool
) -> None:
    """HyperPod gives a replacement its predecessor's name. Where Slurm names no machine, the order counts."""
    put_for(world, verb, is_=stands)
    repair = Repair.REPLACE if verb is Verb.MARK else None
    answer = world.obey(world.order(verb, node="n1", repair=repair, instance_id="i-0a"))
    assert (answer.outcome, bool(world.ctld.commands)) == (DONE if is_meant else ALREADY, is_meant)
    assert is_meant or "no longer i-0a" in answer.detail


def test_a_node_with_other_peoples_jobs_is_marked_when_they_have_ended(world: World) -> None:
    world.ctld.put_node("n1", "mixed", "drain", reason=OURS, jobs=(12, 13))
    order = world.order(Verb.MARK, node="n1", repair=Repair.REPLACE)
    world.agent.executor.take(order.to_json().decode())
    for _ in range(5):
        assert world.agent.executor.work() is not None
        world.clock.forward(2)
    assert world.ctld.commands == []
    world.ctld.put_node("n1", "idle", "drain", reason=OURS)
    assert world.obey(order).outcome is DONE
    assert world.ctld.commands == ["mark n1 Action:Replace"]


def test_whose_jobs_go_on_on_a_drained_node_is_told(world: World) -> None:
    world.ctld.put_node("n1", "mixed", jobs=(12, 13))
    assert "jobs 12, 13 go on" in world.obey(world.order(Verb.DRAIN, node="n1")).detail


def test_somebody_elses_reason_is_told(world: World) -> None:
    world.ctld.put_node("n1", "idle", "drain", reason=THEIRS)
    assert THEIRS in world.obey(world.order(Verb.DRAIN, node="n1")).detail


def test_a_reboot_that_was_over_before_the_agent_was_back_is_seen_by_the_boot(world: World) -> None:
    world.ctld.put_node("n1")
    order = world.order(Verb.REBOOT, node="n1")
    world.agent.executor.take(order.to_json().decode())
    world.agent.journal.begin(order.token, now=world.clock.now())
    world.ctld.nodes["n1"] = NodeNow(
        facts=world.ctld.nodes["n1"].facts, booted_at=world.clock.now() + timedelta(minutes=3)
    )
    world.clock.forward(600)
    world.start()
    answer = world.obey(order)
    assert answer.outcome is DONE
    assert world.ctld.commands == []


@pytest.mark.parametrize("verb", [Verb.DRAIN, Verb.MARK, Verb.REBOOT])
def test_a_node_order_whose_answer_was_lost_is_not_run_twice(world: World, verb: Verb) -> None:
    put_for(world, verb)
    world.ctld.loses_answers = 1
    answer = world.obey(world.order(verb, node="n1", repair=Repair.REBOOT))
    assert answer.outcome is DONE
    assert len(world.ctld.commands) == 1


def test_a_job_whose_tasks_are_fixed_is_not_made_smaller_and_the_answer_says_why(world: World) -> None:
    world.ctld.put(job(state=S.PENDING, **FOUR))
    world.ctld.fixed = "--ntasks-per-node fixes its number of tasks"
    answer = world.obey(world.order(Verb.SHRINK, **about_job(nodes_min=2, nodes_max=4)))
    assert (answer.outcome, world.ctld.commands) == (REFUSED, [])
    assert "--ntasks-per-node" in answer.detail


def test_a_shrink_whose_answer_was_lost_is_settled_by_the_size_that_is_there(world: World) -> None:
    world.ctld.put(job(state=S.PENDING, **FOUR))
    world.ctld.loses_answers = 1
    answer = world.obey(world.order(Verb.SHRINK, **about_job(nodes_min=2, nodes_max=4)))
    assert (answer.outcome, world.ctld.commands) == (DONE, ["resize 7 2-4"])
