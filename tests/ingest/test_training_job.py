"""Training jobs: SageMaker's own repair is left alone, an unwanted end is not; the monitor's reply is read whole."""

from __future__ import annotations

from typing import Any

import pytest

from chalicelib.domain.model.errors import MalformedEvent
from chalicelib.domain.model.signal import Signal
from chalicelib.ingest.dispatch import parse
from chalicelib.ingest.training_job import STATUSES
from rekindle.protocol.signals import FaultClass
from tests.ingest import golden


def _one(event: dict[str, Any]) -> Signal:
    return parse(event)[0]


def _job(case: str, **detail: Any) -> dict[str, Any]:
    event = golden.load(f"sagemaker_training_job_{case}")
    event["detail"] |= detail
    return event


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(
    "secondary", ["Training", "Interrupted", "Restarting", "MaxRuntimeExceeded", "MaxWaitTimeExceeded", "SomethingNew"]
)
def test_only_an_unwanted_end_triggers(status: str, secondary: str) -> None:
    signal = _one(_job("in_progress", TrainingJobStatus=status, SecondaryStatus=secondary))
    ran_out = secondary in ("MaxRuntimeExceeded", "MaxWaitTimeExceeded") and status in ("Stopped", "Completed")
    assert signal.triggers == (status == "Failed" or ran_out)
    assert signal.evidence["status"] == status


def test_the_platforms_own_repair_is_marked_and_left_alone() -> None:
    signal = _one(_job("repairing"))
    assert (signal.fault, signal.triggers) == (FaultClass.NODE_HARDWARE, False)
    assert signal.evidence["repairing"] is True


def test_a_spot_interruption_is_marked_as_restarted_by_the_platform() -> None:
    assert _one(_job("interrupted_spot")).evidence["platform_restarts"] is True


def test_capacity_and_bad_input_are_told_apart_in_the_evidence() -> None:
    assert _one(_job("failed_capacity")).evidence["reason"] == "capacity"
    assert _one(_job("failed_client_error")).evidence["person_needed"] is True
    assert "person_needed" not in _one(_job("failed_crash")).evidence


def test_the_time_of_an_end_is_when_the_training_ended() -> None:
    assert _one(_job("failed_crash")).occurred_at.isoformat() == "2026-11-20T12:00:00+00:00"
    unfinished = _job("failed_crash", TrainingEndTime=None)
    assert _one(unfinished).occurred_at.isoformat() == "2026-11-20T12:00:10+00:00"
    bare = _job("failed_crash", TrainingEndTime=None, LastModifiedTime=None)
    assert _one(bare).occurred_at.isoformat() == "2026-11-20T12:00:15+00:00"


def test_only_our_own_tags_are_kept_and_a_list_of_tags_is_read_too() -> None:
    signal = _one(_job("clone_tags"))
    assert signal.job_id == "lm-7b"
    assert sorted(signal.evidence["tags"]) == [
        "rekindle:attempt",
        "rekindle:incident",
        "rekindle:job",
        "rekindle:policy",
    ]
    listed = _one(_job("failed_crash", Tags=[{"Key": "rekindle:job", "Value": "lm-7b"}, {"Key": "a", "Value": "b"}]))
    assert listed.job_id == "lm-7b"


def test_the_newest_transition_counts_whatever_the_order_of_the_list() -> None:
    event = _job("repairing")
    event["detail"]["SecondaryStatusTransitions"].reverse()
    assert _one(event).dedupe_key == _one(_job("repairing")).dedupe_key
    assert _one(event).evidence["message"].startswith("Repairing")


def test_a_long_failure_reason_is_cut_and_marked() -> None:
    signal = _one(_job("failed_crash", FailureReason="AlgorithmError: \x1b[31m" + "é" * 8000))
    assert signal.evidence["truncated"] is True
    assert "\x1b" not in signal.summary
    assert "\x1b" not in signal.evidence["failure_reason"]


def test_a_reply_may_stand_beside_the_common_fields_or_below_them() -> None:
    flat = golden.load("monitor_reply_saved")
    nested = golden.load("monitor_reply_saved")
    flat["detail"] |= flat["detail"].pop("reply")
    assert _one(nested) == _one(flat)
    nested["detail"]["reply"]["manifest"] = "../../etc/passwd"
    with pytest.raises(MalformedEvent) as caught:
        parse(nested)
    assert caught.value.field == "detail.reply.manifest"


def test_a_reply_in_anothers_name_is_refused() -> None:
    event = golden.load("monitor_reply_saved")
    event["detail"]["reply"]["attempt"] = "lm-13b-a1"
    with pytest.raises(MalformedEvent) as caught:
        parse(event)
    assert caught.value.field == "detail.reply.attempt"


def test_the_stacks_of_a_stall_are_kept_small_and_by_rank() -> None:
    event = golden.load("monitor_stall")
    event["detail"]["stacks"] = {str(rank): "frame\n" * 300 for rank in range(64)}
    stacks = _one(event).evidence["stacks"]
    assert set(stacks) <= {str(rank) for rank in range(64)}
    assert stacks
