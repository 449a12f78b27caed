"""What is wrong, from everything the Incident has collected. Pure; called at the start of every decide()."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from datetime import datetime

from chalicelib.domain.fault_specs.faults import FAULT_RANK, RENAMES_NO_RETRY
from chalicelib.domain.faults.failure_reasons import failure_of
from chalicelib.domain.faults.heartbeat_claims import is_denied
from chalicelib.domain.faults.lives import began_anew_at, without_earlier_badness
from chalicelib.domain.faults.loss import bad_fault, ends_open_stretches, follow, marked_bad
from chalicelib.domain.faults.poison import BAD_LOSS, note_poison
from chalicelib.domain.faults.signal_facts import ORDER_KINDS, concerns, is_current, signal_step
from chalicelib.domain.faults.stalls import stalled_at
from chalicelib.domain.model.approvals import stop_key
from chalicelib.domain.model.evidence import MAX_SUSPICIONS, Suspicion, SuspicionKind
from chalicelib.domain.model.incident import Incident, Phase, SkipWindow, best_step
from chalicelib.domain.model.incident_parts import merge_windows
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, Observation
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.model.start_view import StartState
from rekindle.protocol.signals import FaultClass

_ORDERS = {
    SignalKind.ORDER_CHECKPOINT: "checkpoint",
    SignalKind.ORDER_RESUBMIT: "resubmit",
    SignalKind.ORDER_STOP: "stop",
}


def diagnose(incident: Incident, seen: Observation) -> Incident:
    """The Incident brought up to date, by those of its Signals that the run's own heartbeat does not deny (claims.py).
    It keeps them all.
    """
    view = seen.attempt.value if isinstance(seen.attempt, Known) else None
    counted = tuple(signal for signal in incident.signals if not is_denied(signal, view, now=seen.observed_at))
    if len(counted) == len(incident.signals):
        return _diagnosed(incident, seen)
    judged = _diagnosed(dataclasses.replace(incident, signals=counted), seen)
    return dataclasses.replace(judged, signals=incident.signals)


def _diagnosed(incident: Incident, seen: Observation) -> Incident:
    """The Incident with fault, rule, onset, target and order brought up to date from its Signals and the look.

    Signals about another attempt are evidence, never a reason (they are stale). While we stop and resubmit,
    what we did ourselves colours what is seen (a stopped attempt "fails"), so the fault stays as it is; only a
    non-finite loss still counts then, because it says which checkpoints must not be resumed from.
    """
    view = seen.attempt.value if isinstance(seen.attempt, Known) else None
    if incident.attempt is None and view is not None:
        incident = dataclasses.replace(incident, attempt=view.name)
    if not incident.is_open:
        return incident
    incident = _take_order(note_state(incident, seen), seen.new_signals)
    incident = ends_open_stretches(_suspect(incident, seen), view)
    if incident.phase is Phase.RESUBMITTING:
        return note_poison(_rise_noted(incident, view, seen), view)
    if incident.phase is not Phase.STOPPING:  # a run that is being stopped for its loss is not judged any more
        own = [item for item in incident.signals if is_current(item, incident)]
        incident = follow(incident, own, view, now=seen.observed_at)
    incident = note_poison(incident, view)
    if incident.phase is Phase.STOPPING:
        is_nan = incident.is_poisoned and incident.loss.onset_fault is FaultClass.NON_FINITE
        if not is_nan or incident.fault is FaultClass.NON_FINITE:
            return _target(incident, view) if incident.is_poisoned else incident
        return _target(
            dataclasses.replace(incident, fault=FaultClass.NON_FINITE, fault_rule="poisoned.while_stopping"), view
        )
    return _target(_fault(incident, view), view)


def _rise_noted(incident: Incident, view: AttemptView | None, seen: Observation) -> Incident:
    """What an attempt that has ended saved while its loss had risen is not resumed from, also where its heartbeat could
    not be read before.
    """
    if view is None or view.name != incident.attempt or not view.status.has_ended or bad_fault(view) is None:
        return incident
    marked = marked_bad(follow(incident, [], view, now=seen.observed_at))
    return incident.changed(stretches=marked.loss.stretches)


def note_state(incident: Incident, seen: Observation) -> Incident:
    """Since when the attempt is what it is, and since when it does not train.

    Written only when it changes, so that a quiet look stays a quiet look.
    """
    view = seen.attempt.value if isinstance(seen.attempt, Known) else None
    if not seen.has_job:
        return incident
    incident = _note_status(incident, view, seen)
    if view is None:
        return incident
    since = None if view.may_train else incident.tracking.down_since or seen.observed_at
    return incident if since == incident.tracking.down_since else incident.changed(down_since=since)


def _note_status(incident: Incident, view: AttemptView | None, seen: Observation) -> Incident:
    if view is None:
        if incident.tracking.unseen_since is not None:
            return incident
        return incident.changed(unseen_since=seen.observed_at)
    if incident.tracking.unseen_since is not None:
        incident = _seen_again(incident, incident.tracking.unseen_since, seen.observed_at)
    is_suspended = view.start is not None and view.start.state is StartState.SUSPENDED
    state = f"{view.name}:{StartState.SUSPENDED if is_suspended else view.status}"
    if incident.tracking.seen_as == f"{view.name}:{StartState.SUSPENDED}" != state and incident.phase in _WEIGHING:
        incident = dataclasses.replace(incident, phase_entered_at=seen.observed_at)
    if incident.tracking.seen_as == state:
        return _in_its_life(incident, view)
    repaired_at = incident.tracking.repaired_at if incident.tracking.seen_as.startswith(f"{view.name}:") else None
    is_back = view.status in (AttemptStatus.STARTING, AttemptStatus.RUNNING)
    if is_back and incident.tracking.seen_as == f"{view.name}:{AttemptStatus.REPAIRING}":
        repaired_at = seen.observed_at
    return _in_its_life(incident.changed(seen_as=state, seen_since=seen.observed_at, repaired_at=repaired_at), view)


def _in_its_life(incident: Incident, view: AttemptView) -> Incident:
    """What was reported of an earlier life of the attempt than the one at work is about the past."""
    anew, repaired_at = began_anew_at(incident, view), incident.tracking.repaired_at
    is_news = anew is not None and (repaired_at is None or repaired_at < anew)
    return without_earlier_badness(incident, view).changed(repaired_at=anew) if is_news else incident


# A claim is weighed there by how long the run stands still.
_WEIGHING = (Phase.OPEN, Phase.HOLDING, Phase.WATCHING)


def _seen_again(incident: Incident, since: datetime, now: datetime) -> Incident:
    """Exclude unobserved time from timeouts."""
    away = now - since
    return incident.changed(
        unseen_since=None,
        seen_since=incident.tracking.seen_since and min(incident.tracking.seen_since + away, now),
        watch_at=incident.tracking.watch_at and min(incident.tracking.watch_at + away, now),
        phase_entered_at=min(incident.phase_entered_at + away, now)
        if incident.phase in (*_WEIGHING, Phase.STOPPING, Phase.VERIFYING)
        else incident.phase_entered_at,
    )


def _take_order(incident: Incident, fresh: tuple[Signal, ...]) -> Incident:
    """An operator's order takes over while nothing has been done yet; later it would fight a recovery under way.

    A checkpoint order never takes over an Incident that is about a fault: it would be closed with the fault forgotten.
    An order to stop is taken whenever it comes, and stands until the run has stopped.
    """
    newest = _strongest_order(fresh)
    if newest is None or not _may_take_over(newest, incident):
        return incident
    order = {"who": "an operator", **dict(newest.evidence), "do": _what_to_do(newest)}
    skips = tuple(SkipWindow(from_step=int(low), to_step=int(high)) for low, high in order.get("skip") or ())
    return incident.changed(
        order=order,
        fault=FaultClass.OPERATOR_ORDER,
        fault_rule=f"signal.{newest.kind}",
        skips=merge_windows((*incident.loss.skips, *skips)),
    )


def _strongest_order(fresh: tuple[Signal, ...]) -> Signal | None:
    """The newest order to resubmit or to stop, else the newest; one to move the run to other nodes only where alone."""
    orders = [signal for signal in fresh if signal.kind in _ORDERS and is_whole_order(signal)]
    orders = [order for order in orders if not order.evidence.get("move")] or orders
    strong = [order for order in orders if order.kind in (SignalKind.ORDER_RESUBMIT, SignalKind.ORDER_STOP)]
    return next(reversed(strong or orders), None)


def _what_to_do(order: Signal) -> str:
    return "move" if order.evidence.get("move") else _ORDERS[order.kind]


def _may_take_over(order: Signal, incident: Incident) -> bool:
    if incident.order is not None and incident.order.get("do") == "stop":
        return False
    if incident.phase not in _WEIGHING and order.kind is not SignalKind.ORDER_STOP:
        return False
    if order.kind is SignalKind.ORDER_CHECKPOINT and _has_trouble(incident):
        return False
    # Whatever else is the matter with the run comes before a move.
    return _what_to_do(order) != "move" or (incident.order is None and not _has_trouble(incident))


def _has_trouble(incident: Incident) -> bool:
    """A signal other than an order reports trouble of the run."""
    return any(
        signal.fault is not None and signal.triggers and signal.kind not in ORDER_KINDS for signal in incident.signals
    )


def is_whole_order(signal: Signal) -> bool:
    """False for an order of which the store had to drop a part, or whose windows or nodes cannot be read."""
    if "evidence_dropped_bytes" in signal.evidence:
        return False
    nodes = signal.evidence.get("exclude") or ()
    if not isinstance(nodes, list | tuple) or not all(isinstance(node, str) for node in nodes):
        return False
    windows = signal.evidence.get("skip") or ()
    return isinstance(windows, list | tuple) and all(
        isinstance(window, list | tuple) and len(window) == 2 and all(isinstance(step, int) for step in window)
        for window in windows
    )


def _fault(incident: Incident, view: AttemptView | None) -> Incident:
    if incident.is_ordered:
        return incident  # the order stands until it is carried out; what befalls the new attempt is a fault again
    signals = [signal for signal in incident.signals if is_current(signal, incident)]
    if not signals and incident.fault is FaultClass.UNCLEAR:  # all of it came before others started the run again
        signals = [signal for signal in incident.signals if concerns(signal, incident)]
    found = [*_from_signals(signals), *_still_not_finite(incident, view)]
    if view is not None and view.name == incident.attempt:
        found += _from_view(incident, view)
    passed_over = _passed_over(incident)
    found = [named for named in found if named[1] not in passed_over]
    denied = _denied(incident, view)
    found = [named for named in found if named[1] not in denied] or found
    if not found:
        return incident
    _, fault, rule = min(found)
    return dataclasses.replace(incident, fault=fault, fault_rule=rule)


# A fault with its rank, and the rule that names it.
_Named = tuple[int, FaultClass, str]


def _passed_over(incident: Incident) -> frozenset[FaultClass]:
    """What does not rename the Incident now, from any source."""
    passed_over = RENAMES_NO_RETRY if incident.resubmission.tries else frozenset()
    if incident.phase is Phase.CHECKPOINTING and incident.fault is FaultClass.LOSS_SPIKE:
        # It is being saved for forensics, to be rolled back. That it continues meanwhile must not undo the decision.
        return passed_over | {FaultClass.DIVERGENCE}
    return passed_over


def _denied(incident: Incident, view: AttemptView | None) -> frozenset[FaultClass]:
    """What a person has not allowed the attempt to be stopped for: while it lives, other trouble comes before that."""
    if incident.attempt is None or view is None or view.status.has_ended:
        return frozenset()
    denied = {approval.key for approval in incident.approvals if approval.forbids}
    return frozenset(fault for fault in FaultClass if stop_key(incident.attempt, fault) in denied)


def _from_signals(signals: Sequence[Signal]) -> list[_Named]:
    return [
        (FAULT_RANK[signal.fault], signal.fault, f"signal.{signal.kind}")
        for signal in signals
        if signal.fault is not None and signal.triggers and signal.kind not in ORDER_KINDS
    ]


def _still_not_finite(incident: Incident, view: AttemptView | None) -> list[_Named]:
    """The attempt was not finite. Known from an earlier Incident only, and finite since, it is no fault."""
    if not incident.is_poisoned or incident.loss.onset_fault is not FaultClass.NON_FINITE:
        return []
    if view is not None and view.loss_state == "finite" and not incident.has_signal(FaultClass.NON_FINITE):
        return []
    rule = incident.fault_rule if incident.fault is FaultClass.NON_FINITE else "poisoned"
    return [(FAULT_RANK[FaultClass.NON_FINITE], FaultClass.NON_FINITE, rule)]


def _from_view(incident: Incident, view: AttemptView) -> list[_Named]:
    found: list[_Named] = []
    if view.status is AttemptStatus.FAILED:
        verdict = failure_of(view)
        found.append((FAULT_RANK[verdict.fault], verdict.fault, f"failure.{verdict.rule}"))
    if view.loss_state in BAD_LOSS:
        found.append((FAULT_RANK[FaultClass.NON_FINITE], FaultClass.NON_FINITE, f"heartbeat.{view.loss_state}"))
    loss_fault = bad_fault(view)
    if loss_fault is not None and not view.status.has_ended:
        found.append((FAULT_RANK[loss_fault], loss_fault, f"heartbeat.{view.loss_health}"))
    if view.status is AttemptStatus.EXPIRED:
        is_preempted = view.start is not None and view.start.state is StartState.PREEMPTED
        rule = "platform.preempted" if is_preempted else "platform.time_limit"
        found.append((FAULT_RANK[FaultClass.PLANNED_END], FaultClass.PLANNED_END, rule))
    if view.status is AttemptStatus.GONE and not incident.resubmission.tries:
        found.append((FAULT_RANK[FaultClass.JOB_MISSING], FaultClass.JOB_MISSING, "platform.gone"))
    return found


def _suspect(incident: Incident, seen: Observation) -> Incident:
    """Take in what the ranks' reports say: the newest word of each attempt and kind stands."""
    found = [seen.suspicion.value] if isinstance(seen.suspicion, Known) else []
    found += [suspicion for suspicion in map(slow_rank, seen.new_signals) if suspicion is not None]
    for suspicion in found:
        if suspicion in incident.evidence.suspicions:
            continue
        others = tuple(
            item
            for item in incident.evidence.suspicions
            if (item.attempt, item.kind) != (suspicion.attempt, suspicion.kind)
        )
        incident = incident.changed(suspicions=(*others, suspicion)[-MAX_SUSPICIONS:])
    return incident


