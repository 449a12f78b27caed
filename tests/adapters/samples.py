"""Small valid entities for the contract suites."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.domain.model.incident import Incident, Phase, TimelineEntry
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from rekindle.protocol.signals import FaultClass

T0 = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
CLUSTER = "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9m2x7q1ab"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def signal(key: str = "fact-1", **changes: Any) -> Signal:
    values: dict[str, Any] = {
        "kind": SignalKind.STALL,
        "source": SignalSource.MONITOR,
        "occurred_at": T0,
        "dedupe_key": key,
        "summary": f"summary of {key}",
        "job_id": "lm-7b",
        "attempt": "lm-7b",
        "fault": FaultClass.HANG,
        "evidence": {"silent_s": 31.5, "stacks": {"0": "train.py:10"}},
    }
    return Signal(**(values | changes))


def incident(name: str = "inc-a", *, opened_s: float = 0, **changes: Any) -> Incident:
    values: dict[str, Any] = {
        "incident_id": name,
        "job_id": "lm-7b",
        "cluster": None,
        "opened_at": at(opened_s),
        "phase": Phase.OPEN,
        "phase_entered_at": at(opened_s),
        "attempt": "lm-7b",
        "attempt_number": 1,
    }
    return Incident(**values).changed(**changes)


def job(name: str = "lm-7b", **changes: Any) -> Job:
    values: dict[str, Any] = {
        "job_id": name,
        "name": name,
        "platform": TRAINING_JOB.name,
        "policy_name": "default",
        "created_at": T0,
        "current_attempt": name,
        "attempt_number": 1,
        "attempt_started_at": T0,
        "mailbox": "s3://training/runs/lm-7b",
    }
    return Job(**(values | changes))


def attempt(number: int = 1, *, of: str = "lm-7b", **changes: Any) -> Attempt:
    name = of if number == 1 else f"{of}-r{number}"
    values: dict[str, Any] = {"job_id": of, "number": number, "name": name, "submitted_at": at(number)}
    return Attempt(**(values | changes))


def line(text: str = "something was decided", *, at_s: float = 0, **facts: Any) -> TimelineEntry:
    return TimelineEntry(at=at(at_s), phase=Phase.OPEN, rule="test.rule", text=text, actions=("StopJob",), facts=facts)
