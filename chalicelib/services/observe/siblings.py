"""Another attempt of a Job that lives, started by hand while ours waits: nothing is started beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.faults.heartbeat_claims import FRESH
from chalicelib.domain.model.errors import NotOurs
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.signal import Signal
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import Mailbox, Schedulers
from chalicelib.services.intake.ownership import may_be_another_jobs
from chalicelib.services.intake.registration import PLATFORM_STATES

# A recovery that has waited for so long before it submits may have missed a whole run: events that could not be
# resolved while the platform was throttled are lost.
UNWATCHED: Final = timedelta(minutes=10)
HEARD_LATE: Final = timedelta(minutes=2)  # events of what came after an end that was heard of so late may be lost, too
MAX_REPORTED: Final = 5  # each costs a description
MAX_LATE: Final = timedelta(hours=1)  # by which heartbeats may arrive late and still show a run that lives


def reported_attempts(signals: Iterable[Signal], *, besides: Collection[str]) -> tuple[str, ...]:
    """The attempts that the platform's own events name, the newest first: they are known while no list can be had."""
    names = [signal.attempt for signal in signals if signal.kind in PLATFORM_STATES and signal.attempt is not None]
    return tuple(name for name in dict.fromkeys(reversed(names)) if name not in besides)[:MAX_REPORTED]


def is_another_stages(name: str, job: Job, schedulers: Schedulers) -> bool:
    """It asks for the protection of another stage: nothing is started beside it, and it is not adopted."""
    try:
        schedulers.of(job.platform).discover(name)
    except NotOurs:
        return True
    return False


def is_in_doubt(name: str, job: Job, registry: JobRegistry, schedulers: Schedulers, mailbox: Mailbox) -> bool:
    """See `may_be_another_jobs`: nothing is started beside it, and it is not adopted. Raises: RecoveryError."""
    scheduler = schedulers.of(job.platform)
    if scheduler.platform.checks_users:
        return False  # a cluster's submissions are judged by their chain and their user (shared_mailbox.py)
    found = scheduler.find(name)
    return found is not None and may_be_another_jobs(found, job, registry, mailbox)


def unprotected(
    job: Job, mailbox: Mailbox, *, own: Collection[str], ended_at: datetime | None, now: datetime
) -> str | None:
    """A run that asks for no protection, and is seen only by its heartbeats in the Job's mailbox.

    `own` are the Job's attempts, and `ended_at` is when the newest of them ended. The time from its newest heartbeat to
    its end is how late heartbeats of this mailbox arrive: another run's may be as old, and it lives.

    Raises:
        Retryable: the mailbox cannot be listed now.
    """
    written = mailbox.heartbeat_times(job)
    newest = max((at for name, at in written.items() if name in own), default=None)
    late = ended_at - newest if ended_at is not None and newest is not None else timedelta(0)
    since = now - FRESH - min(max(late, timedelta(0)), MAX_LATE)
    return next((name for name, at in written.items() if name not in own and at >= since), None)


def ended_at_of(incident: Incident) -> datetime | None:
    """When the attempt ended that the Incident replaces."""
    restarts = incident.account.restarts
    return restarts[-1].ended_at if restarts else None


def may_have_missed(incident: Incident, *, now: datetime) -> bool:
    """Whether a whole run may have come and gone unseen since the attempt ended that the Incident replaces."""
    ended_at = ended_at_of(incident)
    heard_late = ended_at is not None and incident.opened_at - ended_at >= HEARD_LATE
    return heard_late or now - incident.opened_at >= UNWATCHED
