"""Kinds by how a loss is composed and logged: several terms or tasks, accumulation, coarse or rounded logs."""

from __future__ import annotations

import numpy as np

from benchmarks.healthy_kinds.base import Generator, Run, blocks, falling, kind, noise, starts, usual
from benchmarks.healthy_kinds.data import (
    hard_documents,
    length_buckets,
    rare_batches,
    sorted_buckets,
    uneven_documents,
)

# The kinds whose losses are averaged over the rows of a coarse log.
COARSE_SOURCES = (hard_documents, uneven_documents, rare_batches, length_buckets, sorted_buckets)


@kind("contrastive")
def contrastive(rng: Generator, rows: int) -> Run:
    """Begins low while the queue fills, climbs, and then falls (MoCo); later the temperature is learned."""
    at = np.arange(rows)
    fill = rng.uniform(100, 1500)
    top = np.log(rng.choice([256, 4096, 65536]))
    losses = top * (0.5 + 0.5 * np.tanh(at / fill)) * (0.4 + 0.6 * (1 + at / 2000) ** -0.3)
    return Run(losses * noise(rng, rows, high=0.03))


@kind("mixture of experts")
def experts(rng: Generator, rows: int) -> Run:
    """Cross-entropy and a balance loss that rises when the router oscillates, and recovers without intervention."""
    losses = falling(rng, rows)
    for at in starts(rng, rows, rng.uniform(300, 3000)):
        length = int(rng.integers(2, 25))
        losses[at : at + length] += losses[-1] * rng.uniform(0.03, 0.3) * np.exp(-np.arange(length) / 6)[: rows - at]
    return Run(losses * noise(rng, rows))


@kind("tasks in turn")
def tasks(rng: Generator, rows: int) -> Run:
    levels = np.exp(rng.normal(0, 0.8, int(rng.integers(2, 6))))
    length = int(rng.choice([1, 1, 5, 50, 300]))
    which = (
        (np.arange(rows) // length) % len(levels)
        if rng.random() < 0.5
        else blocks(rng, rows, 1, 2 * length, len(levels))
    )
    return Run(usual(rng, rows) * levels[which])


@kind("a task now and then")
def rare_task(rng: Generator, rows: int) -> Run:
    losses = usual(rng, rows)
    every, length = int(rng.integers(200, 3000)), int(rng.choice([1, 4, 20, 60]))
    losses[(np.arange(rows) % every) >= every - length] *= rng.uniform(1.2, 3)
    return Run(losses)


@kind("evaluation in between")
def evaluation(rng: Generator, rows: int) -> Run:
    """The same log also holds the losses of an evaluation every so many steps."""
    losses = usual(rng, rows)
    every, length = int(rng.integers(200, 2000)), int(rng.integers(1, 30))
    losses[(np.arange(rows) % every) < length] *= rng.uniform(0.85, 1.35)
    return Run(losses)


@kind("accumulated gradients")
def accumulated(rng: Generator, rows: int) -> Run:
    """Logged per micro-batch, as the sum so far of each accumulation."""
    parts = int(rng.choice([2, 4, 8, 16]))
    losses = usual(rng, rows)
    return Run(losses / parts * (np.arange(rows) % parts + 1) if rng.random() < 0.5 else losses * parts)


@kind("coarse log of single steps")
def coarse_steps(rng: Generator, rows: int) -> Run:
    """One row per 50 to 200 steps, each the loss of one batch, among them hard ones."""
    every = int(rng.choice([50, 100, 200]))
    count = rows // every
    losses = usual(rng, count)
    losses[rng.random(count) < rng.uniform(0, 0.02)] *= rng.uniform(1.1, 1.6)
    return Run(losses, every=every)


@kind("coarse log of means")
def coarse_means(rng: Generator, rows: int) -> Run:
    every = int(rng.choice([10, 50, 100]))
    make = COARSE_SOURCES[int(rng.integers(len(COARSE_SOURCES)))]
    count = rows // every
    return Run(make(rng, rows).losses[: count * every].reshape(count, every).mean(axis=1), every=every)


@kind("fine-tuning near zero")
def near_zero(rng: Generator, rows: int) -> Run:
    level = 10 ** np.linspace(0, -rng.uniform(2, 5), rows)
    return Run(level * noise(rng, rows, low=0.3, high=1.0))


@kind("rounded by the logger")
def rounded(rng: Generator, rows: int) -> Run:
    return Run(np.round(usual(rng, rows), int(rng.integers(1, 3))))


@kind("negative log-likelihood of a density")
def density(rng: Generator, rows: int) -> Run:
    at = np.arange(rows)
    level = rng.uniform(1, 5) - rng.uniform(2, 12) * np.tanh(at / rng.uniform(1000, rows))
    return Run(level + rng.normal(0, rng.uniform(0.02, 0.5), rows))
