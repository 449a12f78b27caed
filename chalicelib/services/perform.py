"""Carrying out Actions. Each is idempotent: a crash between the effect and its record is healed by repeating it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from chalicelib.domain.actions import (
    Action,
    ActionResult,
    Done,
    Notify,
    QuarantineCheckpoint,
    RequestCheckpoint,
    ResubmitJob,
    StopJob,
    action_name,
)
from chalicelib.domain.errors import Permanent
from chalicelib.domain.incidents import Incident
from chalicelib.domain.jobs import Attempt
from chalicelib.domain.policy import Policy
from chalicelib.ports import Announcer, Clock, JobRegistry, Mailbox, Notice, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Perform:
    """Does what was decided."""

    registry: JobRegistry
    scheduler: Scheduler
    mailbox: Mailbox
    announcer: Announcer
    clock: Clock

    def act(self, action: Action, *, incident: Incident, policy: Policy, token: str) -> ActionResult:
        """Carry out one Action of `incident`; `token` is equal whenever the same Action is repeated.

        A Permanent refusal is an answer (REFUSED), which the next look decides about.

        Raises:
            Retryable: may have taken effect or not; repeat with the same token.
        """
        try:
            match action:
                case RequestCheckpoint():
                    return self._ask(action, incident)
                case StopJob():
                    return self.scheduler.stop(action.attempt)
                case ResubmitJob():
                    return self._resubmit(action, incident, policy)
                case QuarantineCheckpoint():
                    return self._quarantine(action, incident)
                case Notify():
                    return self._notify(action, incident, token)
                case _:
                    assert_never(action)
        except Permanent as err:
            return ActionResult(action=action_name(action), done=Done.REFUSED, detail=f"{err}"[:400])

    def _ask(self, action: RequestCheckpoint, incident: Incident) -> ActionResult:
        job = self.registry.get(incident.job_id or "")
        return self.mailbox.ask(job, action, incident_id=incident.incident_id, now=self.clock.now())

    def _resubmit(self, action: ResubmitJob, incident: Incident, policy: Policy) -> ActionResult:
        """Fence, then start, then register: a crash in between leaves nothing that a repetition does not mend."""
        job = self.registry.get(incident.job_id or "")
        if job.attempt_number >= action.number and job.current_attempt != action.name:
            # An execution that was taken over, and wakes up late: its order must not call an old attempt back.
            return ActionResult(
                action=action_name(action), done=Done.REFUSED, detail=f"{job.current_attempt} has been started since"
            )
        older = [attempt.name for attempt in self.registry.attempts(job.job_id) if attempt.name != action.name]
        now = self.clock.now()
        self.mailbox.fence(job, attempt=action.name, number=action.number, superseded=older, now=now)
        result = self.scheduler.resubmit(action, job=job, policy=policy, incident_id=incident.incident_id)
        if result.done not in (Done.DONE, Done.ALREADY):
            return result
        attempt = Attempt(
            job_id=job.job_id,
            number=action.number,
            name=action.name,
            submitted_at=now,
            incident_id=incident.incident_id,
            resume_step=action.resume_step,
            went_back=action.goes_back,
            skips=action.skips,
        )
        self.registry.add_attempt(job, attempt, now=now)
        self.registry.reactivate(job.job_id)
        return result

    def _quarantine(self, action: QuarantineCheckpoint, incident: Incident) -> ActionResult:
        job = self.registry.get(incident.job_id or "")
        return self.mailbox.quarantine(job, action, by=incident.incident_id, now=self.clock.now())

    def _notify(self, action: Notify, incident: Incident, token: str) -> ActionResult:
        notice = Notice(
            token=token,
            severity=action.severity,
            title=action.title,
            text=action.text,
            incident_id=incident.incident_id,
            job_id=incident.job_id,
            at=self.clock.now(),
        )
        self.announcer.announce(notice)
        return ActionResult(action=action_name(action), done=Done.DONE)
