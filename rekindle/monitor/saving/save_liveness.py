"""Whether the other ranks in a save still live: a rank that is killed there says nothing, and the others wait for it.

During a save every rank counts up under `<save>/pulse/<rank>`, and watches the ranks before and after its own, so that
it costs each rank the same however many there are. Where several ranks die, one of them has a neighbour that lives.

Two cases are distinguished. A neighbour on the same host whose process is no more has ended, for certain. One that has
not counted for `lifeless_s` may also be frozen, or be holding its interpreter's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rekindle.monitor.base.clock import Clock
from rekindle.monitor.base.processes import is_gone
from rekindle.monitor.mail.exchange import Exchange
from rekindle.monitor.saving.agreement_terms import Bounds

BACK: Final = "back"


@dataclass(slots=True)
class _Neighbour:
    rank: int
    process: str | None = None
    pulse: str | None = None
    heard_at: float | None = None  # when the pulse was last seen to move


class SaveLiveness:
    """Of one save, on one rank. `turn` is called at each read of the negotiating thread, from the save's start on."""

    def __init__(self, key: str, *, rank: int, world_size: int, bounds: Bounds, clock: Clock) -> None:
        """key: of the save; below it `here/<rank>` holds each rank's `own_process`, `done/<rank>`: its part is over."""
        self._key, self._rank = key, rank
        self._bounds, self._clock = bounds, clock
        others = dict.fromkeys(((rank + 1) % world_size, (rank - 1) % world_size))
        self._neighbours = [_Neighbour(other) for other in others if other != rank]
        self._count = 0
        self._looked_at = self._next_at = clock.monotonic()
        self._longest_s = 0.0  # between two looks: a slow transport is not a silent neighbour

    def turn(self, exchange: Exchange) -> None:
        """Count up; leave below the save's key what is known of a neighbour: `gone`, or `lifeless` while it lasts.

        Raises what the exchange raises.
        """
        now = self._clock.monotonic()
        if now < self._next_at:
            return
        every_s = max(self._bounds.pulse_s, 2 * exchange.poll_s)
        self._longest_s = max(self._longest_s, now - self._looked_at)
        self._looked_at, self._next_at = now, now + every_s
        self._count += 1
        exchange.put(f"{self._key}/pulse/{self._rank}", str(self._count))
        lifeless_s = max(self._bounds.lifeless_s, 4 * self._longest_s, 4 * every_s)
        for neighbour in self._neighbours:
            self._look_at(exchange, neighbour, now, lifeless_s)

    def _look_at(self, exchange: Exchange, one: _Neighbour, now: float, lifeless_s: float) -> None:
        if one.process is None:
            one.process = exchange.get(f"{self._key}/here/{one.rank}")
            if one.process is None:
                return
        pulse = exchange.get(f"{self._key}/pulse/{one.rank}")
        if pulse != one.pulse or one.heard_at is None:
            was_lifeless = one.heard_at is not None and now - one.heard_at > lifeless_s
            one.pulse, one.heard_at = pulse, now
            if was_lifeless:
                exchange.put(f"{self._key}/lifeless", BACK)
        if is_gone(one.process):
            if not exchange.has_all([f"{self._key}/done/{one.rank}"]):
                exchange.put_new(f"{self._key}/gone", str(one.rank))
                exchange.put_new(f"{self._key}/failed", f"the process of rank {one.rank} ended in the save")
        elif now - one.heard_at > lifeless_s and not exchange.has_all([f"{self._key}/done/{one.rank}"]):
            exchange.put(f"{self._key}/lifeless", str(one.rank))
            quiet = f"rank {one.rank} did not respond in the save for {now - one.heard_at:.0f} s"
            exchange.put_new(f"{self._key}/failed", quiet)
