"""A run that a person has ordered stopped is saved if asked, stopped, and stays so, whatever comes in afterwards."""

from __future__ import annotations

import pytest

from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.document import Policy
from chalicelib.services.reporting.outcome import OutcomeKind
from rekindle.protocol.signals import FaultClass
from tests.guardrails_nodes.stage import with_policy
from tests.services.world import JOB, World


@pytest.fixture
def w() -> World:
    world = World()
    world.tick(600)
    return world


def rules(w: World) -> list[str]:
    return [decision.rule for decision in w.decisions]


def is_halted(w: World) -> bool:
    job = w.registry.get(JOB)
    return job.halted_by == "ada" and not job.active


def nothing_follows(w: World) -> None:
    """Late events, a stray alert and the sweep: the run stays as it was ordered."""
    runs = set(w.scheduler.runs)
    for fault, text in ((FaultClass.SOFTWARE_CRASH, "late"), (FaultClass.HANG, "stall"), (FaultClass.NODE_LOST, "n")):
        signal = w.say(SignalKind.ALARM, None, fault, key=f"late:{text}")
        assert w.intake.receive(signal).what is OutcomeKind.DROPPED
    w.fail(w.registry.get(JOB).current_attempt, "AlgorithmError: exit code 143 after SIGTERM")
    w.deliver_all()
    w.sweep.run()
    w.run(20)
    assert set(w.scheduler.runs) == runs
    assert w.open_incidents == []


def test_a_stop_saves_first_where_it_is_asked_to(w: World) -> None:
    w.orders.stop(JOB, who="ada", key="s", checkpoint=True)
    w.run(30)
    assert w.last.phase is Phase.STOPPED, w.story()
    assert w.last.outcome == "order.stop"
    assert w.last.halt.ask is not None
    assert w.last.halt.ask.outcome == "saved"
    assert any(item.kind == "emergency" for item in w.mailbox.stored)
    assert w.status(JOB) is AttemptStatus.STOPPED
    assert is_halted(w)
    nothing_follows(w)


def test_a_stop_alone_asks_for_nothing(w: World) -> None:
    w.orders.stop(JOB, who="ada", key="s", checkpoint=False)
    w.run(30)
    assert w.last.outcome == "order.stop"
    assert w.mailbox.requests == {}
    nothing_follows(w)


def test_a_run_that_does_not_answer_is_stopped_at_the_deadline(w: World) -> None:
    w.sims[JOB].answers = False
    w.orders.stop(JOB, who="ada", key="s", checkpoint=True)
    w.run(60)
    assert w.last.outcome == "order.stop", w.story()
    assert w.last.halt.ask is not None
    assert w.last.halt.ask.outcome == "late"
    assert w.status(JOB) is AttemptStatus.STOPPED


def test_a_stop_is_taken_while_the_run_is_being_recovered_and_no_copy_is_left(w: World) -> None:
    for quarters in range(24):  # at each point of a recovery
        world = World()
        world.tick(600)
        world.fail(JOB, "AlgorithmError: RuntimeError: boom")
        world.run(quarters / 4, step_s=15)
        if not world.open_incidents:
            break
        world.orders.stop(JOB, who="ada", key="s", checkpoint=False)
        world.run(60)
        assert world.last.outcome == "order.stop", (quarters, world.story())
        assert world.live == [], (quarters, world.story())
        assert is_halted(world)
        nothing_follows(world)


def test_a_stop_is_taken_while_a_checkpoint_is_waited_for(w: World) -> None:
    w.sims[JOB].answers = False
    w.deliver(w.say(SignalKind.NODE_HEALTH, JOB, FaultClass.NODE_HARDWARE))
    w.run(2, step_s=5)
    assert w.last.phase is Phase.CHECKPOINTING
    w.orders.stop(JOB, who="ada", key="s", checkpoint=False)
    w.run(30)
    assert w.last.outcome == "order.stop", w.story()
    assert w.live == []


