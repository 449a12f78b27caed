"""Another attempt of a Job that lives beside the one that an Incident is about, or in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import NO_SIBLING, AttemptView
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.run.beside import beside_names
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import Mailbox, Schedulers
from chalicelib.services.observe.shared_mailbox import next_link
from chalicelib.services.observe.siblings import (
    ended_at_of,
    is_another_stages,
    is_in_doubt,
    reported_attempts,
    unprotected,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingSiblings:
    """Looks for another attempt. What cannot be asked is Unknown, never "none"."""

    registry: JobRegistry
    scheduler: Schedulers
    mailbox: Mailbox
    clock: Clock

    def living(self, job: Job, incident: Incident, seen: Maybe[AttemptView], inbox: Sequence[Signal]) -> Maybe[str]:
        """An attempt that was started by hand while ours waits, to be sent or in the platform's queue, or is stopped
        for its sake; right before ours is sent it is looked for again.

        Only what no Job has registered, and no other stage protects: that is not this Incident's to take over.
        """
        sibling = incident.halt.for_sibling if incident.phase is Phase.STOPPING else None
        is_sent = sibling is not None or _waits_in_queue(incident, seen)
        if not is_sent and incident.phase is not Phase.RESUBMITTING:
            return self._first_alive(job, beside_names((*incident.signals, *inbox), besides=incident.attempt))
        if not is_sent and incident.resubmission.pending is not None:
            return Unknown("nothing waits to start")
        has_ended = isinstance(seen, Known) and seen.value.status.has_ended
        if sibling is not None and not has_ended:
            alive = self._first_alive(job, (sibling,))
            if isinstance(alive, Known):
                return alive
        try:
            other = self._started_by_hand(job, incident, inbox, reads_heartbeats=is_sent)
        except RecoveryError as err:
            return Unknown(f"whether another attempt lives is not known: {err}"[:200])
        return Known(other) if other is not None else NO_SIBLING

    def _started_by_hand(
        self, job: Job, incident: Incident, inbox: Sequence[Signal], *, reads_heartbeats: bool
    ) -> str | None:
        """An attempt of the run that no Job has registered: as the platform shows it, or else by its heartbeat.

        `reads_heartbeats`: not needed before ours is sent, when the act itself looks for them. Raises: RecoveryError.
        """
        besides = {incident.attempt or job.current_attempt, job.current_attempt}
        # An attempt of ours would be described for nothing, and one that lives would hide another that is told of.
        ours = besides | {name for attempt in incident.resubmission.tries for name in (attempt.name, attempt.clone_of)}
        reported = reported_attempts((*incident.signals, *inbox), besides=ours)
        other = self._unregistered(job, besides, reported)
        if other is not None or not reads_heartbeats:
            return other
        own = {attempt.name for attempt in self.registry.attempts(job.job_id)} | besides
        other = unprotected(job, self.mailbox, own=own, ended_at=ended_at_of(incident), now=self.clock.now())
        return other if other is not None and self._may_be_its(other, job) else None

    def _unregistered(self, job: Job, besides: set[str], reported: Sequence[str]) -> str | None:
        """A start of the run that no Job has, and that is not another stage's."""
        for name in self.scheduler.of(job.platform).siblings(job, besides=besides, reported=reported):
            if self.registry.job_of_attempt(name) is None and self._may_be_its(name, job):
                return name
        return None

    def _may_be_its(self, name: str, job: Job) -> bool:
        return not (
            is_another_stages(name, job, self.scheduler)
            or is_in_doubt(name, job, self.registry, self.scheduler, self.mailbox)
        )

    def next_link(self, job: Job, incident: Incident, seen: Maybe[AttemptView]) -> Maybe[str]:
        """An attempt that another Job protects and that continues the run, whose own attempt has ended."""
        has_ended = isinstance(seen, Known) and seen.value.status.has_ended
        if not has_ended or incident.resubmission.pending is not None:
            return NO_SIBLING
        try:
            link = next_link(
                job,
                None,
                after=incident.attempt or job.current_attempt,
                registry=self.registry,
                scheduler=self.scheduler.of(job.platform),
                mailbox=self.mailbox,
                now=self.clock.now(),
            )
        except RecoveryError as err:
            return Unknown(str(err)[:200])
        return Known(link.name) if link is not None and link.takes_over else NO_SIBLING

    def _first_alive(self, job: Job, names: Sequence[str]) -> Maybe[str]:
        """The first of these that lives, by the platform's own word."""
        try:
            living = (name for name in names if not self.scheduler.of(job.platform).describe(name).status.has_ended)
            name = next(living, None)
        except RecoveryError as err:
            return Unknown(f"whether another attempt lives is not known: {err}"[:200])
        return NO_SIBLING if name is None else Known(name)

    def is_ours(self, job: Job, incident: Incident) -> bool:
        tried = next((item for item in incident.resubmission.tries if item.name == incident.attempt), None)
        if tried is not None:
            return not tried.is_theirs
        return any(
            attempt.name == incident.attempt and attempt.incident_id is not None
            for attempt in self.registry.attempts(job.job_id)
        )


def _waits_in_queue(incident: Incident, seen: Maybe[AttemptView]) -> bool:
    """An attempt of ours that is submitted and has not begun, where the platform holds a queue."""
    if (
        incident.phase is not Phase.VERIFYING
        or not incident.resubmission.tries
        or incident.resubmission.tries[-1].is_theirs
    ):
        return False
    return isinstance(seen, Known) and seen.value.start is not None and seen.value.start.is_queued
