"""The training thread's side of an agreement: one comparison per step, and a bounded wait where all ranks save.

The ranks must save at the same step, or a checkpoint holds two different ones. `negotiation` agrees on that step on a
thread of its own; here the training thread notices that it has come, meets the other ranks there for a few seconds at
most, and goes on without a save where they do not come. Where the ranks cannot agree at all, each goes by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final

from rekindle.monitor.agree import Plan, Wish

ANSWER_S: Final = 2.0  # how long the training thread waits for the negotiating thread where no other rank is waited for
MEET_S: Final = 10.0  # and, at least, for the other ranks at the step that all have agreed on
MEET_AT_MOST_S: Final = 60.0
MEET_STEPS: Final = 2.0  # typical steps that a rank may be behind

GO: Final = "go"

Finish = Callable[[str, str | None, Callable[[str | None], None] | None], None]


class Agreement:
    """`due`, `meet` and `finished` belong to the training thread; the rest to the negotiating thread.

    They exchange whole values only, so no lock is taken in a step: the training thread writes `calls` and then reads
    the plan, the negotiating thread writes the plan and then reads `calls`; at least one of them sees the other's.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        wish: Callable[[], Wish],
        take: Callable[[Wish], None],
        step_s: Callable[[], float | None],
        lost: str = "",
    ) -> None:
        """wish: what this rank would have all ranks do now. take: that wish is being met, so it is no longer one.

        lost: why this rank acts without the others from the start.
        """
        self.rank = rank
        self.world_size = world_size
        self.calls = 0
        self.wish = wish
        self._take = take
        self._step_s = step_s
        self._armed: Plan | None = None  # written by the negotiating thread alone
        self._passed: Plan | None = None  # the newest one whose step has come; written by the training thread alone
        self._is_go: bool | None = None  # whether the armed plan is decided, and how
        self._requests: deque[tuple[Callable[[], str | None], Future[str | None]]] = deque()
        self._wake: Callable[[], None] = lambda: None
        self.lost = lost  # why this rank acts without the others; empty where it agrees with them
        self._serve_meet: Callable[[Plan, int, str], str | None] = lambda _plan, _step, objection: objection or None
        self._serve_withdraw: Callable[[Plan], str | None] = lambda _plan: None
        self._serve_finish: Finish | None = None

    # ---- the training thread -----------------------------------------------------------------------------------

    def due(self) -> Plan | None:
        """Count a call of `Monitor.step`; what is to be done in it."""
        self.calls = calls = self.calls + 1
        armed = self._armed
        if armed is not None and armed is not self._passed:
            if calls < armed.at_call:
                return None
            is_go = self._is_decided(armed)
            if is_go:
                self._take(armed.wish)
            self._passed = armed  # last: until then the wish counts as covered by this plan
            return armed if is_go else None
        if not self.lost and self.world_size > 1:
            return None
        wish = self.wish()
        if wish is Wish.NOTHING:
            return None
        self._take(wish)
        return Plan(number=0, wish=wish, at_call=calls)

    def meet(self, plan: Plan, step: int, objection: str) -> str | None:
        """Wait until all ranks are at this step, for seconds. None where all save now, else why none of them does.

        objection: why this rank cannot save; empty where it can.
        """
        if not plan.is_shared:
            return objection or None
        try:
            return self._ask(lambda: self._serve_meet(plan, step, objection), self.meet_s() + ANSWER_S)
        except FutureTimeout:
            return "the ranks' exchange does not answer"

    def meet_s(self) -> float:
        return min(max(MEET_S, MEET_STEPS * (self._step_s() or 0.0)), MEET_AT_MOST_S)

    def finished(self, save: str, failure: str | None, over: Callable[[str | None], None] | None = None) -> None:
        """This rank's part of the save of that name is over: written whole, or failed with that reason. Never waits.

        over: on rank 0, called on the negotiating thread when every rank's part is over: None, or the first failure.
        """
        serve = self._serve_finish
        if serve is None:
            return

        def report() -> str | None:
            serve(save, failure, over)
            return None

        self._post(report)

    def _is_decided(self, armed: Plan) -> bool:
        """Whether all ranks go by this plan. One that is undecided when its step comes is withdrawn for all."""
        is_go = self._is_go
        if is_go is None:
            try:
                is_go = self._ask(lambda: self._serve_withdraw(armed), ANSWER_S) == GO
            except FutureTimeout:
                is_go = False
        return bool(is_go)

    def _ask(self, work: Callable[[], str | None], timeout_s: float) -> str | None:
        """Raises: TimeoutError of concurrent.futures."""
        return self._post(work).result(timeout_s)

    def _post(self, work: Callable[[], str | None]) -> Future[str | None]:
        future: Future[str | None] = Future()
        self._requests.append((work, future))
        self._wake()
        return future

    # ---- the negotiating thread --------------------------------------------------------------------------------

    def serve(
        self,
        *,
        meet: Callable[[Plan, int, str], str | None],
        withdraw: Callable[[Plan], str | None],
        finish: Finish,
    ) -> None:
        """What the negotiating thread does for the training thread."""
        self._serve_meet, self._serve_withdraw, self._serve_finish = meet, withdraw, finish

    def wakes(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    @property
    def armed(self) -> Plan | None:
        """The plan whose call has not come yet."""
        armed = self._armed
        return None if armed is self._passed else armed

    @property
    def is_undecided(self) -> bool:
        return self.armed is not None and self._is_go is None

    def arm(self, plan: Plan) -> bool:
        """Whether this rank can still keep to the plan: its step has not come yet."""
        self._is_go = None
        self._armed = plan
        if self.calls < plan.at_call:
            return True
        self._armed = None
        return False

    def decided(self, plan: Plan, is_go: bool) -> None:
        if self._armed is not plan:
            return
        self._is_go = is_go
        if not is_go:
            self._armed = None

    def disarm(self) -> None:
        self._armed = None

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def work_off(self) -> None:
        """Do what the training thread has asked for. What fails is an answer, and is raised after it was given."""
        while self._requests:
            work, future = self._requests.popleft()
            try:
                future.set_result(work())
            except Exception as err:
                future.set_result(f"the ranks' exchange failed: {err!r}")
                raise
