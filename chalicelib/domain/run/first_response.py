"""How a playbook's response begins: ask for a checkpoint, stop the attempt, or only say what would be done."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.claims.movement import new_watch
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    span_word,
    story,
    subject,
    suspicion_about,
    why_unknown,
)
from chalicelib.domain.fault_specs.faults import POISONS
from chalicelib.domain.faults.loss import noted_bad
from chalicelib.domain.faults.stalls import moves_again_since, newest_sign
from chalicelib.domain.model.action import Action, CaptureStacks, Notify, RequestCheckpoint, Severity, StopJob
from chalicelib.domain.model.evidence import Need, SuspicionKind, forensic_request_id, suspect_word
from chalicelib.domain.model.incident import CheckpointAsk, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.playbooks import Response
from chalicelib.domain.run.before_stop import before_stop
from chalicelib.domain.run.submission import holds_at_stop
from rekindle.detectors.ranks import STRONG
from rekindle.protocol.signals import FaultClass

TO_STOP: Final = timedelta(seconds=15)  # before an announced end: the answer is heard and the run is stopped
SETTLED: Final = timedelta(seconds=5)
LIMITS_DIFFER: Final = 0.05  # of the learned limit
OLD_CLAIM = timedelta(minutes=10)  # without any heartbeat since: the run may long have moved on
FAR_OFF: Final = timedelta(hours=1)  # before an announced end: runs save far more often than that
MOVED_FOR = timedelta(minutes=10)  # without another report of a stall


def shadow(context: RuleContext, would: str) -> Decision:
    """Shadow mode: decide and tell, do nothing."""
    return context.hand_over("guard.shadow", f"shadow mode: would {would}. {story(context)}", severity=Severity.WARNING)


def begin_checkpoint(context: RuleContext, attempt: AttemptView, rule: str = "playbook.checkpoint") -> Decision:
    """Ask the living attempt to save by the playbook's deadline.

    Of a run whose loss has gone bad it is asked for forensics only, under an id that says so. Where a person decides
    afterwards whatever comes of it, that person is paged now: there is nothing to wait for.
    """
    context = dataclasses.replace(context, incident=noted_bad(context.incident))
    row = context.policy.playbook(context.incident.fault)
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
        request_id=request_id, attempt=attempt.name, deadline_at=deadline_at, why=f"{context.incident.fault}"
    )
    purpose = " for forensics, never to resume from" if is_for_people else ""
    reason = f"{story(context)} Asking {attempt.name} to save{purpose} by {deadline_at:%H:%M:%S}."
    page = Notify(
        severity=Severity.PAGE,
        title=f"{subject(context)}: needs a person",
        text=f"{reason} It is left running; what to do about it is for a person to decide.",
    )
    return context.move(
        rule,
        reason,
        Phase.CHECKPOINTING,
        action,
        *([page] if pages else []),
        *_stacks_wanted(context, attempt),
        ask=ask,
        asks=number,
        **_evidence_wanted(context),
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
    if end is None or end - context.now <= FAR_OFF or context.incident.order is not None:
        return None
    reason = f"{story(context)} That is in {span_word(end - context.now)}: the run trains and saves until then"
    return context.close("notice.far_off", reason, Phase.STOPPED, severity=Severity.WARNING)


def _first_end(context: RuleContext) -> datetime | None:
    """The first end that was announced; None where what is wrong is something else, or no time is known."""
    if context.incident.fault is not FaultClass.PLANNED_END:
        return None
    return min((at for at in map(_announced_end, context.incident.signals) if at is not None), default=None)


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


def begin_stop(context: RuleContext, rule: str, reason: str, *, for_sibling: str | None = None) -> Decision:
    """Stop the attempt under care; it is replaced once the platform says that it has ended.

    `for_sibling`: an attempt started by hand that shall continue in its place.

    What the ranks of a stuck run report is waited for first, for a bounded time: a stop ends them all.
    """
    if context.policy.shadow:  # the last gate before the first thing that cannot be undone
        return shadow(context, f"stop {context.incident.attempt}")
    waiting = before_stop(context) or _moves_first(context) or _heartbeat_first(context) or _evidence_first(context)
    if waiting is not None:
        return waiting
    context = dataclasses.replace(context, incident=noted_bad(context.incident))
    attempt = context.attempt
    name = attempt.name if attempt else context.incident.attempt or ""
    hold = context.platform.can_hold and holds_at_stop(attempt.start if attempt else None, context.incident)
    suspicion = suspicion_about(context.incident, name)
    blamed = f" Suspected: {suspect_word(suspicion)} ({suspicion.text})." if suspicion and suspicion.ranks else ""
    return context.move(
        rule,
        f"{reason}{blamed} Stopping {name}{'; it stays in the queue, held' if hold else ''}.",
        Phase.STOPPING,
        StopJob(attempt=name, why=f"{context.incident.fault}: {rule}", hold=hold),
        stop_asked_at=context.now,
        stop_begun_at=context.now,
        stop_hold=hold,
        for_sibling=for_sibling,
        stopped_attempts=(*(one for one in context.incident.halt.stopped_attempts if one != name), name),
    )


def _evidence_wanted(context: RuleContext) -> dict[str, Any]:
    """A stuck run's ranks report by themselves, each after its own limit: from now on their word is read."""
    incident = context.incident
    if incident.fault is not FaultClass.HANG or incident.evidence.evidence_since is not None:
        return {}
    return {"evidence_since": context.now, "needs": with_need(incident.evidence.needs, Need.REPORTS)}


