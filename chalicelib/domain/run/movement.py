"""How long a run that must move has not moved. A heartbeat alone is no movement: its thread outlives a stuck run.

No step is due from a run that evaluates or saves, as its fresh heartbeat says. How long either may take its monitor has
learned, and calls it stalled beyond that (rekindle/monitor/base/settings.py).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.faults.heartbeat_claims import has_fresh_heartbeat
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import RESTS, AttemptView

_UNWATCHED: Maybe[int] = Unknown("not watched yet")


def rests(attempt: AttemptView, *, now: datetime) -> bool:
    """It evaluates or saves, says its fresh heartbeat."""
    return attempt.work in RESTS and has_fresh_heartbeat(attempt, now=now)


def watch(context: RuleContext, attempt: AttemptView) -> tuple[RuleContext, timedelta]:
    """The look with its watermark brought forward, and how long the attempt has stood still.

    The watermark moves only four times per `silent_limit`, so that watching a healthy run costs few writes; a stuck
    one is noticed up to a quarter later for it.
    """
    incident = context.incident
    if incident.tracking.watch_at is None:
        return context.changed(watch_at=context.now, watch_step=attempt.last_step), timedelta(0)
    stood = context.now - incident.tracking.watch_at
    step, mark = attempt.last_step, incident.tracking.watch_step
    if not isinstance(step, Known):
        return context, stood
    if isinstance(mark, Known) and step.value == mark.value and not rests(attempt, now=context.now):
        return context, stood
    if not isinstance(mark, Known) or step.value < mark.value or stood >= context.policy.timing.silent_limit / 4:
        return context.changed(watch_at=context.now, watch_step=step), timedelta(0)
    return context, timedelta(0)


def new_watch() -> dict[str, object]:
    """The changes that begin a new watch."""
    return {"watch_at": None, "watch_step": _UNWATCHED}
