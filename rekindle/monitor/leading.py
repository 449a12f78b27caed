"""Rank 0's part in the negotiation: it turns wishes into plans, decides them, and watches what they lead to.

The keys are listed in `negotiation`, on whose thread all of this runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rekindle.monitor.agree import Notice, Plan, Wish
from rekindle.monitor.agreement import GO, Agreement
from rekindle.monitor.clock import Clock
from rekindle.monitor.exchange import Exchange
from rekindle.monitor.trouble import Trouble

MUST_JOIN_S: Final = 10.0  # a rank that has not come so long after a wish takes no part
MUST_ACK_S: Final = 10.0  # beyond two looks of the slowest rank
MUST_FINISH_S: Final = 1800.0  # the other ranks' parts of a save, after the start of it
LOST_S: Final = 30.0  # for so long each rank goes by itself before all are asked again
MAX_TRIES: Final = 8  # plans for one wish, each further ahead than the one before
MAX_AHEAD: Final = 4096  # calls
MAX_AWAITED: Final = 8  # saves whose parts are counted at a time
MAX_NAMED: Final = 16  # ranks in a message

NO_COORDINATOR: Final = "No coordinator: %s. Each rank goes by itself; saves that need all ranks are refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What rank 0 asks of the monitor. Called on the negotiating thread.

    objection: why no save can be made at all, known before the ranks are asked; empty where one can.
    refused: a wish for a save cannot be met, and why.
    completed: all ranks' parts of a plan's save are written (None), or why it came to nothing.
    resumed_apart: the ranks did not go on from the same step, and what follows.
    """

    objection: Callable[[], str]
    refused: Callable[[str], None]
    completed: Callable[[Plan, str | None], None]
    resumed_apart: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Awaited:
    """A save whose parts are counted under `key`; `over` is called once: with None when all are there, or why not."""

    key: str
    give_up_at: float
    over: Callable[[str | None], None]