def test_a_run_that_has_ended_already_is_only_marked(w: World) -> None:
    w.fail(JOB, "AlgorithmError: RuntimeError: boom")
    w.air.clear()
    w.orders.stop(JOB, who="ada", key="s", checkpoint=True)
    w.run(10)
    assert w.last.outcome == "order.stop"
    assert w.live == []
    assert w.scheduler.submitted == []
    nothing_follows(w)


def test_an_ordered_checkpoint_gets_its_time_whatever_the_playbook_leaves_out() -> None:
    row = {"operator_order": {"response": "restart", "deadline": "none"}}
    w = World(Policy.from_wire({"playbooks": row}))
    w.tick(600)
    w.fail(JOB, "AlgorithmError: RuntimeError: boom")
    for _ in range(40):
        w.run(0.5)
        if w.last.phase is Phase.VERIFYING and w.current is not None and w.status(w.current) is AttemptStatus.RUNNING:
            break
    assert w.last.phase is Phase.VERIFYING
    w.orders.stop(JOB, who="ada", key="s", checkpoint=True)
    w.run(30)
    assert w.last.outcome == "order.stop", w.story()
    assert w.last.halt.ask is not None
    assert w.last.halt.ask.outcome == "saved"
    assert w.live == []


def test_the_same_order_twice_is_one_order(w: World) -> None:
    w.orders.stop(JOB, who="ada", key="s", checkpoint=False)
    assert w.orders.stop(JOB, who="ada", key="s", checkpoint=False).what is OutcomeKind.DUPLICATE
    w.run(30)
    assert rules(w).count("order.stop_now") == 1


def test_a_later_checkpoint_order_does_not_lift_the_stop(w: World) -> None:
    w.orders.stop(JOB, who="ada", key="s", checkpoint=False)
    w.run(30)
    w.orders.checkpoint(JOB, who="bob", key="c")
    w.run(10)
    assert w.last.outcome == "order.checkpoint_no_run"
    assert is_halted(w)
    nothing_follows(w)


def test_an_order_to_resubmit_brings_it_back_and_protects_it_again(w: World) -> None:
    w.orders.stop(JOB, who="ada", key="s", checkpoint=True)
    w.run(30)
    w.orders.resubmit(JOB, who="bob", key="r", from_step=None, skip=[])
    w.run(60)
    assert w.last.phase is Phase.RECOVERED, w.story()
    job = w.registry.get(JOB)
    assert (job.current_attempt, job.active, job.halted_by) == ("lm-r2", True, "")
    w.fail("lm-r2", "AlgorithmError: RuntimeError: boom")
    w.run(60)
    assert w.registry.get(JOB).current_attempt == "lm-r3"


def test_a_stop_that_never_takes_effect_calls_a_person(w: World) -> None:
    policy = with_policy(timing={"stop_limit_s": 60})
    w = World(policy)
    w.tick(600)
    w.scheduler.dark = True  # neither read nor stopped
    w.orders.stop(JOB, who="ada", key="s", checkpoint=False)
    w.run(10)
    assert [notice.severity for notice in w.announcer.notices] == [Severity.PAGE]
    w.run(420, step_s=60)
    assert w.last.phase is Phase.HANDED_OVER, w.story()
    assert w.last.outcome == "order.stop_unseen_limit"
    w.scheduler.dark = False
    assert w.status(JOB) is AttemptStatus.RUNNING
    assert w.registry.get(JOB).active


def test_in_shadow_mode_an_order_is_told_and_not_carried_out() -> None:
    w = World(with_policy(shadow=True))
    w.tick(600)
    w.orders.stop(JOB, who="ada", key="s", checkpoint=True)
    w.run(10)
    assert w.last.outcome == "guard.shadow"
    assert w.status(JOB) is AttemptStatus.RUNNING
    assert w.mailbox.requests == {}


def test_nodes_of_a_training_job_cannot_be_excluded(w: World) -> None:
    with pytest.raises(InvalidRequest) as refused:
        w.orders.resubmit(JOB, who="ada", key="r", from_step=None, skip=[], exclude=["ip-10-1-0-2"])
    assert refused.value.field == "exclude"
    assert w.open_incidents == []
