"""Rehearsing a fault on a living Job: the real reads, the real decide(), an assumed world, and not one effect.

A drill's Incident exists in memory only. What reads the world for it is `Observer.read`, which writes nothing; the one
thing a drill writes is its own record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from chalicelib.domain.decide import Decision, decide
from chalicelib.domain.drills.catalogue import DrillRow, drill_for, measured, signal_of
from chalicelib.domain.drills.report import Play, RealState, report
from chalicelib.domain.drills.world import DrillWorld
from chalicelib.domain.model.action import ActionResult, AskApproval
from chalicelib.domain.model.approvals import ApprovalAnswer, Guard
from chalicelib.domain.model.errors import InvalidRequest, RecoveryError, Skip, UnknownEntity
from chalicelib.domain.model.evidence import Need
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.resume.earlier_attempts import reached_before
from chalicelib.ports.clock import Clock
from chalicelib.services.observe.observer import Observer
from chalicelib.services.observe.policy import incident_policy

EARLIER: Final = 5  # Incidents of the Job whose timelines tell how long its stages take
KEPT_FOR: Final = timedelta(days=30)
MAX_WHO: Final = 128
MAX_LOOKS: Final = 3000  # of pure decisions; two days at the longest default interval
LOOK_TIME: Final = timedelta(seconds=1)  # the engine waits whole seconds, at least one


class DrillRecords(Protocol):
    """Where results of drills stay for a while."""

    def load(self, drill_id: str) -> Mapping[str, Any] | None:
        """The result, None where there is none (any more)."""
        ...

    def save(self, drill_id: str, result: Mapping[str, Any], *, until: datetime) -> bool:
        """Keep `result` until then; False where one is there already, which stays."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drills:
    """Rehearsals of faults. `look` is the service's own."""

    look: Observer
    records: DrillRecords
    clock: Clock

    def start(self, job_id: str, fault: str, *, who: str, key: str) -> dict[str, Any]:
        """Rehearse `fault` on the Job's current attempt and keep the result. The same key is the same drill.

        Raises:
            InvalidRequest: no fault that can be rehearsed, or the key has been used for another.
            UnknownEntity: no such Job.
            Skip: nothing of the Job runs that could be struck.
        """
        row = drill_for(fault)
        drill_id = drill_id_of(job_id, key)
        known = self.records.load(drill_id)
        if known is not None:
            return _same(known, fault)
        job = self.look.registry.get(job_id)
        now = self.clock.now()
        result = self._rehearse(job, row, drill_id=drill_id, now=now) | {
            "drill_id": drill_id,
            "job_id": job_id,
            "fault": fault,
            "by": who[:MAX_WHO],
            "at": now.isoformat(),
        }
        if not self.records.save(drill_id, result, until=now + KEPT_FOR):
            return _same(self.get(drill_id), fault)  # the same order, taken twice at once
        return result

    def get(self, drill_id: str) -> dict[str, Any]:
        """The result of a drill of the last days.

        Raises:
            UnknownEntity: there is none.
        """
        found = self.records.load(drill_id)
        if found is None:
            raise UnknownEntity(f"no drill {drill_id}; results are kept for {KEPT_FOR.days} days")
        return dict(found)

    def _rehearse(self, job: Job, row: DrillRow, *, drill_id: str, now: datetime) -> dict[str, Any]:
        incident = _incident(job, drill_id, now)
        policy = incident_policy(incident, self.look.policies)
        first = self.look.read(incident, (), now=now)
        view = first.attempt.value if isinstance(first.attempt, Known) else None
        if view is not None and view.status.has_ended:
            raise Skip(f"nothing to rehearse on: {view.name} is {view.status}")
        store = self.look.store
        earlier = store.list_for_job(job.job_id, limit=EARLIER)
        stage_times = measured([store.timeline(incident.incident_id) for incident in earlier if not incident.is_open])
        world = DrillWorld.begin(row, view, stage_times, now=now) if view is not None else None
        stage = Stage(look=self.look, job=job, world=world, first=first, policy=policy)
        play = stage.play(incident, signal_of(row, job, view, drill_id=drill_id, now=now), now=now)
        return report(
            RealState(job=job, row=row, first=first, policy=policy, stage_times=stage_times, earlier=len(earlier)),
            play,
            world,
        )


