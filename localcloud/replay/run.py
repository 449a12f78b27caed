"""Plays a recording through the real ingest and the real `decide` in virtual time, and reports a verdict per event.

Between two events the open Incidents are observed again when their waits end, as the durable workflow would do. Those
observations advance an Incident but belong to no event, so they appear in the standings only. The replay ends with the
last event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.domain.decide import Decision, decide
from chalicelib.domain.fault_specs.faults import FAULT_RANK
from chalicelib.domain.model.action import ActionResult, action_name
from chalicelib.domain.model.errors import MalformedEvent, Permanent, Skip
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.document import Policy
from chalicelib.ingest import dispatch
from chalicelib.ports.platforms import DiscoveredJob
from chalicelib.services.intake.intake import Intake
from chalicelib.services.observe.observer import Observer
from chalicelib.services.observe.timeline import needs_record
from chalicelib.services.perform.perform import ActionExecutor
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from localcloud.memory_ports import OnePolicy
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from localcloud.replay.history import UNSIZED, ExportedIncident, RecordedView, is_export, read_export, reported_size
from localcloud.replay.read import Recorded
from localcloud.replay.world import (
    NoNotices,
    ProtectedClusters,
    RecordedWorld,
    RecordingIndex,
    ReplayExecutions,
    VirtualClock,
)
from rekindle.protocol.codec import Document

# Looks in a row that change nothing, after which an Incident sleeps until an event wakes it: more than three days at
# the longest default interval, beyond every default limit. It bounds a recording with a gap of months.
MAX_IDLE_LOOKS = 5_000
MAX_LOOKS_AT_ONCE = 50  # decide() never asks for more than three in a row; more would be a loop
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

    `actions` counts everything ordered in it, `rules` every rule that spoke; `size` is its run's.
    """

    incident: Incident
    rule: str
    actions: tuple[tuple[str, int], ...]
    rules: tuple[tuple[str, int], ...] = ()
    size: JobSize = UNSIZED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """One event, parsed. Exactly one of `signals`, `view` and `dropped` is there."""

    name: str
    at: datetime | None
    signals: tuple[Signal, ...] = ()
    view: RecordedView | None = None  # not an event, but an observation from an exported Incident
    dropped: str | None = None
    malformed: bool = False


@dataclass(slots=True)
class _Case:
    """What the workflow keeps from one observation to the next."""

    policy: Policy
    results: tuple[ActionResult, ...] = ()
    look_at: datetime | None = None
    idle: int = 0
    turn: int = 0
    rule: str = ""
    ordered: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)


