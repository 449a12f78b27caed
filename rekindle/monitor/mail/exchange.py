"""What the ranks of one run share with each other: a few small texts. Never used on the training thread.

The ranks agree on a save through an exchange (see `negotiation`), not through a collective: a rank that is late, dead
or takes no part then delays an agreement instead of freezing the others. `rekindle.integrations.torch_ranks` makes one
of torch.distributed's own store, which needs no further connection; without PyTorch the mailbox serves as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rekindle.monitor.mail.boxes import Box
from rekindle.protocol.lives import named
from rekindle.protocol.mailbox import FOLDER, check_id


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


def exchange_of(box: Box | None, *, attempt: str, world_size: int, life: Callable[[], int] = int) -> BoxExchange | None:
    """The mailbox as an exchange of one life's ranks; None where there is no mailbox, or where it would be a load."""
    if box is None or (world_size > MAX_RANKS_ON_S3 and not box.is_directory):
        return None
    return BoxExchange(box, attempt=attempt, world_size=world_size, life=life())


class Paced:
    """An exchange, looked at as often as the user says."""

    def __init__(self, inner: Exchange, poll_s: float) -> None:
        self.poll_s, self.quick_s = poll_s, min(inner.quick_s, poll_s)
        self.get, self.put, self.put_new = inner.get, inner.put, inner.put_new
        self.has_all, self.forget = inner.has_all, inner.forget
