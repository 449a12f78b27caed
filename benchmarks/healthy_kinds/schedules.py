"""Kinds by what the training script plans: learning rates, curricula, batch sizes, weights of loss terms."""

from __future__ import annotations

import numpy as np

from benchmarks.healthy_kinds.base import Array, Generator, Run, falling, kind, noise, starts, usual


def _cosine(rows: int, length: int, factor: float) -> tuple[Array, list[int]]:
    """Learning rates between 0 and 1, and the rows of the restarts."""
    rates, restarts, at, period = np.empty(rows), [], 0, float(length)
    while at < rows:
        size = min(int(period), rows - at)
        rates[at : at + size] = 0.5 * (1 + np.cos(np.pi * np.arange(size) / period))
        if at:
            restarts.append(at)
        at += size
        period *= factor
    return rates, restarts


@kind("warm restarts")
def warm_restarts(rng: Generator, rows: int) -> Run:
    rates, restarts = _cosine(rows, int(rng.integers(1500, 9000)), rng.choice([1.0, 1.0, 2.0]))
    up, lag = rng.uniform(0.1, 0.6), rng.uniform(1, 60)
    felt, value, keep = np.empty(rows), float(rates[0]), np.exp(-1 / lag)
    for i, rate in enumerate(rates):  # the loss follows the rate with a lag
        value = keep * value + (1 - keep) * rate
        felt[i] = value
    losses = usual(rng, rows) * (1 + up * felt)
    return Run(losses, announced=tuple((row, "learning rate") for row in restarts), lr=3e-4 * (0.05 + 0.95 * rates))


@kind("planned changes")
def planned_changes(rng: Generator, rows: int) -> Run:
    losses, level, changes = usual(rng, rows), np.ones(rows), []
    for at in starts(rng, rows, 12_000, first=1000):
        what = str(rng.choice(["sequence length", "loss weights", "batch size", "data mixture"]))
        changes.append((at, what))
        if what == "batch size":
            losses[at:] *= np.exp(rng.normal(0, rng.uniform(0.01, 0.05), rows - at))
            continue
        left = rng.uniform(0.3, 1.0)
        settled = left + (1 - left) * np.exp(-np.arange(rows - at) / rng.uniform(100, 3000))
        level[at:] *= np.exp(np.log(rng.uniform(1.1, 1.9)) * settled)
    return Run(losses * level, announced=tuple(changes))


@kind("curriculum")
def curriculum(rng: Generator, rows: int) -> Run:
    losses, stages = usual(rng, rows), int(rng.integers(3, 9))
    changes = []
    for stage in range(1, stages):
        at = stage * rows // stages
        tau = rng.uniform(50, 1500)
        losses[at:] *= 1 + rng.uniform(0.1, 0.6) * np.exp(-np.arange(rows - at) / tau)
        changes.append((at, "curriculum"))
    return Run(losses, announced=tuple(changes))


@kind("batch size ramp")
def batch_ramp(rng: Generator, rows: int) -> Run:
    growth = np.linspace(1, rng.uniform(2, 6), rows)
    sizes = growth if rng.random() < 0.5 else growth[::-1]
    return Run(falling(rng, rows) * np.exp(rng.normal(0, 0.04, rows) / sizes))


@kind("early training with warm-up")
def early(rng: Generator, rows: int) -> Run:
    """A short run: only the beginning counts."""
    at = np.arange(rows)
    hump = rng.uniform(0, 0.25) * np.exp(-(((at - rng.uniform(150, 900)) / rng.uniform(40, 250)) ** 2))
    return Run(usual(rng, rows) * (1 + hump))


@kind("annealed to the end")
def annealed(rng: Generator, rows: int) -> Run:
    """Warm-up, stable, decay: the loss and its noise fall when the rate does."""
    decay = np.clip((np.arange(rows) / rows - 0.8) / 0.2, 0, 1)
    return Run(falling(rng, rows) * (1 - 0.15 * decay) * noise(rng, rows) ** (1 - 0.7 * decay))


@kind("KL warm-up")
def kl_warm_up(rng: Generator, rows: int) -> Run:
    length = rng.uniform(1000, 12_000)
    beta = np.clip((np.arange(rows) - rng.uniform(0, 3000)) / length, 0, 1)
    reconstruction = falling(rng, rows)
    kl = (
        reconstruction[-1]
        * rng.uniform(0.3, 1.5)
        * (0.35 + 0.65 * np.exp(-np.arange(rows) / rng.uniform(2000, 10_000)))
    )
    return Run((reconstruction + beta * kl) * noise(rng, rows), announced=((0, "KL warm-up"),))


@kind("cyclic KL weight")
def cyclic_kl(rng: Generator, rows: int) -> Run:
    period = int(rng.integers(1000, 8000))
    beta = np.clip((np.arange(rows) % period) / period / rng.uniform(0.4, 0.9), 0, 1)
    reconstruction = falling(rng, rows)
    return Run((reconstruction + beta * reconstruction[-1] * rng.uniform(0.1, 0.6)) * noise(rng, rows))
