"""How long a run that must move has not moved. A heartbeat alone is no movement: its thread outlives a stuck run."""

from __future__ import annotations

from datetime import timedelta

from chalicelib.domain.decision.verdict import Look
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptView

_UNWATCHED: Maybe[int] = Unknown("not watched yet")


def watch(look: Look, attempt: AttemptView) -> tuple[Look, timedelta]:
    """The look with its watermark brought forward, and how long the attempt has stood still.

    The watermark moves only four times per `silent_limit`, so that watching a healthy run costs few writes; a stuck
    one is noticed up to a quarter later for it.
    """
    incident = look.incident
    if incident.watch_at is None:
        return look.changed(watch_at=look.now, watch_step=attempt.last_step), timedelta(0)
    stood = look.now - incident.watch_at
    step, mark = attempt.last_step, incident.watch_step
    if not isinstance(step, Known):
        return look, stood
    if isinstance(mark, Known) and step.value == mark.value:
        return look, stood
    if not isinstance(mark, Known) or step.value < mark.value or stood >= look.policy.timing.silent_limit / 4:
        return look.changed(watch_at=look.now, watch_step=step), timedelta(0)
    return look, timedelta(0)


def unwatched() -> dict[str, object]:
    """The changes that begin a new watch."""
    return {"watch_at": None, "watch_step": _UNWATCHED}
