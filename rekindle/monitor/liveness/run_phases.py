"""What some rank of the run has announced, as far as the others hear of it: they wait for it, and do not hang.

A rank inside a phase counts up under `<session>/phase`, one key for all ranks; a rank that is silent reads it. No rank
counts for longer than its phase may last: then it reports its own stall.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rekindle.monitor.base.run import Clock
from rekindle.monitor.mail.exchange import Exchange
from rekindle.protocol.mailbox import RunPhase

PULSE_S: Final = 1.0
LOST_PULSES: Final = 3  # after which the phase is over


class RunPhases:
    """Of one rank. `turn` is for the negotiating thread; `seen` for any."""

    def __init__(
        self, *, rank: int, own: Callable[[], RunPhase | None], is_quiet: Callable[[], bool], clock: Clock
    ) -> None:
        """own: the phase that this rank is in, None in training and beyond its limit. is_quiet: it makes no steps."""
        self._rank, self._own, self._is_quiet, self._clock = rank, own, is_quiet, clock
        self._count = 0
        self._next_at = 0.0
        self._heard: str | None = None
        self._seen: tuple[RunPhase, float] | None = None  # and until when it counts

    def turn(self, exchange: Exchange, session: str) -> None:
        """Raises what the exchange raises."""
        now, every_s = self._clock.monotonic(), max(PULSE_S, 2 * exchange.poll_s)
        own = self._own()
        if own is not None and now >= self._next_at:
            self._count, self._next_at = self._count + 1, now + every_s
            exchange.put(f"{session}/phase", f"{own.value} {self._rank} {self._count}")
        elif own is None and self._is_quiet():
            text = exchange.get(f"{session}/phase")
            if text is not None and text != self._heard:
                self._heard = text
                self._seen = (_phase_in(text), now + LOST_PULSES * every_s)

    def seen(self) -> RunPhase | None:
        """What another rank is inside of now."""
        seen = self._seen
        return seen[0] if seen is not None and self._clock.monotonic() <= seen[1] else None


def _phase_in(text: str) -> RunPhase:
    name = text.partition(" ")[0]
    return RunPhase(name) if name in (RunPhase.EVALUATION, RunPhase.STARTUP) else RunPhase.SAVING
