"""Plays a recording through the real ingest and the real recovery in virtual time, and reports a verdict per event.

Each Incident has its durable execution, which runs the service's own workflow (`localcloud.engine.threads`). Between
two events the executions observe again when their waits end. Those observations advance an Incident but belong to no
event, so they appear in the standings only. The replay ends with the last event. Verdicts and standings are read from
the timelines of the Incidents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.domain.fault_specs.faults import FAULT_RANK
from chalicelib.domain.model.errors import MalformedEvent, Permanent, Skip
from chalicelib.domain.model.incident import Incident, execution_name
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.document import Policy
from chalicelib.ingest import dispatch
from chalicelib.ports.platforms import DiscoveredJob
from chalicelib.recovery.workflow import run_recovery
from chalicelib.services.intake.intake import Intake
from chalicelib.services.observe.observer import Observer
from chalicelib.services.perform.perform import ActionExecutor
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from localcloud.aws.clock import SimClock
from localcloud.engine.threads import Context, MemoryExecutions
from localcloud.memory_ports import OnePolicy
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from localcloud.replay.history import ExportedIncident, RecordedView, is_export, read_export
from localcloud.replay.read import Recorded
from localcloud.replay.world import (
    NoNotices,
    ProtectedClusters,
    RecordedWorld,
    RecordingIndex,
)
from rekindle.protocol.codec import Document

# Of 300 observations each: together three days at the longest default interval, beyond every default limit. It bounds a
# recording with a gap of months.
MAX_IDLE_GENERATIONS = 16
_AFTER_A_HISTORY = timedelta(minutes=30)
_BEFORE_ANY_EVENT = datetime(2001, 1, 1, tzinfo=UTC)
_TAKEN = (OutcomeKind.OPENED, OutcomeKind.JOINED, OutcomeKind.OVERFLOWED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Document):
    """What one event led to.

    `rule` is the rule that ordered the actions, or the last one that applied where none were ordered; `actions` are all
    that were ordered at the event's own time; `signals` counts those of a batch, of which the strongest is shown. Its
    JSON is what `--json` prints.
    """

    event: str
    signal: str | None = None
    dropped: str | None = None
    incident: str | None = None
    fault: str | None = None
    rule: str | None = None
    actions: tuple[str, ...] = ()
    look_again_in_s: float | None = None
    signals: int = 1
    malformed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentStanding:
    """Where one Incident stands when the recording ends.

    `rule` is the last one recorded in its timeline. `actions` counts everything ordered in it.
    """

    incident: Incident
    rule: str
    actions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """One event, parsed. Exactly one of `signals`, `view` and `dropped` is there."""

    name: str
    at: datetime | None
    signals: tuple[Signal, ...] = ()
    view: RecordedView | None = None  # not an event, but an observation from an exported Incident
    dropped: str | None = None
    malformed: bool = False


class Replay:
    """One recording under one policy. `verdicts` plays it; `standings` tells the end."""

    def __init__(self, recorded: Sequence[Recorded], policy: Policy) -> None:
        exports = [read_or_none(entry) for entry in recorded]
        self._events = _in_order(
            [event for entry, export in zip(recorded, exports, strict=True) for event in _parsed(entry, export)]
        )
        self._is_history = any(export is not None for export in exports)
        self._clock = SimClock(start=_BEFORE_ANY_EVENT)
        self._world = RecordedWorld(
            clock=self._clock,
            foreknown=_index_of(self._events),
            policy_name=policy.name,
            save_takes=policy.timing.look_min,
        )
        self._world.saved += [item for export in exports if export is not None for item in export.checkpoints]
        self._jobs = MemoryJobs()
        self._store = MemoryIncidents(self._jobs)
        self._executions = MemoryExecutions(self._clock, self._recover, hold=timedelta, begins_after=timedelta(0))
        self._idle = Counter[str]()  # generations in a row that have recorded nothing, by Incident
        self._intake = Intake(
            store=self._store,
            registry=self._jobs,
            scheduler=self._world,
            mailbox=self._world,
            clusters=ProtectedClusters(policy.name),
            executions=self._executions,
            clock=self._clock,
        )
        self._look = Observer(
            store=self._store,
            registry=self._jobs,
            scheduler=self._world,
            mailbox=self._world,
            policies=OnePolicy(policy),
            clock=self._clock,
        )
        self._perform = ActionExecutor(
            registry=self._jobs,
            scheduler=self._world,
            mailbox=self._world,
            announcer=NoNotices(),
            clock=self._clock,
        )

    def verdicts(self) -> Iterator[Verdict]:
        """Play the recording: one verdict per event, in the order of their times. To be called once."""
        try:
            for event in self._events:
                if event.at is not None:
                    self._pass_time(event.at)
                if event.view is not None:
                    self._world.see(event.view)
                    continue
                yield self._feed(event)
            if self._is_history:  # its last look closed the Incident; ours may fall a little later
                self._pass_time(self._clock.now() + _AFTER_A_HISTORY)
        finally:
            self._executions.close()

    def standings(self) -> list[IncidentStanding]:
        """Every Incident, in the order in which they opened."""
        return [self._standing(incident) for incident in self._store.everything()]

    def _standing(self, incident: Incident) -> IncidentStanding:
        timeline = self._store.timeline(incident.incident_id)
        return IncidentStanding(
            incident=incident,
            rule=timeline[-1].rule,
            actions=tuple(sorted(Counter(action for line in timeline for action in line.actions).items())),
        )

    # --- one event ---

    def _feed(self, event: _Event) -> Verdict:
        if event.dropped is not None:
            return Verdict(event=event.name, dropped=event.dropped, malformed=event.malformed, signals=0)
        taken = [(signal, self._receive(signal)) for signal in event.signals]
        signal, outcome = min(taken, key=_strength)
        verdict = Verdict(
            event=event.name,
            signal=signal.kind.value,
            incident=outcome.incident_id,
            signals=len(taken),
        )
        if outcome.what not in _TAKEN or outcome.incident_id is None:
            self._pass_time(self._clock.now())
            reason = (
                "duplicate: this fact was taken in before" if outcome.what is OutcomeKind.DUPLICATE else outcome.reason
            )
            return replace(verdict, dropped=reason)
        before = len(self._store.timeline(outcome.incident_id))
        self._pass_time(self._clock.now())
        return self._decided(verdict, outcome.incident_id, since=before)

    def _decided(self, verdict: Verdict, incident_id: str, *, since: int) -> Verdict:
        """The verdict with the decisions that the timeline has from line `since` on; a Signal that does not wake the
        Incident leads to none, and the next observation, which is due anyway, finds it.
        """
        incident = self._store.load(incident_id).incident
        decided = self._store.timeline(incident_id)[since:]
        acting = next((line for line in decided if line.actions), decided[-1] if decided else None)
        execution = self._executions.all.get(execution_name(incident_id, incident.generation))
        due_at = execution.due_at if execution is not None else None
        return replace(
            verdict,
            fault=incident.fault.value,
            rule=acting.rule if acting is not None else None,
            actions=tuple(action for line in decided for action in line.actions),
            look_again_in_s=None if due_at is None else (due_at - self._clock.now()).total_seconds(),
        )

    def _receive(self, signal: Signal) -> Outcome:
        self._world.follow(signal)
        try:
            self._protect(signal)
            return self._intake.receive(signal)
        except Skip as skip:
            return Outcome(what=OutcomeKind.DROPPED, reason=skip.reason)
        except Permanent as err:
            return Outcome(what=OutcomeKind.DROPPED, reason=str(err))

    def _protect(self, signal: Signal) -> None:
        """A job that an event names without an attempt (an alarm by our convention) has its Job from then on."""
        if signal.job_id is None or signal.attempt is not None or self._jobs.job_of_attempt(signal.job_id) is not None:
            return
        self._intake.register(
            DiscoveredJob(
                name=signal.job_id,
                policy_name=self._world.policy_name,
                job_id=signal.job_id,
                mailbox="",
                instance_count=1,
                platform=self._world.platform.name,
                created_at=_BEFORE_ANY_EVENT,  # so that the first attempt which an event names takes its place
            )
        )

    # --- the executions ---

    def _pass_time(self, until: datetime) -> None:
        """Let the executions do all that is due by `until`, in order.

        Raises: whatever one of them has failed by.
        """
        self._clock.run_for(until - self._clock.now())
        for execution in self._executions.all.values():
            if execution.failed is not None:
                raise execution.failed

    def _recover(self, payload: dict[str, Any], context: Context) -> None:
        """An execution that has used up its turns goes on under the next generation, as the sweep would have it. After
        MAX_IDLE_GENERATIONS that have recorded nothing the next event starts it.
        """
        incident_id, generation = payload["incident_id"], payload["generation"]
        lines = len(self._store.timeline(incident_id))
        durable: Any = context
        run_recovery(payload, durable, look=self._look, perform=self._perform, report=_discard)
        if not self._store.load(incident_id).incident.is_open:
            return
        following = self._store.next_generation(incident_id, generation=generation)
        is_idle = len(self._store.timeline(incident_id)) == lines
        self._idle[incident_id] = self._idle[incident_id] + 1 if is_idle else 0
        if self._idle[incident_id] < MAX_IDLE_GENERATIONS:
            self._executions.start(incident_id, generation=following)


def _discard(outcome: Outcome) -> None:
    """The service's own outcomes: the timelines of the Incidents tell more."""


