"""The guards in a whole world over the fakes: asked, answered, switched, tripped; and what becomes of the run."""

from __future__ import annotations

import pytest

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.approvals import Guard
from chalicelib.domain.model.errors import AlreadyDone, InvalidRequest, UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.ports.notices import NoticeKind
from chalicelib.services.operator.approvals import Approvals
from chalicelib.services.operator.switches import Switches
from chalicelib.services.reporting.outcome import OutcomeKind
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import decide
from tests.guardrails.made import asks, harmful, policy
from tests.services.world import JOB, World


def approvals_of(w: World) -> Approvals:
    return Approvals(store=w.store, intake=w.intake, registry=w.registry, clock=w.clock)


def switches_of(w: World) -> Switches:
    return Switches(registry=w.registry, clock=w.clock)


def crashed(rules: Policy) -> World:
    """A run that has crashed, and whose Incident has been looked at."""
    w = World(rules)
    w.run(5)
    w.fail(JOB, "RuntimeError: boom")
    w.run(2)
    return w


def questions(w: World) -> list[str]:
    return [notice.approval_id for notice in w.announcer.notices if notice.kind is NoticeKind.APPROVAL]


def test_asked_approved_recovered() -> None:
    w = crashed(asks("ResubmitJob"))
    (waiting,) = approvals_of(w).pending()
    assert (waiting["incident"]["job_id"], waiting["approval_id"], waiting["actions"]) == (JOB, "a1", ["ResubmitJob"])
    assert w.live == [], "nothing is started before somebody has said so"
    assert questions(w) == ["a1"]
    w.run(20)
    assert questions(w) == ["a1"], "asked once, however long it takes"
    approvals_of(w).answer(waiting["incident"]["incident_id"], "a1", answer="approve", who="ada", key="k")
    w.settle()
    assert w.last.phase is Phase.RECOVERED
    (approval,) = w.last.approvals
    assert (approval.by, approval.lapsed_at is not None) == ("ada", True)
    assert [hold.guard for hold in w.last.holds if hold.until is None] == []
    assert "guard.approval" in w.rules()


def test_denied_leaves_the_run_to_who_said_so() -> None:
    w = crashed(asks("ResubmitJob"))
    approvals_of(w).answer(w.last.incident_id, "a1", answer="deny", who="ben", key="k", comment="I look at it myself")
    w.settle()
    assert (w.last.phase, w.last.outcome) == (Phase.STOPPED, "guard.denied")
    assert w.live == []
    assert "ben denied" in w.announcer.notices[-1].text
    assert "I look at it myself" in w.announcer.notices[-1].text


@pytest.mark.parametrize(("default", "phase"), [("approve", Phase.RECOVERED), ("deny", Phase.HANDED_OVER)])
def test_silence_is_answered_by_the_policy(default: str, phase: Phase) -> None:
    w = crashed(asks("ResubmitJob", default=default, deadline_s=1800))
    w.settle()
    assert w.last.phase is phase
    assert w.last.approvals[0].by == "policy"


def test_whoever_answers_what_is_settled_is_told_so() -> None:
    w = crashed(asks("ResubmitJob"))
    service, incident_id = approvals_of(w), w.last.incident_id
    with pytest.raises(UnknownEntity):
        service.answer(incident_id, "a2", answer="approve", who="ada", key="k")
    with pytest.raises(UnknownEntity):
        service.answer("inc-none", "a1", answer="approve", who="ada", key="k")
    with pytest.raises(InvalidRequest, match="answer"):
        service.answer(incident_id, "a1", answer="perhaps", who="ada", key="k")
    service.answer(incident_id, "a1", answer="deny", who="ada", key="k")
    service.answer(incident_id, "a1", answer="deny", who="ada", key="k")  # the same answer once more is the same
    with pytest.raises(AlreadyDone, match="denied by ada already"):
        service.answer(incident_id, "a1", answer="approve", who="ben", key="other")
    w.settle()
    assert service.answer(incident_id, "a1", answer="deny", who="ada", key="k").what is OutcomeKind.DUPLICATE
    with pytest.raises(AlreadyDone, match="denied by ada already"):
        service.answer(incident_id, "a1", answer="approve", who="ben", key="third")
    assert service.pending() == []


def test_an_answer_after_the_deadline_is_refused_where_it_is_given() -> None:
    w = crashed(asks("ResubmitJob", deadline_s=600))
    w.clock.advance(w.last.approvals[0].deadline_at - w.clock.now())
    w.clock.advance(w.last.approvals[0].deadline_at - w.last.approvals[0].asked_at)
    with pytest.raises(AlreadyDone, match="deadline has passed"):
        approvals_of(w).answer(w.last.incident_id, "a1", answer="approve", who="ada", key="k")


