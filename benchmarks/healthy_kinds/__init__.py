"""Healthy training runs, by kind of loss curve. Definitions only; `benchmarks.healthy` measures them.

No run here is in trouble: an alarm worth a recovery on any of them is false. Every definition takes a seeded generator
and a length, and draws its amplitudes, lengths and periods per run, so that no constant of a detector can be fitted to
a single process. Losses are per step unless the kind says otherwise.
"""

from __future__ import annotations

# Each module registers its kinds in KINDS when it is imported.
from benchmarks.healthy_kinds import composed, data, policies, schedules, weak_losses
from benchmarks.healthy_kinds.base import KINDS, Run

__all__ = ("KINDS", "Run", "composed", "data", "policies", "schedules", "weak_losses")
