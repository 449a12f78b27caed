"""How often to save: Young's formula. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from rekindle.doctor.stack.runs import best_interval

LEAST_S: Final = 1.0


def young_s(mean_s: float, save_s: float) -> float:
    """Young 1974: sqrt(2 x save x mean time between failures); `rekindle doctor` judges a run's own by the same."""
    return max(LEAST_S, best_interval(timedelta(seconds=mean_s), timedelta(seconds=save_s)).total_seconds())
