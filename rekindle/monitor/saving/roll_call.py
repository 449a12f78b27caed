"""Which ranks have left their mark below a key of the exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rekindle.monitor.mail.exchange import Exchange

MAX_NAMED: Final = 16  # ranks in a message
AT_ONCE: Final = 256  # keys in one look


@dataclass(slots=True)
class RollCall:
    """Looked at from the lowest rank on: one read per look."""

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
