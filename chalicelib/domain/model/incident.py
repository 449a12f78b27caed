"""The Incident: what Signals open and `recover` works on. Immutable; every change makes a new one."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from chalicelib.domain.model.account import Account
from chalicelib.domain.model.approvals import Approval, Hold
from chalicelib.domain.model.clocks import Fact, Pause, Since, moved_on
from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.errors import InvalidTransition
from chalicelib.domain.model.incident_parts import AttemptTracking, BadLoss, Evidence, Halt, Resubmissions
from chalicelib.domain.model.incident_parts import CheckpointAsk as CheckpointAsk
from chalicelib.domain.model.incident_parts import Failure as Failure
from chalicelib.domain.model.incident_parts import SkipWindow as SkipWindow
from chalicelib.domain.model.incident_parts import Try as Try
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.repair import NodeRepair
from chalicelib.domain.model.signal import Signal
from rekindle.protocol.signals import FaultClass

STOPPED_BY_ORDER: Final = "order.stop"  # the outcome of an Incident that stopped its run for good

MAX_KEPT_SIGNALS = 40  # newest kept on the Incident itself; every one has its line in the timeline


class Phase(StrEnum):
    """Where a recovery stands."""

    OPEN = "open"
    HOLDING = "holding"
    WATCHING = "watching"
    CHECKPOINTING = "checkpointing"
    STOPPING = "stopping"
    RESUBMITTING = "resubmitting"
    VERIFYING = "verifying"
    DRAINING = "draining"  # a node's own Incident, as the next three
    REPAIRING = "repairing"
    CHECKING = "checking"
    RETURNING = "returning"
    RECOVERED = "recovered"
    STOPPED = "stopped"
    HANDED_OVER = "handed_over"

    @property
    def is_terminal(self) -> bool:
        """No transition leaves it."""
        return not TRANSITIONS[self]


_CLOSED = frozenset({Phase.RECOVERED, Phase.STOPPED, Phase.HANDED_OVER})
_WORK = frozenset({Phase.CHECKPOINTING, Phase.STOPPING, Phase.RESUBMITTING})
NODE_PHASES = frozenset({Phase.DRAINING, Phase.REPAIRING, Phase.CHECKING, Phase.RETURNING})

# The only way an Incident moves. docs/reference/playbooks.md is generated from this table.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.OPEN: _WORK | _CLOSED | {Phase.HOLDING, Phase.WATCHING, Phase.VERIFYING, Phase.DRAINING, Phase.RETURNING},
    Phase.HOLDING: _WORK | _CLOSED | {Phase.WATCHING, Phase.VERIFYING, Phase.DRAINING, Phase.RETURNING},
    Phase.WATCHING: _WORK | _CLOSED | {Phase.HOLDING, Phase.VERIFYING},
    Phase.CHECKPOINTING: _CLOSED | {Phase.STOPPING, Phase.RESUBMITTING, Phase.HOLDING, Phase.VERIFYING},
    Phase.STOPPING: _CLOSED | {Phase.RESUBMITTING, Phase.HOLDING, Phase.VERIFYING},
    Phase.RESUBMITTING: frozenset({Phase.STOPPED, Phase.HANDED_OVER, Phase.VERIFYING}),
    Phase.VERIFYING: _CLOSED | _WORK,
    Phase.DRAINING: _CLOSED | {Phase.HOLDING, Phase.REPAIRING, Phase.RETURNING},
    Phase.REPAIRING: _CLOSED | {Phase.CHECKING, Phase.RETURNING},
    Phase.CHECKING: _CLOSED | {Phase.REPAIRING, Phase.RETURNING},
    Phase.RETURNING: _CLOSED | {Phase.DRAINING},
    Phase.RECOVERED: frozenset(),
    Phase.STOPPED: frozenset(),
    Phase.HANDED_OVER: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident(Record):
    """Everything `decide` remembers between two observations: what every Incident has, and a part for each subject.

    A node's own Incident has `cluster`, `node` and `repair`, no `job_id`, and its runs' parts stay empty.

    Its own fields are more than twenty: the identity, the phase, the fences of its record, and what every rule reads
    (fault, signals, attempt) are written in one conditional write, and have no owner among the parts.
    """

    incident_id: str
    job_id: str | None
    cluster: str | None
    node: str | None = None  # the node's name in `cluster`, on a node's own Incident
    opened_at: Fact
    phase: Phase
    phase_entered_at: Since
    closed_at: Fact | None = None
    outcome: str = ""  # the rule that closed it

    version: int = 0  # fences every write by the workflow
    generation: int = 1  # names the durable execution that may write
    newer: str = ""  # names what of the record a newer version has written (newer_version.py)
    policy_name: str = "default"
    policy_version: str = ""
    policy_document: Mapping[str, Any] | None = None  # at the first observation; later ones and generations keep to it

    fault: FaultClass = FaultClass.UNCLEAR
    fault_rule: str = ""
    signals: tuple[Signal, ...] = ()  # the newest
    signals_seen: int = 0  # all that were taken in
    attempt: str | None = None  # the attempt under care: first the one that failed, then each resubmission
    attempt_number: int = 0
    target_step: Maybe[int] = Unknown("not looked at yet")  # the new attempt must pass it before this is recovered

    order: Mapping[str, Any] | None = None  # what an operator ordered
    approvals: tuple[Approval, ...] = ()  # what people were asked, in order
    holds: tuple[Hold, ...] = ()  # what has held something back, the newest last
    paused_since: Fact | None = None  # when the global pause was first found set; no limit runs until it is lifted
    account: Account = dataclasses.field(default_factory=Account)  # what its ledger will need

    tracking: AttemptTracking = dataclasses.field(default_factory=AttemptTracking)
    loss: BadLoss = dataclasses.field(default_factory=BadLoss)
    evidence: Evidence = dataclasses.field(default_factory=Evidence)
    halt: Halt = dataclasses.field(default_factory=Halt)
    resubmission: Resubmissions = dataclasses.field(default_factory=Resubmissions)
    repair: NodeRepair | None = None  # on a node's own Incident: what it remembers

    def changed(self, **changes: object) -> Incident:
        """With fields changed, each in the part that has it; no two parts share a field's name.

        Raises:
            TypeError: neither the Incident nor a part of it has such a field.
        """
        own: dict[str, Any] = {}
        within: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            part = _PART_OF.get(name)
            (own if part is None else within.setdefault(part, {}))[name] = value
        for part, fields in within.items():
            own[part] = dataclasses.replace(own.get(part, getattr(self, part)), **fields)
        return dataclasses.replace(self, **own)

    @property
    def scope(self) -> str | None:
        """What at most one open Incident is about: a Job, a node `<cluster>/<node>`, or a cluster; None: nothing."""
        if self.job_id is not None or self.cluster is None:
            return self.job_id
        return self.cluster if self.node is None else node_scope(self.cluster, self.node)

    def unpaused(self, *, now: datetime) -> Incident:
        """As it would be had the pause taken no time: what a limit is measured from, and what is waited for, move on.

        A question to people waits as long again: a pause uses up no deadline.
        """
        if self.paused_since is None:
            return self
        pause = Pause(self.paused_since, now)
        approvals = tuple(
            dataclasses.replace(approval, deadline_at=pause.due(approval.deadline_at))
            if approval.is_pending
            else approval
            for approval in self.approvals
        )
        return dataclasses.replace(self._moved_on(pause), approvals=approvals, paused_since=None)

    def unheld(self, *, now: datetime) -> Incident:
        """The same for the time that a guard has held its next step back; as it is while none does."""
        since = [hold.since for hold in self.holds if hold.until is None and hold.guard.stops_the_clock]
        return self._moved_on(Pause(min(since), now)) if since else self

    def _moved_on(self, pause: Pause) -> Incident:
        return dataclasses.replace(
            moved_on(self, pause),
            tracking=moved_on(self.tracking, pause),
            loss=self.loss.moved_on(pause),
            evidence=moved_on(self.evidence, pause),
            halt=self.halt.moved_on(pause),
            resubmission=self.resubmission.moved_on(pause, is_ordering=self.phase is Phase.RESUBMITTING),
            repair=self.repair and moved_on(self.repair, pause),
        )

    def enter(self, phase: Phase, *, now: datetime) -> Incident:
        """Move to `phase`. Staying is no transition and changes nothing.

        Raises:
            InvalidTransition: the table does not hold this change.
        """
        if phase is self.phase:
            return self
        if phase not in TRANSITIONS[self.phase]:
            raise InvalidTransition(f"{self.phase} -> {phase}")
        closed_at = now if phase.is_terminal else None
        return dataclasses.replace(self, phase=phase, phase_entered_at=now, closed_at=closed_at)

    def absorb(self, signals: tuple[Signal, ...]) -> Incident:
        """Take newly arrived Signals in; the oldest kept ones give way beyond MAX_KEPT_SIGNALS."""
        if not signals:
            return self
        kept = (self.signals + signals)[-MAX_KEPT_SIGNALS:]
        return dataclasses.replace(self, signals=kept, signals_seen=self.signals_seen + len(signals))

    @property
    def is_open(self) -> bool:
        """True until a terminal phase."""
        return not self.phase.is_terminal

    @property
    def is_poisoned(self) -> bool:
        """The attempt under care has gone bad at `onset_step`: what it saved since is not to be resumed from."""
        return self.loss.onset_attempt is not None and self.loss.onset_attempt == self.attempt

    @property
    def is_ordered(self) -> bool:
        """A person has ordered what is done now. An order stands until it is carried out, one to stop for good always:
        what befalls an attempt that was ordered is no one's wish.
        """
        if self.repair is not None:
            return self.repair.waiting_order is not None
        return self.order is not None and (not self.resubmission.tries or self.order.get("do") == "stop")

    def has_signal(self, fault: FaultClass) -> bool:
        """A Signal that suggests `fault` has been absorbed (the oldest may have given way)."""
        return self.fault is fault or any(signal.fault is fault for signal in self.signals)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry(Record):
    """One line of an Incident's story. `facts` is small JSON: what the look saw, what each Action answered."""

    at: datetime
    phase: Phase
    rule: str
    text: str
    actions: tuple[str, ...] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def incident_id_for(signal: Signal, *, scope: str) -> str:
    """The id of the Incident that `signal` would open: a hash of the fact, so that two racing openers agree.

    `scope` is the Incident's own. 1-48 characters of [a-z0-9-], short enough to name a durable execution (64
    characters) with its generation.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", scope.rsplit("/", 1)[-1].lower()).strip("-")[:26].strip("-") or "x"
    digest = hashlib.sha256(f"{scope}|{signal.dedupe_key}".encode()).hexdigest()[:12]
    return f"inc-{readable}-{digest}"


def node_scope(cluster: str, node: str) -> str:
    """The scope of a node's own Incident: one node has one at a time. A slash is in no name of either."""
    return f"{cluster}/{node}"


def execution_name(incident_id: str, generation: int) -> str:
    """The DurableExecutionName of one generation; a used name starts nothing, so each restart is new."""
    return f"{incident_id}-g{generation}"


def best_step(*steps: Maybe[int]) -> Maybe[int]:
    """The highest of the known steps; Unknown only if none is known."""
    known = [step.value for step in steps if isinstance(step, Known)]
    return Known(max(known)) if known else steps[0] if steps else Unknown("no step given")


# The part of an Incident that has a field, by the field's name.
_PART_OF: Final[Mapping[str, str]] = {
    field.name: part
    for part, kind in {
        "tracking": AttemptTracking,
        "loss": BadLoss,
        "evidence": Evidence,
        "halt": Halt,
        "resubmission": Resubmissions,
    }.items()
    for field in dataclasses.fields(kind)
}
