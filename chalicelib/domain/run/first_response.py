"""How a playbook's response begins: ask for a checkpoint, stop the attempt, or only say what would be done."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.decision.reported import suspicion_about
from chalicelib.domain.decision.rule import first_decision
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    span_word,
    story,
    subject,
)
from chalicelib.domain.fault_specs.faults import POISONS
from chalicelib.domain.faults.loss import noted_bad
from chalicelib.domain.model.action import Notify, RequestCheckpoint, Severity, StopJob
from chalicelib.domain.model.evidence import forensic_request_id, suspect_word
from chalicelib.domain.model.incident import CheckpointAsk, Phase
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.playbooks import Response
from chalicelib.domain.run.before_stop import BEFORE_STOP
from chalicelib.domain.run.hanging import evidence_wanted
from chalicelib.domain.run.submission import holds_at_stop
from rekindle.protocol.signals import FaultClass

TO_STOP: Final = timedelta(seconds=15)  # before an announced end: the answer is heard and the run is stopped
FAR_OFF: Final = timedelta(hours=1)  # before an announced end: runs save far more often than that


def shadow(context: RuleContext, would: str) -> Decision:
    """Shadow mode: decide and tell, do nothing."""
    return context.hand_over("guard.shadow", f"shadow mode: would {would}. {story(context)}", severity=Severity.WARNING)


def begin_checkpoint(
    context: RuleContext, attempt: AttemptView, name: str = "playbook.checkpoint", *, because: FaultClass | None = None
) -> Decision:
    """Ask the living attempt to save by the playbook's deadline.

    Of a run whose loss has gone bad it is asked for forensics only, under an id that says so. Where a person decides
    afterwards whatever comes of it, that person is paged now: there is nothing to wait for. `because`: what it is
    asked for, where that is not what the Incident is about.
    """
    context = dataclasses.replace(context, incident=noted_bad(context.incident))
    row = context.policy.playbook(because or context.incident.fault)
    number = context.incident.halt.asks + 1
    is_for_people = context.incident.fault in POISONS
    request_id = f"{context.incident.incident_id}-c{number}"
    if is_for_people:
        request_id = forensic_request_id(context.incident.incident_id, number)
    # A person who orders a checkpoint wants one, whatever the playbook of orders leaves out.
    span = context.policy.deadline(row) or (
        context.policy.timing.checkpoint_deadline if context.incident.order else timedelta(0)
    )
    deadline_at = _before_the_end(context, context.now + span)
    pages = row.response is Response.CHECKPOINT_THEN_HAND_OVER and context.ordered is None
    ask = CheckpointAsk(
        request_id=request_id, attempt=attempt.name, asked_at=context.now, deadline_at=deadline_at, is_paged=pages
    )
    action = RequestCheckpoint(
        request_id=request_id, attempt=attempt.name, deadline_at=deadline_at, why=f"{because or context.incident.fault}"
    )
    purpose = " for forensics, never to resume from" if is_for_people else ""
    reason = f"{story(context)} Asking {attempt.name} to save{purpose} by {deadline_at:%H:%M:%S}."
    page = Notify(
        severity=Severity.PAGE,
        title=f"{subject(context)}: needs a person",
        text=f"{reason} It is left running; what to do about it is for a person to decide.",
    )
    return context.move(
        name,
        reason,
        Phase.CHECKPOINTING,
        action,
        *([page] if pages else []),
        ask=ask,
        asks=number,
        **evidence_wanted(context),
    )


def _before_the_end(context: RuleContext, deadline_at: datetime) -> datetime:
    """The deadline, moved to before the end that was announced: what is not saved by then is lost with its node.

    A notice that comes too late for any save keeps the deadline of a hang: the answer may be quick.
    """
    end = _first_end(context)
    if end is None:
        return deadline_at
    return min(deadline_at, max(end - TO_STOP, context.now + context.policy.timing.hang_deadline))


def far_off(context: RuleContext) -> Decision | None:
    """The end that was announced is hours or days away: people are notified, and the run trains and saves until then.

    The Incident closes: held open for days, it would stand before whatever else goes wrong.
    """
    end = _first_end(context)
    if end is None or end - context.now <= FAR_OFF or context.incident.is_ordered:
        return None
    reason = f"{story(context)} That is in {span_word(end - context.now)}: the run trains and saves until then"
    return context.close("notice.far_off", reason, Phase.STOPPED, severity=Severity.WARNING)


def ends_far_off(signal: Signal, *, now: datetime) -> bool:
    """It announces an end that is so far away that the run trains and saves until then."""
    end = _announced_end(signal) if signal.fault is FaultClass.PLANNED_END else None
    return end is not None and end - now > FAR_OFF


def announced_ends(context: RuleContext) -> list[datetime]:
    """When what the run is on ends, by the notices that this is about; none where what is wrong is something else."""
    if context.incident.fault is not FaultClass.PLANNED_END:
        return []
    return [at for at in map(_announced_end, context.incident.signals) if at is not None]


def _first_end(context: RuleContext) -> datetime | None:
    """The first of them; None where there is none, or no time is known."""
    return min(announced_ends(context), default=None)


def _announced_end(signal: Signal) -> datetime | None:
    """When what runs on the node ends, by the notice; None where it names no time.

    AWS Health's scheduled events end what runs there when they start.
    """
    notice_s = signal.evidence.get("notice_s")
    if isinstance(notice_s, int | float):
        return signal.occurred_at + timedelta(seconds=notice_s)
    name = "starts_at" if signal.kind is SignalKind.HEALTH_NOTICE else "ends_at"
    try:
        at = datetime.fromisoformat(str(signal.evidence.get(name)))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def begin_stop(context: RuleContext, name: str, reason: str, *, for_sibling: str | None = None) -> Decision:
    """Stop the attempt under care, by the rule `name`; it is replaced once the platform says that it has ended.

    `for_sibling`: an attempt started by hand that shall continue in its place.

    The rules of BEFORE_STOP are asked first, and decide instead where they speak.
    """
    if context.policy.shadow:  # the last gate before the first thing that cannot be undone
        return shadow(context, f"stop {context.incident.attempt}")
    waiting = first_decision(BEFORE_STOP, context)
    if waiting is not None:
        return waiting
    context = dataclasses.replace(context, incident=noted_bad(context.incident))
    attempt = context.attempt
    stopped = attempt.name if attempt else context.incident.attempt or ""
    hold = context.platform.can_hold and holds_at_stop(attempt.start if attempt else None, context.incident)
    suspicion = suspicion_about(context.incident, stopped)
    blamed = f" Suspected: {suspect_word(suspicion)} ({suspicion.text})." if suspicion and suspicion.ranks else ""
    return context.move(
        name,
        f"{reason}{blamed} Stopping {stopped}{'; it stays in the queue, held' if hold else ''}.",
        Phase.STOPPING,
        StopJob(attempt=stopped, why=f"{context.incident.fault}: {name}", hold=hold),
        stop_asked_at=context.now,
        stop_begun_at=context.now,
        stop_hold=hold,
        for_sibling=for_sibling,
        stopped_attempts=(*(other for other in context.incident.halt.stopped_attempts if other != stopped), stopped),
    )
