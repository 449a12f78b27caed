"""decide() has an answer to everything: total, deterministic, never hasty; and every transition has been walked."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import ActionResult, Done, Notify
from chalicelib.domain.model.incident import TRANSITIONS, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, Observation
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.policy.playbooks import Deadline, Response
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW, UNSEEN, checkpoint, decide, incident, look, seen, signal, view, with_row
from tests.domain.tables.test_decision_tables import TABLE
from tests.domain.tables.test_loss_tables import LOSS_TABLE
from tests.domain.tables.test_node_tables import NODE_TABLE
from tests.domain.tables.test_slurm_tables import SLURM_TABLE

pytestmark = pytest.mark.long

# A chain of looks without waiting: prepare, send, and the names of strangers; never more.
MAX_AT_ONCE = 10
FIRST = [Phase.OPEN, Phase.HOLDING, Phase.WATCHING]
ENDS = [Phase.RECOVERED, Phase.STOPPED, Phase.HANDED_OVER]


# Where a judgement of the loss makes a difference; elsewhere it is one more field that nobody reads.
JUDGED = (FaultClass.LOSS_SPIKE, FaultClass.DIVERGENCE, FaultClass.NON_FINITE, FaultClass.HANG)
HEALTHS = ("ok", "watch", "spiking", "diverging")


def judged(name: str, health: str, step: int, onset: int | None, points: Known[Any]) -> Observation:
    """A look at a run whose detectors have spoken; before step 150 without the checkpoints."""
    healed = step if health == "ok" and onset is not None else None
    what = view(name=name, step=150, loss_health=health, judged_step=step, onset_step=onset, healed_step=healed)
    return seen(what, checkpoints=points if step == 150 else Unknown("not needed yet"))


def observations(phase: Phase, fault: FaultClass) -> list[Observation]:
    name = "lm-r2" if phase is Phase.VERIFYING else "lm"
    news = (signal(fault, kind=SignalKind.ALARM, attempt=name),)
    points = Known((checkpoint(90), checkpoint(80)))
    seens = [seen(UNSEEN, new_signals=news), seen(UNSEEN, has_job=False), seen(paused=True, new_signals=news)]
    for status, step, loss in itertools.product(AttemptStatus, (None, 150), ("finite", "nan")):
        seens.append(seen(view(status, name=name, step=step, loss_state=loss), new_signals=news, checkpoints=points))
        seens.append(seen(view(status, name=name, step=step, loss_state=loss), checkpoints=points))
    if fault in JUDGED:
        seens += [judged(name, *one, points) for one in itertools.product(HEALTHS, (95, 150), (None, 110))]
    for action, done in itertools.product(("RequestCheckpoint", "StopJob", "ResubmitJob"), Done):
        answer = (ActionResult(action=action, done=done, detail="x"),)
        seens.append(seen(view(name=name), results=answer, checkpoints=points))
    return seens


def products(phase: Phase, *, is_whole: bool) -> Iterator[tuple[FaultClass, Response, list[Observation]]]:
    """Each fault, response and what is seen: all of them together, or every two of them together.

    The response is chosen from in the first phases. Later it makes little difference what is seen under which one: a
    third of the looks for each, another third for the next fault.
    """
    for number, (fault, response) in enumerate(itertools.product(FaultClass, Response)):
        if is_whole:
            yield fault, response, observations(phase, fault)
        else:
            shift = number + number // len(Response)
            yield fault, response, observations(phase, fault)[shift % 3 :: 3]


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_state_fault_and_response_has_a_decision(phase: Phase) -> None:
    for fault, response, seens in products(phase, is_whole=phase in FIRST):
        policy = with_row(fault, response=response, deadline=Deadline.FULL)
        case = incident(phase, fault, phase_entered_at=NOW - timedelta(minutes=1))
        for what in seens:
            decision = look(case, what, policy)
            assert decision.rule
            assert decision.reason
            assert decision.policy_version == policy.version
            assert (decision.look_again_in is None) == (not decision.incident.is_open)
            if decision.look_again_in == timedelta(0):
                assert decision.incident.phase is Phase.RESUBMITTING or decision.rule == "rollback.looking"
            if what.paused or not decision.incident.is_open:
                assert all(isinstance(action, Notify) for action in decision.actions)


@pytest.mark.parametrize("phase", FIRST)
def test_shadow_mode_never_does_anything(phase: Phase) -> None:
    """The other phases are entered by acting only; tests/services walks whole Incidents in shadow mode."""
    for fault, response, seens in products(phase, is_whole=False):
        policy = dataclasses.replace(with_row(fault, response=response, deadline=Deadline.FULL), shadow=True)
        for what in seens:
            decision = look(incident(phase, fault), what, policy)
            assert all(isinstance(action, Notify) for action in decision.actions), decision.rule


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.is_terminal])
@pytest.mark.parametrize("status", [status for status in AttemptStatus])
@pytest.mark.parametrize("fault", FaultClass)
def test_an_incident_in_a_world_that_stands_still_ends(phase: Phase, status: AttemptStatus, fault: FaultClass) -> None:
    """No state of the run is waited for without an end, and looks at once come in short chains."""
    case, now, at_once = incident(phase, fault, signals=(signal(fault, kind=SignalKind.ALARM),)), NOW, 0
    for _ in range(20_000):
        name = case.attempt or "lm"
        what = dataclasses.replace(
            seen(view(status, name=name, step=50), checkpoints=Known((checkpoint(40),))), observed_at=now
        )
        decision = decide(case, what, now=now, policy=DEFAULT_POLICY)
        case = dataclasses.replace(decision.incident, version=case.version + 1)
        if decision.look_again_in is None:
            return
        at_once = 0 if decision.look_again_in else at_once + 1
        if at_once > MAX_AT_ONCE:
            pytest.fail(f"looks at once for ever: {decision.rule}")
        if any(type(action).__name__ == "ResubmitJob" for action in decision.actions):
            return  # handed to the platform; its answers are the world model's part (tests/services)
        now += max(decision.look_again_in, timedelta(seconds=1))
    pytest.fail(f"never ends: {decision.rule}")


def test_the_same_look_gives_the_same_decision() -> None:
    for phase in Phase:
        for what in observations(phase, FaultClass.NON_FINITE):
            case = incident(phase, FaultClass.HANG)
            assert look(case, what) == look(case, what)


def test_an_unreadable_run_is_not_waited_for_without_an_end() -> None:
    for phase in (Phase.OPEN, Phase.HOLDING, Phase.WATCHING, Phase.STOPPING, Phase.VERIFYING):
        case, now = incident(phase, FaultClass.HANG), NOW
        while case.is_open:
            what = dataclasses.replace(seen(UNSEEN), observed_at=now)
            decision = decide(case, what, now=now, policy=DEFAULT_POLICY)
            case = decision.incident
            now += decision.look_again_in or timedelta(0)
            assert now < NOW + timedelta(hours=12)
        assert case.phase is Phase.HANDED_OVER


def test_every_transition_of_the_table_is_walked_and_no_other() -> None:
    walked = {(row[1].phase, row[5]) for row in (*TABLE, *LOSS_TABLE, *SLURM_TABLE) if row[1].phase is not row[5]}
    for phase in Phase:
        if phase.is_terminal:
            continue
        cancelled = look(incident(phase), seen(new_signals=(signal(None, kind=SignalKind.ORDER_CANCEL),)))
        walked.add((phase, cancelled.incident.phase))
        for fault in (FaultClass.HANG, FaultClass.NON_FINITE, FaultClass.NO_PROGRESS):
            for what in observations(phase, fault):
                after = look(incident(phase, fault), what).incident.phase
                if after is not phase:
                    walked.add((phase, after))
    walked |= {(row[1].phase, row[5]) for row in NODE_TABLE if row[1].phase is not row[5]}
    assert walked == {(source, target) for source, targets in TRANSITIONS.items() for target in targets}


def test_a_closed_incident_never_moves() -> None:
    for phase in ENDS:
        case = incident(phase, FaultClass.HANG)
        for what in observations(phase, FaultClass.NON_FINITE):
            decision = look(case, what)
            assert decision.incident == case
            assert decision.actions == ()


def test_unknown_steps_never_recover_anything() -> None:
    for phase in Phase:
        if phase.is_terminal:
            continue
        for status in AttemptStatus:
            name = "lm-r2" if phase is Phase.VERIFYING else "lm"
            decision = look(incident(phase, FaultClass.HANG), seen(AttemptView(name=name, status=status)))
            if decision.incident.phase is Phase.RECOVERED:
                assert status is AttemptStatus.COMPLETED
