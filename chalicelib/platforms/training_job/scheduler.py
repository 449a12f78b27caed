"""SageMaker training jobs: describe, discover, stop, resubmit. Source: docs/facts-sagemaker.md.

Environment values and hyperparameters may hold a user's secrets. They are copied from job to clone and appear in no
log line, error text or result.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.aws.sagemaker.tags import tags_of
from chalicelib.domain.guards.stages import PROD, TAG_STAGE, owner_of
from chalicelib.domain.model.action import ActionResult, Done, ResubmitJob
from chalicelib.domain.model.errors import CapacityUnavailable, NotAuthorized, NotOurs, Permanent, RecoveryError
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.resume.resume_point import is_attempt_name
from chalicelib.platforms.training_job.clone import (
    INVALID,
    NOT_FOUND,
    TAKEN,
    clone_request,
    create,
    instance_count,
    instances,
    put_in_infra_check,
    redact,
    take_out_infra_check,
    too_much,
)
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from chalicelib.platforms.training_job.status import at_utc, status_of, view_of
from chalicelib.platforms.training_job.tags import TAG_ATTEMPT, TAG_INCIDENT, TAG_JOB, TAG_POLICY, watch_of
from chalicelib.ports.platforms import DiscoveredJob
from rekindle.protocol.launch_orders import (
    ENV_BUS,
    ENV_CHECKPOINT_URI,
    ENV_JOB_ID,
    ENV_MAILBOX,
    AttemptOrder,
    ResumePlan,
    SkipWindow,
)
from rekindle.protocol.wire import MailboxError

if TYPE_CHECKING:
    from chalicelib.domain.policy.document import Policy

_LOG = logging.getLogger(__name__)


_MAX_LIST_PAGES: Final = 20
_LIVING: Final = frozenset({"InProgress", "Stopping"})
# Jobs, of the whole account, that are looked at before a submission: two calls each at most.
MAX_LIVING: Final = 200


class TrainingJobScheduler:
    """ports.Scheduler over a boto3 SageMaker client.

    `bus` is the custom event bus passed to new attempts; None keeps that of the cloned job. `stage` is ours: jobs
    of other stages are left alone. `roles`: those that a resubmitted job may run under; None where that is not known.
    """

    def __init__(
        self, client: Any, *, bus: str | None = None, stage: str = PROD, roles: Sequence[str] | None = None
    ) -> None:
        self.platform: Final = TRAINING_JOB
        self._client = client
        self._bus = bus
        self._stage = stage
        self._roles = roles
        self._ended: dict[str, dict[str, Any]] = {}  # the newest ended job's description, which never changes again

    # ---- names -----------------------------------------------------------------------------------------------------

    def owns(self, attempt: str) -> bool:
        """See ports.Scheduler. A name of SageMaker's has no dots. Source: botocore, TrainingJobName."""
        return "." not in attempt

    def restarts_between(self, earlier: str, later: str) -> int | None:  # noqa: ARG002  each is a job of its own
        return None

    def earlier_starts(self, attempt: str) -> tuple[str, ...]:  # noqa: ARG002  as above
        return ()

    # ---- reading ---------------------------------------------------------------------------------------------------

    def describe(self, attempt: str) -> AttemptView:
        described = self._describe(attempt)
        if described is None:
            return AttemptView(name=attempt, status=AttemptStatus.GONE, detail="the platform does not know this name")
        return view_of(attempt, described)

    def _describe(self, attempt: str) -> dict[str, Any] | None:
        """DescribeTrainingJob's answer; None for a name that SageMaker does not know.

        The documented answer is ResourceNotFound; the live service says ValidationException "Requested resource not
        found." for the same.
        """
        try:
            answer: dict[str, Any] = call(
                self._client.describe_training_job, expect=(NOT_FOUND, INVALID), TrainingJobName=attempt
            )
        except AwsRefusal as refusal:
            if refusal.code == NOT_FOUND or "not found" in refusal.message.lower():
                return None
            raise Permanent(f"describe_training_job: {refusal.message}") from refusal
        if view_of(attempt, answer).status.has_ended:
            self._ended = {attempt: answer}
        return answer

    def changed(self, since: datetime) -> Maybe[Mapping[str, AttemptStatus]]:
        """See ports.JobListing: ListTrainingJobs, a hundred to a page."""
        request: dict[str, Any] = {"LastModifiedTimeAfter": since, "MaxResults": 100}
        found: dict[str, AttemptStatus] = {}
        for _ in range(_MAX_LIST_PAGES):
            try:
                page = call(self._client.list_training_jobs, **request)
            except RecoveryError as err:
                return Unknown(f"training jobs cannot be listed: {err}"[:200])
            for entry in page.get("TrainingJobSummaries", ()):
                status = status_of(str(entry["TrainingJobStatus"]), str(entry.get("SecondaryStatus") or ""))
                found[entry["TrainingJobName"]] = status
            if not page.get("NextToken"):
                return Known(found)
            request["NextToken"] = page["NextToken"]
        return Unknown(f"more than {_MAX_LIST_PAGES * 100} training jobs have changed")

    def discover(self, attempt: str) -> DiscoveredJob | None:
        found = self.find(attempt)
        if found is None or not (found.policy_name or found.job_id):
            return None
        if found.stage != self._stage:
            _LOG.info("a training job of another stage", extra={"attempt": attempt, "stage": found.stage[:64]})
            raise NotOurs("it belongs to another stage")
        return replace(found, policy_name=found.policy_name or "default")  # a clone whose policy tag was taken off

    def find(self, attempt: str) -> DiscoveredJob | None:
        described = self._describe(attempt)
        if described is None:
            return None
        tags = tags_of(self._client, described["TrainingJobArn"])
        environment = described.get("Environment") or {}
        own = (described.get("CheckpointConfig") or {}).get("S3Uri") or ""
        return DiscoveredJob(
            name=attempt,
            policy_name=tags.get(TAG_POLICY, ""),
            # The tags of our own clones are ours: without the policy's, which it had, the owner has withdrawn it.
            job_id=tags.get(TAG_JOB) if TAG_POLICY in tags or TAG_INCIDENT not in tags else None,
            mailbox=_mailbox_of(described),
            instance_count=instance_count(described),
            created_at=at_utc(described["CreationTime"]),
            checkpoints=environment.get(ENV_CHECKPOINT_URI) or own,
            user=_role_of(described),
            limits=_limits_of(_role_of(described), self._roles),
            watch=watch_of(tags),
            size=JobSize.of_instances(instances(described)),
            stage=owner_of(tags),
            platform=TRAINING_JOB.name,
            declared_job=str(environment.get(ENV_JOB_ID) or ""),
        )

    # ---- stopping --------------------------------------------------------------------------------------------------

    def stop(self, attempt: str, *, hold: bool = False, incident_id: str | None = None) -> ActionResult:
        """See ports.Scheduler. SageMaker sends SIGTERM, then SIGKILL after 120 s; it has no queue to hold a job in."""
        del hold, incident_id
        before = self.describe(attempt)
        if _is_over(before):
            return _result("StopJob", Done.ALREADY, before.detail)
        try:
            call(self._client.stop_training_job, expect=(NOT_FOUND, INVALID), TrainingJobName=attempt)
        except AwsRefusal as refusal:
            after = self.describe(attempt)  # it may have ended between the two calls
            if _is_over(after):
                return _result("StopJob", Done.ALREADY, after.detail)
            return _result("StopJob", Done.REFUSED, refusal.message)
        except NotAuthorized as refused:
            return _result("StopJob", Done.REFUSED, str(refused))
        return _result("StopJob", Done.DONE, f"{attempt} was {before.status}")

    # ---- siblings --------------------------------------------------------------------------------------------------

    def siblings(self, job: Job, *, besides: Collection[str], reported: Sequence[str] = ()) -> tuple[str, ...]:
        """See ports.Scheduler: the jobs in progress that are younger than the Job, each described; those whose name and
        mailbox decide nothing are recognized by their tags.

        The listing lags by seconds: a job that it does not show yet is found by asking for its name.
        """
        for name in reported:
            if name not in besides and self._lives_beside(name, job, or_completed=True):
                return (name,)
        return tuple(
            name for name in self._living(job.created_at) if name not in besides and self._lives_beside(name, job)
        )

    def missed(self, job: Job, *, besides: Collection[str]) -> str | None:
        since = job.attempt_started_at or job.created_at
        for name in islice(self._listed(since), MAX_LIVING):
            described = self._describe(name) if name not in besides else None
            if described is None or not view_of(name, described).status.has_ended:
                continue
            if described["CreationTime"] > since and self._is_sibling(name, described, job):
                return name
        return None

    def _lives_beside(self, name: str, job: Job, *, or_completed: bool = False) -> bool:
        """`or_completed`: one that is younger than the Job's newest attempt, and has come to its end, counts too."""
        described = self._describe(name)
        if described is None:
            return False
        status = view_of(name, described).status
        is_younger = job.attempt_started_at is not None and described["CreationTime"] > job.attempt_started_at
        if status.has_ended and not (or_completed and is_younger and status is AttemptStatus.COMPLETED):
            return False
        return self._is_sibling(name, described, job)

    def _living(self, since: datetime) -> list[str]:
        """More than MAX_LIVING are not looked at. Raises: RecoveryError."""
        return [name for name, status in self._listed(since).items() if status in _LIVING][:MAX_LIVING]

    def _listed(self, since: datetime) -> dict[str, str]:
        """Statuses by name, the newest first; more than a few thousand are not read. Raises: RecoveryError.

        All statuses in one pass: StatusEquals is applied to a page that was cut already, and so spares no call.
        """
        request: dict[str, Any] = {
            "CreationTimeAfter": since,
            "SortBy": "CreationTime",
            "SortOrder": "Descending",
            "MaxResults": 100,
        }
        found: dict[str, str] = {}
        for _ in range(_MAX_LIST_PAGES):
            page = call(self._client.list_training_jobs, **request)
            for entry in page.get("TrainingJobSummaries", ()):
                found.setdefault(entry["TrainingJobName"], str(entry["TrainingJobStatus"]))
            if not page.get("NextToken"):
                break
            request["NextToken"] = page["NextToken"]
        return found

    def _is_sibling(self, name: str, described: Mapping[str, Any], job: Job) -> bool:
        """Its own tag tells whose it is; else the mailbox, which two runs may share, or its name."""
        mailbox = _mailbox_of(described).rstrip("/")
        owner = tags_of(self._client, described["TrainingJobArn"]).get(TAG_JOB)
        if owner is not None:
            is_the_jobs = owner == job.job_id
        else:
            is_the_jobs = mailbox == job.place.mailbox if mailbox else is_attempt_name(name, job.name)
        return is_the_jobs and self._is_of_the_jobs_role(described, job)

    def _is_of_the_jobs_role(self, described: Mapping[str, Any], job: Job) -> bool:
        """A caller who may start jobs may name another Job's mailbox, or tag a job as its attempt: the role under which
        the Job runs tells whose it is. Where the Job's own attempt is not known any more, nothing is.
        """
        own = self._describe(job.current_attempt)
        return own is not None and _role_of(own) == _role_of(described)

    # ---- resubmitting ----------------------------------------------------------------------------------------------

    def resubmit(self, action: ResubmitJob, *, job: Job, policy: Policy, incident_id: str) -> ActionResult:
        """See ports.Scheduler.

        The name is deterministic, so a repetition finds the first one's job. After *any* refusal the name is looked up
        before the refusal is believed: a quota that our own lost-answer job has used up is no lack of capacity.
        """
        described = self._ended.get(action.clone_of) or self._describe(action.clone_of)
        if described is None:
            return _result("ResubmitJob", Done.REFUSED, f"{action.clone_of} is not known, so it cannot be cloned")
        tags = tags_of(self._client, described["TrainingJobArn"])
        if tags.get(TAG_STAGE, self._stage) != self._stage:
            text = f"{action.clone_of} belongs to the stage {tags[TAG_STAGE][:64]!r} by its tag {TAG_STAGE}"
            return _result("ResubmitJob", Done.REFUSED, text)
        try:
            request = self._request(described, tags, action, job=job, policy=policy, incident_id=incident_id)
        except MailboxError as err:
            return _result("ResubmitJob", Done.REFUSED, f"the new attempt cannot be given its resume step: {err}")
        if problem := too_much(self._client, request):
            return _result("ResubmitJob", Done.REFUSED, problem)
        try:
            create(self._client, request)
        except AwsRefusal as refusal:
            done = Done.NAME_TAKEN if refusal.code == TAKEN else Done.REFUSED
            return self._refused(action, job, incident_id, done, refusal.message, request)
        except CapacityUnavailable as refused:
            return self._refused(action, job, incident_id, Done.CAPACITY, str(refused), request)
        except Permanent as refused:
            return self._refused(action, job, incident_id, Done.REFUSED, str(refused), request)
        return _result("ResubmitJob", Done.DONE, f"{action.name} from {action.clone_of}")

    def _request(
        self,
        described: Mapping[str, Any],
        tags: Mapping[str, str],
        action: ResubmitJob,
        *,
        job: Job,
        policy: Policy,
        incident_id: str,
    ) -> dict[str, Any]:
        environment = dict(described.get("Environment") or {})
        order = AttemptOrder(
            job_id=job.job_id,
            attempt_number=action.number,
            mailbox=job.mailbox or environment.get(ENV_MAILBOX),
            bus=self._bus or environment.get(ENV_BUS),
            incident_id=incident_id,
            resume=ResumePlan(
                step=action.resume_step.value if isinstance(action.resume_step, Known) else None,
                uri=action.resume_root,
                manifest_uri=action.resume_manifest,
                skip=tuple(SkipWindow(from_step=item.from_step, to_step=item.to_step) for item in action.skips),
            ),
        )
        request = clone_request(self._client.meta.service_model, described)
        request["TrainingJobName"] = action.name
        request["Environment"] = order.apply(environment)
        ours = {
            TAG_POLICY: tags.get(TAG_POLICY) or job.policy_name,
            TAG_JOB: job.job_id,
            TAG_INCIDENT: incident_id,
            TAG_ATTEMPT: str(action.number),
            TAG_STAGE: self._stage,
        }
        kept = {name: value for name, value in tags.items() if not name.lower().startswith("aws:")}
        request["Tags"] = [{"Key": name, "Value": value} for name, value in sorted((kept | ours).items())]
        take_out_infra_check(request)
        if action.checks_hardware:
            put_in_infra_check(request)
        if instance_count(described) >= policy.resubmission.large_instances and not request.get("RetryStrategy"):
            request["RetryStrategy"] = {"MaximumRetryAttempts": policy.resubmission.retry_attempts}
        return request

    def _refused(
        self, action: ResubmitJob, job: Job, incident_id: str, done: Done, text: str, request: Mapping[str, Any]
    ) -> ActionResult:
        """Whose the name is counts before the words of the refusal: ours by a lost answer, or a sibling that lives."""
        described = self._describe_quietly(action.name)
        if described is not None:
            tags = tags_of(self._client, described["TrainingJobArn"])
            if tags.get(TAG_INCIDENT) == incident_id and tags.get(TAG_ATTEMPT) == str(action.number):
                return _result("ResubmitJob", Done.ALREADY, f"{action.name} was submitted before")
            lives = not view_of(action.name, described).status.has_ended
            if done is Done.NAME_TAKEN and lives and self._is_sibling(action.name, described, job):
                return replace(
                    _result("ResubmitJob", Done.SIBLING, f"{action.name} is an attempt of {job.job_id}, and lives"),
                    attempt=action.name,
                )
        return _result("ResubmitJob", done, redact(text, request))

    def _describe_quietly(self, name: str) -> dict[str, Any] | None:
        try:
            return self._describe(name)
        except Permanent:  # a name that SageMaker refuses to look up is not ours
            return None


def _role_of(described: Mapping[str, Any]) -> str:
    return str(described.get("RoleArn") or "")


def _limits_of(role: str, roles: Sequence[str] | None) -> tuple[str, ...]:
    """What the stack's own settings rule out for a job of this role, notified while its owner is there.

    `roles` are resources of an IAM statement: `*` and `?` stand for any text and any character.
    """
    if roles is None or any(fnmatchcase(role, pattern) for pattern in roles):
        return ()
    return (
        f"it is watched, and not submitted again: its role {role or '(none)'} is not in the stack's parameter"
        " TrainingRoleArns",
    )


def _mailbox_of(described: Mapping[str, Any]) -> str:
    own = (described.get("CheckpointConfig") or {}).get("S3Uri") or ""
    return str((described.get("Environment") or {}).get(ENV_MAILBOX) or own)


def _is_over(view: AttemptView) -> bool:
    return view.status.has_ended or view.status is AttemptStatus.STOPPING


def _result(action: str, done: Done, detail: str) -> ActionResult:
    return ActionResult(action=action, done=done, detail=detail[:800])
