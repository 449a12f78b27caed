"""Clouds for the tests: virtual time in this process, or real time over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from localcloud.aws.clock import RealClock
from localcloud.cloud import Cloud


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """Virtual time, in the process."""
    with Cloud() as one:
        yield one


@pytest.fixture
def http_cloud() -> Iterator[Cloud]:
    """Real time, over HTTP."""
    with Cloud(http=True, clock=RealClock()) as one:
        yield one


def training_job(name: str, **changes: Any) -> dict[str, Any]:
    """A CreateTrainingJob request."""
    return {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::123456789012:role/train",
        "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://out/runs"},
        "ResourceConfig": {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2, "VolumeSizeInGB": 100},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
    } | changes
