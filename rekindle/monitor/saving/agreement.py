"""The training thread's side of an agreement: one comparison per step, and a bounded wait where all ranks save.

The ranks must save at the same step, or a checkpoint holds two different ones. `negotiation` agrees on that step on a
thread of its own; here the training thread notices that it has come, meets the other ranks there for a few seconds at
most, and continues without a save where they do not come. Where the ranks cannot agree at all, each acts alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final, Protocol

from rekindle.monitor.base.clock import Clock
from rekindle.monitor.base.worker import WakeSignal
from rekindle.monitor.saving.agreement_terms import BOUNDS, Bounds, Plan, RankRequest

GO: Final = "go"
NO_ANSWER: Final = "the ranks' exchange does not answer"
LOOK_S: Final = 0.5


class Serving(Protocol):
    """What the negotiating thread does for the training thread. `meet` and `withdraw` answer `GO`, or why not."""

    def meet(self, plan: Plan, step: int, objection: str) -> str: ...

    def missed(self, plan: Plan, answer: str) -> None:
        """The training thread did not wait for this answer to `meet` or `withdraw`, and does not go by the plan."""
        ...

    def withdraw(self, plan: Plan) -> str: ...

    def finish(self, save: str, failure: str | None, over: Callable[[str | None], None] | None) -> str: ...

    def abandon(self, plan: Plan, why: str) -> None: ...


class Agreement:
    """`due`, `meet`, `hold` and `finished` belong to the training thread; the rest to the negotiating thread.

    They exchange whole values only, so no lock is taken in a step: the training thread writes `calls` and then reads
    the plan, the negotiating thread writes the plan and then reads `calls`; at least one of them sees the other's.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        wish: Callable[[], RankRequest],
        take: Callable[[RankRequest], None],
        step_s: Callable[[], float | None],
        clock: Clock,
        bounds: Bounds = BOUNDS,
    ) -> None:
        """wish: what this rank would have all ranks do now. take: that wish is being met, so it is no longer one."""
        self.rank = rank
        self.world_size = world_size
        self.calls = 0
        self.wish = wish
        self.bounds = bounds
        self._take = take
        self._step_s = step_s
        self._clock = clock
        self._armed: Plan | None = None  # written by the negotiating thread alone
        self._passed: Plan | None = None  # the newest one whose call has come; written by the training thread alone
        self._verdict: tuple[Plan, bool] | None = None  # whether all ranks go by that plan
        self._requests: deque[tuple[Callable[[], str], Callable[[str], None], Future[str]]] = deque()
        self._wake: Callable[[], None] = lambda: None
        self._serving: Serving | None = None
        self._why_lost = ""
        self._has_no_answer = False
        self._looks_by = clock.monotonic() + bounds.silent_s
        self._owes_stop = False
        self._under_way: Plan | None = None  # the shared save that not all ranks have come out of
        self._news = WakeSignal()
        self._is_held = False

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
        wish = RankRequest.STOP if self._owes_stop else self.wish()
        if wish is RankRequest.NOTHING or not (self._owes_stop or self.world_size == 1 or self._goes_alone()):
            return None
        self._owes_stop = False
        self._take(wish)
        return Plan(number=0, wish=wish, at_call=calls)

    @property
    def lost(self) -> str:
        """Why this rank acts without the others at present; empty where it agrees with them. For any thread."""
        return self._why_lost or (NO_ANSWER if self.is_silent else "")

    @property
    def is_silent(self) -> bool:
        """The negotiating thread has not come back from its transport for longer than it may take. For any thread."""
        return self._has_no_answer or self._clock.monotonic() > self._looks_by

    def meet(self, plan: Plan, step: int, objection: str) -> str | None:
        """Wait until all ranks are at this step, for seconds. None where all save now, else why this rank does not.

        objection: why this rank cannot save; empty where it can.
        """
        serving = self._serving
        if not plan.is_shared or serving is None:
            return objection or None
        self._under_way = plan
        try:
            answer = self._ask(
                lambda: serving.meet(plan, step, objection),
                lambda late: serving.missed(plan, late),
                self.meet_s() + self.bounds.answer_s,
            )
        except FutureTimeout:
            return NO_ANSWER
        return None if answer == GO else answer

    def meet_s(self) -> float:
        bounds = self.bounds
        return min(max(bounds.meet_s, bounds.meet_steps * (self._step_s() or 0.0)), bounds.meet_at_most_s)

    def finished(self, save: str, failure: str | None, over: Callable[[str | None], None] | None = None) -> None:
        """This rank's part of the save of that name is over: written whole, or failed with that reason. Never waits.

        over: on rank 0, called on the negotiating thread when every rank's part is over: None, or the first failure.
        """
        serving = self._serving
        if serving is None:
            if over is not None:
                over(failure)
            return
        self._post(lambda: serving.finish(save, failure, over))

    def hold(self, plan: Plan) -> None:
        """After this rank's part of a shared save failed: wait until every other rank is out of its own part.

        They may wait for this rank inside the save, and the collectives of the next step must not meet theirs. Where
        they do not come out for `hold_s` the save is abandoned, which ends the run. Where the exchange does not answer
        this rank continues at once: it could hear of nothing.
        """
        serving = self._serving
        if serving is None or not plan.is_shared:
            return
        self._is_held = True
        until = self._clock.monotonic() + self.bounds.hold_s
        self._wake()
        while self._under_way is plan and not self.lost:
            if self._clock.monotonic() > until:
                serving.abandon(plan, f"the other ranks did not end their part for {self.bounds.hold_s:.0f} s")
                break
            self._news.wait(LOOK_S)
        self._is_held = False

    def _goes_alone(self) -> bool:
        """Whether the others cannot be asked. A thread that seems stuck is asked once: the process may have slept."""
        if self._why_lost or self._has_no_answer:
            return True
        if not self.is_silent:
            return False
        try:
            self._ask(lambda: GO, lambda _: None, self.bounds.answer_s)
        except FutureTimeout:
            return True
        return bool(self._why_lost)

    def _is_decided(self, armed: Plan) -> bool:
        """Whether all ranks go by this plan. One that is undecided when its step comes is withdrawn for all."""
        verdict, serving = self._verdict, self._serving
        if verdict is not None and verdict[0] is armed:
            return verdict[1]
        if serving is None:
            return False
        try:
            answer = self._ask(
                lambda: serving.withdraw(armed), lambda late: serving.missed(armed, late), self.bounds.answer_s
            )
        except FutureTimeout:
            return False
        return answer == GO

    def _ask(self, work: Callable[[], str], missed: Callable[[str], None], timeout_s: float) -> str:
        """Raises: TimeoutError of concurrent.futures; then `missed` is called with the answer, if one comes."""
        future = self._post(work, missed)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            if future.cancel():
                self._has_no_answer = True
                raise
            return future.result()  # it came just now
        except CancelledError:
            raise
        except BaseException:  # a signal handler's, on its way through
            future.cancel()
            raise

    def _post(self, work: Callable[[], str], missed: Callable[[str], None] = lambda _: None) -> Future[str]:
        future: Future[str] = Future()
        self._requests.append((work, missed, future))
        self._wake()
        return future

    # ---- the negotiating thread --------------------------------------------------------------------------------

    def serve(self, serving: Serving) -> None:
        self._serving = serving

    def wakes(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def looks(self, wait_s: float = 0.0) -> None:
        """The negotiating thread is at work, or back from it for so many seconds."""
        self._looks_by = self._clock.monotonic() + wait_s + self.bounds.silent_s

    def answers(self, lost: str) -> None:
        """A look is over. lost: what `lost` says from now on."""
        self._why_lost, self._has_no_answer = lost, False

    @property
    def armed(self) -> Plan | None:
        """The plan whose call has not come yet."""
        armed = self._armed
        return None if armed is self._passed else armed

    @property
    def is_undecided(self) -> bool:
        armed, verdict = self.armed, self._verdict
        return armed is not None and (verdict is None or verdict[0] is not armed)

    @property
    def is_held(self) -> bool:
        return self._is_held

    def arm(self, plan: Plan) -> bool:
        """Whether this rank can still keep to the plan: its call has not come yet."""
        self._armed = plan
        if self.calls < plan.at_call:
            return True
        self._armed = None
        return False

    def decided(self, plan: Plan, is_go: bool) -> None:
        if self._armed is plan:
            self._verdict = (plan, is_go)
            if not is_go:
                self._armed = None

    def disarm(self) -> None:
        self._armed = None

    def owe_stop(self) -> None:
        """All other ranks stop by a plan that this rank let pass, because it got no answer in time."""
        self._owes_stop = True

    def release(self) -> None:
        """Every rank is out of the save, or it was abandoned."""
        self._under_way = None
        self._news.ring()

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def work_off(self) -> None:
        """Do what the training thread has asked for. What fails is an answer, and is raised after it was given."""
        while self._requests:
            work, missed, future = self._requests.popleft()
            broken: Exception | None = None
            try:
                answer = work()
            except Exception as err:
                answer, broken = f"the ranks' exchange failed: {err!r}", err
            try:
                future.set_result(answer)
            except InvalidStateError:
                missed(answer)
            if broken is not None:
                raise broken
