"""The facts about one protected Job, read from the service's API and the Job's AWS account. Never writes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from rekindle.compat import from_iso
from rekindle.doctor.aws.account import Account
from rekindle.doctor.aws.cluster_state import read_document
from rekindle.doctor.aws.gather import read_plan
from rekindle.doctor.base.facts import Found, Missing, NotInspected, PlanFacts
from rekindle.doctor.stack.runs import RunFacts, hard_failures
from rekindle.protocol.keys import heartbeat_key, manifest_prefix
from rekindle.protocol.mailbox import Heartbeat
from rekindle.protocol.wire import MailboxError

NEWEST: Final = 50  # checkpoints whose times are kept
LISTED: Final = 20  # the most Incidents that GET /jobs/{id} lists, newest first
_MAX_PAGES: Final = 20  # of 1,000 manifests each; of a mailbox with more, those read stand for all


def read_run(account: Account, job: Mapping[str, Any], *, policy_problem: str = "") -> RunFacts | None:
    """The facts about `job`, an answer of GET /jobs/{id}. None where it is not such an answer.

    `policy_problem`: why its policy is invalid, empty where it is valid; passed through to the facts.
    """
    job_id, since = job.get("job_id"), _time(job.get("created_at"))
    if not isinstance(job_id, str) or since is None:
        return None
    attempt, mailbox = str(job.get("current_attempt") or ""), str(job.get("mailbox") or "")
    listed = job.get("incidents")
    incidents = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return RunFacts(
        job_id=job_id,
        attempt=attempt,
        since=since,
        mailbox=mailbox,
        policy=str(job.get("policy") or ""),
        policy_problem=policy_problem,
        gpus=_gpus(job),
        heartbeat=_heartbeat(account, mailbox, attempt),
        saves=_saves(account, mailbox),
        failures=hard_failures(incidents),
        counted_since=_time(incidents[-1].get("opened_at")) if len(incidents) >= LISTED else None,
        plan=_plan(account, attempt) if job.get("platform") == "training_job" else None,
    )


def bucket_of(mailbox: str) -> str | None:
    """The bucket of an s3:// mailbox; None for any other mailbox."""
    return urlsplit(mailbox).netloc or None if mailbox.startswith("s3://") else None


def _gpus(job: Mapping[str, Any]) -> int | None:
    """How many GPUs the Job reports; None where it is not known."""
    size = job.get("size")
    reported = size.get("gpus") if isinstance(size, dict) else None
    gpus = reported.get("known") if isinstance(reported, dict) else None
    return gpus if type(gpus) is int and gpus > 0 else None


def _plan(account: Account, training_job: str) -> Found[PlanFacts] | None:
    """The training plan whose capacity the training job is on; None where it is on none."""
    answer = account.ask("sagemaker", "describe_training_job", TrainingJobName=training_job)
    if isinstance(answer, Missing):
        return None  # the service reports a Job that does not exist
    if isinstance(answer, NotInspected):
        return answer
    resources = answer.get("ResourceConfig")
    arn = resources.get("TrainingPlanArn") if isinstance(resources, dict) else None
    return read_plan(account, str(arn)) if arn else None


def _heartbeat(account: Account, mailbox: str, attempt: str) -> Found[Heartbeat]:
    bucket = bucket_of(mailbox)
    if bucket is None:
        return NotInspected("the mailbox is not in S3")
    try:
        key = heartbeat_key(attempt)
    except MailboxError as err:
        return NotInspected(str(err))
    return read_document(account, bucket, _key_in(mailbox, key), Heartbeat)


def _saves(account: Account, mailbox: str) -> Found[tuple[datetime, ...]]:
    """When the run saved, oldest first, at most NEWEST times: the times of its manifests, which a save writes last."""
    bucket = bucket_of(mailbox)
    if bucket is None:
        return NotInspected("the mailbox is not in S3")
    prefix = _key_in(mailbox, manifest_prefix())
    rows: list[Any] = []
    token: dict[str, str] = {}
    for _ in range(_MAX_PAGES):
        answer = account.ask("s3", "list_objects_v2", Bucket=bucket, Prefix=prefix, **token)
        if not isinstance(answer, dict):
            return answer
        rows += answer.get("Contents") or []
        next_token = answer.get("NextContinuationToken")
        if not next_token:
            break
        token = {"ContinuationToken": str(next_token)}
    times = sorted(row["LastModified"] for row in rows if isinstance(row.get("LastModified"), datetime))
    return tuple(times[-NEWEST:]) if times else Missing()


def _key_in(mailbox: str, name: str) -> str:
    """The key of an object of an s3:// mailbox."""
    prefix = urlsplit(mailbox).path.strip("/")
    return f"{prefix}/{name}" if prefix else name


def _time(text: object) -> datetime | None:
    """The ISO-8601 time; None where it is invalid or has no offset."""
    try:
        time = from_iso(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None
