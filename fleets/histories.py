"""Failure histories: published rates, each row with its source, drawn by seed. Whole traces: `traces`. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from fleets.causes import (
    FLAKY,
    FLAKY_HANG,
    GPU,
    GPU_MEMORY,
    HOST,
    MAINTENANCE,
    NETWORK,
    NIC,
    SILENT_CORRUPTION,
    SOFTWARE,
    WATCHDOG,
    Cause,
)
from fleets.figures import RATE
from fleets.runs import DAY_S, Failure

GPUS_PER_NODE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Failures of one run over `wall_s`, in their order. `source`: where they come from, and what is assumed."""

    name: str
    nodes: int
    wall_s: float
    failures: tuple[Failure, ...]
    source: str
    gpus_per_node: int = GPUS_PER_NODE

    @property
    def mean_s(self) -> float:
        """Mean time between failures."""
        return self.wall_s / max(1, len(self.failures))


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published count of interruptions."""

    component: str
    count: int
    cause: Cause
    source: str


_LLAMA: Final = "Llama 3 (arXiv 2407.21783), table 5"
LLAMA3_DAYS: Final = 54
LLAMA3_GPUS: Final = 16_384
LLAMA3: Final = tuple(
    Published(component=component, count=count, cause=cause, source=_LLAMA)
    for component, count, cause in (
        ("Faulty GPU", 148, GPU),
        ("GPU HBM3 Memory", 72, GPU_MEMORY),
        ("Software Bug", 54, SOFTWARE),
        ("Network Switch/Cable", 35, NETWORK),
        ("Host Maintenance", 32, MAINTENANCE),
        ("GPU SRAM Memory", 19, GPU_MEMORY),
        ("GPU System Processor", 17, GPU),
        ("NIC", 7, NIC),
        ("NCCL Watchdog Timeouts", 7, WATCHDOG),
        ("Silent Data Corruption", 6, SILENT_CORRUPTION),
        ("GPU Thermal Interface + Sensor", 6, GPU),
        ("SSD", 3, HOST),
        ("Power Supply", 3, HOST),
        ("Server Chassis", 2, HOST),
        ("IO Expansion Board", 2, HOST),
        ("Dependency", 2, SOFTWARE),
        ("CPU", 2, HOST),
        ("System Memory", 2, HOST),
    )
)

_LABLUP: Final = "arXiv 2605.09370: 504 B200, 63 nodes, 73 days"
LABLUP_DAYS: Final = 73
LABLUP_NODES: Final = 63
LABLUP_GPU_FAILURES: Final = 10  # by XID
LABLUP_CHAINS: Final = 12  # of automatic retries; each is one failure that a retry on the same nodes need not cure
LABLUP_SUSPECTS: Final = 3  # nodes that make up more than half of all exclusions


def llama3(seed: int) -> History:
    """The 54 days: every counted interruption, at times drawn evenly."""
    rng = random.Random(seed)  # noqa: S311  a simulation
    nodes, wall_s = LLAMA3_GPUS // GPUS_PER_NODE, LLAMA3_DAYS * DAY_S
    failures = sorted(
        Failure(at_s=rng.uniform(0, wall_s), cause=row.cause, node=rng.randrange(nodes))
        for row in LLAMA3
        for _ in range(row.count)
    )
    return History(
        name="Llama 3, 16,384 GPUs, 54 days",
        nodes=nodes,
        wall_s=wall_s,
        failures=tuple(failures),
        source=f"{_LLAMA}: 419 counted interruptions; when each came is drawn evenly (not published).",
    )


def poisson(*, nodes: int, days: float, mean_s: float, seed: int, name: str = "", source: str = "") -> History:
    """Failures at a constant rate, their causes as often as in Llama 3's table."""
    rng = random.Random(seed)  # noqa: S311
    wall_s = days * DAY_S
    return History(
        name=name or f"{nodes * GPUS_PER_NODE:,} GPUs",
        nodes=nodes,
        wall_s=wall_s,
        failures=tuple(drawn(rng, nodes=nodes, mean_s=mean_s, wall_s=wall_s)),
        source=source,
    )


def drawn(rng: random.Random, *, nodes: int, mean_s: float, wall_s: float) -> Iterator[Failure]:
    """Poisson arrivals until `wall_s`."""
    causes, weights = mix()
    bounds = list(accumulate(weights))
    at = rng.expovariate(1.0 / mean_s)
    while at < wall_s:
        cause = rng.choices(causes, cum_weights=bounds)[0]
        yield Failure(at_s=at, cause=cause, node=rng.randrange(nodes))
        at += rng.expovariate(1.0 / mean_s)


def mix() -> tuple[Sequence[Cause], Sequence[int]]:
    """Llama 3's causes and how often each came."""
    counts: dict[str, tuple[Cause, int]] = {}
    for row in LLAMA3:
        counts[row.cause.name] = (row.cause, counts.get(row.cause.name, (row.cause, 0))[1] + row.count)
    return [cause for cause, _ in counts.values()], [count for _, count in counts.values()]


def meta512(seed: int, *, days: float = 365.0) -> History:
    """512 GPUs at Meta's rate."""
    nodes = 64
    return poisson(
        nodes=nodes,
        days=days,
        mean_s=mean_of(nodes),
        seed=seed,
        name="Meta's rate, 512 GPUs, 365 days",
        source=f"{RATE}; Poisson arrivals; causes as often as in {_LLAMA}.",
    )


def mean_of(nodes: int, *, gpus_per_node: int = GPUS_PER_NODE) -> float:
    """Mean seconds between failures of a run on `nodes` nodes, at Meta's rate; a smaller node fails in proportion."""
    return DAY_S / (nodes * gpus_per_node / GPUS_PER_NODE * RATE.value / 1000.0)


def lablup(seed: int) -> History:
    """The 73 days on 504 B200: GPU failures, and nodes that fail again and again."""
    rng = random.Random(seed)  # noqa: S311
    wall_s = LABLUP_DAYS * DAY_S
    failures = [
        Failure(at_s=rng.uniform(0, wall_s), cause=GPU, node=rng.randrange(LABLUP_SUSPECTS, LABLUP_NODES))
        for _ in range(LABLUP_GPU_FAILURES)
    ]
    for number in range(LABLUP_CHAINS):
        cause = FLAKY if number % 2 else FLAKY_HANG
        failures.append(
            Failure(at_s=rng.uniform(0, wall_s), cause=cause, node=rng.randrange(LABLUP_SUSPECTS), lasts=True)
        )
    return History(
        name="504 B200 GPUs, 73 days",
        nodes=LABLUP_NODES,
        wall_s=wall_s,
        failures=tuple(sorted(failures)),
        source=f"{_LABLUP}: 10 GPU failures by XID; its 12 retry chains are put on 3 nodes of suspect hardware, "
        "half as hangs, half as crashes that name no node (assumed: the report prints no causes); "
        "one run all the time (assumed).",
    )
