"""Starting a Job's next attempt, or adopting the one that the platform or its owner has started."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from chalicelib.domain.model.action import ActionResult, AdoptAttempt, Done, ResubmitJob, action_name
from chalicelib.domain.model.errors import DependencyUnavailable, RecoveryError
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Unknown
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.resume.resume_point import attempt_name
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import Mailbox, Schedulers
from chalicelib.services.intake.ownership import other_jobs_in
from chalicelib.services.observe.nodes import Nodes
from chalicelib.services.observe.shared_mailbox import next_link
from chalicelib.services.observe.siblings import (
    ended_at_of,
    is_another_stages,
    is_in_doubt,
    may_have_missed,
    reported_attempts,
    unprotected,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarter:
    """Of any number of starts at once, and of any repetition of one, one attempt of the Job lives."""

    registry: JobRegistry
    scheduler: Schedulers
    mailbox: Mailbox
    clock: Clock
    nodes: Nodes | None = None

    def resubmit(self, action: ResubmitJob, job: Job, *, incident: Incident, policy: Policy) -> ActionResult:
        """Look for a sibling, then fence, start and register: a crash in between leaves nothing that a repetition does
        not cure.
        """
        if is_outdated(action, job):
            return _outdated(action, job)
        now = self.clock.now()
        other = next_link(
            job,
            action.name,
            after=action.clone_of,
            registry=self.registry,
            scheduler=self.scheduler.of(job.platform),
            mailbox=self.mailbox,
            now=now,
        )
        if other is not None and other.takes_over:
            detail = f"{other.name}, which is protected as a Job of its own, continues in the same mailbox"
            return ActionResult(action=action_name(action), done=Done.SIBLING, detail=detail)
        if other is not None:
            detail = f"{other.name} trains in the same mailbox: two runs would write over each other"
            return ActionResult(action=action_name(action), done=Done.REFUSED, detail=detail)
        older = self._older(job, action.name)
        sibling = self._sibling(action, job, older, incident)
        if sibling is not None:
            return sibling
        checking = self._checking(action, job, incident)
        if checking:
            return ActionResult(action=action_name(action), done=Done.CHECKING, detail=checking)
        self._fence(action, job, older)
        result = self.scheduler.of(job.platform).resubmit(
            action, job=job, policy=policy, incident_id=incident.incident_id
        )
        if result.done is Done.SIBLING and result.attempt:
            return self._of_whom(result, job)
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
            left_out=action.left_out,
            left_nodes=action.left_nodes,
        )
        self.registry.add_attempt(job, attempt, now=now)
        return result

    def _checking(self, action: ResubmitJob, job: Job, incident: Incident) -> str:
        """What is checked before the start on a cluster; "" where nothing is, or can be: then it starts."""
        if not action.checks_hardware or self.nodes is None or not job.cluster:
            return ""
        with suppress(RecoveryError):
            start = self.scheduler.of(job.platform).describe(action.clone_of).start
            ran_on = [node for node in (start.nodes if start is not None else ()) if node not in action.exclude]
            return self.nodes.check_suspects(job.cluster, ran_on, incident, of=action.clone_of)
        return ""

    def adopt(self, action: AdoptAttempt, job: Job) -> ActionResult:
        """Fence and register, like a start of ours; the platform has done the rest."""
        if is_outdated(action, job):
            return _outdated(action, job)
        owner = self.registry.job_of_attempt(action.name)
        if owner is not None and owner != job.job_id:
            detail = f"{action.name}, which is protected as the Job {owner}, goes on"
            return ActionResult(action=action_name(action), done=Done.SIBLING, detail=detail)
        self._fence(action, job, self._older(job, action.name))
        if job.current_attempt == action.name:
            return ActionResult(action=action_name(action), done=Done.ALREADY, detail="it is the Job's own already")
        now = self.clock.now()
        earlier = self.registry.attempts(job.job_id)
        attempt = Attempt(
            job_id=job.job_id,
            number=action.number,
            name=action.name,
            submitted_at=now,
            resume_step=Unknown("the platform started it; it continues from where its script finds"),
            skips=earlier[-1].skips if earlier else (),
        )
        self.registry.add_attempt(job, attempt, now=now)
        return ActionResult(action=action_name(action), done=Done.DONE, detail=f"{action.name} is the platform's own")

    def _sibling(self, action: ResubmitJob, job: Job, older: Sequence[str], incident: Incident) -> ActionResult | None:
        """The answer where another attempt of the Job lives, ours or started by hand; None where none does.

        `older`: the Job's attempts so far.

        Raises:
            Retryable: that is not known now, and nothing is started before it is.
        """
        name = action_name(action)
        besides = {action.name, action.clone_of}
        own = {*besides, *older}
        try:
            others = self.scheduler.of(job.platform).siblings(
                job, besides=besides, reported=reported_attempts(incident.signals, besides=besides)
            )
        except RecoveryError:
            beating = self._unprotected(action, job, own, incident)
            if beating is None:
                raise
            return beating  # no list is needed to know that one lives
        for other in others:
            owner = self.registry.job_of_attempt(other)
            if owner is None and is_another_stages(other, job, self.scheduler):
                detail = f"{other}, which is protected by another stage of Rekindle, lives"
                return ActionResult(action=name, done=Done.SIBLING, detail=detail)
            if owner is None and self._is_in_doubt(other, job):
                return _in_doubt(other, job)
            if owner is None:
                return ActionResult(action=name, done=Done.SIBLING, detail=f"{other} lives", attempt=other)
            if owner == job.job_id:
                detail = f"{other}, an earlier attempt of the Job, has not ended: two attempts would run"
                return ActionResult(action=name, done=Done.REFUSED, detail=detail)
            if job.mailbox and self.registry.get(owner).place.mailbox == job.place.mailbox:
                return self._of_another_job(other, owner, job, incident)
        older_job = self._older_job_beside(action, job)  # the platform's list begins with the Job
        if older_job is not None:
            return self._of_another_job(older_job.current_attempt, older_job.job_id, job, incident)
        return self._unprotected(action, job, own, incident) or self._missed(action, job, own, incident)

    def _of_another_job(self, other: str, owner: str, job: Job, incident: Incident) -> ActionResult:
        """`other` lives in the Job's mailbox, protected as the Job `owner`."""
        if self._lived_beside(owner, incident):
            return _shared(other, job)
        detail = f"{other}, which is protected as the Job {owner}, continues in the same mailbox"
        return ActionResult(action=ResubmitJob.__name__, done=Done.SIBLING, detail=detail)

    def _older_job_beside(self, action: ResubmitJob, job: Job) -> Job | None:
        """Another protected Job whose attempt trains in the Job's mailbox. Where a cluster has a queue of its own,
        `next_link` has looked.

        Raises:
            Retryable: whether it does is not known now, or its new attempt is there and not registered yet.
        """
        scheduler = self.scheduler.of(job.platform)
        if not job.mailbox or scheduler.platform.holds_own_queue:
            return None
        for other in other_jobs_in(job.place, job.job_id, self.registry):
            if scheduler.describe(other.current_attempt).will_train:
                return other
            # Asked for by its name, as the platform's list lags.
            following = attempt_name(other.name, other.attempt_number + 1, 0)
            for name in scheduler.siblings(other, besides=(action.name, other.current_attempt), reported=(following,)):
                if self.registry.job_of_attempt(name) is None:
                    text = f"{name} has been submitted for the Job {other.job_id}, which shares the mailbox"
                    raise DependencyUnavailable(f"{text}; it is not registered yet")
        return None

    def _of_whom(self, result: ActionResult, job: Job) -> ActionResult:
        """A sibling that the platform has found: adopted, unless a Job protects it already."""
        owner = self.registry.job_of_attempt(result.attempt)
        if owner is None:
            return result
        if owner == job.job_id:
            detail = f"{result.attempt}, an earlier attempt of the Job, has not ended: two attempts would run"
            return replace(result, done=Done.REFUSED, detail=detail, attempt="")
        return replace(result, detail=f"{result.detail}, protected as the Job {owner}", attempt="")

    def _missed(self, action: ResubmitJob, job: Job, own: Collection[str], incident: Incident) -> ActionResult | None:
        """The answer where the run was submitted meanwhile without us and that one has ended: its end is weighed first.

        One that is protected as a Job of its own has an Incident of its own, which resumes from what it has saved.
        """
        if not may_have_missed(incident, now=self.clock.now()):
            return None
        other = self.scheduler.of(job.platform).missed(job, besides=own)
        if other is None:
            return None
        owner = self.registry.job_of_attempt(other)
        if owner == job.job_id:
            return None
        if owner is None and self._is_in_doubt(other, job):
            return None
        if owner is None:
            detail = f"{other} was submitted by hand, and has ended"
            return ActionResult(action=action_name(action), done=Done.SIBLING, detail=detail, attempt=other)
        detail = f"{other}, which is protected as the Job {owner}, was submitted later, and has ended"
        return ActionResult(action=action_name(action), done=Done.SIBLING, detail=detail)

    def _unprotected(
        self, action: ResubmitJob, job: Job, own: Collection[str], incident: Incident
    ) -> ActionResult | None:
        """The answer where a run that no list shows sends heartbeats from the Job's mailbox: it is adopted where the
        platform, asked for its name, shows that it is the Job's.
        """
        unasked = unprotected(job, self.mailbox, own=own, ended_at=ended_at_of(incident), now=self.clock.now())
        if unasked is None:
            return None
        owner = self.registry.job_of_attempt(unasked)
        if owner is None and self._is_in_doubt(unasked, job):
            return _in_doubt(unasked, job)
        if owner is None and self._is_sibling(unasked, job, action):
            detail = f"{unasked} lives"
            return ActionResult(action=action_name(action), done=Done.SIBLING, detail=detail, attempt=unasked)
        if owner is not None and owner != job.job_id:
            if self._has_ended(unasked, job):
                return None  # an earlier link of the run's chain, which has sent heartbeats until a moment ago
            if self._lived_beside(owner, incident):
                return _shared(unasked, job)
        detail = f"{unasked}, which no list of attempts shows, sends heartbeats from the same mailbox"
        return ActionResult(action=action_name(action), done=Done.SIBLING, detail=detail)

    def _has_ended(self, attempt: str, job: Job) -> bool:
        with suppress(RecoveryError):
            return self.scheduler.of(job.platform).describe(attempt).status.has_ended
        return False

    def _lived_beside(self, job_id: str, incident: Incident) -> bool:
        """Another Job's attempt began before ours had ended: it is another run, and not this one's continuation."""
        return self.registry.get(job_id).attempt_started_at < (ended_at_of(incident) or incident.opened_at)

    def _is_sibling(self, name: str, job: Job, action: ResubmitJob) -> bool:
        besides = {action.name, action.clone_of}
        with suppress(RecoveryError):
            return name in self.scheduler.of(job.platform).siblings(job, besides=besides, reported=(name,))
        return False

    def _is_in_doubt(self, other: str, job: Job) -> bool:
        return is_in_doubt(other, job, self.registry, self.scheduler, self.mailbox)

    def _older(self, job: Job, name: str) -> tuple[str, ...]:
        return tuple(attempt.name for attempt in self.registry.attempts(job.job_id) if attempt.name != name)

    def _fence(self, action: ResubmitJob | AdoptAttempt, job: Job, older: Sequence[str]) -> None:
        self.mailbox.fence(job, attempt=action.name, number=action.number, superseded=older, now=self.clock.now())


def _shared(other: str, job: Job) -> ActionResult:
    """Runs that share a mailbox and live at once: a person decides, who knows which checkpoints are whose."""
    detail = f"{other}, another run that lived beside it, has the same mailbox {job.mailbox}: whose the checkpoints"
    return ActionResult(action=ResubmitJob.__name__, done=Done.REFUSED, detail=f"{detail} there are cannot be told")


def _in_doubt(other: str, job: Job) -> ActionResult:
    detail = (
        f"{other}, submitted by hand, lives in {job.mailbox}, where another Job has trained, too: whose attempt it is"
    )
    return ActionResult(action=ResubmitJob.__name__, done=Done.REFUSED, detail=f"{detail} cannot be told")


def is_outdated(action: ResubmitJob | AdoptAttempt, job: Job) -> bool:
    """An execution that was taken over, and wakes up late: its order must not call an old attempt back."""
    return job.attempt_number >= action.number and job.current_attempt != action.name


def _outdated(action: ResubmitJob | AdoptAttempt, job: Job) -> ActionResult:
    detail = f"{job.current_attempt} has been started since"
    return ActionResult(action=action_name(action), done=Done.REFUSED, detail=detail)
