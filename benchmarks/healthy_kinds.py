"""Healthy training runs, by kind of loss curve. Definitions only; `benchmarks.healthy` measures them.

No run here is in trouble: an alarm worth a recovery on any of them is false. Every definition takes a seeded generator
and a length, and draws its amplitudes, lengths and periods per run, so that no constant of a detector can be fitted to
a single process. Losses are per step unless the kind says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.healthy_dqn import train

Array = NDArray[np.float64]
Generator = np.random.Generator


@dataclass(frozen=True, slots=True)
class Run:
    """One healthy run. `announced`: (row, what) of the changes that a script could announce; `lr` by row, if known."""

    losses: Array
    every: int = 1
    announced: tuple[tuple[int, str], ...] = ()
    lr: Array | None = None
    declared: str = ""  # the kind of loss a script could declare; "" for one that is judged


Make = Callable[[Generator, int], Run]
KINDS: dict[str, Make] = {}


def kind(name: str) -> Callable[[Make], Make]:
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
    return np.exp(rng.normal(0, rng.uniform(low, high), rows))


def usual(rng: Generator, rows: int) -> Array:
    return falling(rng, rows) * noise(rng, rows)


def starts(rng: Generator, rows: int, gap: float, *, first: int = 200) -> list[int]:
    """Rows at which something happens, as a Poisson process."""
    at, found = float(first), []
    while (at := at + rng.exponential(gap)) < rows:
        found.append(int(at))
    return found


def blocks(rng: Generator, rows: int, shortest: float, longest: float, choices: int) -> NDArray[np.int64]:
    """Which of the choices each row belongs to, in blocks of random length."""
    which = np.zeros(rows, dtype=np.int64)
    at = 0
    while at < rows:
        length = max(1, int(rng.uniform(shortest, longest)))
        which[at : at + length] = rng.integers(choices)
        at += length
    return which


# ---- data ----------------------------------------------------------------------------------------------------------


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


# ---- schedules and planned changes ---------------------------------------------------------------------------------


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


# ---- losses that say little ----------------------------------------------------------------------------------------


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


@kind("a real DQN on a cart and pole")
def real_dqn(rng: Generator, rows: int) -> Run:
    return Run(train(rng, rows)[0], declared="td")


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


# ---- how a loss is put together and logged -------------------------------------------------------------------------


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
    make = list(KINDS.values())[int(rng.integers(5))]  # of the data kinds above
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