class Replay:
    """One recording under one policy. `verdicts` plays it; `standings` tells the end."""

    def __init__(self, recorded: Sequence[Recorded], policy: Policy) -> None:
        exports = [read_or_none(entry) for entry in recorded]
        self._events = _in_order(
            [event for entry, export in zip(recorded, exports, strict=True) for event in _parsed(entry, export)]
        )
        self._is_history = any(export is not None for export in exports)
        self._sizes = _sizes_in(recorded, exports)
        self._clock = VirtualClock(_BEFORE_ANY_EVENT)
        self._world = RecordedWorld(
            clock=self._clock,
            foreknown=_index_of(self._events),
            policy_name=policy.name,
            save_takes=policy.timing.look_min,
        )
        self._world.saved += [item for export in exports if export is not None for item in export.checkpoints]
        self._woken = ReplayExecutions()
        self._jobs, policies = MemoryJobs(), OnePolicy(policy)
        self._store = MemoryIncidents(self._jobs)
        self._intake = Intake(
            store=self._store,
            registry=self._jobs,
            scheduler=self._world,
            mailbox=self._world,
            clusters=ProtectedClusters(policy.name),
            executions=self._woken,
            clock=self._clock,
        )
        self._look = Observer(
            store=self._store,
            registry=self._jobs,
            scheduler=self._world,
            mailbox=self._world,
            policies=policies,
            clock=self._clock,
        )
        self._perform = ActionExecutor(
            registry=self._jobs,
            scheduler=self._world,
            mailbox=self._world,
            announcer=NoNotices(),
            clock=self._clock,
        )
        self._cases: dict[str, _Case] = {}
        self._waiting: dict[str, _Case] = {}  # those with a look ahead: of a long history nearly all are over

    def verdicts(self) -> Iterator[Verdict]:
        """Play the recording: one verdict per event, in the order of their times. To be called once."""
        for event in self._events:
            if event.at is not None:
                self._pass_time(event.at)
            if event.view is not None:
                self._world.see(event.view)
                continue
            yield self._feed(event)
        if self._is_history:  # its last look closed the Incident; ours may fall a little later
            self._pass_time(self._clock.now() + _AFTER_A_HISTORY)

    def standings(self) -> list[IncidentStanding]:
        """Every Incident, in the order in which they opened."""
        return [
            IncidentStanding(
                incident=self._store.load(incident_id).incident,
                rule=case.rule,
                actions=tuple(sorted(case.ordered.items())),
                rules=tuple(sorted(case.rules.items())),
                size=self._size(self._store.load(incident_id).incident),
            )
            for incident_id, case in self._cases.items()
        ]

    def _size(self, incident: Incident) -> JobSize:
        """The size of the Job, or of its first attempt, which has the Job's name where no other is known."""
        names = [incident.job_id, *(attempt.name for attempt in self._jobs.attempts(incident.job_id or ""))]
        return next((self._sizes[name] for name in names if name in self._sizes), UNSIZED)

    # --- one event ---

    def _feed(self, event: _Event) -> Verdict:
        if event.dropped is not None:
            return Verdict(event=event.name, dropped=event.dropped, malformed=event.malformed, signals=0)
        taken = [(signal, self._receive(signal)) for signal in event.signals]
        fresh = {outcome.incident_id for _, outcome in taken if outcome.what in _TAKEN}
        # A duplicate wakes too, which heals a lost wake; here none is lost, so it would only look early.
        spoken = {name: self._look_now(name) for name in self._woken.take() if name in fresh}
        signal, outcome = min(taken, key=_strength)
        verdict = Verdict(
            event=event.name,
            signal=signal.kind.value,
            incident=outcome.incident_id,
            signals=len(taken),
        )
        if outcome.what not in _TAKEN or outcome.incident_id is None:
            reason = (
                "duplicate: this fact was taken in before" if outcome.what is OutcomeKind.DUPLICATE else outcome.reason
            )
            return replace(verdict, dropped=reason)
        if outcome.incident_id not in spoken:
            return self._unheard(verdict, outcome.incident_id)
        decisions = spoken[outcome.incident_id]
        acting = next((decision for decision in decisions if decision.actions), decisions[-1])
        again = decisions[-1].look_again_in
        return replace(
            verdict,
            fault=decisions[-1].incident.fault.value,
            rule=acting.rule,
            actions=tuple(action_name(action) for decision in decisions for action in decision.actions),
            look_again_in_s=None if again is None else again.total_seconds(),
        )

    def _unheard(self, verdict: Verdict, incident_id: str) -> Verdict:
        """Taken in, but not worth a look of its own: the next one, which is due anyway, finds it."""
        due = self._cases[incident_id].look_at
        left = None if due is None else (due - self._clock.now()).total_seconds()
        return replace(verdict, fault=self._store.load(incident_id).incident.fault.value, look_again_in_s=left)

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

    # --- looks ---

    def _pass_time(self, until: datetime) -> None:
        """Make every observation that is due before `until`, in order."""
        while True:
            due = [(case.look_at, name) for name, case in self._waiting.items() if case.look_at is not None]
            first = min(due, default=None)
            if first is None or first[0] > until:
                break
            self._clock.move_to(first[0])
            self._look_now(first[1])
        self._clock.move_to(until)

    def _look_now(self, incident_id: str) -> list[Decision]:
        """Look, decide, record, act, until time must pass."""
        if incident_id not in self._cases:
            self._cases[incident_id] = _Case(policy=self._look.policy_for(incident_id))
        case = self._cases[incident_id]
        decisions: list[Decision] = []
        for _ in range(MAX_LOOKS_AT_ONCE):
            decision = self._turn(incident_id, case)
            decisions.append(decision)
            if decision.look_again_in is None or decision.look_again_in > timedelta(0):
                break
        self._set_wait(case, decisions)
        if case.look_at is None:
            self._waiting.pop(incident_id, None)
        else:
            self._waiting[incident_id] = case
        return decisions

    def _set_wait(self, case: _Case, decisions: list[Decision]) -> None:
        again = decisions[-1].look_again_in
        if again is None or case.idle > MAX_IDLE_LOOKS:
            case.look_at, case.idle = None, 0
            return
        wait = timedelta(seconds=max(1, round(again.total_seconds())))  # the durable engine waits whole seconds
        case.look_at = self._clock.now() + wait

    def _turn(self, incident_id: str, case: _Case) -> Decision:
        generation = self._store.load(incident_id).incident.generation
        before, seen = self._look.observe(
            incident_id, generation=generation, callback_id=incident_id, quiet_limit=case.policy.timing.look_max
        )
        seen = replace(seen, results=case.results)
        decision = decide(before, seen, now=seen.observed_at, policy=case.policy)
        changed = needs_record(before, decision, seen, quiet_limit=case.policy.timing.look_max)
        case.idle = 0 if changed else case.idle + 1
        case.turn += 1
        case.rule = decision.rule
        case.rules[decision.rule] += 1
        incident = decision.incident
        token = f"{incident_id}.{case.turn}"
        if changed:
            incident = self._look.record(before, decision, seen, token=token)
        case.results = tuple(
            self._perform.act(action, incident=incident, policy=case.policy, token=f"{token}.{index}")
            for index, action in enumerate(decision.actions)
        )
        case.ordered.update(action_name(action) for action in decision.actions)
        return decision


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


def _sizes_in(recorded: Sequence[Recorded], exports: Sequence[ExportedIncident | None]) -> dict[str, JobSize]:
    """The size of each Job that the recording names one for."""
    reported = (reported_size(entry.raw) for entry in recorded if isinstance(entry.raw, dict))
    sizes = dict(size for size in reported if size is not None)
    for export in exports:
        if export is not None and export.size is not None and export.incident.job_id:
            sizes[export.incident.job_id] = export.size
    return sizes


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
