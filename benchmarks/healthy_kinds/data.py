"""Kinds by what is in the data: hard documents, buckets, domains, epochs, noise."""

from __future__ import annotations

import numpy as np

from benchmarks.healthy_kinds.base import Generator, Run, blocks, falling, kind, noise, starts, usual


@kind("hard documents in a row")
def hard_documents(rng: Generator, rows: int) -> Run:
    losses = usual(rng, rows)
    highest = rng.uniform(1.3, 2.2)
    for at in starts(rng, rows, rng.uniform(150, 800)):
        length = int(rng.integers(2, 10))
        losses[at : at + length] *= rng.uniform(1.15, highest)
    return Run(losses)


@kind("hard documents of uneven height")
def uneven_documents(rng: Generator, rows: int) -> Run:
    losses = usual(rng, rows)
    scale = rng.uniform(0.1, 0.5)
    for at in starts(rng, rows, rng.uniform(150, 1500)):
        part = losses[at : at + int(rng.geometric(0.25)) + 1]
        part *= 1 + rng.exponential(scale, len(part))
    return Run(losses)


@kind("rare hard batches")
def rare_batches(rng: Generator, rows: int) -> Run:
    losses = usual(rng, rows)
    for at in starts(rng, rows, rng.uniform(4000, 12_000)):
        losses[at : at + int(rng.integers(1, 6))] *= rng.uniform(1.3, 2.8)
    return Run(losses)


@kind("length buckets")
def length_buckets(rng: Generator, rows: int) -> Run:
    levels = rng.uniform(0.6, 1.5, int(rng.integers(3, 9)))
    longest = rng.choice([2, 10, 40, 120])
    which = blocks(rng, rows, 1, longest, len(levels))
    return Run(usual(rng, rows) * levels[which])


@kind("buckets from short to long")
def sorted_buckets(rng: Generator, rows: int) -> Run:
    period = int(rng.integers(100, 3000))
    span = rng.uniform(0.2, 0.8)
    return Run(usual(rng, rows) * (1 + span * (np.arange(rows) % period) / period))


@kind("unmixed domains")
def unmixed_domains(rng: Generator, rows: int) -> Run:
    levels = np.exp(rng.normal(0, rng.uniform(0.1, 0.35), int(rng.integers(2, 7))))
    which = blocks(rng, rows, 200, rng.uniform(800, 6000), len(levels))
    losses = usual(rng, rows) * levels[which]
    forgotten, tau = rng.uniform(0, 0.15), rng.uniform(20, 300)
    last_seen = np.full(len(levels), -1)
    at = 0
    while at < rows:  # a domain that comes back was partly forgotten
        end = at + int(np.argmax(which[at:] != which[at])) if (which[at:] != which[at]).any() else rows
        if last_seen[which[at]] >= 0:
            losses[at:end] *= 1 + forgotten * np.exp(-np.arange(end - at) / tau)
        last_seen[which[at]] = at
        at = end
    return Run(losses)


@kind("epochs")
def epochs(rng: Generator, rows: int) -> Run:
    period = int(rng.integers(400, 8000))
    at = np.arange(rows)
    memorised = rng.uniform(0.03, 0.15) * np.minimum(at // period, 4)
    within = (at % period) / period
    shape = 1 - memorised + rng.uniform(0, 0.1) * (1 - within)
    return Run(usual(rng, rows) * shape)


@kind("sorted classes")
def sorted_classes(rng: Generator, rows: int) -> Run:
    """Each epoch goes through the classes in order: every one begins badly and is learned again."""
    length = int(rng.integers(30, 400))
    up, tau = rng.uniform(0.1, 0.6), rng.uniform(5, 60)
    return Run(usual(rng, rows) * (1 + up * np.exp(-(np.arange(rows) % length) / tau)))


@kind("mixture noise (mixup)")
def mixup(rng: Generator, rows: int) -> Run:
    share, height = rng.uniform(0.1, 0.6), rng.uniform(1.3, 2.5)
    return Run(usual(rng, rows) * np.where(rng.random(rows) < share, height, 1.0))


@kind("heavy tails")
def heavy_tails(rng: Generator, rows: int) -> Run:
    return Run(falling(rng, rows) * np.exp(rng.uniform(0.01, 0.06) * rng.standard_t(rng.uniform(2.2, 4), rows)))


@kind("one sequence a step")
def one_sequence(rng: Generator, rows: int) -> Run:
    return Run(falling(rng, rows) * noise(rng, rows, low=0.2, high=0.7))


@kind("slow correlated noise")
def correlated(rng: Generator, rows: int) -> Run:
    tau, size = rng.uniform(5, 200), rng.uniform(0.02, 0.12)
    keep = np.exp(-1 / tau)
    shocks = rng.normal(0, size * np.sqrt(1 - keep * keep), rows)
    walk = np.empty(rows)
    value = 0.0
    for i, shock in enumerate(shocks):
        value = keep * value + shock
        walk[i] = value
    return Run(usual(rng, rows) * np.exp(walk))
