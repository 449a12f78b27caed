"""How many spare nodes: ByteRobust's rule, and what pays when the failures are played. Pure."""

from __future__ import annotations

import math
from typing import Final

QUANTILE: Final = 0.99  # Source: ByteRobust (arXiv 2509.16293): standby sized at the P99 of Binomial(N, p)


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
