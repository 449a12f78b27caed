"""Playing a rehearsal: facades that have no method that writes, and looks in simulated time (services/drills)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.decide import Decision, decide
from chalicelib.domain.drills.report import Play
from chalicelib.domain.drills.world import DrillWorld
from chalicelib.domain.model.action import ActionResult, AskApproval
from chalicelib.domain.model.approvals import ApprovalAnswer, Guard
from chalicelib.domain.model.errors import RecoveryError, UnknownEntity
from chalicelib.domain.model.evidence import Need
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.resume.earlier_attempts import reached_before
from chalicelib.ports.incidents import IncidentStore, StoredIncident
from chalicelib.ports.jobs import JobRegistry
from chalicelib.services.observe.observer import Observer

MAX_LOOKS: Final = 3000  # of pure decisions; two days at the longest default interval
LOOK_TIME: Final = timedelta(seconds=1)  # the engine waits whole seconds, at least one

# All that a drill may ask of the parts it reads through. Everything else is refused, whatever it is called.
_READS: Final[Mapping[str, frozenset[str]]] = {
    "registry": frozenset(
        {"get", "standing", "attempts", "is_paused", "switches", "job_of_attempt", "active", "list_jobs"}
    ),
    "scheduler": frozenset({"describe", "siblings", "missed", "platform"}),
    "mailbox": frozenset({"heartbeat", "heartbeat_times", "checkpoints", "reply", "reports"}),
    "policies": frozenset({"load"}),
    "head_nodes": frozenset({"agent", "attempt", "newest_attempts", "nodes", "ordered", "clusters"}),
    "store": frozenset({"timeline", "list_open", "list_closed", "list_for_job", "list_for_node", "callback_of"}),
}


class ReadOnly:
    """A part of the service with its reads alone.

    Raises:
        AttributeError: for whatever is not a read that a drill needs.
    """

    def __init__(self, part: Any, kind: str) -> None:
        self._part = part
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        if name not in _READS[self._kind]:
            raise AttributeError(f"a drill may not use {self._kind}.{name}")
        return getattr(self._part, name)


class ReadOnlySchedulers:
    """ports.Schedulers with the reads of each alone."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def of(self, platform: str) -> Any:
        return ReadOnly(self._part.of(platform), "scheduler")


class ShadowStore(ReadOnly):
    """The store with one Incident more, visible here only. What an observation would write stays here."""

    def __init__(self, store: IncidentStore) -> None:
        super().__init__(store, "store")
        self._incident: Incident | None = None

    def show(self, incident: Incident) -> None:
        """From now on this is what the store holds."""
        self._incident = incident

    def look(self, incident_id: str, **_: object) -> StoredIncident:
        """The shadow Incident; no callback is published."""
        return self.load(incident_id)

    def load(self, incident_id: str) -> StoredIncident:
        if self._incident is None or self._incident.incident_id != incident_id:
            raise UnknownEntity(f"no drill {incident_id}")
        return StoredIncident(incident=self._incident, inbox=())


@dataclass(slots=True, kw_only=True)
class Reader:
    """The real reads. The checkpoints are read again only when it may matter which of them are wanted."""

    look: Observer
    store: ShadowStore
    job: Job
    _checkpoints: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def policy_for(self, incident: Incident) -> Policy:
        """The policy that a real Incident of the Job would be under."""
        self.store.show(incident)
        return self.look.policy_for(incident.incident_id)

    def read(self, incident: Incident) -> Observation:
        """One real look at the world for `incident`."""
        self.store.show(incident)
        _, seen = self.look.observe(
            incident.incident_id, generation=incident.generation, callback_id="", quiet_limit=timedelta(0)
        )
        return seen

    def checkpoints(self, incident: Incident) -> Any:
        """Maybe the Job's checkpoints, as a look at `incident` would find them."""
        wanted = (incident.loss.onset_step, incident.loss.rollbacks, incident.is_poisoned, incident.fault)
        if wanted not in self._checkpoints:
            asks = incident.changed(
                attempt=self.job.current_attempt, needs=tuple({*incident.evidence.needs, Need.CHECKPOINTS}), ask=None
            )
            self._checkpoints[wanted] = self.read(asks).checkpoints
        return self._checkpoints[wanted]


@dataclass(slots=True, kw_only=True)
class Stage:
    """Where it is played: looks in simulated time until the shadow Incident closes."""

    reader: Reader
    world: DrillWorld | None
    registry: JobRegistry
    first: Observation
    policy: Policy
    lifted: set[Guard] = field(default_factory=set)
    attempts: tuple[Attempt, ...] | None = None

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
                self.attempts = self.registry.attempts(incident.job_id or "")
            best, fruitless = reached_before(self.attempts, view.name)
            changes["record"] = replace(seen.record, best_before=best, fruitless_before=fruitless)
        if incident.phase is Phase.RESUBMITTING or view.status.has_ended or Need.CHECKPOINTS in incident.evidence.needs:
            changes["checkpoints"] = self._checkpoints(incident, world)
        return replace(seen, **changes)

    def _checkpoints(self, incident: Incident, world: DrillWorld) -> Any:
        """What is there, and what the run is assumed to have saved."""
        try:
            found = self.reader.checkpoints(incident)
        except RecoveryError as err:
            return Unknown(str(err)[:200])
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