def _stacks_wanted(context: RuleContext, attempt: AttemptView) -> tuple[Action, ...]:
    """Once, where their reports begin to be waited for: ranks whose own limits have not passed then tell as well."""
    start = attempt.start
    if start is None or not context.platform.stacks_by_signal:
        return ()
    if context.policy.shadow or not attempt.hears or attempt.status is not AttemptStatus.RUNNING:
        return ()
    if not _evidence_wanted(context):
        return ()
    why = "what each rank does, to find the rank that the others wait for"
    return (CaptureStacks(attempt=attempt.name, handle=start.handle, signal=attempt.hears, why=why),)


def with_need(needs: tuple[Need, ...], *more: Need) -> tuple[Need, ...]:
    """`needs` with `more` in it, each once, in order."""
    return tuple(sorted({*needs, *more}))


def _hanging(context: RuleContext) -> AttemptView | None:
    """The attempt under care, where it runs and a hang is what is wrong."""
    attempt = context.attempt
    if attempt is None or attempt.status is not AttemptStatus.RUNNING:
        return None
    return attempt if context.incident.fault is FaultClass.HANG else None


def _moves_first(context: RuleContext) -> Decision | None:
    """A stalled run whose monitor has reported since that it moves again: not stopped, whatever it had answered."""
    incident, attempt = context.incident, _hanging(context)
    since = moves_again_since(incident, attempt) if attempt is not None else None
    if attempt is None or since is None:
        return None
    report = f"reported at {since:%H:%M:%S} that it moves again"
    if incident.phase not in (Phase.OPEN, Phase.WATCHING):
        if incident.resubmission.tries:
            return context.changed(**new_watch()).move(
                "verify.moves_again", f"{attempt.name} {report}", Phase.VERIFYING
            )
        if context.in_phase >= MOVED_FOR:
            reason = f"{story(context)} {attempt.name} {report}, and nothing else"
            return context.close("hang.moves_again", reason, Phase.STOPPED, severity=Severity.WARNING)
    return _unread(context, attempt, f"it {report}")


def _heartbeat_first(context: RuleContext) -> Decision | None:
    """A reported stall of a run whose heartbeat cannot be read, or that is as old as what was reported.

    Only its own answer, that its training thread is stuck, says as much. An outage of the mailbox is waited for.
    """
    incident, attempt = context.incident, _hanging(context)
    if attempt is None:
        return None
    claims = (one for one in incident.signals if one.fault is FaultClass.HANG and one.triggers)
    sign_at = newest_sign(claims, attempt)
    is_old = sign_at is not None and context.now - sign_at >= OLD_CLAIM
    if not attempt.is_heartbeat_unread and not is_old:
        return None
    ask = incident.halt.ask
    if ask is not None and ask.attempt == attempt.name and ask.outcome == "cannot":
        return None
    unknown = why_unknown(attempt.last_step)
    if isinstance(attempt.last_step, Known) and attempt.heartbeat_at is not None:
        unknown = f"its newest heartbeat is {span_word(context.now - attempt.heartbeat_at)} old"
    return _unread(context, attempt, unknown)


def _unread(context: RuleContext, attempt: AttemptView, unknown: str) -> Decision:
    """Not stopped while it is not known whether it still stands."""
    reason = (
        f"{story(context)} But whether {attempt.name} still stands there is not known ({unknown}): it is not stopped "
        "for what was reported before"
    )
    if context.incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.move("hang.unread", reason, Phase.HOLDING)
    return context.unread("hang.unread", "hang.unread_limit", reason, context.in_phase)


def _evidence_first(context: RuleContext) -> Decision | None:
    """Wait for the reports of all ranks of a stuck run, as long as the policy allows."""
    incident, attempt = context.incident, _hanging(context)
    if attempt is None:
        return None
    ask = incident.halt.ask
    if ask is not None and ask.attempt == attempt.name and ask.outcome in ("saved", "refused"):
        return None  # not stuck after all, or nobody there who would report
    since = incident.evidence.evidence_since or context.now
    suspicion = suspicion_about(incident, attempt.name, SuspicionKind.HANG)
    if suspicion is not None and suspicion.is_complete:
        return None
    is_strong = suspicion is not None and bool(suspicion.ranks) and suspicion.confidence >= STRONG
    limit = (
        min(_settled_after(context), context.policy.timing.stacks_wait)
        if is_strong
        else context.policy.timing.stacks_wait
    )
    if context.now - since >= limit:
        return None
    reports = f"{suspicion.reports} of {suspicion.world_size}" if suspicion is not None else "none"
    reason = (
        f"{story(context)} Waiting up to {span_word(limit)} for what its ranks report ({reports} so "
        "far): a stop ends the processes that could show which rank is the cause"
    )
    changes, asks = _evidence_wanted(context), _stacks_wanted(context, attempt)
    until = since + limit
    if incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.move("stacks.waiting", reason, Phase.HOLDING, *asks, **changes)
    return context.stay("stacks.waiting", reason, *asks, until=until, **changes)


def _settled_after(context: RuleContext) -> timedelta:
    """How long a strong verdict on who holds the run up is left open for reports that are still on their way.

    All ranks of a run step together, and each reports at its own limit, learned from its own slowest step: the limits
    differ by a few percent, the watchdogs by a second, the writes by another one or two. A rank that is silent for
    longer than that, while most of the others wait in a collective, does not come: its silence is the verdict.
    """
    limits = [
        float(one.evidence["limit_s"])
        for one in context.incident.signals
        if one.kind is SignalKind.STALL and isinstance(one.evidence.get("limit_s"), int | float)
    ]
    return max(SETTLED, LIMITS_DIFFER * timedelta(seconds=max(limits, default=0.0)))
