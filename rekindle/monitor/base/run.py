"""What all parts of one process's monitor share: which Job, attempt, life and rank it is of, and what it uses."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from rekindle.compat import UTC
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.settings import Config
from rekindle.monitor.base.state import RunState
from rekindle.monitor.base.trouble import Trouble


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware UTC, for the wire."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for durations."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class Holding:
    """What is known of who holds the run: this process, as life number `life`, or the newer life `lost_to`.

    refusal: why this process stays silent, empty where it does not.
    """

    life: int = 0
    lost_to: int | None = None
    refusal: str = ""

    @property
    def is_open(self) -> bool:
        """Whether another process may still object to this one's claim."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`attempt` is the platform's own name of the attempt (TRAINING_JOB_NAME on SageMaker).

    `host` is the node's own name for itself, as far as it is known. `holding` changes once the run has been claimed.
    """

    job_id: str
    attempt: str
    attempt_number: int
    rank: int
    world_size: int
    host: str = ""
    holding: Holding = field(default_factory=Holding, compare=False)

    @property
    def life(self) -> int:
        """Which start of the attempt's processes this is."""
        return self.holding.life


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process of an attempt: who it is, its settings, where it stands; its clock, AWS clients and error counts."""

    identity: Identity
    config: Config = field(default_factory=Config)
    clock: Clock = field(default_factory=SystemClock)
    trouble: Trouble = field(default_factory=Trouble)
    state: RunState = field(default_factory=RunState)
    clients: Clients = field(default_factory=Clients)

    @property
    def is_first(self) -> bool:
        """Of rank 0, which speaks for the run."""
        return self.identity.rank == 0
