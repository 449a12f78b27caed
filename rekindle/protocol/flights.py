"""What one rank's flight recorder holds of its collectives, in brief, and what NCCL's RAS says of the run's ranks: both
travel in the rank's report of a stall.

Of each process group the last collective that the rank has entered, and the few calls that tell most: the oldest that
have not ended, and the newest. A dump of torch's has 2,000; `rekindle.detectors.dumps` makes this of one. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Final

from rekindle.compat import Self, StrEnum
from rekindle.protocol.bounds import Count, Items, Rank, Text, WorldSize, check_printable
from rekindle.protocol.codec import Document

MAX_GROUPS: Final = 16  # data, tensor, pipeline, expert and context parallelism make fewer than a rank has time to use
MAX_CALLS: Final = 6
MAX_NAME_CHARS: Final = 64
MAX_TENSORS_CHARS: Final = 96
MAX_RANKS_CHARS: Final = 256
MAX_RAS: Final = 16

Name = Annotated[str, Text(MAX_NAME_CHARS, check=check_printable)]
Tensors = Annotated[str, Text(MAX_TENSORS_CHARS, check=check_printable)]
RanksText = Annotated[str, Text(MAX_RANKS_CHARS, pattern=r"[0-9,:-]*", problem="must be like 0-7,16,24-56:8")]


class CallState(StrEnum):
    """`waiting`: entered, and not known to have begun on the device. `started`: begun there. `done`: ended."""

    WAITING = "waiting"
    STARTED = "started"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Document):
    """One collective, or one send or receive, which are counted apart (`is_p2p`). `tensors`: shapes and types."""

    seq: Count
    op: Name
    tensors: Tensors = ""
    state: CallState = CallState.DONE
    is_p2p: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFlight(Document):
    """One process group, as one backend serves it: each counts for itself. `entered`: the last collective's number, 0
    before the first. `ranks`: the members, as `ranks_text` writes them; empty where the recorder does not name them.
    """

    name: Name
    desc: Name = ""
    backend: Name = ""
    ranks: RanksText = ""
    entered: Count = 0
    calls: Annotated[tuple[Call, ...], Items(MAX_CALLS)] = ()

    @property
    def first_waiting(self) -> Call | None:
        """The oldest collective that has not ended; the later ones wait for it."""
        waiting = [call for call in self.calls if call.state is not CallState.DONE and not call.is_p2p]
        return min(waiting, key=lambda call: call.seq, default=None)

    def at(self, seq: int) -> Call | None:
        """The collective of that number, where it is among those that are kept."""
        return next((call for call in self.calls if call.seq == seq and not call.is_p2p), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight(Document):
    """The groups that matter most first: those in which something has not ended, then the newest used."""

    groups: Annotated[tuple[GroupFlight, ...], Items(MAX_GROUPS)] = ()

    def cut_to(self, groups: int) -> Self:
        return self if len(self.groups) <= groups else replace(self, groups=self.groups[:groups])


class RasState(StrEnum):
    """Worst first."""

    DEAD = "dead"
    UNRESPONSIVE = "unresponsive"
    MISSING = "missing"  # its process has told nothing, and is neither known to be dead nor silent
    FAILED = "failed"  # NCCL reports an asynchronous error there
    BEHIND = "behind"  # has launched fewer operations than most


@dataclass(frozen=True, slots=True, kw_only=True)
class RasSuspect(Document):
    """What NCCL's RAS says of one rank: `rank` within a communicator of `size`, or of the run, where `is_of_run`."""

    state: RasState
    rank: Rank
    size: WorldSize
    host: Annotated[str, Text(255, check=check_printable)] = ""
    text: Annotated[str, Text(200, check=check_printable)] = ""
    is_of_run: bool = False


def ranks_text(ranks: Iterable[int]) -> str:
    """`0-7,16,24-56:8` (from, to, and the distance between two); empty where that would be too long."""
    left, parts = sorted(set(ranks)), []
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        length = 1
        while length < len(left) and left[length] - left[length - 1] == step:
            length += 1
        if length == 2 and step > 1:
            length = 1
        parts.append(str(left[0]) if length == 1 else f"{left[0]}-{left[length - 1]}{f':{step}' if step > 1 else ''}")
        left = left[length:]
    text = ",".join(parts)
    return text if len(text) <= MAX_RANKS_CHARS else ""


def ranks_of(text: str, world_size: int) -> frozenset[int]:
    """Inverse of `ranks_text`, of the ranks that a run of that size has. What that does not write is left out."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and (step or "1").isdecimal():
            found.update(range(int(first), min(int(last or first) + 1, world_size), max(1, int(step or 1))))
    return frozenset(found)
