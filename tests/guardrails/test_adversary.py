"""What tries to make the guards do harm, or lose what a person has said: late answers, races, storms."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from chalicelib.domain.guards.holds import MAX_HOLDS
from chalicelib.domain.model.approvals import ApprovalAnswer, Guard
from chalicelib.domain.model.errors import DependencyUnavailable, InvalidRequest
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.model.switches import Breaker
from chalicelib.services.reporting.outcome import OutcomeKind
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, checkpoint, incident, seen, signal, view
from tests.domain.node_looks import NODE, node_incident, node_view, observed
from tests.guardrails.made import HOUR, answer_of, asks, look_on, names, only, open_hold, policy, said
from tests.guardrails.test_world import Storm, approvals_of
from tests.services.slurm_world import SlurmWorld
from tests.services.world import JOB, World

POINTS = Known((checkpoint(90), checkpoint(80)))
STUCK = seen(view(work="stalled"))
LATE = incident(Phase.CHECKPOINTING, FaultClass.HANG, evidence_since=NOW - HOUR)
PASSED = NOW + 2 * MINUTE  # past the deadline of the checkpoint that LATE waits for


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lifted", [False, True])
def test_a_no_given_in_a_long_pause_counts_however_the_deadline_stood_then(is_lifted: bool) -> None:
    """The service takes it, because the pause moves the deadline: what was taken must not be forgotten."""
    rules = asks("StopJob", default="approve", deadline_s=600)
    first = look_on(LATE, STUCK, rules, at=PASSED).incident
    paused = look_on(first, STUCK, rules, at=PASSED + MINUTE, paused=True).incident
    word = said(only(first), "denied", at=PASSED + HOUR)
    kept = look_on(paused, STUCK, rules, at=PASSED + HOUR + MINUTE, paused=not is_lifted, new_signals=(word,))
    assert answer_of(kept.incident) is ApprovalAnswer.DENIED
    ended = kept if is_lifted else look_on(kept.incident, STUCK, rules, at=PASSED + 2 * HOUR)
    assert (ended.rule, "StopJob" in names(ended)) == ("guard.denied", False)


def test_silence_of_people_whom_nobody_has_asked_is_no_yes() -> None:
    """The bus was down for as long as the deadline: the question goes out again, with its time anew."""
    rules = asks("StopJob", default="approve", deadline_s=600)
    first = look_on(LATE, STUCK, rules, at=PASSED)
    due = only(first.incident).deadline_at
    again = look_on(first.incident, STUCK, rules, at=due + MINUTE, told=False)
    assert (again.rule, names(again)) == ("guard.approval", ["AskApproval"])
    assert only(again.incident).deadline_at == due + 11 * MINUTE
    heard = look_on(again.incident, STUCK, rules, at=due + 2 * MINUTE)
    assert names(look_on(heard.incident, STUCK, rules, at=due + 11 * MINUTE)) == ["StopJob"]


def test_where_silence_means_no_the_deadline_stands_whether_people_were_asked_or_not() -> None:
    rules = asks("StopJob", default="deny", deadline_s=600)
    first = look_on(LATE, STUCK, rules, at=PASSED)
    ended = look_on(first.incident, STUCK, rules, at=only(first.incident).deadline_at, told=False)
    assert ended.rule == "guard.denied_by_default"


def test_what_a_person_has_denied_is_not_asked_again_until_a_default_says_yes() -> None:
    """Each rank tells its own stall, and the sweep tells it again: one no is enough while the attempt lives."""
    w = World(asks("StopJob", default="approve", deadline_s=600))
    w.run(5)
    w.hang(JOB)
    w.run(10)
    approvals = approvals_of(w)
    while not approvals.pending():
        w.run(1)
    (waiting,) = approvals.pending()
    denied = waiting["incident"]["incident_id"]
    approvals.answer(denied, waiting["approval_id"], answer="deny", who="ada", key="k", comment="a debugger is on it")
    w.run(60)
    assert w.last.incident_id == denied, w.story()
    assert (w.last.outcome, w.live) == ("guard.denied", [JOB])


# ---- holds -----------------------------------------------------------------------------------------------------------


def test_a_storm_of_stale_words_does_not_push_out_what_stops_the_clock() -> None:
    """Each rank of the attempt before may report late. The open Hold says since when no limit runs."""
    rules = asks("StopJob")
    case = incident(
        Phase.VERIFYING, FaultClass.SOFTWARE_CRASH, watch_step=Known(95), watch_at=NOW - HOUR, evidence_since=NOW - HOUR
    )
    standing = seen(view(name="lm-r2", step=95))
    first = look_on(case, standing, rules)
    late = tuple(
        dataclasses.replace(signal(attempt="lm", at=NOW), dedupe_key=f"rank-{rank}") for rank in range(2 * MAX_HOLDS)
    )
    after = look_on(first.incident, standing, rules, at=NOW + MINUTE, new_signals=late)
    hold = open_hold(after.incident, Guard.APPROVAL)
    assert hold is not None
    assert hold.since == NOW
    assert len(after.incident.holds) <= MAX_HOLDS
    assert len([hold for hold in after.incident.holds if hold.guard is Guard.STALE]) == MAX_HOLDS - 1


# ---- the breaker -----------------------------------------------------------------------------------------------------

DEAD = seen(view(AttemptStatus.FAILED, failure_reason="boom"), checkpoints=POINTS)


def tripped(at: object) -> Breaker:
    return Breaker(tripped_at=at, incident_id="inc-other", text="30 Incidents, 40 Jobs")  # type: ignore[arg-type]


def test_a_breaker_that_trips_again_is_asked_about_again() -> None:
    """The yes was about the time before. Without a new question the Incident would be held and nobody would know."""
    first = look_on(DEAD_CASE, DEAD, policy(), breaker=tripped(NOW))
    assert (first.rule, names(first)) == ("guard.breaker", ["AskApproval"])
    word = said(only(first.incident), at=NOW + MINUTE)
    again = look_on(
        first.incident, DEAD, policy(), at=NOW + 3 * MINUTE, breaker=tripped(NOW + 2 * MINUTE), new_signals=(word,)
    )
    assert (again.rule, names(again)) == ("guard.breaker", ["AskApproval"])
    old, new = again.incident.approvals
    assert (old.is_pending, old.covers, new.is_pending) == (False, False, True)
    held = open_hold(again.incident, Guard.BREAKER)
    assert held is not None
    assert held.since == NOW, "held all the time: no limit has run"


def test_a_question_that_a_lift_has_answered_is_asked_anew_where_the_breaker_trips_again() -> None:
    """This Incident had sent the page. Without a new one, people hear of the newer trip at its deadline only."""
    first = look_on(DEAD_CASE, DEAD, policy(), breaker=tripped(NOW))
    lifted_at = NOW + MINUTE
    again = look_on(
        first.incident,
        DEAD,
        policy(),
        at=NOW + 3 * MINUTE,
        breaker=dataclasses.replace(tripped(NOW + 2 * MINUTE), lifted_at=lifted_at),
        breaker_lifted_at=lifted_at,
    )
    assert (again.rule, names(again)) == ("guard.breaker", ["AskApproval"])
    assert [approval.is_pending for approval in again.incident.approvals] == [False, True]


DEAD_CASE = incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH)


def test_lifted_and_tripped_again_by_the_very_one_that_was_answered_asks_anew() -> None:
    storm = Storm(30, policy(breaker={"incidents": 5, "percent": 10}))
    storm.look()
    for number in range(4):
        storm.w.clock.advance(MINUTE)
        storm.look()
        storm.look()  # whoever tripped it looks again at once
        waiting = approvals_of(storm.w).pending()
        held = [incident for incident in storm.incidents if incident.is_open and open_hold(incident, Guard.BREAKER)]
        assert {item["incident"]["incident_id"] for item in waiting} == {incident.incident_id for incident in held}
        last = waiting[-1]  # it looks after the others, when those have tripped it again already
        approvals_of(storm.w).answer(
            last["incident"]["incident_id"], last["approval_id"], answer="approve", who="ada", key=f"k{number}"
        )


def test_a_person_who_stops_a_whole_fleet_trips_nothing() -> None:
    """What people order is theirs: it must not hold every other recovery back."""
    storm = Storm(0, policy(breaker={"incidents": 2, "percent": 0}))
    w = storm.w
    for index in range(6):
        name = f"run-{index}"
        w.scheduler.put(name, AttemptStatus.RUNNING, policy_name=storm.rules.name, mailbox="")
        found = w.scheduler.find(name)
        assert found is not None
        w.intake.register(found)
        order = (w.orders.stop, w.orders.resubmit)[index % 2]
        more = {"checkpoint": False} if index % 2 == 0 else {"from_step": None, "skip": []}
        order(name, who="ada", key="k", **more)  # type: ignore[operator]
    for _ in range(8):
        storm.look()
        w.clock.advance(2 * MINUTE)
    assert not w.registry.switches().breaker.is_open
    stopping = [incident for incident in storm.incidents if incident.halt.stopped_attempts]
    assert len(stopping) == 6


# ---- orders ----------------------------------------------------------------------------------------------------------


def ordered(kind: SignalKind, *, at: object = NOW, **evidence: object) -> Signal:
    made = signal(FaultClass.OPERATOR_ORDER, kind=kind, at=at, evidence={"who": "ada", **evidence})  # type: ignore[arg-type]
    return dataclasses.replace(made, source=SignalSource.OPERATOR, summary=f"ada ordered: {kind}")


CANCEL = dataclasses.replace(ordered(SignalKind.ORDER_CANCEL), fault=None, triggers=False)


@pytest.mark.parametrize("phase", [Phase.HOLDING, Phase.CHECKPOINTING, Phase.VERIFYING])
def test_whoever_cancels_and_then_stops_gets_the_stop(phase: Phase) -> None:
    """Both arrive before the next look. Had the cancel closed the Incident, the run would train on."""
    case = incident(phase, FaultClass.HANG)
    name = case.attempt or ""
    stop = ordered(SignalKind.ORDER_STOP, at=NOW + timedelta(seconds=2), checkpoint=False)
    decision = look_on(case, seen(view(name=name)), policy(), at=NOW + MINUTE, new_signals=(CANCEL, stop))
    assert (decision.rule, names(decision)) == ("order.stop_now", ["StopJob"])


def test_a_cancel_after_a_stop_takes_it_back_and_says_so() -> None:
    stop = ordered(SignalKind.ORDER_STOP, at=NOW, checkpoint=False)
    late = dataclasses.replace(CANCEL, occurred_at=NOW + timedelta(seconds=2))
    decision = look_on(
        incident(Phase.HOLDING, FaultClass.HANG), STUCK, policy(), at=NOW + MINUTE, new_signals=(stop, late)
    )
    assert (decision.rule, names(decision)) == ("order.cancel", ["Notify", "Notify"])
    assert "give it again" in str(decision.actions[-1])


@pytest.mark.parametrize("phase", [Phase.HOLDING, Phase.VERIFYING])
@pytest.mark.parametrize("kind", [SignalKind.ORDER_RESUBMIT, SignalKind.ORDER_CHECKPOINT])
def test_an_order_that_ends_with_its_incident_is_answered(phase: Phase, kind: SignalKind) -> None:
    case = incident(phase, FaultClass.HANG)
    what = seen(view(name=case.attempt or ""))
    decision = look_on(case, what, policy(), at=NOW + MINUTE, new_signals=(CANCEL, ordered(kind)))
    assert decision.rule == "order.cancel"
    assert "was not taken" in str(decision.actions[-1])


def test_an_order_that_comes_too_late_in_a_pause_is_answered_too() -> None:
    late = ordered(SignalKind.ORDER_RESUBMIT)
    case = incident(Phase.VERIFYING, FaultClass.HANG)
    decision = look_on(case, seen(view(name="lm-r2")), policy(), paused=True, new_signals=(late,))
    assert (decision.rule, names(decision)) == ("guard.paused", ["Notify", "Notify"])
    early = look_on(incident(Phase.HOLDING, FaultClass.HANG), STUCK, policy(), paused=True, new_signals=(late,))
    assert (names(early), early.incident.order is not None) == (["Notify"], True)


def test_an_order_for_which_there_is_no_room_is_refused_to_whoever_gives_it() -> None:
    w = World()
    w.run(5)
    w.hang(JOB)
    w.deliver_all()
    w.sweep.run()
    while not w.open_incidents:
        w.run(1)
    incident_id = w.last.incident_id
    for worker in list(w.workers.values()):
        w.die(worker)
    number = 0
    while w.intake.cancel(incident_id, _filler(number)).what is not OutcomeKind.OVERFLOWED:
        number += 1
    with pytest.raises(DependencyUnavailable, match="order again"):
        w.orders.stop(JOB, who="ada", key="s", checkpoint=False)
    with pytest.raises(DependencyUnavailable, match="order again"):
        w.orders.cancel(incident_id, who="ada", key="c")


def _filler(number: int) -> Signal:
    made = ordered(SignalKind.ORDER_CHECKPOINT)
    return dataclasses.replace(made, dedupe_key=f"filler-{number}", job_id=JOB, attempt=JOB)


def test_a_node_order_that_came_beside_a_cancel_is_not_forgotten_in_silence() -> None:
    reboot = dataclasses.replace(
        ordered(SignalKind.ORDER_NODE, at=NOW + timedelta(seconds=2), do="reboot"), job_id=None, attempt=None, node=NODE
    )
    decision = look_on(node_incident(), observed(node_view()), policy(), new_signals=(CANCEL, reboot))
    assert (decision.rule, names(decision)) == ("order.cancel", ["Notify"])
    assert "order it again" in decision.reason


def test_a_resubmission_that_leaves_too_few_nodes_is_refused_before_the_run_is_stopped() -> None:
    w = SlurmWorld()
    for _ in range(4):
        w.breathe()
    w.orders = dataclasses.replace(w.orders, head_nodes=w.head)
    listed = w.head.nodes("pod")
    assert isinstance(listed, Known)
    every = [node.name for node in listed.value.nodes]
    run_on = len(w.running[0].nodes)
    for nodes in (every, every[: len(every) - run_on + 1]):
        with pytest.raises(InvalidRequest) as refused:
            w.orders.resubmit(w.job_id, who="ada", key="r", from_step=None, skip=[], exclude=nodes)
        assert refused.value.field == "exclude"
    assert (w.open_incidents, len(w.running)) == ([], 1)


# ---- alerts of others ------------------------------------------------------------------------------------------------


def alert(w: World, fault: FaultClass) -> Signal:
    return Signal(
        kind=SignalKind.EXTERNAL_ALERT,
        source=SignalSource.WEBHOOK,
        occurred_at=w.clock.now(),
        dedupe_key=f"external:prom:{w.clock.now().isoformat()}",
        summary="prom: RunStandsStill is firing",
        job_id=JOB,
        fault=fault,
        evidence={},
    )


def test_an_alert_that_calls_a_moving_run_stuck_stops_nothing_however_often_it_flaps() -> None:
    w = World()
    w.run(5)
    for _ in range(4):
        w.intake.receive(alert(w, FaultClass.HANG))
        w.run(10)
    assert w.live == [JOB], w.story()
    assert {incident.outcome for incident in w.incidents} == {"healed"}


def test_an_alert_that_calls_a_stuck_run_stuck_is_acted_upon_once_its_steps_agree() -> None:
    w = World()
    w.run(5)
    w.sims[JOB].hung = True
    w.intake.receive(alert(w, FaultClass.HANG))
    w.settle()
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert w.live != [JOB]
