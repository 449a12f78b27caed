"""An attempt that was cancelled: by its owner, an administrator, another recovery layer, or it is not known by whom.

Root's cancel of a run that hung or was in other trouble is no wish of its owner's: HyperPod's hung-job detection
cancels so. The run is recovered where something showed the trouble; where nothing did, a person is asked.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import decided_by, rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, stop_is_ours
from chalicelib.domain.faults.signal_facts import ORDER_KINDS, STATE_KINDS
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.rules.run.ended import ENDED
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.protocol.signals import FaultClass

WHO_IS_KNOWN_AFTER: Final = timedelta(minutes=2)  # accounting tells who cancelled a moment after the end is seen


@rule("cancel.who")
def cancel_who(context: RuleContext) -> Decision | None:
    """It was cancelled, and accounting does not tell yet by whom: wait two minutes."""
    attempt = _cancelled(context, EndedBy.UNKNOWN)
    if attempt is None or not context.platform.tells_who_ended or context.in_state >= WHO_IS_KNOWN_AFTER:
        return None
    return context.stay("cancel.who", f"{attempt.name} was cancelled; who did it is not known yet")


@rule("cancel.by_admin")
def cancel_by_admin(context: RuleContext) -> Decision | None:
    """Root or the platform's own user cancelled it: recovered where it was in trouble before, else a person."""
    attempt = _cancelled(context, EndedBy.ADMIN)
    if attempt is None:
        return None
    if was_in_trouble(context, attempt):
        return decided_by(ENDED, context)
    return context.hand_over(
        "cancel.by_admin",
        f"{attempt.name} was cancelled by root or {context.platform.title}'s own user, not by its owner: an "
        "administrator or another recovery layer did that. Nothing shows that anything was wrong with it, so that a "
        "person decides whether it is to run",
    )


CANCELLED: Final = (cancel_who, cancel_by_admin)


def was_in_trouble(context: RuleContext, attempt: AttemptView) -> bool:
    """Something besides its end said so: its own heartbeat, or a Signal about it."""
    return attempt.work == STALLED or any(
        signal.triggers and signal.attempt == attempt.name and signal.fault not in (None, FaultClass.UNCLEAR)
        for signal in context.incident.signals
        if signal.kind not in (*ORDER_KINDS, *STATE_KINDS)
    )


def _cancelled(context: RuleContext, by: EndedBy) -> AttemptView | None:
    """The attempt, where that one has cancelled it and no order of ours or of a person's did."""
    attempt = context.attempt
    if attempt is None or attempt.status is not AttemptStatus.STOPPED or attempt.start is None:
        return None
    if attempt.successor is not None or context.incident.is_ordered or stop_is_ours(context, attempt):
        return None
    return attempt if attempt.start.ended_by is by else None