class Leader:
    """`turn` is called at each look, with the exchange; `lost` where that is broken. Both may call the hooks."""

    def __init__(
        self,
        *,
        agreement: Agreement,
        hooks: Hooks,
        step_s: Callable[[], float | None],
        session: str,
        clock: Clock,
        trouble: Trouble,
    ) -> None:
        """step_s: a recent step's seconds, rather too many than too few. session: a text no other start has."""
        self._agreement = agreement
        self._hooks = hooks
        self._step_s = step_s
        self._clock = clock
        self._trouble = trouble
        self._notice = Notice(session=session)
        self._published: str | None = None
        self._open: Plan | None = None  # proposed, or decided and not yet come to
        self._is_decided = False
        self._decide_by = 0.0
        self._number = 0
        self._tries = 0
        self._furthest = 0  # the call that the rank furthest ahead has reached
        self._wished_at: float | None = None
        self._are_all_in = False
        self._lost_until = 0.0
        self._awaited: list[Awaited] = []

    @property
    def is_busy(self) -> bool:
        return self._open is not None or bool(self._awaited) or self._wished_at is not None

    @property
    def is_awaiting(self) -> bool:
        return bool(self._awaited)

    def turn(self, exchange: Exchange) -> None:
        """Raises what the exchange raises."""
        self._publish(exchange)
        self._watch_members(exchange)
        for one in tuple(self._awaited):
            self._count(exchange, one)
        if self._open is not None:
            self._pursue(exchange, self._open)
        if self._open is None:
            self._plan(exchange)

    def await_parts(self, key: str, over: Callable[[str | None], None]) -> None:
        """Call `over` when every rank's part under `key` is done."""
        if len(self._awaited) >= MAX_AWAITED:
            self._awaited.pop(0).over("too many saves wait for the other ranks' parts")
        self._awaited.append(Awaited(key, self._clock.monotonic() + MUST_FINISH_S, over))

    def lost(self, why: str) -> None:
        """The exchange is broken: what was under way ends here. All is published anew once it works again."""
        self._published = None
        plan, self._open, self._wished_at = self._open, None, None
        awaited, self._awaited = self._awaited, []
        if plan is not None and plan.wish.saves:
            self._hooks.completed(plan, why)
        for one in awaited:
            one.over(why)

    # ---- who takes part ----------------------------------------------------------------------------------------

    def _watch_members(self, exchange: Exchange) -> None:
        if self._are_all_in or self._clock.monotonic() < self._lost_until:
            return
        if exchange.counted(self._key("members")) < self._agreement.world_size:
            return
        self._are_all_in = True
        apart = exchange.get(self._key("apart"))
        if apart is not None:
            self._hooks.resumed_apart(
                f"the ranks resumed at different steps ({apart}), so what they save together would be no state that "
                "ever was; stop the run and start it again"
            )
        self._publish(exchange, lost="")

    def _missing(self, exchange: Exchange, key: str) -> str:
        world = self._agreement.world_size
        absent = [rank for rank in range(world) if exchange.get(self._key(f"{key}/{rank}")) is None]
        named = ", ".join(str(rank) for rank in absent[:MAX_NAMED])
        return f"{named}{' and more' if len(absent) > MAX_NAMED else ''} of {world}"

    # ---- plans -------------------------------------------------------------------------------------------------

    def _plan(self, exchange: Exchange) -> None:
        now = self._clock.monotonic()
        if now < self._lost_until:  # meanwhile each rank meets its own wish, as far as it can
            return
        wish = max(self._agreement.wish(), wish_of(exchange.get("wish")))
        if wish is Wish.NOTHING:
            self._wished_at, self._tries = None, 0
            return
        self._wished_at = now if self._wished_at is None else self._wished_at
        objection = self._hooks.objection() if wish.saves else ""
        if objection:
            self._hooks.refused(objection)
            if not wish.stops:
                self._settled(exchange)
                return
            wish = Wish.STOP
        if not self._are_all_in:
            if now - self._wished_at > MUST_JOIN_S + 2 * exchange.poll_s:
                self._give_up(exchange, f"ranks {self._missing(exchange, 'member')} take no part")
        elif self._tries >= MAX_TRIES:
            self._give_up(exchange, "the ranks are too many steps apart")
        else:
            self._propose(exchange, wish)

    def _propose(self, exchange: Exchange, wish: Wish) -> None:
        """The nearest call that all ranks can hear of in time; each further try allows twice as long for that."""
        step_s = self._step_s()
        hear_s = (2 * exchange.poll_s + 10 * exchange.quick_s) * 2**self._tries
        ahead = int(min(hear_s / step_s, MAX_AHEAD)) if step_s else 2**self._tries
        self._tries += 1
        self._number += 1
        at_call = max(self._agreement.calls, self._furthest) + 1 + ahead
        self._open = plan = Plan(number=self._number, wish=wish, at_call=at_call)
        self._is_decided = False
        self._decide_by = self._clock.monotonic() + MUST_ACK_S + 2 * exchange.poll_s
        exchange.put("wish", "0")
        self._publish(exchange, plan=plan)

    def _pursue(self, exchange: Exchange, plan: Plan) -> None:
        if self._is_decided:
            self._await_start(exchange, plan)
            return
        fate_key = self._key(f"{plan.number}/fate")
        fate = exchange.get(fate_key)
        if fate is None and exchange.counted(self._key(f"{plan.number}/acks")) >= self._agreement.world_size:
            fate = exchange.put_new(fate_key, GO)
        if fate is None and self._clock.monotonic() > self._decide_by:
            fate = exchange.put_new(fate_key, "silent")
        if fate is None:
            return
        if fate == GO:
            self._is_decided = True
            if not plan.wish.saves:  # nothing to meet for: each rank stops when it gets there
                self._settled(exchange)
            return
        self._open = None
        late_at = fate.removeprefix("late ")
        if late_at != fate and late_at.isdigit():
            self._furthest = max(self._furthest, int(late_at))
        else:
            absent = self._missing(exchange, f"{plan.number}/ack")
            self._give_up(exchange, f"ranks {absent} did not answer for {MUST_ACK_S:.0f} s")

    def _await_start(self, exchange: Exchange, plan: Plan) -> None:
        start = exchange.get(self._key(f"{plan.number}/start"))
        if start is None:
            return
        self._settled(exchange)
        if start == GO:
            self.await_parts(str(plan.number), lambda failure: self._hooks.completed(plan, failure))
        else:
            self._hooks.completed(plan, start)

    def _count(self, exchange: Exchange, one: Awaited) -> None:
        failed = exchange.get(self._key(f"{one.key}/failed"))
        done = exchange.counted(self._key(f"{one.key}/done"))
        if failed is None and done < self._agreement.world_size:
            if self._clock.monotonic() < one.give_up_at:
                return
            failed = f"only {done} of {self._agreement.world_size} ranks have finished their part"
        self._awaited.remove(one)
        one.over(failed)

    def _settled(self, exchange: Exchange) -> None:
        """This wish is dealt with."""
        self._open, self._wished_at, self._tries = None, None, 0
        exchange.put("wish", "0")

    def _give_up(self, exchange: Exchange, why: str) -> None:
        self._trouble.once("coordinator", NO_COORDINATOR, why)
        self._open, self._wished_at, self._tries = None, None, 0
        self._are_all_in, self._lost_until = False, self._clock.monotonic() + LOST_S
        self._publish(exchange, lost=why)

    def _publish(self, exchange: Exchange, *, plan: Plan | None = None, lost: str | None = None) -> None:
        if plan is not None:
            self._notice = replace(self._notice, plan=plan)
        if lost is not None:
            self._notice = replace(self._notice, lost=lost)
        text = self._notice.to_text()
        if text != self._published:
            exchange.put("notice", text)
            self._published = text

    def _key(self, name: str) -> str:
        return f"{self._notice.session}/{name}"


def wish_of(text: str | None) -> Wish:
    """What stands under the key `wish`; nothing where it is not readable."""
    try:
        return Wish(int(text or "0"))
    except ValueError:
        return Wish.NOTHING
