"""The training thread's part in agreeing with the other ranks on the step at which all of them save.

The ranks must save at the same step, or a checkpoint holds two different ones. `negotiation` agrees on that step, on a
thread of its own. Here the training thread compares its step with the agreed one, waits for the other ranks when it has
come, for some seconds at most, and continues without a save where they do not come. Where the ranks cannot agree at
all, each acts alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from threading import Thread
from typing import Final, Protocol

from rekindle.monitor.base.run import Run
from rekindle.monitor.base.worker import wait_until
from rekindle.monitor.saving.agreement_terms import Bounds, Plan, RankRequest
from rekindle.monitor.saving.rank_files import Over, Part, PartFiles

GO: Final = "go"
NO_ANSWER: Final = "the ranks' exchange does not answer"
NO_COORDINATOR: Final = "No coordinator: %s. Each rank decides alone; saves that need all ranks are refused"
AT_OTHER_STEPS: Final = "the ranks call step() at the same time for different steps"


class Negotiator(Protocol):
    """What the training thread asks of the negotiating thread: see `Negotiation`."""

    def meet(self, plan: Plan, step: int, objection: str) -> str: ...

    def missed(self, plan: Plan, answer: str) -> None: ...

    def withdraw(self, plan: Plan) -> str: ...

    def finish(self, part: Part) -> str: ...

    def abandon(self, plan: Plan, why: str) -> None: ...


class Agreement:
    """The state that the training thread and the negotiating thread of one rank share, without a lock.

    `due`, `meet`, `hold` and `finished` are called on the training thread, `lost` and `is_silent` on any, the rest on
    the negotiating thread. A step takes no lock, because each attribute is written as a whole by one of them: the
    training thread writes `calls` and then reads the plan, the negotiating thread writes the plan and then reads
    `calls`, so at least one of them sees the other's value.
    """

    def __init__(
        self,
        run: Run,
        *,
        wish: Callable[[], RankRequest],
        take: Callable[[RankRequest], None],
        bounds: Bounds,
    ) -> None:
        """wish: returns what this rank wants all ranks to do now. take: called when such a wish is being fulfilled."""
        self.rank, self.world_size = run.identity.rank, run.identity.world_size
        self.calls = 0
        self.wish = wish
        self.bounds = bounds
        self._take = take
        self._state, self._clock = run.state, run.clock
        self._armed: Plan | None = None  # written by the negotiating thread alone
        self._passed: Plan | None = None  # the newest plan whose call has come; written by the training thread alone
        self._verdict: tuple[Plan, bool] | None = None  # whether all ranks act by that plan
        self._requests: deque[tuple[Callable[[], str], Callable[[str], None], Future[str]]] = deque()
        self._wake: Callable[[], None] = lambda: None
        self._negotiator: Negotiator | None = None
        self._why_lost = ""
        self._has_no_answer = False
        self._silent_after = run.clock.monotonic() + bounds.silent_s
        self._owes_stop = False
        self._under_way: Plan | None = None  # the shared save that not all ranks have left
        self.is_held = False  # the training thread waits in `hold`

    # ---- the training thread -----------------------------------------------------------------------------------

    def due(self) -> Plan | None:
        """Count a call of `Monitor.step`. Returns the plan to carry out in this call; None for nothing."""
        self.calls = calls = self.calls + 1
        armed = self._armed
        if armed is not None and armed is not self._passed:
            if calls < armed.at_call:
                return None
            is_go = self._is_decided(armed)
            if is_go:
                self._take(armed.wish)
            self._passed = armed  # only now: until then the plan counts as covering the wish
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
        """Whether the negotiating thread has not shown that it is alive for too long. For any thread."""
        return self._has_no_answer or self._clock.monotonic() > self._silent_after

    def meet(self, plan: Plan, step: int, objection: str) -> str | None:
        """Wait for all ranks at this step, for a bounded time. None where all save now, else why this rank does not.

        objection: why this rank cannot save; empty where it can.
        """
        negotiator = self._negotiator
        if not plan.is_shared or negotiator is None:
            return objection or None
        self._under_way = plan
        try:
            answer = self._ask(
                lambda: negotiator.meet(plan, step, objection),
                lambda late: negotiator.missed(plan, late),
                self.meet_s() + self.bounds.answer_s,
            )
        except FutureTimeout:
            return NO_ANSWER
        return None if answer == GO else answer

    def meet_s(self) -> float:
        """How long to wait for the other ranks at a step, in seconds; longer where steps take long."""
        bounds = self.bounds
        return min(max(bounds.meet_s, bounds.meet_steps * (self._state.step_s or 0.0)), bounds.meet_at_most_s)

    def finished(
        self,
        save: str,
        failure: str | None,
        over: Over | None = None,
        writers: Sequence[Thread] = (),
        files: PartFiles | None = None,
    ) -> None:
        """This rank's part of the named save is over: complete, or failed with the reason `failure`. Never waits.

        over: for rank 0; called on the negotiating thread when every rank is done, with the first failure or None, and
        the files that the other ranks told of. writers: threads that the save began; the other ranks are told when they
        have ended, or after a minute.
        """
        negotiator = self._negotiator
        if negotiator is None:
            if over is not None:
                over(failure, {})
            return
        part = Part(save, failure, over, writers, files)
        self._post(lambda: negotiator.finish(part))

    def hold(self, plan: Plan) -> None:
        """After this rank's part of a shared save failed, wait until every other rank has left its own part.

        They may be waiting for this rank in a collective operation of the save, which must not be matched with one of
        the next step. Where they have not left within `hold_s` the save is abandoned, which ends the run. Where the
        exchange does not answer, this rank continues at once, since it would not learn of their leaving.
        """
        negotiator = self._negotiator
        if negotiator is None or not plan.is_shared:
            return
        self.is_held = True
        self._wake()
        until = time.monotonic() + self.bounds.hold_s
        if not wait_until(lambda: self._under_way is not plan or bool(self.lost), until):
            negotiator.abandon(plan, f"the other ranks did not end their part for {self.bounds.hold_s:.0f} s")
        self.is_held = False

    def _goes_alone(self) -> bool:
        """Whether the other ranks cannot be asked.

        A negotiating thread that seems stuck is asked once: the whole process may have been suspended.
        """
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
        """Whether all ranks act by this plan; one that is undecided when its step comes is withdrawn for all ranks."""
        verdict, negotiator = self._verdict, self._negotiator
        if verdict is not None and verdict[0] is armed:
            return verdict[1]
        if negotiator is None:
            return False
        try:
            answer = self._ask(
                lambda: negotiator.withdraw(armed), lambda late: negotiator.missed(armed, late), self.bounds.answer_s
            )
        except FutureTimeout:
            return False
        return answer == GO

    def _ask(self, work: Callable[[], str], missed: Callable[[str], None], timeout_s: float) -> str:
        """Have the negotiating thread do `work`, and return its answer.

        Raises: concurrent.futures.TimeoutError; an answer that comes after that is given to `missed`.
        """
        future = self._post(work, missed)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            if future.cancel():
                self._has_no_answer = True
                raise
            return future.result()  # it came between the timeout and the cancellation
        except BaseException:  # raised by a signal handler
            future.cancel()
            raise

    def _post(self, work: Callable[[], str], missed: Callable[[str], None] = lambda _: None) -> Future[str]:
        """Queue `work` for the negotiating thread, and wake it."""
        future: Future[str] = Future()
        self._requests.append((work, missed, future))
        self._wake()
        return future

    # ---- the negotiating thread --------------------------------------------------------------------------------

    def set_negotiator(self, negotiator: Negotiator, wake: Callable[[], None]) -> None:
        """From now on this one is asked, and woken for it; without one this rank acts alone."""
        self._negotiator, self._wake = negotiator, wake

    def report_alive(self, wait_s: float = 0.0) -> None:
        """The negotiating thread is alive, and will report again after at most `wait_s` of waiting and its work."""
        self._silent_after = self._clock.monotonic() + wait_s + self.bounds.silent_s

    def set_lost(self, lost: str) -> None:
        """What `lost` returns from now on, as the negotiating thread found it at its newest read."""
        self._why_lost, self._has_no_answer = lost, False

    @property
    def armed(self) -> Plan | None:
        """The plan whose call has not come yet."""
        armed = self._armed
        return None if armed is self._passed else armed

    @property
    def is_undecided(self) -> bool:
        """Whether there is an armed plan of which it is not known whether all ranks act by it."""
        armed, verdict = self.armed, self._verdict
        return armed is not None and (verdict is None or verdict[0] is not armed)

    def arm(self, plan: Plan) -> bool:
        """Set the plan to carry out. False where its call has passed already, so that this rank cannot keep to it."""
        self._armed = plan
        if self.calls < plan.at_call:
            return True
        self._armed = None
        return False

    def decided(self, plan: Plan, is_go: bool) -> None:
        """Record whether all ranks act by the plan."""
        if self._armed is plan:
            self._verdict = (plan, is_go)
            if not is_go:
                self._armed = None

    def disarm(self) -> None:
        """Drop the plan."""
        self._armed = None

    def owe_stop(self) -> None:
        """This rank must stop in its next call: the others stop by a plan whose answer came too late here."""
        self._owes_stop = True

    def release(self) -> None:
        """End `hold`: every rank has left the save, or it was abandoned."""
        self._under_way = None

    @property
    def has_requests(self) -> bool:
        """Whether the training thread has asked for something that is not done yet."""
        return bool(self._requests)

    def run_requests(self) -> None:
        """Do what the training thread has asked for.

        Raises: what a request raised, after the failure was given to the training thread as the answer.
        """
        while self._requests:
            work, missed, future = self._requests.popleft()
            error: Exception | None = None
            try:
                answer = work()
            except Exception as err:
                answer, error = f"the ranks' exchange failed: {err!r}", err
            try:
                future.set_result(answer)
            except InvalidStateError:
                missed(answer)
            if error is not None:
                raise error
