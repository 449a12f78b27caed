"""The Incident: what Signals open and `recover` works on. Immutable; every change makes a new one."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from chalicelib.domain.model.account import Account
from chalicelib.domain.model.approvals import Approval, Hold
from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.errors import InvalidTransition
from chalicelib.domain.model.evidence import (
    Bout,
    Need,
    Onset,
    Stretch,
    Suspicion,
)
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.repair import NodeRepair
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.model.start_view import BadNode, Submission
from rekindle.signatures.faults import FaultClass

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

# The only way an Incident moves. docs/architecture.md's diagram is generated from this table.
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
class SkipWindow:
    """Data not to train on again: the batches of the steps [from_step, to_step)."""

    wire_row: ClassVar[bool] = True  # an Incident has many

    from_step: int
    to_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAsk:
    """One emergency checkpoint asked for. `outcome` is None until answered: saved, cannot, refused, late.

    `is_paged`: a person was paged as it was asked for, who decides whatever comes of it.
    """

    request_id: str
    attempt: str
    asked_at: datetime
    deadline_at: datetime
    outcome: str | None = None
    step: int | None = None
    why: str = ""
    is_paged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One resubmission made in this Incident.

    `no_room`: it failed for lack of capacity before it ever ran. `died_at_load`: it failed before it had made a step
    past the checkpoint that it was given. `is_theirs`: the platform started it. `leaves` is a held start of
    the old submission that must be cancelled once this one, a new submission, is there. `left_nodes` are those that the
    one before it lost a node of: which one may be shown only later. `nodes_min` to `nodes_max` is the size that it
    was allowed because it waited for nodes.
    """

    number: int
    name: str
    clone_of: str
    at: datetime
    resume_step: Maybe[int]
    ended: bool = False
    last_step: Maybe[int] = Unknown("no step seen yet")
    gained: bool | None = None  # None: cannot be told, or not ended
    resume_manifest: str | None = None
    resume_root: str | None = None
    no_room: bool = False
    died_at_load: bool = False
    went_back: bool = False
    how: Submission = Submission.CLONE
    exclude: tuple[str, ...] = ()
    is_theirs: bool = False
    leaves: str | None = None
    left_nodes: tuple[str, ...] = ()
    nodes_min: int | None = None
    nodes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How one attempt ended; two alike at one step mean that trying again cannot help."""

    attempt: str
    signature: str
    step: Maybe[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident(Record):
    """Everything `decide` remembers between two observations.

    `version` fences every write by the workflow; `generation` names the durable execution that may write.
    `policy_document` is the policy at the first observation; later observations and generations keep to it. `attempt`
    is the attempt under care now: first the one that failed, then each resubmission. `target_step` is the step that the
    new attempt must pass before the Incident counts as recovered. `onset_step` is the first bad step of
    `onset_attempt`, once poisoned; what replaces it must resume before that. `seen_as` is the state that the attempt
    was last seen in, `seen_since` when it was first seen so; `unseen_since` is set while it cannot be read;
    `repaired_at` is when it was seen back from the platform's own repair. `paged_for` are the rules that have paged or
    notified about what cannot be read: each once in an Incident. `watch_step` was reached by `watch_at`: how long a run
    that must move has not moved. `stop_asked_at` is when a stop was asked for last, `stop_begun_at` when the newest
    attempt's first one was decided. `paused_since` is when an observation first found the global pause set; no limit
    runs until it is lifted. `node` is set on a node's own Incident (with `cluster`, without `job_id`): the node's name
    there; `repair` is what such a one remembers. `onset_fault` is what began at `onset_step`; `onsets` are those rolled
    back for, in order; `bout` is a bad loss that is watched; `verify_to` is a step that a new attempt must pass besides
    the target, where one is set. `stretches` and `suspicions` are what later Incidents and people need to know (see
    evidence.py), `conclusion` what came out of them. `needs` is what the next observation must read, asked for since
    `needs_since`; `evidence_since` is when the ranks' own reports about the attempt under care began to be waited for.
    On a cluster: `bad_nodes` are held to be broken; `stop_hold`: what was stopped last stays in the queue, held;
    `deferred_since` is when the job's own auto-resume began to be waited for; `requeue_refused`: that was refused.
    `excluded_checkpoints` are passed over in this Incident; those of them in `quarantined` were marked for others too.
    `fruitless_before` counts the Job's attempts before this Incident, the newest in a row, that gained nothing.
    `approvals` are what people were asked, in order; `holds` what has held something back, the newest last. `account`
    is what its ledger will need. `newer` names what of the record a newer version has written (newer.py).
    """

    incident_id: str
    job_id: str | None
    cluster: str | None
    opened_at: datetime
    phase: Phase
    phase_entered_at: datetime
    version: int = 0
    generation: int = 1
    policy_name: str = "default"
    policy_version: str = ""
    policy_document: Mapping[str, Any] | None = None
    fault: FaultClass = FaultClass.UNCLEAR
    fault_rule: str = ""
    signals: tuple[Signal, ...] = ()
    signals_seen: int = 0
    attempt: str | None = None
    attempt_number: int = 0
    target_step: Maybe[int] = Unknown("not looked at yet")
    onset_step: Maybe[int] = Unknown("no onset")
    onset_attempt: str | None = None
    onset_fault: FaultClass = FaultClass.NON_FINITE
    onsets: tuple[Onset, ...] = ()
    bout: Bout | None = None
    stretches: tuple[Stretch, ...] = ()
    verify_to: Maybe[int] = Unknown("nothing beyond the target")
    suspicions: tuple[Suspicion, ...] = ()
    conclusion: str = ""
    needs: tuple[Need, ...] = ()
    needs_since: datetime | None = None
    evidence_since: datetime | None = None
    seen_as: str = ""
    seen_since: datetime | None = None
    unseen_since: datetime | None = None
    doubt_since: datetime | None = None
    paged_for: str = ""
    repaired_at: datetime | None = None
    watch_step: Maybe[int] = Unknown("not watched yet")
    watch_at: datetime | None = None
    ask: CheckpointAsk | None = None
    asks: int = 0
    stop_asked_at: datetime | None = None
    stop_begun_at: datetime | None = None
    stopped_attempts: tuple[str, ...] = ()
    tries: tuple[Try, ...] = ()
    failures: tuple[Failure, ...] = ()
    rollbacks: int = 0
    skips: tuple[SkipWindow, ...] = ()
    not_before: datetime | None = None
    capacity_since: datetime | None = None
    capacity_refusals: int = 0
    name_salt: int = 0
    excluded_checkpoints: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    order: Mapping[str, Any] | None = None
    paused_since: datetime | None = None
    closed_at: datetime | None = None
    outcome: str = ""
    bad_nodes: tuple[BadNode, ...] = ()
    stop_hold: bool = False
    deferred_since: datetime | None = None
    requeue_refused: bool = False
    fruitless_before: int = 0
    node: str | None = None
    repair: NodeRepair | None = None
    approvals: tuple[Approval, ...] = ()
    holds: tuple[Hold, ...] = ()
    account: Account = dataclasses.field(default_factory=Account)
    newer: str = ""

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
        began = self.paused_since
        if began is None:
            return self
        approvals = tuple(
            dataclasses.replace(one, deadline_at=one.deadline_at + (now - began)) if one.is_pending else one
            for one in self.approvals
        )
        return dataclasses.replace(self._moved_on(began, now), approvals=approvals, paused_since=None)

    def unheld(self, *, now: datetime) -> Incident:
        """The same for the time that a guard has held its next step back; as it is while none does."""
        since = [one.since for one in self.holds if one.until is None and one.guard.stops_the_clock]
        return self._moved_on(min(since), now) if since else self

    def _moved_on(self, began: datetime, now: datetime) -> Incident:
        """`repaired_at` stays: it is compared with when Signals occurred, and those kept occurring."""
        ask, tries = self.ask, self.tries
        if ask is not None and ask.outcome is None:
            ask = dataclasses.replace(ask, deadline_at=ask.deadline_at + (now - began))
        if self.phase is Phase.RESUBMITTING and self.pending is not None:
            tries = (*tries[:-1], dataclasses.replace(tries[-1], at=_moved_on(tries[-1].at, began, now)))
        return dataclasses.replace(
            self,
            phase_entered_at=_moved_on(self.phase_entered_at, began, now),
            seen_since=self.seen_since and _moved_on(self.seen_since, began, now),
            unseen_since=self.unseen_since and _moved_on(self.unseen_since, began, now),
            doubt_since=self.doubt_since and _moved_on(self.doubt_since, began, now),
            watch_at=self.watch_at and _moved_on(self.watch_at, began, now),
            stop_asked_at=self.stop_asked_at and _moved_on(self.stop_asked_at, began, now),
            capacity_since=self.capacity_since and _moved_on(self.capacity_since, began, now),
            needs_since=self.needs_since and _moved_on(self.needs_since, began, now),
            evidence_since=self.evidence_since and _moved_on(self.evidence_since, began, now),
            deferred_since=self.deferred_since and _moved_on(self.deferred_since, began, now),
            bout=self.bout
            and dataclasses.replace(
                self.bout,
                unseen_since=self.bout.unseen_since and _moved_on(self.bout.unseen_since, began, now),
            ),
            not_before=self.not_before and self.not_before + (now - began),
            repair=self.repair
            and dataclasses.replace(
                self.repair, changed_at=self.repair.changed_at and _moved_on(self.repair.changed_at, began, now)
            ),
            ask=ask,
            tries=tries,
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
        return self.onset_attempt is not None and self.onset_attempt == self.attempt

    def has_signal(self, fault: FaultClass) -> bool:
        """A Signal that suggests `fault` has been absorbed (the oldest may have given way)."""
        return self.fault is fault or any(signal.fault is fault for signal in self.signals)

    @property
    def pending(self) -> Try | None:
        """The try on record whose attempt has not ended: running, or not even known to have started."""
        return self.tries[-1] if self.tries and not self.tries[-1].ended else None

    @property
    def no_progress(self) -> int:
        """Ended tries since the last one that gained a step, counting only those known to have gained none."""
        count = 0
        for attempt in reversed(self.tries):
            if attempt.gained:
                break
            count += attempt.ended and attempt.gained is False and not attempt.no_room
        return count

    @property
    def without_gain(self) -> int:
        """Like `no_progress`, with those of which it is unknown: what the back-off between tries counts."""
        count = 0
        for attempt in reversed(self.tries):
            if attempt.gained:
                break
            count += attempt.ended and not attempt.no_room
        return count


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
    characters, style §4) with its generation.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", scope.rsplit("/", 1)[-1].lower()).strip("-")[:26].strip("-") or "x"
    digest = hashlib.sha256(f"{scope}|{signal.dedupe_key}".encode()).hexdigest()[:12]
    return f"inc-{readable}-{digest}"


def node_scope(cluster: str, node: str) -> str:
    """The scope of a node's own Incident: one node has one at a time. A slash is in no name of either."""
    return f"{cluster}/{node}"


def execution_name(incident_id: str, generation: int) -> str:
    """The DurableExecutionName of one generation; a used name starts nothing (style §4.2), so each restart is new."""
    return f"{incident_id}-g{generation}"


def _moved_on(moment: datetime, began: datetime, now: datetime) -> datetime:
    """`moment`, later by as much of the pause as came after it."""
    return moment + (now - max(moment, began))


def best_step(*steps: Maybe[int]) -> Maybe[int]:
    """The highest of the known steps; Unknown only if none is known."""
    known = [step.value for step in steps if isinstance(step, Known)]
    return Known(max(known)) if known else steps[0] if steps else Unknown("no step given")
