"""What SageMaker training jobs can do. Source: botocore, CreateTrainingJob, StopTrainingJob."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.model.platform import Platform

TRAINING_JOB: Final = Platform(
    name="training_job",
    title="SageMaker training jobs",
    accepts_at_once=True,  # CreateTrainingJob answers for exactly this job
)
