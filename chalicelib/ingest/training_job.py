"""SageMaker Training Job State Change (aws.sagemaker, best effort, often several events for one state change).

    {"detail-type": "SageMaker Training Job State Change", "source": "aws.sagemaker",
     "resources": ["arn:aws:sagemaker:us-west-2:111122223333:training-job/lm-7b-a3"],
     "detail": {"TrainingJobName": "lm-7b-a3", "TrainingJobStatus": "Failed", "SecondaryStatus": "Failed",
      "FailureReason": "AlgorithmError: …", "CreationTime": 1795168800000, "TrainingEndTime": 1795176000000,
      "LastModifiedTime": 1795176010000, "Tags": {},
      "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": 1795169100000, "StatusMessage": "…"}]}}

Read from it: the name, both statuses, the failure reason, our own tags, the newest transition, and the times (epoch
milliseconds). The detail has the members of DescribeTrainingJob; all others are left alone.

Source: SageMaker developer guide, automating-sagemaker-with-eventbridge; botocore DescribeTrainingJobResponse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.faults.failure_reasons import classify_failure_reason
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource, ended_job_key
from chalicelib.ingest.envelope import Envelope
from chalicelib.ingest.evidence import bounded, dedupe_key, one_line
from chalicelib.ingest.fields import OUR_ID, RESOURCE_NAME, Fields
from rekindle.protocol.signals import FaultClass

# Source: botocore, sagemaker TrainingJobStatus
STATUSES: Final = ("InProgress", "Completed", "Failed", "Stopping", "Stopped", "Deleting")
TERMINAL: Final = frozenset({"Completed", "Failed", "Stopped"})
_TIME_LIMITS: Final = frozenset({"MaxRuntimeExceeded", "MaxWaitTimeExceeded"})

# SageMaker repairs GPU faults itself, up to ten times, and says so in the transition message.
# Source: SageMaker developer guide, model-checkpoints-cluster-repair.
_REPAIR_WORDS: Final = "repairing training cluster"

TAG_PREFIX: Final = "rekindle:"
TAG_JOB: Final = "rekindle:job"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    fault: FaultClass | None
    triggers: bool
    evidence: dict[str, Any]


def parse(envelope: Envelope) -> Signal:
    """One Signal per event. Only an unwanted end triggers; the platform's own repair is left alone.

    `evidence` holds `status`, `secondary`, `failure_reason` with its `rule` and `person_needed`, `repairing` while
    SageMaker repairs, `platform_restarts` after a Spot interruption, and our own `tags`.

    Raises:
        MalformedEvent: names the field.
    """
    detail = envelope.detail
    name = detail.text("TrainingJobName", limit=63, pattern=RESOURCE_NAME)
    status = detail.word("TrainingJobStatus", STATUSES)
    secondary = detail.optional_text("SecondaryStatus", limit=64)
    reason = detail.optional_text("FailureReason")
    created_at = detail.optional_moment("CreationTime")
    newest = _newest_transition(detail)
    message = newest.optional_text("StatusMessage") if newest else None
    tags = _our_tags(detail)
    verdict = _judge(status, secondary, reason, message)
    ended_at = detail.optional_moment("TrainingEndTime") if status in TERMINAL else None
    began_at = newest.optional_moment("StartTime") if newest else None
    modified_at = detail.optional_moment("LastModifiedTime")
    # A terminal state is reached once in a job's life; the others may come again, told apart by the transition's start.
    moment = began_at or modified_at or envelope.time
    return Signal(
        kind=SignalKind.ATTEMPT_STATE,
        source=SignalSource.SAGEMAKER,
        occurred_at=ended_at or modified_at or envelope.time,
        dedupe_key=ended_job_key(name, status)
        if status in TERMINAL
        else dedupe_key("training-job", envelope.account, envelope.region, name, created_at, status, secondary, moment),
        summary=one_line(
            ": ".join(part for part in (f"{name} is {_state(status, secondary)}", reason or message) if part)
        ),
        job_id=tags.get(TAG_JOB),
        attempt=name,
        fault=verdict.fault,
        triggers=verdict.triggers,
        evidence=bounded(
            {
                "status": status,
                "secondary": secondary,
                **verdict.evidence,
                "failure_reason": reason,
                "message": message,
                "tags": tags or None,
            }
        ),
    )


def _state(status: str, secondary: str | None) -> str:
    return status if secondary in (None, status) else f"{status} ({secondary})"


def _judge(status: str, secondary: str | None, reason: str | None, message: str | None) -> _Verdict:
    if status == "Failed":
        verdict = classify_failure_reason(reason)
        return _Verdict(
            fault=verdict.fault,
            triggers=True,
            evidence={
                "rule": verdict.rule,
                "person_needed": verdict.person_needed or None,
                "reason": "capacity" if verdict.rule == "capacity" else None,
            },
        )
    if secondary in _TIME_LIMITS and status in ("Stopped", "Completed"):
        return _Verdict(fault=FaultClass.PLANNED_END, triggers=True, evidence={"rule": "time_limit"})
    if status == "InProgress" and _is_repair(secondary, message):
        return _Verdict(fault=FaultClass.NODE_HARDWARE, triggers=False, evidence={"repairing": True})
    if status == "InProgress" and secondary == "Interrupted":
        # Managed Spot: SageMaker restarts the job by itself from its checkpoints.
        return _Verdict(fault=FaultClass.PLANNED_END, triggers=False, evidence={"platform_restarts": True})
    return _Verdict(fault=None, triggers=False, evidence={})


def _is_repair(secondary: str | None, message: str | None) -> bool:
    return secondary == "Restarting" or _REPAIR_WORDS in (message or "").lower()


def _newest_transition(detail: Fields) -> Fields | None:
    """The transition that began last; the list's own order is not promised."""
    transitions = detail.children("SecondaryStatusTransitions")
    dated = [(began_at, item) for item in transitions if (began_at := item.optional_moment("StartTime")) is not None]
    if dated:
        return max(dated, key=lambda pair: pair[0])[1]
    return transitions[-1] if transitions else None


def _our_tags(detail: Fields) -> dict[str, str]:
    """The `rekindle:…` tags. AWS writes an object here; a list of Key and Value, as ListTags gives, is read too."""
    raw = detail.body.get("Tags")
    if isinstance(raw, list):
        pairs = [(item.optional_text("Key"), item.body.get("Value")) for item in detail.children("Tags")]
    else:
        pairs = list(detail.optional_child("Tags").body.items())
    tags = {
        name: value
        for name, value in pairs
        if isinstance(name, str) and name.startswith(TAG_PREFIX) and isinstance(value, str)
    }
    _check_job(detail, tags)
    return tags


def _check_job(detail: Fields, tags: Mapping[str, str]) -> None:
    job_id = tags.get(TAG_JOB)
    if job_id is not None and not OUR_ID.fullmatch(job_id):
        raise detail.fail(f"Tags.{TAG_JOB}", "is not a job id")
