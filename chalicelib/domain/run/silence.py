"""A run of which nothing is heard. That is no proof that it stands still: what carries its signs of life may be away.

Two sources are known by silence alone: metrics that stop (found by the sweep), and CloudWatch alarms on missing data.
A stall that the monitor has seen, in its event or in its heartbeat, is no silence. Pure.
"""

from __future__ import annotations

from datetime import timedelta

from chalicelib.domain.decision.verdict import Decision, RuleContext, story, subject
from chalicelib.domain.faults.signal_facts import concerns
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.observation import STALLED, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.protocol.signals import FaultClass

TOGETHER = "silent_together"  # in a Signal's evidence: how many Jobs of one source fell silent in one sweep


def is_silence(signal: Signal) -> bool:
    """Nothing was heard, and no more is known."""
    if signal.fault is not FaultClass.HANG:
        return False
    return signal.kind is SignalKind.ALARM or (signal.kind is SignalKind.STALL and "silent_limit_s" in signal.evidence)


def silent_only(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """Tell it, and stop nothing; None where the run itself, or anything else, says that it hangs."""
    if context.incident.fault is not FaultClass.HANG or attempt.work == STALLED:
        return None
    claims = [
        signal
        for signal in context.incident.signals
        if signal.fault is FaultClass.HANG and signal.triggers and concerns(signal, context.incident)
    ]
    if not claims or not all(map(is_silence, claims)):
        return None
    counts = [claim.evidence.get(TOGETHER) for claim in claims]
    together = max((count for count in counts if isinstance(count, int)), default=1)
    if together > 1:
        reason = (
            f"{story(context)} {together} Jobs stopped reporting together: the source of their metrics is suspected, "
            "not the Jobs"
        )
    else:
        reason = (
            f"{story(context)} Nothing else says that {attempt.name} stands still; a run is not "
            "stopped for silence alone"
        )
    if context.incident.phase in (Phase.OPEN, Phase.WATCHING):
        notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: it reports nothing", text=reason)
        return context.move("silence.notified", reason, Phase.HOLDING, notice)
    if context.in_phase < max(context.policy.timing.tell_open, timedelta(0)):
        return context.stay("silence.waiting", reason)
    return context.close(
        "silence.notified_limit",
        f"{reason}; people were notified, and it is left as it is",
        Phase.STOPPED,
        severity=Severity.INFO,
    )
