"""Lives of an attempt: each start of all of its processes, numbered from 0, and who holds it.

    <mailbox>/rekindle/lives/<attempt>/<rank, five digits>/<life, six digits>.json

A process claims its rank of a life before it writes anything else. Rank 0's claims are numbered without gaps, and none
is another process's afterwards: the newest one that is held says whose the run is, and when it became theirs. What a
life writes is kept apart by its number, see `named`. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final

from rekindle.compat import StrEnum
from rekindle.protocol.bounds import Count, Identity, Rank, Text, Words
from rekindle.protocol.message import Message
from rekindle.protocol.wire import FOLDER, MAX_RANK, MailboxError, check_id

MAX_LIFE: Final = 999_999
_KEY: Final = re.compile(r"(?:.*/)?[0-9]{5,8}/(?P<life>[0-9]{6})\.json\Z", re.DOTALL)
_IN_NAME: Final = re.compile(r"\.g(?P<life>[1-9][0-9]{0,5})\Z")


class OfLife:
    """A message that says in `life` which life of an attempt has written it. The first one leaves it out: what it
    writes is what was written before there were lives, to the byte.
    """

    __slots__ = ()

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = super().to_wire()  # type: ignore[misc]  # of the message that it is mixed into
        return wire if wire["life"] else {name: value for name, value in wire.items() if name != "life"}


class Standing(StrEnum):
    """`contested`: another process held the rank and may live; it may object. `refused`: it does, and it holds it."""

    HELD = "held"
    CONTESTED = "contested"
    REFUSED = "refused"


ProcessName = Annotated[str, Text(256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Message):
    """Whose one rank of one life is.

    `process` names the process so that others of its host can tell whether it lives; `launcher` the one that started
    it, where that is one which starts its workers again, and `restarts` how often it has done so. `why` says, of one
    that is refused, what its holder does.
    """

    job_id: Identity
    attempt: Identity
    life: Count
    rank: Rank
    standing: Standing
    host: Annotated[str, Text(255)] = ""
    process: ProcessName
    launcher: ProcessName = ""
    restarts: Count = 0
    why: Words = ""
    at: datetime

    @property
    def key(self) -> str:
        return life_key(self.attempt, self.rank, self.life)


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A claim of rank 0 as a mailbox's listing names it; what it says, and its time by the store's clock, on demand."""

    life: int
    read: Callable[[], bytes | None]
    written_at: Callable[[], datetime | None]

    @property
    def is_held(self) -> bool:
        try:
            return Claim.from_json(self.read() or b"").standing is Standing.HELD
        except MailboxError:  # a rank's own rubbish makes no other's checkpoints late
            return False


@dataclass(slots=True)
class LivesOfAttempts:
    """When the lives of attempts ended, as a mailbox is while a look lasts: each attempt's claims are listed once.

    claims: rank 0's of an attempt, the oldest first. Raises what the mailbox raises.
    """

    claims: Callable[[str], Iterable[ListedClaim]]
    _listed: dict[str, list[ListedClaim]] = field(default_factory=dict)
    _ends: dict[tuple[str, int], datetime | None] = field(default_factory=dict)

    def ended_at(self, attempt: str, life: int) -> datetime | None:
        """When the next one that is held was claimed; None for a life that no other has followed."""
        if (attempt, life) not in self._ends:
            if attempt not in self._listed:
                self._listed[attempt] = list(self.claims(attempt))
            later = (claim for claim in self._listed[attempt] if claim.life > life and claim.is_held)
            first = next(later, None)
            self._ends[attempt, life] = None if first is None else first.written_at()
        return self._ends[attempt, life]


def life_prefix(attempt: str, rank: int) -> str:
    """Raises: MailboxError for a bad id or rank."""
    if isinstance(rank, bool) or not 0 <= rank <= MAX_RANK:
        raise MailboxError("rank", f"must be 0 to {MAX_RANK}")
    return f"{FOLDER}/lives/{check_id(attempt, 'attempt')}/{rank:05d}/"


def life_key(attempt: str, rank: int, life: int) -> str:
    """Raises: MailboxError for a bad id, rank or number."""
    if not 0 <= life <= MAX_LIFE:
        raise MailboxError("life", f"must be 0 to {MAX_LIFE}")
    return f"{life_prefix(attempt, rank)}{life:06d}.json"


def life_in(key: str) -> int | None:
    """The number of a claim, by its key; None for a key that is no claim's."""
    match = _KEY.match(key)
    return None if match is None else int(match["life"])


def named(attempt: str, life: int) -> str:
    """What a life of an attempt calls itself where it must not meet the others': `run-a1`, then `run-a1.g1`."""
    return attempt if life == 0 else f"{attempt}.g{life}"


def split_name(name: str) -> tuple[str, int]:
    """Inverse of `named`: the attempt, and which of its lives."""
    match = _IN_NAME.search(name)
    return (name, 0) if match is None else (name[: match.start()], int(match["life"]))
