"""How often to save: Young's and Daly's formulas, and what loses least when the failures are played; and how many spare
nodes ByteRobust's rule asks for. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from fleets.answers import Rules
from fleets.figures import Setting
from fleets.runs import Failure, play
from rekindle.doctor.stack.runs import best_interval

# Times Young's interval. Finer steps would be noise: the curve is flat near its lowest point.
TRIED: Final = (0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6, 2.0, 2.8, 4.0)
LEAST_S: Final = 1.0
QUANTILE: Final = 0.99  # Source: ByteRobust (arXiv 2509.16293): standby sized at the P99 of Binomial(N, p)


def young_s(mean_s: float, save_s: float) -> float:
    """Young 1974: sqrt(2 x save x mean time between failures); `rekindle doctor` judges a run's own by the same."""
    return max(LEAST_S, best_interval(timedelta(seconds=mean_s), timedelta(seconds=save_s)).total_seconds())


def daly_s(mean_s: float, save_s: float) -> float:
    """Daly 2006, its higher-order estimate; the mean itself where a save takes more than twice as long as that."""
    if save_s >= 2.0 * mean_s:
        return mean_s
    ratio = save_s / (2.0 * mean_s)
    return max(LEAST_S, math.sqrt(2.0 * save_s * mean_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - save_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalResult:
    """An interval and the ETTR that it came to."""

    interval_s: float
    ettr: float


def try_intervals(
    failures: Sequence[Failure], rules: Rules, setting: Setting, *, wall_s: float, mean_s: float
) -> tuple[IntervalResult, ...]:
    """The same failures with each interval, shortest first."""
    base = young_s(mean_s, setting.save_s)
    points = []
    for times in TRIED:
        changed = replace(setting, interval_s=max(LEAST_S, base * times))
        points.append(
            IntervalResult(interval_s=changed.interval_s, ettr=play(failures, rules, changed, wall_s=wall_s).ettr)
        )
    return tuple(points)


def least_loss(points: Sequence[IntervalResult]) -> IntervalResult:
    """The one that lost least; among equals the longest, which loads the storage least."""
    return max(points, key=lambda point: (point.ettr, point.interval_s))


def p99_spares(nodes: int, *, mean_s: float, away_s: float) -> int:
    """The P99 of Binomial(nodes, p), p being the chance that one node is away for repair at a given moment.

    `mean_s` is the run's mean time between failures of nodes, `away_s` how long each is away.
    """
    share = min(1.0, away_s / (mean_s * nodes))
    if share >= 1.0:
        return nodes
    chance = math.exp(nodes * math.log1p(-share))
    total, count = chance, 0
    while total < QUANTILE and count < nodes:
        chance *= (nodes - count) / (count + 1) * share / (1.0 - share)
        count += 1
        total += chance
    return count
