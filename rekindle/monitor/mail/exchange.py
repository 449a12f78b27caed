"""What the ranks of one run share with each other: a few small texts. Never used on the training thread.

The ranks agree on a save through an exchange (see `negotiation`), not through a collective: a rank that is late, dead
or takes no part then delays an agreement instead of freezing the others. `rekindle.integrations.torch_ranks` makes one
of torch.distributed's own store, which needs no further connection; without PyTorch the mailbox serves as one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rekindle.compat import Self
from rekindle.monitor.base.run import Clock, Identity
from rekindle.monitor.mail.boxes import Box
from rekindle.protocol.codec import Document
from rekindle.protocol.lives import named
from rekindle.protocol.wire import FOLDER, check_id


class Exchange(Protocol):
    """All ranks see the same keys; each operation is atomic. Every method may raise what its transport raises.

    Keys are ASCII letters, digits, `-` and `/`; values are short texts without surrogates. A call may take as long as
    the transport takes; no method waits for a key to appear.

    poll_s: how often a rank may look for news without being a load. quick_s: the same while ranks wait for each other.
    """

    @property
    def poll_s(self) -> float: ...

    @property
    def quick_s(self) -> float: ...

    def get(self, key: str) -> str | None:
        """The value, or None where there is none yet."""
        ...

    def put(self, key: str, value: str) -> None:
        """Write or overwrite."""
        ...

    def put_new(self, key: str, value: str) -> str:
        """Write only where nothing is. Returns the value that holds: this one, or the one that was there."""
        ...

    def has_all(self, keys: Sequence[str]) -> bool:
        """Whether every one of these keys is there."""
        ...

    def forget(self, key: str) -> None:
        """Free what a value takes, where the transport can; the key is not used again."""
        ...


class Note(Document):
    """What one rank leaves for others under a key, as one text."""

    __slots__ = ()

    def to_text(self) -> str:
        return json.dumps(self.to_wire())

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Raises: ValueError for anything that `to_text` does not write."""
        try:
            return cls.from_wire(json.loads(text))
        except RecursionError as err:
            raise ValueError("nested too deep") from err


class BoxExchange:
    """The mailbox as an exchange: a shared directory, or S3, for runs without torch.distributed.

    On S3 a look is a paid request, and 64 ranks at one read in 5 s make about a million a day (0.45 dollars at the list
    price in docs/monitor.md): hence `MAX_RANKS_ON_S3`.
    """

    def __init__(self, box: Box, *, attempt: str, world_size: int, life: int = 0) -> None:
        self._box = box
        self._folder = f"{FOLDER}/exchange/{check_id(named(attempt, life), 'attempt')}"
        is_directory = box.is_directory
        self.poll_s = max(0.5, 0.005 * world_size) if is_directory else 5.0
        self.quick_s = max(0.01, 0.001 * world_size) if is_directory else 0.5

    def get(self, key: str) -> str | None:
        raw = self._box.get(self._key(key))
        return None if raw is None else raw.decode("utf-8", "replace")

    def put(self, key: str, value: str) -> None:
        self._box.put(self._key(key), value.encode("utf-8", "replace"))

    def put_new(self, key: str, value: str) -> str:
        if self._box.put_new(self._key(key), value.encode("utf-8", "replace")):
            return value
        held = self.get(key)
        return value if held is None else held

    def has_all(self, keys: Sequence[str]) -> bool:
        wanted = {self._key(key) for key in keys}
        folders = {key.rpartition("/")[0] for key in wanted}
        return wanted <= {name for folder in folders for name in self._box.names(f"{folder}/")}

    def forget(self, key: str) -> None:
        """A mailbox deletes nothing: what lies there is small, and goes with the attempt's folder."""

    def _key(self, key: str) -> str:
        return f"{self._folder}/{key}.json"


MAX_RANKS_ON_S3 = 64


def exchange_of(box: Box | None, identity: Identity) -> BoxExchange | None:
    """The mailbox as an exchange of one life's ranks; None where there is no mailbox, or where it would be a load."""
    if box is None or (identity.world_size > MAX_RANKS_ON_S3 and not box.is_directory):
        return None
    return BoxExchange(box, attempt=identity.attempt, world_size=identity.world_size, life=identity.life)


