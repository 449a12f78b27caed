"""How the ranks come to save at the same step without waiting for each other in a collective.

Everything here runs on the thread `rekindle-agree` of each rank and goes through an `Exchange`:

    notice            rank 0 → all    the session, the newest plan, why there can be none (see `agree.Notice`)
    wish              all → rank 0    the highest wish that no plan has covered yet
    <session>/members, /member/<rank>          who takes part
    <session>/resume, /apart                   the step from which all resumed, or the first rank that differs
    <session>/<plan>/acks, /ack/<rank>         who will stop at the plan's call; rank 0 decides when all are in
    <session>/<plan>/fate                      "go", or why not; written once, by whichever rank is first
    <session>/<plan>/step, /here               at that call: the same step everywhere, and how many ranks are there
    <session>/<plan>/start                     "go" by the last rank to come, or why not; written once
    <session>/<save>/done, /failed             how many have written their part, or the first failure
    <session>/loss/open, /judge, /news         which rank judges the loss, and what it found (see `seat`)

`fate` and `start` are written once, so all ranks that can read go the same way. A rank whose exchange breaks between
the two is missed at the call for seconds; the others then go on without a save. A rank that takes no part, or cannot
be reached, makes rank 0 publish "lost": then each rank goes by itself for a while, before all are asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from rekindle.monitor.agree import Notice, Plan, Wish
from rekindle.monitor.agreement import GO, Agreement
from rekindle.monitor.clock import Clock
from rekindle.monitor.exchange import Exchange
from rekindle.monitor.leading import NO_COORDINATOR, Leader, wish_of
from rekindle.monitor.seat import Seat
from rekindle.monitor.trouble import Trouble, logger

UNHEARD_S: Final = 15.0  # a wish to stop that rank 0 has not answered for so long: rank 0 is gone, or takes no part
REOPEN_S: Final = 30.0
PASSED: Final = "late"  # a rank was already past the plan's call


class Negotiation:
    """One per rank; `turn` is the thread's, `end` for any thread."""

    def __init__(
        self,
        *,
        agreement: Agreement,
        open_exchange: Callable[[], Exchange | None],
        resume_step: int | None,
        leader: Leader | None,
        seat: Seat,
        clock: Clock,
        trouble: Trouble,
    ) -> None:
        """leader: on rank 0. open_exchange: may raise, and is called again after a while where it did."""
        self._agreement = agreement
        self._open = open_exchange
        self._resume_step = resume_step
        self._leader = leader
        self._seat = seat
        self._clock = clock
        self._trouble = trouble
        self._exchange: Exchange | None = None
        self._open_at = clock.monotonic()
        self._failures = 0
        self._read: str | None = None
        self._notice: Notice | None = None
        self._session = ""
        self._counted_in = ""  # the session whose members this rank was counted in
        self._seen = 0  # the newest plan's number
        self._unheard = ""
        self._unheard_since: float | None = None
        self._ended = threading.Event()
        agreement.serve(meet=self._meet, withdraw=self._withdraw, finish=self._finish)

    # ---- the thread --------------------------------------------------------------------------------------------

    def turn(self) -> float:
        """Look for news and act on them. Returns seconds until the next look."""
        try:
            exchange = self._opened()
            self._agreement.work_off()
            if exchange is None:
                return REOPEN_S
            if self._leader is not None:
                self._leader.turn(exchange)
            self._follow(exchange)
            if self._session:
                self._seat.turn(exchange, self._session)
            self._agreement.work_off()
            self._failures = 0
            return exchange.quick_s if self._is_urgent() else exchange.poll_s
        except Exception as err:  # the transport's: nothing that it does may reach training
            self._broken(err)
            return REOPEN_S

    def end(self) -> None:
        """The run is over: what breaks from now on is no news."""
        self._ended.set()

    @property
    def is_idle(self) -> bool:
        """This rank has reported everything, and no save waits for the other ranks' parts."""
        if self._agreement.has_requests:
            return False
        return self._leader is None or self._exchange is None or not self._leader.is_awaiting

    def _is_urgent(self) -> bool:
        return self._agreement.is_undecided or (self._leader is not None and self._leader.is_busy)

    def _opened(self) -> Exchange | None:
        if self._exchange is None and self._clock.monotonic() >= self._open_at:
            self._open_at = self._clock.monotonic() + REOPEN_S
            self._exchange = self._open()
            self._session, self._read, self._notice = "", None, None
            self._agreement.lost = "" if self._exchange is not None else "the ranks have no exchange to agree through"
        return self._exchange

    def _broken(self, err: Exception) -> None:
        self._failures += 1
        self._exchange = None
        self._open_at = self._clock.monotonic() + REOPEN_S
        self._agreement.disarm()
        self._agreement.lost = why = f"the ranks' exchange failed: {err!r}"
        # The first failure may be the end of the run: rank 0, whose process holds torch's store, may end first.
        if self._failures > 1 and not self._ended.is_set():
            self._trouble.once("coordinator", NO_COORDINATOR, why)
        else:
            self._trouble.count("exchange_failures")
            logger.debug("Rekindle's exchange failed: %r", err)
        if self._leader is not None:
            self._leader.lost(why)

    # ---- every rank --------------------------------------------------------------------------------------------

    def _follow(self, exchange: Exchange) -> None:
        agreement = self._agreement
        text = exchange.get("notice")
        if text != self._read:
            self._read, self._unheard = text, ""
            self._notice = None if text is None else Notice.from_text(text)
        notice = self._notice
        if notice is not None:
            if notice.session != self._session:
                self._join(exchange, notice)
            if notice.plan is not None and notice.plan.number > self._seen:
                self._seen = notice.plan.number
                self._answer(exchange, notice.plan)
            armed = agreement.armed
            if armed is not None and agreement.is_undecided:
                fate = exchange.get(self._key(armed, "fate"))
                if fate is not None:
                    agreement.decided(armed, fate == GO)
        agreement.lost = (notice.lost if notice is not None else "") or self._unheard
        if self._leader is None:
            self._look_at_own_wish(exchange)

    def _join(self, exchange: Exchange, notice: Notice) -> None:
        """Take part in what rank 0 leads now: at the start, or after rank 0 or this rank has started anew.

        A plan that is there already is not for this rank: it may be of a process that ended long ago.
        """
        agreement, session = self._agreement, notice.session
        self._seen = notice.plan.number if notice.plan is not None else 0
        agreement.disarm()
        self._session = session
        exchange.put(f"{session}/member/{agreement.rank}", "1")
        own = "nothing" if self._resume_step is None else f"step {self._resume_step}"
        held = exchange.put_new(f"{session}/resume", own)
        if held != own:
            why = f"rank {agreement.rank} resumed from {own}, another one from {held}"
            exchange.put_new(f"{session}/apart", why)
            self._trouble.once("resumed_apart", "The ranks resumed apart, so no save of this run counts: %s", why)
        if self._counted_in != session:  # last: rank 0 looks at the other keys when all are in
            self._counted_in = session
            exchange.add(f"{session}/members")

    def _answer(self, exchange: Exchange, plan: Plan) -> None:
        if self._agreement.arm(plan):
            exchange.put(self._key(plan, f"ack/{self._agreement.rank}"), "1")
            exchange.add(self._key(plan, "acks"))
        else:
            exchange.put_new(self._key(plan, "fate"), f"{PASSED} {self._agreement.calls}")

    def _look_at_own_wish(self, exchange: Exchange) -> None:
        """Rank 0 has its own wishes at hand; the others leave theirs where rank 0 looks, until a plan covers them."""
        agreement = self._agreement
        wish, armed = agreement.wish(), agreement.armed
        if wish is Wish.NOTHING or (armed is not None and armed.wish >= wish):
            self._unheard_since = None
            return
        now = self._clock.monotonic()
        self._unheard_since = now if self._unheard_since is None else self._unheard_since
        if wish.stops and now - self._unheard_since > UNHEARD_S + 2 * exchange.poll_s:
            self._unheard = "rank 0 does not answer"
        if wish_of(exchange.get("wish")) < wish:
            exchange.put("wish", str(int(wish)))

    # ---- asked for by the training thread ----------------------------------------------------------------------

    def _withdraw(self, plan: Plan) -> str | None:
        """The plan's call has come, and this rank does not know whether all keep to it. Returns what holds."""
        exchange = self._exchange
        if exchange is None:
            return None
        fate = exchange.put_new(self._key(plan, "fate"), f"{PASSED} {self._agreement.calls}")
        self._agreement.decided(plan, fate == GO)
        return fate

    def _meet(self, plan: Plan, step: int, objection: str) -> str | None:
        """All ranks come here at the same call. None where all go; else why not, which is the same everywhere."""
        exchange, agreement = self._exchange, self._agreement
        if exchange is None:
            return agreement.lost or "the ranks' exchange is not open"
        start, here = self._key(plan, "start"), self._key(plan, "here")
        if objection:
            exchange.put_new(start, f"rank {agreement.rank}: {objection}")
        held = exchange.put_new(self._key(plan, "step"), str(step))
        if held != str(step):
            exchange.put_new(start, f"rank {agreement.rank} is at step {step}, another one at step {held}")
        if exchange.add(here) >= agreement.world_size:
            exchange.put_new(start, GO)
        until = self._clock.monotonic() + agreement.meet_s()
        pause = threading.Event()
        while (decided := exchange.get(start)) is None:
            if self._clock.monotonic() > until:
                came = exchange.counted(here)
                decided = exchange.put_new(start, f"{came} of {agreement.world_size} ranks came to the agreed step")
                break
            pause.wait(exchange.quick_s)
        return None if decided == GO else decided

    def _finish(self, save: str, failure: str | None, over: Callable[[str | None], None] | None) -> None:
        """This rank's part of a save is over. over: on rank 0, what to call when that of all ranks is."""
        exchange = self._exchange
        if exchange is None or not self._session:
            if over is not None:
                over(failure or self._agreement.lost or "the ranks' exchange is not open")
            return
        if over is not None and self._leader is not None:
            self._leader.await_parts(save, over)
        if failure is not None:
            exchange.put_new(f"{self._session}/{save}/failed", f"rank {self._agreement.rank}: {failure}")
        exchange.add(f"{self._session}/{save}/done")

    def _key(self, plan: Plan, name: str) -> str:
        return f"{self._session}/{plan.number}/{name}"