def read_or_none(recorded: Recorded) -> ExportedIncident | None:
    """The exported Incident that a recording's entry is, None for everything else and for what cannot be read."""
    if not is_export(recorded.raw):
        return None
    try:
        return read_export(recorded.raw)
    except ValueError:
        return None


def _parsed(recorded: Recorded, export: ExportedIncident | None) -> list[_Event]:
    if not is_export(recorded.raw):
        return [_parse(recorded)]
    if export is None:
        try:
            read_export(recorded.raw)
        except ValueError as err:
            return [_Event(name=recorded.name, at=None, dropped=str(err), malformed=True)]
    if export is None or export.dropped is not None:
        return [_Event(name=recorded.name, at=None, dropped=export.dropped if export else "cannot be read")]
    # What the first look saw was so when it was called for.
    begun = min(signal.occurred_at for signal in export.signals)
    seen = [
        _Event(name=recorded.name, at=view.at if index else min(view.at, begun), view=view)
        for index, view in enumerate(export.views)
    ]
    return seen + [
        _Event(name=f"{recorded.name}#{index}", at=signal.occurred_at, signals=(signal,))
        for index, signal in enumerate(export.signals)
    ]


def _parse(recorded: Recorded) -> _Event:
    if recorded.problem is not None:
        return _Event(name=recorded.name, at=None, dropped=recorded.problem, malformed=True)
    at = _envelope_time(recorded.raw)
    try:
        signals = dispatch.parse(recorded.raw)
    except Skip as skip:
        return _Event(name=recorded.name, at=at, dropped=skip.reason)
    except MalformedEvent as err:
        return _Event(name=recorded.name, at=at, dropped=str(err), malformed=True)
    if not signals:
        return _Event(name=recorded.name, at=at, dropped="holds nothing of interest")
    return _Event(name=recorded.name, at=at or max(signal.occurred_at for signal in signals), signals=tuple(signals))


