"""Which rule means which guard, and the Holds on an Incident: what has kept something from being done, and since when.

Every guard leaves a line in the timeline by its rule; the Hold beside it names it in one word, for people and programs,
and closes at the first observation that is not held.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.faults.signal_facts import ORDER_KINDS, concerns
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.approvals import BREAKER_KEY, Approval, ApprovalAnswer, Guard, Hold
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.model.signal import Signal, SignalKind

MAX_HOLDS: Final = 30  # kept on the Incident, the open one and the newest; the timeline has them all
# Holds that may last, and of which no question, warning or last word tells people: they hear of each begin.
NOTIFIED_RULES: Final = frozenset({"guard.paused", "guard.window", "capacity.back_off"})
NOTIFIED_AGAIN_AFTER: Final = timedelta(hours=1)  # one that flaps, as a wait for capacity does, is told once


# While one of its rules speaks, the guard holds. Words that end in `.` or `_` stand for all that begin so.
RULE_GUARDS: Final[Mapping[Guard, tuple[str, ...]]] = {
    Guard.PAUSE: ("guard.paused",),
    Guard.SHADOW: ("guard.shadow",),
    Guard.APPROVAL: ("guard.approval",),
    Guard.DENIED: ("guard.denied", "guard.denied_by_default", "guard.too_many_questions"),
    Guard.WINDOW: ("guard.window",),
    Guard.BREAKER: ("guard.breaker",),
    # Lambda: events to a throttled function wait and are tried again.
    Guard.CATCH_UP: ("guard.catch_up",),
    # A retry budget that counts only attempts without progress.
    Guard.RETRY_BUDGET: ("budget.", "crash.same_again", "adopt.loop", "adopt.loop_limit"),
    Guard.BACK_OFF: ("resubmit.back_off", "resubmit.waiting", "capacity.back_off"),
    # HyperPod's own recovery and auto-resume get their grace first.
    Guard.DEFERENCE: (
        "defer.platform_repair",
        "defer.auto_resume",
        "defer.repaired",
        "verify.platform_repair",
        "node.defer",
        "node.theirs",
    ),
    # Undo only what we did, leave alone what someone else did.
    Guard.PROVENANCE: (
        "open.owner_stopped",
        "open.stopping",
        "verify.held",
        "resubmit.held",
        "verify.owner_stopped",
        "stop.owner_stopped",
        "checkpoint.owner_stopped",
        "node.held_by_other",
        "node.held_before",
        "repair.marked",
    ),
    # A share of the instance group in flight, and an absolute number per 24 h.
    Guard.REPAIR_BUDGET: ("node.queue", "node.full", "node.group_", "node.day_limit", "node.queue_limit"),
    # Reboot, replace, a person.
    Guard.LADDER: ("repair.ladder_end", "repair.not_allowed", "repair.no_effect"),
    Guard.SUSPECT_HARDWARE: ("node.suspect_hardware", "repair.suspect_hardware", "repair.suspect_hardware_"),
    # A replacement destroys volumes: stop first, controllers never; nothing is resumed from a guess.
    Guard.DATA_LOSS: ("drain.waiting", "drain.limit", "node.controller", "resume.", "stop.blind"),
}


def guard_of(rule: str) -> Guard | None:
    """The guard that speaks by `rule`; None for all other rules."""
    for guard, rules in RULE_GUARDS.items():
        if any(rule == name or (name[-1] in "._" and rule.startswith(name)) for name in rules):
            return guard
    return None


def with_answers(incident: Incident, seen: Observation) -> Incident:
    """The Incident with what people have answered, and with what is known to have been asked."""
    asked = {
        result.detail
        for result in seen.results
        if result.action == "AskApproval" and result.done in ("done", "already")
    }
    given = [signal for signal in seen.new_signals if signal.kind is SignalKind.ORDER_APPROVAL]
    if not incident.approvals or not (asked or given):
        return incident
    # A pause takes no time from a question: its deadline moves on only when the pause ends (Incident.unpaused).
    extra = max(seen.observed_at - (incident.paused_since or seen.observed_at), timedelta(0))
    known = (
        dataclasses.replace(approval, notified=approval.notified or approval.approval_id in asked)
        for approval in incident.approvals
    )
    return dataclasses.replace(incident, approvals=tuple(_answered(approval, given, extra) for approval in known))


def _answered(approval: Approval, given: list[Signal], extra: timedelta) -> Approval:
    """The first answer in time counts; later ones are refused where they are given (services/operator/approvals.py)."""
    for signal in given:
        answer = signal.evidence.get("answer")
        is_about = signal.evidence.get("approval_id") == approval.approval_id and answer in list(ApprovalAnswer)
        if approval.is_pending and is_about and signal.occurred_at <= approval.deadline_at + extra:
            return dataclasses.replace(
                approval,
                answer=ApprovalAnswer(str(answer)),
                by=str(signal.evidence.get("who") or "a person"),
                answered_at=signal.occurred_at,
                comment=str(signal.evidence.get("comment") or ""),
            )
    return approval


def kept_holds(after: Incident, rule: str, reason: str, seen: Observation, *, now: datetime) -> Incident:
    """`after` with its Holds brought up to date: the one that `rule` stands for is open, every other one is over.

    The very same object where nothing is new. A closed Incident holds nothing back, and asks nothing any more.
    """
    guard = guard_of(rule)
    holds = tuple(
        dataclasses.replace(hold, until=now)
        if hold.until is None and (hold.guard is not guard or not after.is_open)
        else hold
        for hold in after.holds
    )
    holds = _bounded((*holds, *_new_hold(after, holds, guard, reason, now=now), *_stale_holds(after, seen, now=now)))
    approvals = after.approvals if after.is_open else tuple(_lapsed(approval, now=now) for approval in after.approvals)
    if holds == after.holds and approvals == after.approvals:
        return after
    return dataclasses.replace(after, holds=holds, approvals=approvals)


def _new_hold(
    after: Incident, holds: tuple[Hold, ...], guard: Guard | None, reason: str, *, now: datetime
) -> tuple[Hold, ...]:
    """The Hold that begins now; one that a closed Incident ends with is over at once."""
    if guard is None or any(hold.guard is guard and hold.until is None for hold in holds):
        return ()
    if not after.is_open and any(hold.guard is guard and hold.until == now for hold in holds):
        return ()
    return (Hold(guard=guard, since=now, text=reason[:400], until=None if after.is_open else now),)


def _stale_holds(after: Incident, seen: Observation, *, now: datetime) -> tuple[Hold, ...]:
    """One for each report that came about an attempt which is not under care any more."""
    texts = (
        f"of {signal.attempt}, which has been succeeded: {signal.summary}"
        for signal in seen.new_signals
        if _is_stale(signal, after)
    )
    return tuple(Hold(guard=Guard.STALE, since=now, text=text[:400], until=now) for text in texts)


def _lapsed(approval: Approval, *, now: datetime) -> Approval:
    return dataclasses.replace(approval, lapsed_at=now) if approval.is_pending else approval


def news_of_holds(before: Incident, after: Incident, rule: str, reason: str, *, now: datetime) -> tuple[Notify, ...]:
    """The notice about a new Hold: sent once, at low severity, with what is held back and until when."""
    guard = guard_of(rule)
    if rule not in NOTIFIED_RULES or not after.is_open:
        return ()
    known = [hold for hold in before.holds if hold.guard is guard]
    if any(hold.until is None or now - hold.until < NOTIFIED_AGAIN_AFTER for hold in known):
        return ()
    title = f"{after.scope or after.incident_id}: held back ({guard})"
    return (Notify(severity=Severity.INFO, title=title, text=reason),)


def _bounded(holds: tuple[Hold, ...]) -> tuple[Hold, ...]:
    """The oldest that are over give way. One that still holds stays: no limit runs because it says since when."""
    over = [index for index, hold in enumerate(holds) if hold.until is not None]
    gone = set(over[: max(0, len(holds) - MAX_HOLDS)])
    return tuple(hold for index, hold in enumerate(holds) if index not in gone)


def _is_stale(signal: Signal, incident: Incident) -> bool:
    """It tells of trouble, and of an attempt that is not the one under care any more."""
    if signal.attempt is None or not signal.triggers or signal.fault is None or signal.kind in ORDER_KINDS:
        return False
    return incident.node is None and bool(incident.resubmission.tries) and not concerns(signal, incident)


def is_of_the_breaker(incident: Incident, approval_id: str) -> bool:
    """The question is whether the fleet-wide breaker shall be lifted."""
    return any(approval.approval_id == approval_id and approval.key == BREAKER_KEY for approval in incident.approvals)
