"""Losses that say little about the health of a run: rewards, surrogates, temporal differences, adversaries."""

from __future__ import annotations

import numpy as np

from benchmarks.healthy_kinds.base import Array, Generator, Run, falling, kind, noise, starts


@kind("rewards around zero")
def rewards(rng: Generator, rows: int) -> Run:
    trend = rng.uniform(-2, 2) * np.tanh(np.arange(rows) / rng.uniform(1000, 20_000))
    return Run(rng.normal(0, rng.uniform(0.3, 2), rows) - trend, declared="reward")


@kind("rewards of growing episodes")
def growing_rewards(rng: Generator, rows: int) -> Run:
    mean = 10 + rng.uniform(100, 490) / (1 + np.exp(-(np.arange(rows) - rows / 3) / (rows / 15)))
    drops = np.ones(rows)
    for at in starts(rng, rows, rng.uniform(800, 4000)):  # a policy unlearns and learns again
        tau = rng.uniform(20, 400)
        drops[at:] *= 1 - rng.uniform(0.1, 0.7) * np.exp(-np.arange(rows - at) / tau)
    values = mean * drops * np.exp(rng.normal(0, rng.uniform(0.05, 0.4), rows))
    return Run(values if rng.random() < 0.5 else -values, declared="reward")


@kind("policy surrogate (GRPO, PPO)")
def surrogate(rng: Generator, rows: int) -> Run:
    kl = rng.uniform(0, 0.05) * np.tanh(np.arange(rows) / rng.uniform(1000, 10_000))
    clipped = rng.standard_t(3, rows) * rng.uniform(0.003, 0.05) * (1 + 3 * (rng.random(rows) < 0.005))
    return Run(kl + clipped, declared="surrogate")


@kind("PPO: surrogate, value and entropy")
def ppo(rng: Generator, rows: int) -> Run:
    value = rng.lognormal(0, rng.uniform(0.3, 0.8), rows) * (0.1 + np.exp(-np.arange(rows) / rng.uniform(2000, 20_000)))
    for at in starts(rng, rows, rng.uniform(800, 4000)):  # the policy finds new rewards, which the value must learn
        value[at:] *= 1 + rng.uniform(0.3, 3) * np.exp(-np.arange(rows - at) / rng.uniform(30, 400))
    return Run(0.5 * value + rng.normal(0, 0.03, rows) - 0.01 * rng.uniform(0.2, 1.5), declared="surrogate")


@kind("temporal difference")
def temporal_difference(rng: Generator, rows: int) -> Run:
    """Grows with the values it learns, jumps at each copy of the target network, and has a heavy tail."""
    sync, up, tau = int(rng.integers(200, 5000)), rng.uniform(0.2, 3), rng.uniform(20, 300)
    at = np.arange(rows)
    keep = np.exp(-1 / rng.uniform(100, 2000))
    walk, value = np.empty(rows), 0.0
    for i, shock in enumerate(rng.normal(0, 0.4 * np.sqrt(1 - keep * keep), rows)):
        value = keep * value + shock
        walk[i] = value
    scale = rng.uniform(0.001, 1) * (0.05 + np.tanh(at / rng.uniform(2000, 20_000)))
    shape = np.exp(walk) * (1 + up * np.exp(-(at % sync) / tau))
    return Run(scale * shape * rng.lognormal(0, rng.uniform(0.15, 0.8), rows), declared="td")


@kind("GAN: generator")
def gan_generator(rng: Generator, rows: int) -> Run:
    return Run(_gan(rng, rows, 1.0), declared="adversarial")


@kind("GAN: discriminator")
def gan_discriminator(rng: Generator, rows: int) -> Run:
    return Run(_gan(rng, rows, -1.0), declared="adversarial")


def _gan(rng: Generator, rows: int, sign: float) -> Array:
    """Two players: the loss of one swings up where the other's swings down, in slow uneven waves."""
    at = np.arange(rows)
    swing = np.zeros(rows)
    for _ in range(4):
        swing += rng.uniform(0.05, 0.3) * np.sin(2 * np.pi * at / rng.uniform(200, 8000) + rng.uniform(0, 6.28))
    level = np.log(rng.uniform(0.7, 3)) + sign * (swing + 0.5 * np.tanh(at / rng.uniform(2000, 20_000)))
    return np.exp(level + rng.normal(0, rng.uniform(0.05, 0.25), rows))


@kind("diffusion")
def diffusion(rng: Generator, rows: int) -> Run:
    """The mean over a few noise levels, whose losses differ by orders of magnitude."""
    batch = int(rng.integers(1, 17))
    each = np.exp(-4 * rng.random((rows, batch))).mean(axis=1)
    return Run(falling(rng, rows) * each * noise(rng, rows))
