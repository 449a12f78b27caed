"""A healthy run, the table of their kinds, and the curves and noise that the kinds are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Generator = np.random.Generator


@dataclass(frozen=True, slots=True)
class Run:
    """One healthy run of one loss per row; a row is `every` steps.

    announced: (row, what) of the changes that a training script could announce. lr: the learning rate by row, if known.
    declared: the kind of loss that a script could declare; empty for one that the detectors judge.
    """

    losses: Array
    every: int = 1
    announced: tuple[tuple[int, str], ...] = ()
    lr: Array | None = None
    declared: str = ""


# Makes a run from a seeded generator and a number of rows.
Make = Callable[[Generator, int], Run]
KINDS: dict[str, Make] = {}


def kind(name: str) -> Callable[[Make], Make]:
    """Register a function as the kind of that name."""

    def add(make: Make) -> Make:
        KINDS[name] = make
        return make

    return add


def falling(rng: Generator, rows: int) -> Array:
    """A usual curve without noise: a fast fall, then a power law."""
    last, first = rng.uniform(1.2, 4.0), rng.uniform(7.0, 12.0)
    at = np.arange(rows)
    fast = np.exp(-at / rng.uniform(50, 400))
    slow = (1 + at / rng.uniform(200, 2000)) ** -rng.uniform(0.2, 0.6)
    return last + (first - last) * (0.6 * fast + 0.4 * slow)


def noise(rng: Generator, rows: int, *, low: float = 0.005, high: float = 0.05) -> Array:
    """Log-normal factors around 1; their deviation is between `low` and `high`."""
    return np.exp(rng.normal(0, rng.uniform(low, high), rows))


def usual(rng: Generator, rows: int) -> Array:
    """A usual curve with noise."""
    return falling(rng, rows) * noise(rng, rows)


def starts(rng: Generator, rows: int, gap: float, *, first: int = 200) -> list[int]:
    """Rows at which something happens: a Poisson process with a mean distance of `gap` rows, from row `first` on."""
    at, found = float(first), []
    while (at := at + rng.exponential(gap)) < rows:
        found.append(int(at))
    return found


def blocks(rng: Generator, rows: int, shortest: float, longest: float, choices: int) -> NDArray[np.int64]:
    """A number below `choices` for each row, constant over blocks of `shortest` to `longest` rows."""
    which = np.zeros(rows, dtype=np.int64)
    at = 0
    while at < rows:
        length = max(1, int(rng.uniform(shortest, longest)))
        which[at : at + length] = rng.integers(choices)
        at += length
    return which