def _envelope_time(raw: Any) -> datetime | None:
    """The envelope's own time, None where it has none that can be read (a log batch, a malformed event)."""
    text = raw.get("time") if isinstance(raw, dict) else None
    if not isinstance(text, str) or len(text) > 64:
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _index_of(events: Sequence[_Event]) -> RecordingIndex:
    """What the recording's later events say of its earlier ones."""
    signals = [signal for event in events for signal in event.signals]
    named = [signal for signal in signals if signal.attempt is not None]
    return RecordingIndex(
        attempts=frozenset(signal.attempt for signal in named if signal.attempt is not None),
        job_of={signal.attempt or "": signal.job_id for signal in named if signal.job_id is not None},
        answers=frozenset(
            str(signal.evidence["request_id"])
            for signal in signals
            if signal.kind is SignalKind.CHECKPOINT_REPLY and "outcome" in signal.evidence
        ),
    )


def _in_order(events: list[_Event]) -> list[_Event]:
    """By time; equal times keep the recording's order, and an event without a time stays behind the one before it."""
    keyed: list[tuple[datetime, int, _Event]] = []
    at = _BEFORE_ANY_EVENT
    for index, event in enumerate(events):
        at = event.at or at
        keyed.append((at, index, event))
    return [event for _, _, event in sorted(keyed, key=lambda item: item[:2])]


def _strength(taken: tuple[Signal, Outcome]) -> tuple[bool, bool, int]:
    """The strongest first: taken in, a trigger, and the fault that names the cause."""
    signal, outcome = taken
    rank = FAULT_RANK[signal.fault] if signal.fault is not None else max(FAULT_RANK.values()) + 1
    return (outcome.what not in _TAKEN, not signal.triggers, rank)
