"""What all parts of one process's monitor share."""

from __future__ import annotations

from dataclasses import dataclass, field

from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.clock import Clock, SystemClock
from rekindle.monitor.base.identity import Identity
from rekindle.monitor.base.settings import Config
from rekindle.monitor.base.state import RunState
from rekindle.monitor.base.trouble import Trouble


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
