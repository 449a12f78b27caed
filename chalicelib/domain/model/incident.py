"""The Incident: what Signals open and `recover` works on. Immutable; every change makes a new one."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from chalicelib.domain.model.account import Account
from chalicelib.domain.model.approvals import Approval, Hold
from chalicelib.domain.model.errors import InvalidTransition
from chalicelib.domain.model.evidence import (
    Bout,
    Need,
    Onset,
    Stretch,
    Suspicion,
    onset_from_wire,
    onset_to_wire,
    stretch_from_wire,
    stretch_to_wire,
)
from chalicelib.domain.model.known import Known, Maybe, Unknown, maybe_from_wire, maybe_to_wire
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

    `no_room`: it failed for want of capacity before it ever ran. `died_at_load`: it failed before it had made a step
    past the checkpoint that it was given. `is_theirs`: the platform started it by itself. `leaves` is a held start of
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
class Incident:
    """Everything `decide` remembers between two looks.

    `version` fences every write by the workflow; `generation` names the durable execution that may write.
    `policy_document` is the policy that the first look found; later looks and generations keep to it.
    `attempt` is the attempt under care now: first the one that failed, then each resubmission.
    `target_step` is the step that the new attempt must pass before the Incident counts as recovered.
    `onset_step` is the first bad step of `onset_attempt`, once poisoned; what replaces it must resume before that.
    `seen_as` is the state that the attempt was last seen in, `seen_since` when it was first seen so; `unseen_since` is
    set while it cannot be read; `repaired_at` is when it was seen back from the platform's own repair.
    `paged_for` are the rules that have paged for what cannot be read, or told of it: each once in an Incident.
    `watch_step` was reached by `watch_at`: how long a run that must move has not moved.
    `stop_asked_at` is when a stop was asked for last, `stop_begun_at` when the newest attempt's first one was decided.
    `paused_since` is when a look first found the global pause set; no limit runs until it is lifted.
    `node` is set on a node's own Incident (with `cluster`, without `job_id`): the node's name there; `repair` is what
    such a one remembers.
    `onset_fault` is what began at `onset_step`; `onsets` are those rolled back for, in order; `bout` is a bad loss that
    is watched; `verify_to` is a step that a new attempt must pass besides the target, where one is set.
    `stretches` and `suspicions` are what later Incidents and people need to know (see evidence.py), `conclusion` what
    came out of them. `needs` is what the next look must read, asked for since `needs_since`; `evidence_since` is when
    the ranks' own reports about the attempt under care began to be waited for.
    On a cluster: `bad_nodes` are held to be broken; `stop_hold`: what was stopped last stays in the queue, held;
    `deferred_since` is when the job's own auto-resume began to be waited for; `requeue_refused`: it said no to that.
    `excluded_checkpoints` are passed over in this Incident; those of them in `quarantined` were marked for others too.
    `fruitless_before` counts the Job's attempts before this Incident, the newest in a row, that gained nothing.
    `approvals` are what people were asked, in order; `holds` what has held something back, the newest last.
    `account` is what its ledger will need. `newer` names what of the record a newer version has written (newer.py).
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

        A question to people waits as long again: nobody is held to a deadline that a pause has eaten up.
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
        """Like `no_progress`, with those of which it cannot be told: what the back-off between tries counts."""
        count = 0
        for attempt in reversed(self.tries):
            if attempt.gained:
                break
            count += attempt.ended and not attempt.no_room
        return count

    def to_wire(self) -> dict[str, Any]:
        """JSON form for DynamoDB and step results."""
        return {
            "incident_id": self.incident_id,
            "job_id": self.job_id,
            "cluster": self.cluster,
            "opened_at": self.opened_at.isoformat(),
            "phase": self.phase.value,
            "phase_entered_at": self.phase_entered_at.isoformat(),
            "version": self.version,
            "generation": self.generation,
            "policy_name": self.policy_name,
            "policy_version": self.policy_version,
            "policy_document": dict(self.policy_document) if self.policy_document is not None else None,
            "fault": self.fault.value,
            "fault_rule": self.fault_rule,
            "signals": [signal.to_wire() for signal in self.signals],
            "signals_seen": self.signals_seen,
            "attempt": self.attempt,
            "attempt_number": self.attempt_number,
            "target_step": maybe_to_wire(self.target_step),
            "onset_step": maybe_to_wire(self.onset_step),
            "onset_attempt": self.onset_attempt,
            "onset_fault": self.onset_fault.value,
            "onsets": [onset_to_wire(item) for item in self.onsets],
            "bout": self.bout.to_wire() if self.bout else None,
            "stretches": [stretch_to_wire(item) for item in self.stretches],
            "verify_to": maybe_to_wire(self.verify_to),
            "suspicions": [item.to_wire() for item in self.suspicions],
            "conclusion": self.conclusion,
            "needs": [item.value for item in self.needs],
            "needs_since": _at(self.needs_since),
            "evidence_since": _at(self.evidence_since),
            "seen_as": self.seen_as,
            "seen_since": _at(self.seen_since),
            "unseen_since": _at(self.unseen_since),
            "doubt_since": _at(self.doubt_since),
            "paged_for": self.paged_for,
            "repaired_at": _at(self.repaired_at),
            "watch_step": maybe_to_wire(self.watch_step),
            "watch_at": _at(self.watch_at),
            "ask": _ask_to_wire(self.ask),
            "asks": self.asks,
            "stop_asked_at": _at(self.stop_asked_at),
            "stop_begun_at": _at(self.stop_begun_at),
            "stopped_attempts": list(self.stopped_attempts),
            "tries": [_try_to_wire(item) for item in self.tries],
            "failures": [
                {"attempt": item.attempt, "signature": item.signature, "step": maybe_to_wire(item.step)}
                for item in self.failures
            ],
            "rollbacks": self.rollbacks,
            "skips": [[window.from_step, window.to_step] for window in self.skips],
            "not_before": _at(self.not_before),
            "capacity_since": _at(self.capacity_since),
            "capacity_refusals": self.capacity_refusals,
            "name_salt": self.name_salt,
            "excluded_checkpoints": list(self.excluded_checkpoints),
            "quarantined": list(self.quarantined),
            "order": dict(self.order) if self.order is not None else None,
            "paused_since": _at(self.paused_since),
            "closed_at": _at(self.closed_at),
            "outcome": self.outcome,
            "bad_nodes": [item.to_wire() for item in self.bad_nodes],
            "stop_hold": self.stop_hold,
            "deferred_since": _at(self.deferred_since),
            "requeue_refused": self.requeue_refused,
            "fruitless_before": self.fruitless_before,
            "node": self.node,
            "repair": self.repair.to_wire() if self.repair else None,
            "approvals": [item.to_wire() for item in self.approvals],
            "holds": [item.to_wire() for item in self.holds],
            "account": self.account.to_wire(),
            "newer": self.newer,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Incident:
        """Inverse of `to_wire`. Only for data that we wrote ourselves."""
        return cls(
            incident_id=wire["incident_id"],
            job_id=wire["job_id"],
            cluster=wire["cluster"],
            opened_at=datetime.fromisoformat(wire["opened_at"]),
            phase=Phase(wire["phase"]),
            phase_entered_at=datetime.fromisoformat(wire["phase_entered_at"]),
            version=int(wire["version"]),
            generation=int(wire["generation"]),
            policy_name=wire["policy_name"],
            policy_version=wire["policy_version"],
            policy_document=wire["policy_document"],
            fault=FaultClass(wire["fault"]),
            fault_rule=wire["fault_rule"],
            signals=tuple(Signal.from_wire(item) for item in wire["signals"]),
            signals_seen=int(wire["signals_seen"]),
            attempt=wire["attempt"],
            attempt_number=int(wire["attempt_number"]),
            target_step=maybe_from_wire(wire["target_step"]),
            onset_step=maybe_from_wire(wire["onset_step"]),
            onset_attempt=wire["onset_attempt"],
            **_evidence_from_wire(wire),
            seen_as=wire["seen_as"],
            seen_since=_from_at(wire["seen_since"]),
            unseen_since=_from_at(wire["unseen_since"]),
            doubt_since=_from_at(wire.get("doubt_since")),
            paged_for=wire.get("paged_for", ""),
            repaired_at=_from_at(wire["repaired_at"]),
            watch_step=maybe_from_wire(wire["watch_step"]),
            watch_at=_from_at(wire["watch_at"]),
            ask=_ask_from_wire(wire["ask"]),
            asks=int(wire["asks"]),
            stop_asked_at=_from_at(wire["stop_asked_at"]),
            stop_begun_at=_from_at(wire.get("stop_begun_at")),
            stopped_attempts=tuple(wire["stopped_attempts"]),
            tries=tuple(_try_from_wire(item) for item in wire["tries"]),
            failures=tuple(
                Failure(attempt=item["attempt"], signature=item["signature"], step=maybe_from_wire(item["step"]))
                for item in wire["failures"]
            ),
            rollbacks=int(wire["rollbacks"]),
            skips=tuple(SkipWindow(from_step=int(low), to_step=int(high)) for low, high in wire["skips"]),
            not_before=_from_at(wire["not_before"]),
            capacity_since=_from_at(wire["capacity_since"]),
            capacity_refusals=int(wire["capacity_refusals"]),
            name_salt=int(wire["name_salt"]),
            excluded_checkpoints=tuple(wire["excluded_checkpoints"]),
            quarantined=tuple(wire.get("quarantined", ())),
            order=wire["order"],
            paused_since=_from_at(wire.get("paused_since")),
            closed_at=_from_at(wire["closed_at"]),
            outcome=wire["outcome"],
            bad_nodes=tuple(BadNode.from_wire(item) for item in wire.get("bad_nodes", ())),
            stop_hold=bool(wire.get("stop_hold", False)),
            deferred_since=_from_at(wire.get("deferred_since")),
            requeue_refused=bool(wire.get("requeue_refused", False)),
            fruitless_before=int(wire.get("fruitless_before", 0)),
            node=wire.get("node"),
            repair=NodeRepair.from_wire(wire["repair"]) if wire.get("repair") else None,
            approvals=tuple(Approval.from_wire(item) for item in wire.get("approvals", ())),
            holds=tuple(Hold.from_wire(item) for item in wire.get("holds", ())),
            account=Account.from_wire(wire["account"]) if "account" in wire else Account(),
            newer=str(wire.get("newer", "")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One line of an Incident's story. `facts` is small JSON: what the look saw, what each Action answered."""

    at: datetime
    phase: Phase
    rule: str
    text: str
    actions: tuple[str, ...] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "at": self.at.isoformat(),
            "phase": self.phase.value,
            "rule": self.rule,
            "text": self.text,
            "actions": list(self.actions),
            "facts": dict(self.facts),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> TimelineEntry:
        """Inverse of `to_wire`."""
        return cls(
            at=datetime.fromisoformat(wire["at"]),
            phase=Phase(wire["phase"]),
            rule=wire["rule"],
            text=wire["text"],
            actions=tuple(wire["actions"]),
            facts=dict(wire["facts"]),
        )


def incident_id_for(signal: Signal, *, scope: str) -> str:
    """The id of the Incident that `signal` would open: a hash of the fact, so that two racing openers agree.

    `scope` is the Incident's own. 1-48 characters of [a-z0-9-], short enough to name a durable execution (64
    characters, style §4) with its generation.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", scope.rsplit("/", 1)[-1].lower()).strip("-")[:26].strip("-") or "x"
    digest = hashlib.sha256(f"{scope}|{signal.dedupe_key}".encode()).hexdigest()[:12]
    return f"inc-{readable}-{digest}"


def node_scope(cluster: str, node: str) -> str:
    """The scope of a node's own Incident: whoever asks, one node has one at a time. A slash is in no name of either."""
    return f"{cluster}/{node}"


def execution_name(incident_id: str, generation: int) -> str:
    """The DurableExecutionName of one generation; a used name starts nothing (style §4.2), so each restart is new."""
    return f"{incident_id}-g{generation}"


def _moved_on(moment: datetime, began: datetime, now: datetime) -> datetime:
    """`moment`, later by as much of the pause as came after it."""
    return moment + (now - max(moment, began))


def _at(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _from_at(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _evidence_from_wire(wire: Mapping[str, Any]) -> dict[str, Any]:
    """These fields came later: an Incident that was written before them is read as having none of it."""
    bout = wire.get("bout")
    return {
        "onset_fault": FaultClass(wire.get("onset_fault", FaultClass.NON_FINITE)),
        "onsets": tuple(onset_from_wire(item) for item in wire.get("onsets", ())),
        "bout": Bout.from_wire(bout) if bout else None,
        "stretches": tuple(stretch_from_wire(item) for item in wire.get("stretches", ())),
        "verify_to": maybe_from_wire(wire.get("verify_to") or {"unknown": "nothing beyond the target"}),
        "suspicions": tuple(Suspicion.from_wire(item) for item in wire.get("suspicions", ())),
        "conclusion": wire.get("conclusion", ""),
        "needs": tuple(Need(item) for item in wire.get("needs", ())),
        "needs_since": _from_at(wire.get("needs_since")),
        "evidence_since": _from_at(wire.get("evidence_since")),
    }


def _ask_to_wire(ask: CheckpointAsk | None) -> dict[str, Any] | None:
    if ask is None:
        return None
    return {
        "request_id": ask.request_id,
        "attempt": ask.attempt,
        "asked_at": ask.asked_at.isoformat(),
        "deadline_at": ask.deadline_at.isoformat(),
        "outcome": ask.outcome,
        "step": ask.step,
        "why": ask.why,
        "is_paged": ask.is_paged,
    }


def _ask_from_wire(wire: Mapping[str, Any] | None) -> CheckpointAsk | None:
    if wire is None:
        return None
    return CheckpointAsk(
        request_id=wire["request_id"],
        attempt=wire["attempt"],
        asked_at=datetime.fromisoformat(wire["asked_at"]),
        deadline_at=datetime.fromisoformat(wire["deadline_at"]),
        outcome=wire["outcome"],
        step=None if wire["step"] is None else int(wire["step"]),
        why=wire["why"],
        is_paged=bool(wire.get("is_paged", False)),
    )


def _try_to_wire(item: Try) -> dict[str, Any]:
    return {
        "number": item.number,
        "name": item.name,
        "clone_of": item.clone_of,
        "at": item.at.isoformat(),
        "resume_step": maybe_to_wire(item.resume_step),
        "ended": item.ended,
        "last_step": maybe_to_wire(item.last_step),
        "gained": item.gained,
        "resume_manifest": item.resume_manifest,
        "resume_root": item.resume_root,
        "no_room": item.no_room,
        "died_at_load": item.died_at_load,
        "went_back": item.went_back,
        "how": item.how.value,
        "exclude": list(item.exclude),
        "is_theirs": item.is_theirs,
        "nodes_min": item.nodes_min,
        "nodes_max": item.nodes_max,
        "leaves": item.leaves,
        "left_nodes": list(item.left_nodes),
    }


def _try_from_wire(wire: Mapping[str, Any]) -> Try:
    return Try(
        number=int(wire["number"]),
        name=wire["name"],
        clone_of=wire["clone_of"],
        at=datetime.fromisoformat(wire["at"]),
        resume_step=maybe_from_wire(wire["resume_step"]),
        ended=bool(wire["ended"]),
        last_step=maybe_from_wire(wire["last_step"]),
        gained=wire["gained"],
        resume_manifest=wire["resume_manifest"],
        resume_root=wire.get("resume_root"),
        no_room=bool(wire["no_room"]),
        died_at_load=bool(wire.get("died_at_load", False)),
        went_back=bool(wire.get("went_back", False)),
        how=Submission(wire.get("how", Submission.CLONE)),
        exclude=tuple(wire.get("exclude", ())),
        is_theirs=bool(wire.get("is_theirs", False)),
        nodes_min=wire.get("nodes_min"),
        nodes_max=wire.get("nodes_max"),
        leaves=wire.get("leaves"),
        left_nodes=tuple(wire.get("left_nodes", ())),
    )


def best_step(*steps: Maybe[int]) -> Maybe[int]:
    """The highest of the known steps; Unknown only if none is known."""
    known = [step.value for step in steps if isinstance(step, Known)]
    return Known(max(known)) if known else steps[0] if steps else Unknown("no step given")
