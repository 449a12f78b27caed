"""Another attempt of a Job that lives, started by hand while ours waits: nothing is started beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.faults.heartbeat_claims import FRESH
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.signal import Signal
from chalicelib.ports.platforms import Mailbox
from chalicelib.services.intake.registration import PLATFORM_STATES

# A recovery that has waited for so long before it submits may have missed a whole run: events that nobody could
# resolve while the platform was throttled are lost.
UNWATCHED: Final = timedelta(minutes=10)
HEARD_LATE: Final = timedelta(minutes=2)  # events of what came after an end that was heard of so late may be lost, too
MAX_REPORTED: Final = 5  # each costs a description


def reported_attempts(signals: Iterable[Signal], *, besides: Collection[str]) -> tuple[str, ...]:
    """The attempts that the platform's own events name, the newest first: they are known while no list can be had."""
    names = [one.attempt for one in signals if one.kind in PLATFORM_STATES and one.attempt is not None]
    return tuple(name for name in dict.fromkeys(reversed(names)) if name not in besides)[:MAX_REPORTED]


def unprotected(job: Job, mailbox: Mailbox, *, own: Collection[str], now: datetime) -> str | None:
    """A run that asks for no protection, and is seen only by its heartbeats in the Job's mailbox.

    `own` are the Job's attempts. Raises: Retryable.
    """
    return next((name for name in mailbox.beating(job, since=now - FRESH) if name not in own), None)


def may_have_missed(incident: Incident, *, now: datetime) -> bool:
    """Whether a whole run may have come and gone unseen since the attempt ended that the Incident replaces."""
    restarts = incident.account.restarts
    ended_at = restarts[-1].ended_at if restarts else None
    heard_late = ended_at is not None and incident.opened_at - ended_at >= HEARD_LATE
    return heard_late or now - incident.opened_at >= UNWATCHED
