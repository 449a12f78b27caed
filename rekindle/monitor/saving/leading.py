"""Rank 0's part in the negotiation: it turns wishes into plans, decides them, and watches what they lead to.

The keys are listed in `negotiation`, on whose thread all of this runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from rekindle.monitor.base.run import Run
from rekindle.monitor.mail.exchange import Exchange, RollCall
from rekindle.monitor.saving.agreement import AT_OTHER_STEPS, GO, NO_COORDINATOR, Agreement
from rekindle.monitor.saving.agreement_terms import Notice, Plan, RankRequest, wish_of
from rekindle.monitor.saving.joint_save import ALL_OVER, LEFT
from rekindle.monitor.saving.rank_files import STOP_TELL_S, TELL_S, Over, Told, read_told

MAX_TRIES: Final = 8  # plans for one wish, each further ahead than the one before
MAX_AHEAD: Final = 4096  # calls
MAX_AWAITED: Final = 8  # saves whose parts are counted at a time

SILENT: Final = "silent"


@dataclass(frozen=True, slots=True)
class Hooks:
    """What rank 0 asks of the monitor. Called on the negotiating thread.

    objection: why no save can be made at all, known before the ranks are asked; empty where one can.
    refused: a wish for a save cannot be met, and why.
    completed: all ranks' parts of a plan's save are written (None), or why it came to nothing; what the others told of
    its files.
    resumed_apart: the ranks did not go on from the same step, and what follows.
    """

    objection: Callable[[], str]
    refused: Callable[[str], None]
    completed: Callable[[Plan, str | None, Told], None]
    resumed_apart: Callable[[str], None]


@dataclass(slots=True)
class AwaitedSave:
    """A save whose parts are counted below `key`; `over` is called once: with None when all are there, or why not.

    began: which ranks have begun it, in a plan's save; None in one that the ranks make by themselves.
    """

    key: str
    over: Over
    give_up_at: float
    done: RollCall
    files: RollCall
    began: RollCall | None = None
    begin_by: float = 0.0
    has_failed: bool = False
    root: str = ""  # where rank 0 has it
    told_by: float | None = None  # once all parts are over, how long the others' lists are waited for


@dataclass(slots=True)
class _Open:
    """A plan that is proposed, or decided and not yet come to."""

    plan: Plan
    decide_by: float
    acks: RollCall
    here: RollCall
    is_decided: bool = False


@dataclass(slots=True)
class _Asking:
    """One wish, and what became of the plans made for it."""

    since: float
    tries: int = 0
    furthest: int = field(default=0)  # the call that the rank furthest ahead has reached


class Leader:
    """`turn` is called at each read, with the exchange; `lost` where that is broken, `leave` at the end of the run."""

    def __init__(self, run: Run, *, agreement: Agreement, hooks: Hooks, step_s: Callable[[], float | None]) -> None:
        """step_s: a recent step's seconds, rather too many than too few."""
        self.session = secrets.token_hex(8)  # no other start has it
        self._agreement = agreement
        self._bounds = agreement.bounds
        self._hooks = hooks
        self._step_s = step_s
        self._clock, self._trouble = run.clock, run.trouble
        self._notice = Notice(session=self.session)
        self._published: str | None = None
        self._members = self._roll("m1")
        self._open: _Open | None = None
        self._asking: _Asking | None = None
        self._number = 0
        self._stops = False  # a plan by which all ranks stop was decided: none follows
        self._are_all_in = False
        self._lost_until = 0.0
        self._losses = 0  # in a row
        self._awaited: list[AwaitedSave] = []

    @property
    def is_busy(self) -> bool:
        return self._open is not None or bool(self._awaited) or self._asking is not None

    @property
    def is_awaiting(self) -> bool:
        """Parts of a save are awaited whose outcome is open: one that has failed need not be waited for to the end."""
        return any(not save.has_failed for save in self._awaited)

    def turn(self, exchange: Exchange) -> None:
        """Raises what the exchange raises; what was under way then continues at the next turn."""
        self._publish(exchange)
        self._watch_members(exchange)
        for save in tuple(self._awaited):
            self._count(exchange, save)
        if self._open is not None:
            self._pursue(exchange, self._open)
        if self._open is None and not self._stops:
            self._plan(exchange)

    def are_all_here(self, exchange: Exchange, plan: Plan) -> bool:
        """Whether all ranks have come to the plan's call."""
        return self._open is not None and self._open.plan == plan and self._open.here.is_full(exchange)

    def await_parts(self, save: str, over: Over, *, is_planned: bool = False) -> None:
        """Call `over` when every rank's part of that save is over. Beyond MAX_AWAITED the oldest
        periodic one is given up, or the oldest of all where every one was requested.
        """
        if len(self._awaited) >= MAX_AWAITED:
            dropped = next((awaited for awaited in self._awaited if awaited.began is None), self._awaited[0])
            self._awaited.remove(dropped)
            if not dropped.has_failed:
                dropped.over("too many saves wait for the other ranks' parts", {})
        now = self._clock.monotonic()
        self._awaited.append(
            AwaitedSave(
                save,
                over,
                now + self._bounds.must_finish_s,
                self._roll(f"{save}/done"),
                RollCall(self._key(f"{save}/files"), self._agreement.world_size, _first_absent=1),
                self._roll(f"{save}/in") if is_planned else None,
                now + self._bounds.enter_s,
            )
        )

    def lies_at(self, save: str, root: str) -> None:
        """Where rank 0 has that save."""
        for awaited in self._awaited:
            if awaited.key == save:
                awaited.root = root

    def resumed_apart(self, apart: str) -> None:
        """The ranks did not go on from the same step: which ones, and from where."""
        self._hooks.resumed_apart(
            f"the ranks resumed at different steps ({apart}), so what they save together would be no state that "
            "ever was; stop the run and start it again"
        )

    def lost(self) -> None:
        """The exchange is broken: all is published again once it works."""
        self._published = None

    def leave(self, exchange: Exchange) -> bool:
        """The run is over on rank 0: tell the others. Whether all of them know, and no part is awaited any more."""
        self._open, self._asking, self._stops = None, None, True
        if self.is_awaiting:
            return False
        self._publish(exchange, lost=LEFT, is_over=True)
        exchange.put(f"{self.session}/left/{self._agreement.rank}", "1")
        return self._roll("left").is_full(exchange)

    # ---- who takes part ----------------------------------------------------------------------------------------

    def _watch_members(self, exchange: Exchange) -> None:
        if self._clock.monotonic() < self._lost_until:
            return
        again = exchange.get(self._key(f"m{self._notice.era}/again"))
        if again is not None:  # a monitor that was started again counts its calls anew, and may not be the last one
            self._give_up(exchange, f"rank {again} has started a further monitor")
            return
        if self._are_all_in or not self._members.is_full(exchange):
            return
        self._are_all_in = True
        apart = exchange.get(self._key("apart"))
        if apart is not None:
            self.resumed_apart(apart)
        self._publish(exchange, lost="")

    # ---- plans -------------------------------------------------------------------------------------------------

    def _plan(self, exchange: Exchange) -> None:
        now = self._clock.monotonic()
        if now < self._lost_until:  # meanwhile each rank meets its own wish, as far as it can
            return
        wish = max(self._agreement.wish(), wish_of(exchange.get(self._key("wish"))))
        if wish is RankRequest.NOTHING:
            self._asking = None
            return
        armed = self._agreement.armed
        if armed is not None and armed.wish >= wish:  # decided, and its call has not come yet: it stands
            return
        asking = self._asking = self._asking or _Asking(since=now)
        objection = self._hooks.objection() if wish.saves else ""
        if objection:
            self._hooks.refused(objection)
            if not wish.stops:
                self._settled(exchange)
                return
            wish = RankRequest.STOP
        if not self._are_all_in:
            if now - asking.since > self._bounds.must_join_s + 2 * exchange.poll_s:
                self._give_up(exchange, f"ranks {self._members.absent(exchange)} take no part")
        elif asking.tries >= MAX_TRIES:
            self._give_up(exchange, "the ranks are too many steps apart")
        else:
            self._propose(exchange, wish, asking)

    def _propose(self, exchange: Exchange, wish: RankRequest, asking: _Asking) -> None:
        """The nearest call that all ranks can hear of in time; each further try allows twice as long for that."""
        step_s = self._step_s()
        hear_s = (2 * exchange.poll_s + 10 * exchange.quick_s) * 2**asking.tries
        ahead = int(min(hear_s / step_s, MAX_AHEAD)) if step_s else 2**asking.tries
        asking.tries += 1
        self._number += 1
        at_call = max(self._agreement.calls, asking.furthest) + 1 + ahead
        self._open = _Open(
            plan=Plan(number=self._number, wish=wish, at_call=at_call),
            decide_by=self._clock.monotonic() + self._bounds.must_ack_s + 2 * exchange.poll_s,
            acks=self._roll(f"{self._number}/ack"),
            here=self._roll(f"{self._number}/here"),
        )
        self._publish(exchange, plan=self._open.plan)
        exchange.put(self._key("wish"), "0")

    def _pursue(self, exchange: Exchange, one: _Open) -> None:
        plan = one.plan
        if one.is_decided:
            self._await_start(exchange, one)
            return
        self._publish(exchange, plan=plan)
        fate_key = self._key(f"{plan.number}/fate")
        fate = exchange.get(fate_key)
        if fate is None and one.acks.is_full(exchange):
            fate = exchange.put_new(fate_key, GO)
        if fate is None and self._clock.monotonic() > one.decide_by:
            fate = exchange.put_new(fate_key, SILENT)
        if fate is None:
            return
        if fate == GO:
            one.is_decided = True
            self._stops = plan.wish.stops
            if not plan.wish.saves:  # nothing to meet for: each rank stops when it gets there
                self._settled(exchange)
            return
        self._open = None
        late_at = fate.removeprefix("late ")
        if late_at != fate and late_at.isdigit():
            if self._asking is not None:
                self._asking.furthest = max(self._asking.furthest, int(late_at))
        else:
            absent = one.acks.absent(exchange) if fate == SILENT else ""
            why = f"ranks {absent} did not answer for {self._bounds.must_ack_s:.0f} s" if absent else fate
            self._give_up(exchange, why, is_news=fate == SILENT)

    def _await_start(self, exchange: Exchange, one: _Open) -> None:
        start = exchange.get(self._key(f"{one.plan.number}/start"))
        if start is None:
            return
        plan = one.plan
        if start == GO:
            self._losses = 0
            self.await_parts(
                str(plan.number), lambda failure, told: self._hooks.completed(plan, failure, told), is_planned=True
            )
            self._settled(exchange)
            return
        is_full = one.here.is_full(exchange)
        absent = "" if is_full else f": ranks {one.here.absent(exchange)}"
        self._settled(exchange)
        self._hooks.completed(plan, f"{start}{absent}", {})
        if start.startswith(AT_OTHER_STEPS) or (not is_full and not start.startswith("rank ")):
            # the next meeting must not hold training up as well
            self._give_up(exchange, f"{start}{absent}")

    def _count(self, exchange: Exchange, save: AwaitedSave) -> None:
        """Who has finished their part of a save: it is over once all have, once its end is decided, or at its limit."""
        is_over = save.done.is_full(exchange)
        failed = self._failure_of(exchange, save, is_over=is_over)
        end = exchange.get(self._key(f"{save.key}/end")) if save.began is not None else None
        if is_over and failed is None and end is None and not self._are_files_told(exchange, save):
            return
        if is_over or end is not None or self._clock.monotonic() >= save.give_up_at:
            self._conclude(exchange, save, is_over=is_over, failed=failed, end=end)
        elif failed is not None and not save.has_failed:
            save.has_failed = True
            save.over(failed, {})

    def _are_files_told(self, exchange: Exchange, save: AwaitedSave) -> bool:
        """Whether every other rank has told what it sees of a save whose parts are all over, or has had its time."""
        now = self._clock.monotonic()
        if save.told_by is None and save.root:
            exchange.put(self._key(f"{save.key}/root"), save.root)
            # After the save of a stop, ranks that have ended tell nothing more, and the process is not given long.
            save.told_by = now + (STOP_TELL_S if save.began is not None else TELL_S) + 2 * exchange.poll_s
        return save.told_by is None or save.files.is_full(exchange) or now > save.told_by

    def _failure_of(self, exchange: Exchange, save: AwaitedSave, *, is_over: bool) -> str | None:
        """What has failed; ranks that have not begun in time fail the save."""
        failed = exchange.get(self._key(f"{save.key}/failed"))
        if save.began is None or is_over or failed is not None or self._clock.monotonic() <= save.begin_by:
            return failed
        if save.began.is_full(exchange):
            return None
        absent = f"ranks {save.began.absent(exchange)} did not begin the save"
        return exchange.put_new(self._key(f"{save.key}/failed"), absent)

    def _conclude(
        self, exchange: Exchange, save: AwaitedSave, *, is_over: bool, failed: str | None, end: str | None
    ) -> None:
        """The save is awaited no longer, and whoever asked for it is told."""
        told: Told = {}
        if save.told_by is not None:
            told = read_told(exchange, self._key(save.key), self._agreement.world_size)
        else:
            exchange.put(self._key(f"{save.key}/root"), "")  # there is nothing to look at
        self._awaited.remove(save)
        if save.began is not None and end is None:
            exchange.put_new(self._key(f"{save.key}/end"), ALL_OVER)
        if not save.has_failed:
            is_whole = is_over and end in (None, ALL_OVER)
            missing = f"not all of {self._agreement.world_size} ranks have finished their part"
            save.over(failed or (None if is_whole else end or missing), told)
        if is_over:
            save.done.forget(exchange)
            save.files.forget(exchange)

    def _settled(self, exchange: Exchange) -> None:
        """This wish is dealt with."""
        self._open, self._asking = None, None
        exchange.put(self._key("wish"), "0")

    def _give_up(self, exchange: Exchange, why: str, *, is_news: bool = True) -> None:
        """The ranks cannot agree at present. is_news: False where ranks have only come to the end of their loop."""
        if is_news:
            self._trouble.once("coordinator", NO_COORDINATOR, why)
        bounds = self._bounds
        lost_s = min(bounds.lost_s * 2**self._losses, bounds.lost_at_most_s)
        self._losses = min(self._losses + 1, 16)
        self._open, self._asking = None, None
        self._are_all_in, self._lost_until = False, self._clock.monotonic() + lost_s
        self._notice = replace(self._notice, era=self._notice.era + 1)
        self._members = self._roll(f"m{self._notice.era}")
        self._publish(exchange, lost=why)

    def _publish(
        self, exchange: Exchange, *, plan: Plan | None = None, lost: str | None = None, is_over: bool = False
    ) -> None:
        notice = self._notice
        self._notice = replace(
            notice,
            plan=plan or notice.plan,
            lost=notice.lost if lost is None else lost,
            is_over=is_over or notice.is_over,
        )
        text = self._notice.to_text()
        if text != self._published:
            exchange.put("notice", text)
            self._published = text

    def _roll(self, key: str) -> RollCall:
        return RollCall(self._key(key), self._agreement.world_size)

    def _key(self, name: str) -> str:
        return f"{self.session}/{name}"
