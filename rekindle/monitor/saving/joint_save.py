"""The save that all ranks meet for, on one rank from its arrival on: has it ended everywhere, or can it end at all.

A rank that waits in the save for one that failed, never began or is dead would wait until its framework's time-out.
Where it keeps waiting in vain, the save is abandoned. The keys are listed in `negotiation`, whose thread this is on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rekindle.monitor.base.clock import Clock
from rekindle.monitor.mail.exchange import Exchange
from rekindle.monitor.saving.agreement import Agreement
from rekindle.monitor.saving.agreement_terms import Plan
from rekindle.monitor.saving.roll_call import RollCall
from rekindle.monitor.saving.save_liveness import BACK, SaveLiveness

ALL_OVER: Final = "all parts are over"
LEFT: Final = "rank 0 has finished"


class JointSave:
    """has_begun: None until this rank knows whether the save begins; False where it continues without having heard.

    failed: why the save is no success any more, on some rank; None as far as is known here.
    """

    def __init__(
        self, plan: Plan, session: str, *, agreement: Agreement, is_waiting: Callable[[], bool], clock: Clock
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
