"""SageMaker's statuses of a training job as ours. Source: botocore, DescribeTrainingJob."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from chalicelib.domain.model.observation import AttemptStatus, AttemptView

_LOG = logging.getLogger(__name__)

_MAX_DETAIL_CHARS: Final = 300
# Secondary statuses while the job is in progress. One that is not here is new to us: it counts as STARTING, the state
# that proves nothing, is never healthy, and is bounded by the policy's timing.start_limit.
_IN_PROGRESS: Final[Mapping[str, AttemptStatus]] = {
    "Starting": AttemptStatus.STARTING,
    "LaunchingMLInstances": AttemptStatus.STARTING,
    "PreparingTrainingStack": AttemptStatus.STARTING,
    "Downloading": AttemptStatus.STARTING,
    "DownloadingTrainingImage": AttemptStatus.STARTING,
    "Pending": AttemptStatus.STARTING,
    "Training": AttemptStatus.RUNNING,
    "Updating": AttemptStatus.RUNNING,
    "Uploading": AttemptStatus.RUNNING,  # the script has ended; the job has not
    "Interrupted": AttemptStatus.REPAIRING,  # managed Spot: SageMaker restarts it
    "Restarting": AttemptStatus.REPAIRING,
    "Stopping": AttemptStatus.STOPPING,
    "MaxRuntimeExceeded": AttemptStatus.STOPPING,
    "MaxWaitTimeExceeded": AttemptStatus.STOPPING,
    "Stopped": AttemptStatus.STOPPING,  # the primary status follows
    "Completed": AttemptStatus.STOPPING,
    "Failed": AttemptStatus.STOPPING,
}
_ENDED: Final[Mapping[str, AttemptStatus]] = {
    "Completed": AttemptStatus.COMPLETED,
    "Failed": AttemptStatus.FAILED,
    "Stopping": AttemptStatus.STOPPING,
    "Stopped": AttemptStatus.STOPPED,
    "Deleting": AttemptStatus.GONE,
}
_LIMITS: Final = frozenset({"MaxRuntimeExceeded", "MaxWaitTimeExceeded"})
_REPAIR_TEXT: Final = re.compile(r"repairing training cluster", re.IGNORECASE)


def view_of(name: str, described: Mapping[str, Any]) -> AttemptView:
    """What DescribeTrainingJob (or an event of the same shape, with datetimes) says about an attempt."""
    primary = str(described.get("TrainingJobStatus") or "")
    secondary = str(described.get("SecondaryStatus") or "")
    transitions = described.get("SecondaryStatusTransitions") or ()
    message = str(transitions[-1].get("StatusMessage") or "") if transitions else ""
    status = status_of(primary, secondary, message)
    ended_at = described.get("TrainingEndTime") or described.get("LastModifiedTime")
    detail = f"{primary}/{secondary}" + (f": {message}" if message else "")
    return AttemptView(
        name=name,
        status=status,
        detail=detail[:_MAX_DETAIL_CHARS],
        failure_reason=str(described.get("FailureReason") or ""),
        ended_at=at_utc(ended_at) if status.has_ended and ended_at is not None else None,
        training_since=_since(transitions, "Training"),
        stopping_since=_since(transitions, "Stopping"),
        interrupted_since=_since(transitions, "Interrupted"),
    )


def _since(transitions: Sequence[Mapping[str, Any]], status: str) -> datetime | None:
    """When it entered the status for the last time. Of a stop SageMaker tells no more: not who asked for it."""
    began = [transition.get("StartTime") for transition in transitions if transition.get("Status") == status]
    return at_utc(began[-1]) if began and isinstance(began[-1], datetime) else None


def status_of(primary: str, secondary: str, message: str = "") -> AttemptStatus:
    """SageMaker's two statuses as one of ours.

    A primary status that SageMaker does not document reads as STARTING: not training, not ended, so that nothing is
    taken as healthy, stopped or resubmitted on the strength of a word we do not know.
    """
    if primary in _ENDED:
        if secondary in _LIMITS and _ENDED[primary].has_ended and primary != "Failed":
            return AttemptStatus.EXPIRED
        return _ENDED[primary]
    if primary != "InProgress":
        _LOG.warning("unknown training job status", extra={"status": primary[:64], "secondary": secondary[:64]})
        return AttemptStatus.STARTING
    if _REPAIR_TEXT.search(message):
        return AttemptStatus.REPAIRING
    if secondary not in _IN_PROGRESS:
        _LOG.warning("unknown secondary status", extra={"secondary": secondary[:64]})
    return _IN_PROGRESS.get(secondary, AttemptStatus.STARTING)


def at_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
