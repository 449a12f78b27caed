"""What a policy does about one failure: the one shape that Rekindle's rows and everybody else's have. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chalicelib.domain.model.node_findings import Rung
from fleets.causes import Cause
from fleets.figures import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is done about one failure, or about one more try of it. Seconds.

    detect_s      from the fault until it is detected
    down_s        from then until a new attempt trains, the start included, waits for a node not
    keeps_all     it resumes from the step at which it failed (a copy in memory, every step)
    goes_back     after a poisoned loss: it resumes from before the onset, else from the newest checkpoint
    excludes      the broken node is kept out of the new attempt
    rung          how that node is repaired, and by whom; None: it is not
    by_platform   HyperPod itself repairs it
    over_evicts   healthy nodes that are taken out with it
    by_person     a person acts: the end is not the policy's own
    pages         how many people's alarms ring
    unsafe        actions that the truth forbids, beside those that the play itself sees
    """

    detect_s: float
    down_s: float
    keeps_all: bool = False
    goes_back: bool = True
    excludes: bool = False
    rung: Rung | None = None
    by_platform: bool = False
    over_evicts: int = 0
    by_person: bool = False
    pages: int = 0
    unsafe: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One failure to answer. `tries`: new starts that have failed of it; `since_s`: how long ago it struck; `repaired`:
    the same node was rebooted in the last days, or so often that it is suspect hardware.
    """

    cause: Cause
    setting: Setting
    tries: int = 0
    since_s: float = 0.0
    repaired: bool = False


class Rules(Protocol):
    """One row: a policy.

    `spares` are nodes beside the run's own. `save_share`: what part of the time its saves take, None: a save every
    interval. `repairs_per_day`: how many repairs of its own within 24 h before a person is called, None: no bound.
    """

    @property
    def name(self) -> str: ...

    @property
    def spares(self) -> int: ...

    @property
    def save_share(self) -> float | None:
        return None

    @property
    def repairs_per_day(self) -> int | None:
        return None

    @property
    def assumptions(self) -> tuple[str, ...]: ...

    def answer(self, case: Case) -> Answer:
        """The answer to one failure, or to one more try of it."""
        ...
