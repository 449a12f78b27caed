"""Losses of reinforcement learning and of preferences, as their trainers log them, undeclared.

GRPO's logged loss is beta times the divergence from the reference model where each batch is used once: it begins at
zero and grows while the policy learns. Runs are short: a few hundred rows.
"""

from __future__ import annotations

import numpy as np

from benchmarks.healthy_kinds.base import Array, Generator, Run, kind


def _divergence(rng: Generator, rows: int) -> Array:
    """Of the policy from its reference: from rounding errors up to a level, in which single batches stand far out."""
    at = np.arange(rows)
    begin, end = 10 ** rng.uniform(-7, -4), 10 ** rng.uniform(-3.5, -1.2)
    half, steep = rng.uniform(5, rows / 2), rng.uniform(3, rows / 5)
    share = 1 / (1 + np.exp(-(at - half) / steep))
    level = np.exp(np.log(begin) * (1 - share) + np.log(end) * share)
    drift = np.exp(rng.uniform(0, 1.5) * at / rows)
    values = level * drift * rng.lognormal(0, rng.uniform(0.03, 1.0), rows)
    out = rng.random(rows) < rng.uniform(0, 0.02)
    values[out] *= rng.uniform(3, 140, int(out.sum()))
    if rng.random() < 0.3:  # batches in which no answer was better than another: nothing is learned, little is left
        values[rng.random(rows) < rng.uniform(0.05, 0.4)] = begin
    return values


@kind("GRPO: a multiple of the divergence")
def exact_grpo(rng: Generator, rows: int) -> Run:
    return Run(_divergence(rng, rows), declared="surrogate")


@kind("GRPO: the same with four digits")
def printed_grpo(rng: Generator, rows: int) -> Run:
    return Run(np.round(_divergence(rng, rows), 4), declared="surrogate")


@kind("GRPO: of both signs")
def signed_grpo(rng: Generator, rows: int) -> Run:
    """Batches that are used twice, or losses that are not divided by the answers' lengths."""
    size = 10 ** rng.uniform(-3, 1)
    values = rng.standard_t(3, rows) * size + _divergence(rng, rows)
    values[rng.random(rows) < rng.uniform(0, 0.4)] = 0.0
    return Run(values - rng.uniform(0, 3) * size * (rng.random() < 0.3), declared="surrogate")


@kind("a divergence that is logged as the loss")
def divergence(rng: Generator, rows: int) -> Run:
    """Grows from its first row, evenly or to a level, with the noise of a mean over few or many tokens."""
    at = np.arange(1, rows + 1)
    grown = at / rows if rng.random() < 0.5 else np.tanh(at / rng.uniform(rows / 10, rows))
    begin = rng.uniform(0, 0.2)
    return Run(
        (begin + grown) * rng.uniform(0.001, 3) * rng.lognormal(0, rng.uniform(0.03, 0.5), rows), declared="reward"
    )


@kind("DPO and its kin")
def preferences(rng: Generator, rows: int) -> Run:
    """The mean of log(1 + exp(-margin)) over a batch: ln 2 at first, then the margins of easy and hard pairs grow."""
    batch = int(rng.choice([1, 2, 4, 8, 16, 64]))
    at = np.arange(rows)
    warm = np.clip((at - rng.uniform(0, rows / 10)) / rng.uniform(rows / 10, rows), 0, 1)
    mean, spread = rng.uniform(0.2, 6), rng.uniform(0.3, 3)
    epochs = 1 + rng.uniform(0, 1.5) * (at // max(rows // int(rng.integers(1, 4)), 1))  # pairs seen again are easier
    margins = (warm * epochs)[:, None] * rng.normal(mean, mean * spread, (rows, batch))
    values = np.logaddexp(0, -margins).mean(axis=1)
    return Run(np.round(values, 4) if rng.random() < 0.5 else values, declared="surrogate")
