"""The platforms that there are. A new one has its folder beside these, and one line here."""

from __future__ import annotations

from typing import Final

from chalicelib.platforms.slurm.platform import SLURM
from chalicelib.platforms.training_job.platform import TRAINING_JOB

PLATFORMS: Final = (TRAINING_JOB, SLURM)
