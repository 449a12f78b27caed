"""The save that all ranks meet for, on one rank from its arrival on: has it ended everywhere, or can it end at all.

A rank that waits in the save for one that failed, never began or is dead would wait until its framework's time-out.
Where it keeps waiting in vain, the save is abandoned. On the negotiating thread. Beside the keys in `negotiation`:

    <session>/<plan>/pulse/<rank>, /gone, /lifeless   who lives in it
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rekindle.monitor.base.processes import is_gone, own_process
from rekindle.monitor.base.run import Clock
from rekindle.monitor.mail.exchange import Exchange, RollCall
from rekindle.monitor.saving.agreement import AT_OTHER_STEPS, GO, Agreement
from rekindle.monitor.saving.agreement_terms import Bounds, Plan

ALL_OVER: Final = "all parts are over"
LEFT: Final = "rank 0 has finished"
BACK: Final = "back"


@dataclass(slots=True)
class _Neighbour:
    rank: int
    process: str | None = None
    pulse: str | None = None
    heard_at: float | None = None  # when the pulse was last seen to move


class SaveLiveness:
    """Whether the other ranks in a save still live: a rank that is killed says nothing, and the others wait for it.

    Every rank counts up under `<save>/pulse/<rank>`, and watches the ranks before and after its own, so that it costs
    each rank the same however many there are. Where several ranks die, one of them has a neighbour that lives. One on
    the same host whose process is no more has ended, for certain. One that has not counted for `lifeless_s` may also be
    frozen, or be holding its interpreter's lock. `turn` is called at each read, from the save's start on.
    """

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


class JointSave:
    """has_begun: None until this rank knows whether the save begins; False where it continues without having heard.

    failed: why the save is no success any more, on some rank; None as far as is known here.
    """

    def __init__(
        self, plan: Plan, session: str, agreement: Agreement, is_waiting: Callable[[], bool], clock: Clock
    ) -> None:
        """is_waiting: whether the training thread waits for other ranks right now."""
        self.plan = plan
        self.has_begun: bool | None = None
        self.failed: str | None = None
        self._key = f"{session}/{plan.number}"
        self._agreement = agreement
        self._bounds = agreement.bounds
        self._is_waiting = is_waiting
        self._clock = clock
        rank, world_size = agreement.rank, agreement.world_size
        self._began, self._done = RollCall(f"{self._key}/in", world_size), RollCall(f"{self._key}/done", world_size)
        self._lives = SaveLiveness(self._key, rank=rank, world_size=world_size, bounds=agreement.bounds, clock=clock)
        self._is_marked = False
        self._waits_since: float | None = None  # in the save, for other ranks
        self._in_vain_since: float | None = None  # the same, after one of them is known to have failed
        self._lifeless: str | None = None

    def meet(
        self, exchange: Exchange, step: int, objection: str, are_all_here: Callable[[Exchange, Plan], bool] | None
    ) -> str:
        """All ranks come here at the same call. `GO` where all save; else why not, which is the same everywhere.

        objection: why this rank cannot; empty where it can. are_all_here: rank 0's. Raises what the exchange raises.
        """
        agreement, start, rank = self._agreement, f"{self._key}/start", self._agreement.rank
        if objection:
            exchange.put_new(start, f"rank {rank}: {objection}")
        held = exchange.put_new(f"{self._key}/step", str(step))
        if held != str(step):
            exchange.put_new(start, f"{AT_OTHER_STEPS}: rank {rank} at {step}, another one at {held}")
        exchange.put(f"{self._key}/here/{rank}", own_process())
        until = self._clock.monotonic() + agreement.meet_s()
        pause = threading.Event()
        while (decided := exchange.get(start)) is None:
            agreement.report_alive()
            if are_all_here is not None and are_all_here(exchange, self.plan):
                exchange.put_new(start, GO)
            elif self._clock.monotonic() > until:
                exchange.put_new(start, f"the other ranks did not come to the agreed step {step} within seconds")
            else:
                pause.wait(exchange.quick_s)
        if decided == GO:
            self.has_begun = True
        return decided

    def has_started(self, exchange: Exchange) -> bool:
        """Whether it has, where the exchange broke before this rank knew: it does not begin it then."""
        start = exchange.put_new(f"{self._key}/start", f"rank {self._agreement.rank} could not hear of it")
        return start == GO

    def turn(self, exchange: Exchange, *, has_rank_0_left: bool) -> str | None:
        """How the save ended for all ranks: `ALL_OVER`, or why it was abandoned; None while it lasts.

        Raises what the exchange raises.
        """
        agreement = self._agreement
        if self.has_begun and not self._is_marked:
            exchange.put(f"{self._key}/in/{agreement.rank}", "1")
            self._is_marked = True
        end = exchange.get(f"{self._key}/end")
        if end is None and agreement.is_held and self._done.is_full(exchange):
            return self.give_up(exchange, ALL_OVER)  # rank 0, which counts as well, may be the one that is stuck
        if end is None and self.has_begun:
            self._lives.turn(exchange)
            self.failed = exchange.get(f"{self._key}/failed")
            why = self._in_vain(exchange, has_rank_0_left)
            return self.give_up(exchange, why) if why else None
        return end

    def give_up(self, exchange: Exchange, why: str) -> str:
        """End it for all ranks. Returns how it ended: by this, or by another rank before."""
        return exchange.put_new(f"{self._key}/end", why)

    def _in_vain(self, exchange: Exchange, has_rank_0_left: bool) -> str:
        """Why this rank has waited long enough for the others; empty where it has not."""
        is_held = self._agreement.is_held
        if not is_held and not self._is_waiting():
            self._waits_since = self._in_vain_since = None
            return ""
        now = self._clock.monotonic()
        self._waits_since = now if self._waits_since is None else self._waits_since
        if self.failed is None and has_rank_0_left:
            self.failed = LEFT
        if self.failed is None and now - self._waits_since > self._bounds.enter_s and not self._began.is_full(exchange):
            absent = f"ranks {self._began.absent(exchange)} did not begin the save"
            self.failed = exchange.put_new(f"{self._key}/failed", absent)
        if self.failed is None:
            return ""
        # From here on: where a framework raises on all ranks when one has failed, they come out within moments.
        waits = f"{self.failed}, and rank {self._agreement.rank} still waits in it for the other ranks"
        lifeless, before = exchange.get(f"{self._key}/lifeless"), self._lifeless
        self._lifeless = lifeless
        if self._in_vain_since is None or (lifeless == BACK and before != BACK):
            self._in_vain_since = now
        if exchange.get(f"{self._key}/gone") is not None:
            # Not at the first look: on its way into the save, the thread may pass a wait that ends by itself.
            return waits if now - self._in_vain_since > self._bounds.gone_s else ""
        if is_held and lifeless in (None, BACK):  # they may be writing for long: see `Agreement.hold`
            return ""
        return waits if now - self._in_vain_since > self._bounds.stuck_s else ""