def slow_rank(signal: Signal) -> Suspicion | None:
    """The rank that a throughput Signal names, if it names one."""
    rank, host = signal.evidence.get("rank"), signal.evidence.get("host")
    step_s, usual_s = signal.evidence.get("step_s"), signal.evidence.get("baseline_s")
    is_rank = isinstance(rank, int) and not isinstance(rank, bool)
    if signal.kind is not SignalKind.THROUGHPUT or signal.attempt is None or not (is_rank and isinstance(host, str)):
        return None
    took = f"{step_s:.3g} s a step" if isinstance(step_s, int | float) else "slower steps"
    usual = f", {usual_s:.3g} s is usual" if isinstance(usual_s, int | float) else ""
    return Suspicion(
        attempt=signal.attempt,
        kind=SuspicionKind.SLOW,
        rule="signal.throughput",
        text=f"rank {rank} on {host} is slow: {took}{usual}"[:400],
        ranks=(int(str(rank)),),
        hosts=(host[:255],) if host else (),
        confidence=0.5,  # one rank's word about one window
    )


def _target(incident: Incident, view: AttemptView | None) -> Incident:
    """The step that must be passed: fixed at the first observation that knows one, so that passing it can be seen.

    For a hang it is where the run was reported stuck, not where it is now: a late report about a run that has
    moved on is over at the first observation (DLRover #1749: a stale event that kills the run again and again).
    """
    if not incident.resubmission.tries:
        if incident.is_poisoned and isinstance(incident.loss.onset_step, Known):
            return dataclasses.replace(incident, target_step=incident.loss.onset_step)
        stuck = stalled_at(incident) if incident.fault is FaultClass.HANG else Unknown("no hang")
        if isinstance(stuck, Known):
            return dataclasses.replace(incident, target_step=stuck)
    if isinstance(incident.target_step, Known) or incident.resubmission.tries:
        return incident  # a new attempt's own step is no mark for it to pass
    steps: list[Maybe[int]] = [
        signal_step(signal) for signal in incident.signals if signal.attempt == incident.attempt and signal.fault
    ]
    if view is not None:
        steps.append(view.last_step_at_most)
    return dataclasses.replace(incident, target_step=best_step(*steps)) if steps else incident


def failure_signature(reason: str) -> str:
    """A failure reason without what differs from run to run: numbers, addresses, paths, times.

    An empty reason gives an empty signature, which is equal to nothing (see `decide`).
    """
    text = re.sub(r"0x[0-9a-f]+", "#", reason.lower())
    text = re.sub(r"(?:/[\w.\-]+){2,}", "/…", text)
    text = re.sub(r"\d+", "#", text)
    return re.sub(r"\s+", " ", text).strip()[:300]
