"""What is waited for before a run that hangs is stopped: a heartbeat, and what its ranks report."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from chalicelib.domain.decision.reported import suspicion_about
from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    span_word,
    story,
    why_unknown,
)
from chalicelib.domain.faults.stalls import moves_again_since, newest_sign
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.evidence import Need, SuspicionKind
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.run.movement import new_watch
from rekindle.detectors.rank_rules import STRONG
from rekindle.protocol.signals import FaultClass

SETTLED: Final = timedelta(seconds=5)
LIMITS_DIFFER: Final = 0.05  # of the learned limit
OLD_CLAIM = timedelta(minutes=10)  # without any heartbeat since: the run may long have moved on
MOVED_FOR = timedelta(minutes=10)  # without another report of a stall


@rule("hang.moves_again", "hang.unread", "hang.unread_limit", "verify.moves_again")
def hang_moves_again(context: RuleContext) -> Decision | None:
    """Its monitor reports since that it moves again: not stopped; closed after 10 minutes without another stall."""
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


@rule("hang.unread", "hang.unread_limit")
def hang_unread(context: RuleContext) -> Decision | None:
    """It is reported stuck, and its heartbeat cannot be read or both are 10 minutes old: not stopped; then a person.

    Only its own answer that its training thread is stuck says as much, for 10 minutes or where people were asked since.
    An outage of the mailbox is waited for.
    """
    incident, attempt = context.incident, _hanging(context)
    if attempt is None:
        return None
    claims = (signal for signal in incident.signals if signal.fault is FaultClass.HANG and signal.triggers)
    sign_at = newest_sign(claims, attempt)
    is_old = sign_at is not None and context.now - sign_at >= OLD_CLAIM
    if not attempt.is_heartbeat_unread and not is_old:
        return None
    ask = incident.halt.ask_of(attempt.name)
    is_new = ask is not None and context.now - ask.asked_at < OLD_CLAIM  # a pause ages it
    if ask is not None and ask.outcome == "cannot" and (is_new or incident.approvals):
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


@rule("stacks.waiting")
def stacks_waiting(context: RuleContext) -> Decision | None:
    """It is stuck: the reports of its ranks are waited for, 30 s at most; a stop ends them all."""
    incident, attempt = context.incident, _hanging(context)
    if attempt is None:
        return None
    ask = incident.halt.ask_of(attempt.name)
    if ask is not None and ask.outcome in ("saved", "refused"):
        return None  # not stuck after all, or no monitor that would report
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
    changes = evidence_wanted(context)
    until = since + limit
    if incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.move("stacks.waiting", reason, Phase.HOLDING, **changes)
    return context.stay("stacks.waiting", reason, until=until, **changes)


def _settled_after(context: RuleContext) -> timedelta:
    """How long a strong verdict on who holds the run up is left open for reports that are still on their way.

    All ranks of a run step together, and each reports at its own limit, learned from its own slowest step: the limits
    differ by a few percent, the watchdogs by a second, the writes by another one or two. A rank that is silent for
    longer than that, while most of the others wait in a collective, does not come: its silence is the verdict.
    """
    limits = [
        float(signal.evidence["limit_s"])
        for signal in context.incident.signals
        if signal.kind is SignalKind.STALL and isinstance(signal.evidence.get("limit_s"), int | float)
    ]
    return max(SETTLED, LIMITS_DIFFER * timedelta(seconds=max(limits, default=0.0)))


def _hanging(context: RuleContext) -> AttemptView | None:
    """The attempt under care, where it runs and a hang is what is wrong."""
    attempt = context.attempt
    if attempt is None or attempt.status is not AttemptStatus.RUNNING:
        return None
    return attempt if context.incident.fault is FaultClass.HANG else None


def evidence_wanted(context: RuleContext) -> dict[str, Any]:
    """A stuck run's ranks report by themselves, each after its own limit: from now on their word is read."""
    incident = context.incident
    if incident.fault is not FaultClass.HANG or incident.evidence.evidence_since is not None:
        return {}
    return {"evidence_since": context.now, "needs": with_need(incident.evidence.needs, Need.REPORTS)}


def with_need(needs: tuple[Need, ...], *more: Need) -> tuple[Need, ...]:
    """`needs` with `more` in it, each once, in order."""
    return tuple(sorted({*needs, *more}))