def test_a_new_generation_knows_what_was_asked_and_does_not_ask_again() -> None:
    w = crashed(asks("ResubmitJob"))
    for worker in list(w.workers.values()):
        w.die(worker)
    w.run(15)
    assert w.last.generation > 1
    assert questions(w) == ["a1"]
    approvals_of(w).answer(w.last.incident_id, "a1", answer="approve", who="ada", key="k")
    w.settle()
    assert w.last.phase is Phase.RECOVERED


def test_shadow_mode_switched_on_everywhere_tells_and_does_nothing() -> None:
    w = World()
    w.run(5)
    switches_of(w).set_shadow("everywhere", None, True, who="ada")
    w.fail(JOB, "RuntimeError: boom")
    w.settle()
    assert (w.last.phase, w.last.outcome) == (Phase.HANDED_OVER, "guard.shadow")
    assert w.live == []
    assert all(not harmful(decision) for decision in w.decisions)


def test_shadow_mode_switched_on_between_a_decision_and_its_act_stops_the_act() -> None:
    w = World()
    w.run(5)
    w.fail(JOB, "RuntimeError: boom")
    w.deliver_all()
    (worker,) = w.workers.values()
    while not any(type(action).__name__ == "ResubmitJob" for action, _, _ in worker.to_act):
        w.act(worker)
        assert w.look_and_record(worker) is not None
    switches_of(w).set_shadow("job", JOB, True, who="ada")
    w.act(worker)
    assert (w.live, [result.done for result in worker.results]) == ([], ["unavailable"])
    w.settle()
    assert (w.last.outcome, w.live) == ("guard.shadow", [])


def test_a_pause_set_between_a_decision_and_its_act_stops_the_act_and_loses_nothing() -> None:
    w = World()
    w.run(5)
    w.fail(JOB, "RuntimeError: boom")
    w.deliver_all()
    (worker,) = w.workers.values()
    while not any(type(action).__name__ == "ResubmitJob" for action, _, _ in worker.to_act):
        w.act(worker)
        assert w.look_and_record(worker) is not None
    switches_of(w).set_pause(True, who="ada", why="a new driver")
    w.act(worker)
    assert w.live == []
    w.run(60)
    assert w.live == [], "nothing happens while it is paused, however long"
    switches_of(w).set_pause(False, who="ada")
    w.settle()
    assert w.last.phase is Phase.RECOVERED
    assert len(w.last.resubmission.tries) == 1, "the try that was recorded is the one that was made"
    assert [hold.guard for hold in w.last.holds if hold.guard is not Guard.STALE] == [Guard.PAUSE]


def test_a_maintenance_window_holds_and_then_lets_go() -> None:
    clock = World().clock.now()
    ends = clock.replace(hour=(clock.hour + 2) % 24)
    w = crashed(policy(windows=[{"name": "switches", "from": f"{clock:%H:%M}", "to": f"{ends:%H:%M}"}]))
    w.run(30)
    assert w.live == []
    assert (w.rules()[-1], w.last.phase) == ("guard.window", Phase.RESUBMITTING)
    w.settle()
    assert w.last.phase is Phase.RECOVERED


# ---- the breaker in a storm ------------------------------------------------------------------------------------------


class Storm:
    """Many runs that crash at once: their Incidents look together, and only then record and act."""

    def __init__(self, runs: int, rules: Policy) -> None:
        self.w = World(rules)
        self.rules = rules
        now = self.w.clock.now()
        for index in range(runs):
            name = f"run-{index}"
            self.w.scheduler.put(name, AttemptStatus.RUNNING, policy_name=rules.name, mailbox="")
            found = self.w.scheduler.find(name)
            assert found is not None
            self.w.intake.register(found)
            self.w.scheduler.put(name, AttemptStatus.FAILED, failure_reason="RuntimeError: boom")
            self.w.intake.receive(
                Signal(
                    kind=SignalKind.ATTEMPT_STATE,
                    source=SignalSource.SAGEMAKER,
                    occurred_at=now,
                    dedupe_key=f"end:{name}",
                    summary="it failed",
                    job_id=name,
                    attempt=name,
                    fault=FaultClass.SOFTWARE_CRASH,
                    evidence={"status": "Failed"},
                )
            )
        self.turn = 0

    @property
    def incidents(self) -> list[Incident]:
        return [incident for incident in self.w.incidents if incident.job_id != JOB]

    def started(self) -> int:
        return sum(run.action is not None for run in self.w.scheduler.runs.values())

    def look(self) -> list[Decision]:
        """All of them look; then all of them record; then all of them act."""
        self.turn += 1
        seen = []
        for case in self.incidents:
            if case.is_open:
                before, what = self.w.look.observe(
                    case.incident_id,
                    generation=1,
                    callback_id=f"c{self.turn}",
                    quiet_limit=self.rules.timing.look_max,
                )
                decision = decide(before, what, now=what.observed_at, policy=self.rules)
                seen.append((before, what, decision))
        recorded = []
        for before, what, decision in seen:
            try:
                self.w.look.record(before, decision, what, token=f"{before.incident_id}.{self.turn}")
            except VersionConflict:
                continue
            recorded.append(decision)
        for decision in recorded:
            for index, action in enumerate(decision.actions):
                token = f"{decision.incident.incident_id}.{self.turn}.{index}"
                self.w.perform.act(action, incident=decision.incident, policy=self.rules, token=token)
        return recorded