@dataclass(slots=True, kw_only=True)
class Stage:
    """Where it is played: looks in simulated time until the shadow Incident closes."""

    look: Observer
    job: Job
    world: DrillWorld | None
    first: Observation
    policy: Policy
    lifted: set[Guard] = field(default_factory=set)
    attempts: tuple[Attempt, ...] | None = None
    _found: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def play(self, incident: Incident, signal: Signal, *, now: datetime) -> Play:
        """Look, decide, assume, let time pass."""
        play = Play(began=now)
        news: tuple[Signal, ...] = (signal,)
        results: tuple[ActionResult, ...] = ()
        for _ in range(MAX_LOOKS):
            seen = self._seen(incident, now, news, results)
            decision = decide(incident, seen, now=now, policy=self.policy)
            guard = self._stands_in_the_way(decision)
            if guard is not None:
                play.add_lifted_guard(guard, decision, now)
                self._lift(guard)
                continue
            play.add_decision(decision, before=incident, now=now, checkpoints=seen.checkpoints)
            incident, news, results = decision.incident, (), ()
            if self.world is not None:
                results = self.world.act(decision.actions, now)
            if decision.look_again_in is None:
                break
            news = self._approved(incident, decision, now, play)
            now += LOOK_TIME if news else self._wait(decision, now)  # an answer wakes it
        play.ended = now
        return play

    def _seen(
        self, incident: Incident, now: datetime, news: tuple[Signal, ...], results: tuple[ActionResult, ...]
    ) -> Observation:
        """The real first observation, with the assumed run in the place of the real one."""
        seen = replace(
            self.first,
            observed_at=now,
            new_signals=news,
            results=results,
            paused=self.first.paused and Guard.PAUSE not in self.lifted,
            shadow="" if Guard.SHADOW in self.lifted else self.first.shadow,
            suspicion=Unknown("in a drill no rank reports"),
        )
        world = self.world
        if world is None:
            return seen
        view = world.view(now)
        changes: dict[str, Any] = {
            "attempt": Known(view),
            "successor": Known(world.successor) if world.successor is not None else self.first.successor,
            "next_number": self.first.next_number + world.started,
            "current": view.name if world.started else self.first.current,
            "checkpoints": Unknown("not needed yet"),
            "reply": Unknown("nothing asked"),
        }
        if incident.halt.ask is not None and incident.halt.ask.outcome is None:
            changes["reply"] = world.answer(now)
        if not incident.resubmission.tries and view.status.has_ended:
            if self.attempts is None:
                self.attempts = self.look.registry.attempts(self.job.job_id)
            best, fruitless = reached_before(self.attempts, view.name)
            changes["record"] = replace(seen.record, best_before=best, fruitless_before=fruitless)
        if incident.phase is Phase.RESUBMITTING or view.status.has_ended or Need.CHECKPOINTS in incident.evidence.needs:
            changes["checkpoints"] = self._checkpoints(incident, world)
        return replace(seen, **changes)

    def _checkpoints(self, incident: Incident, world: DrillWorld) -> Any:
        """What is there, and what the run is assumed to have saved. Read again only when it may matter which of them
        are wanted.
        """
        wanted = (incident.loss.onset_step, incident.loss.rollbacks, incident.is_poisoned, incident.fault)
        if wanted not in self._found:
            needs = tuple({*incident.evidence.needs, Need.CHECKPOINTS})
            asks = incident.changed(attempt=self.job.current_attempt, needs=needs, ask=None)
            try:
                self._found[wanted] = self.look.read(asks, (), now=self.first.observed_at).checkpoints
            except RecoveryError as err:
                return Unknown(str(err)[:200])
        found = self._found[wanted]
        if not isinstance(found, Known):
            return found
        return Known(tuple(sorted((*world.saved, *found.value), key=lambda checkpoint: checkpoint.step, reverse=True)))

    def _stands_in_the_way(self, decision: Decision) -> Guard | None:
        """A guard that would hold everything back while people leave it set; the drill continues without it."""
        rules = {"guard.paused": Guard.PAUSE, "guard.shadow": Guard.SHADOW}
        guard = rules.get(decision.rule)
        return guard if guard is not None and guard not in self.lifted else None

    def _lift(self, guard: Guard) -> None:
        self.lifted.add(guard)
        if guard is Guard.SHADOW:
            self.policy = replace(self.policy, shadow=False)

    def _approved(self, incident: Incident, decision: Decision, now: datetime, play: Play) -> tuple[Signal, ...]:
        """A person is assumed to approve at once; how long they would take is unknown."""
        asked = [action for action in decision.actions if isinstance(action, AskApproval)]
        if not asked or self.world is None:
            return ()
        play.add_ask(now)
        return tuple(
            Signal(
                kind=SignalKind.ORDER_APPROVAL,
                source=SignalSource.OPERATOR,
                occurred_at=now,
                dedupe_key=f"drill:{incident.incident_id}:{action.approval_id}"[:200],
                summary="drill: approved",
                job_id=incident.job_id,
                attempt=incident.attempt,
                evidence={
                    "approval_id": action.approval_id,
                    "answer": ApprovalAnswer.APPROVED.value,
                    "who": "drill",
                    "comment": "",
                },
            )
            for action in asked
        )

    def _wait(self, decision: Decision, now: datetime) -> timedelta:
        """Until the next observation, or until a simulated event would wake the Incident."""
        again = decision.look_again_in or timedelta(0)
        if again <= timedelta(0):
            return timedelta(0)
        wait = max(timedelta(seconds=round(again.total_seconds())), LOOK_TIME)
        ends = [end for row in self.policy.windows if (end := row.holds_until(now)) is not None]
        if decision.rule == "guard.window" and ends:
            wait = min(ends) - now  # the looks until then see the same
        event = self.world.next_event(now) if self.world is not None else None
        return min(wait, max(event - now, timedelta(0))) if event is not None else wait


def drill_id_of(job_id: str, key: str) -> str:
    """The same order of the same Job is the same drill."""
    return "drill-" + hashlib.sha256(f"{job_id}|{key}".encode()).hexdigest()[:20]


def _same(known: Mapping[str, Any], fault: str) -> dict[str, Any]:
    if known["fault"] != fault:
        raise InvalidRequest("fault", f"this key has been used to rehearse {known['fault']}")
    return dict(known)


def _incident(job: Job, drill_id: str, now: datetime) -> Incident:
    return Incident(
        incident_id=drill_id,
        job_id=job.job_id,
        cluster=None,
        opened_at=now,
        phase=Phase.OPEN,
        phase_entered_at=now,
        policy_name=job.policy_name,
        attempt=job.current_attempt,
        attempt_number=job.attempt_number,
    )