class Paced:
    """An exchange, looked at as often as the user says."""

    def __init__(self, inner: Exchange, poll_s: float) -> None:
        self.poll_s, self.quick_s = poll_s, min(inner.quick_s, poll_s)
        self.get, self.put, self.put_new = inner.get, inner.put, inner.put_new
        self.has_all, self.forget = inner.has_all, inner.forget


class Connection:
    """An exchange that is opened when it is first needed, and again some time after it broke; longer each time.

    open_exchange: may raise. reopen_s, at_most_s: the first of these times, and the longest.
    """

    def __init__(
        self, open_exchange: Callable[[], Exchange | None], clock: Clock, *, reopen_s: float, at_most_s: float
    ) -> None:
        self._open, self._clock = open_exchange, clock
        self._reopen_s, self._at_most_s = reopen_s, at_most_s
        self._open_at = clock.monotonic()
        self.exchange: Exchange | None = None
        self.failures = 0  # in a row
        self.is_closed = False

    @property
    def opens_in_s(self) -> float:
        return self._at_most_s if self.is_closed else max(0.0, self._open_at - self._clock.monotonic())

    def opened(self, *, at_once: bool = False) -> Exchange | None:
        """None where it is not to be opened yet, or there is none. Raises what opening it raises.

        at_once: also right after its first failure, which takes milliseconds or fails.
        """
        is_due = self.opens_in_s <= 0 or (at_once and self.failures == 1)
        if self.exchange is None and is_due and not self.is_closed:
            self.exchange = self._open()
            self._open_at = self._clock.monotonic() + self._at_most_s
        return self.exchange

    def broke(self) -> float:
        """It raised. Returns the seconds until it is opened again."""
        wait_s: float = min(self._reopen_s * 2**self.failures, self._at_most_s)
        self.failures = min(self.failures + 1, 16)
        self._open_at = self._clock.monotonic() + wait_s
        self.exchange = None
        return wait_s

    def close(self) -> None:
        """It is not used any more, nor opened again."""
        self.exchange, self.is_closed = None, True


MAX_NAMED: Final = 16  # ranks in a message
AT_ONCE: Final = 256  # keys in one look


@dataclass(slots=True)
class RollCall:
    """Which ranks have left their mark below a key. Looked at from the lowest rank on: one read per look."""

    key: str
    world_size: int
    _first_absent: int = 0

    def is_full(self, exchange: Exchange) -> bool:
        while self._first_absent < self.world_size:
            until = min(self._first_absent + AT_ONCE, self.world_size)
            if not exchange.has_all([f"{self.key}/{rank}" for rank in range(self._first_absent, until)]):
                return False
            self._first_absent = until
        return True

    def absent(self, exchange: Exchange) -> str:
        """The ranks without a mark, for a message."""
        missing = [rank for rank in range(self.world_size) if not exchange.has_all([f"{self.key}/{rank}"])]
        named = ", ".join(str(rank) for rank in missing[:MAX_NAMED])
        return f"{named}{' and more' if len(missing) > MAX_NAMED else ''} of {self.world_size}"

    def forget(self, exchange: Exchange) -> None:
        for rank in range(self.world_size):
            exchange.forget(f"{self.key}/{rank}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """All of it is optional; `rekindle.integrations.torch` sets it from torch.distributed.

    rank, world_size: default as the launcher says (RANK, WORLD_SIZE; Open MPI's; Slurm's).
    exchange: opens what the ranks agree through, on a separate thread (see `Exchange`); default the mailbox, which
    suits a shared directory, or S3 for up to 64 ranks.
    share: gives every rank the text that rank 0 was called with, such as a broadcast: all ranks then resume from the
    step of rank 0. Without it, ranks that resumed from different steps are detected at their first agreement, and
    saving is disabled.
    saves_alone: rank 0's save needs no other rank (each rank holds the whole model): where the ranks cannot agree,
    rank 0 saves alone. Without it such a save is refused.
    end_collectives: makes the collectives of this process end with an error, as far as that is possible; called when a
    save in which ranks wait for each other was abandoned. Then `should_stop` is set, too.
    """

    rank: int | None = None
    world_size: int | None = None
    exchange: Callable[[], Exchange | None] | None = None
    share: Callable[[str], str] | None = None
    saves_alone: bool = False
    end_collectives: Callable[[], None] | None = None