def test_a_storm_trips_the_breaker_before_more_than_so_many_have_acted() -> None:
    storm = Storm(30, policy(breaker={"incidents": 5, "percent": 10}))
    storm.look()
    assert storm.started() <= 5
    for _ in range(3):
        storm.w.clock.advance(DEFAULT_POLICY.timing.look_max)
        storm.look()
    assert storm.started() <= 5
    breaker = storm.w.registry.switches().breaker
    assert breaker.is_open
    held = [incident for incident in storm.incidents if any(hold.guard is Guard.BREAKER for hold in incident.holds)]
    assert len(held) >= 25
    asked = {notice.token for notice in storm.w.announcer.notices if notice.kind is NoticeKind.APPROVAL}
    assert len(asked) == 1, "one page for the whole fleet, however often it is said"
    pending = approvals_of(storm.w).pending()
    assert len(pending) == len(held)
    first = pending[0]
    approvals_of(storm.w).answer(
        first["incident"]["incident_id"], first["approval_id"], answer="approve", who="ada", key="k"
    )
    storm.w.clock.advance(DEFAULT_POLICY.timing.look_max)
    storm.look()
    assert storm.started() <= 10, "lifted, and counted anew from then"
    assert storm.started() > 5


def test_one_who_denies_what_the_breaker_holds_ends_one_incident_and_lifts_nothing() -> None:
    storm = Storm(12, policy(breaker={"incidents": 2, "percent": 10}))
    storm.look()
    storm.w.clock.advance(DEFAULT_POLICY.timing.look_max)
    storm.look()
    first = approvals_of(storm.w).pending()[0]
    approvals_of(storm.w).answer(
        first["incident"]["incident_id"], first["approval_id"], answer="deny", who="ada", key="k"
    )
    storm.w.clock.advance(DEFAULT_POLICY.timing.look_max)
    storm.look()
    assert storm.w.registry.switches().breaker.is_open
    ended = [incident for incident in storm.incidents if not incident.is_open]
    assert [one.outcome for one in ended] == ["guard.denied"]


@pytest.mark.parametrize("rules", [policy(breaker={"incidents": 0}), policy(breaker={"percent": 100}), policy()])
def test_a_few_incidents_trip_nothing(rules: Policy) -> None:
    storm = Storm(6, rules)
    storm.look()
    assert (storm.started(), storm.w.registry.switches().breaker.is_open) == (6, False)


def test_a_person_lifts_an_open_breaker_and_no_other() -> None:
    storm = Storm(12, policy(breaker={"incidents": 2, "percent": 10}))
    with pytest.raises(AlreadyDone):
        switches_of(storm.w).lift_breaker(who="ada")
    storm.look()
    switches_of(storm.w).lift_breaker(who="ada")
    assert storm.w.registry.switches().breaker.lifted_by == "ada"


def test_the_shadow_switch_refuses_what_it_cannot_mean() -> None:
    w = World()
    service = switches_of(w)
    for scope, name, field in (("moon", None, "scope"), ("job", None, "name"), ("everywhere", "x", "name")):
        with pytest.raises(InvalidRequest) as err:
            service.set_shadow(scope, name, True, who="ada")
        assert err.value.field == field
    with pytest.raises(UnknownEntity):
        service.set_shadow("job", "nobody", True, who="ada")
    service.set_shadow("job", JOB, True, who="ada")
    assert service.read()["shadow"]["jobs"] == [JOB]
