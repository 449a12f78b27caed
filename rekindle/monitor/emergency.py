"""A save between two steps, on the training thread; and what is handed on to be sealed and answered."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.stacks import OWN_PREFIX
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.mail.exchange import Ranks
from rekindle.monitor.mail.outbox import Outbox
from rekindle.monitor.mail.requests import Requests
from rekindle.monitor.saving.agreement import Agreement
from rekindle.monitor.saving.agreement_terms import Bounds, Plan, RankRequest
from rekindle.monitor.saving.rank_files import PartFiles, Told
from rekindle.monitor.saving.saved import LATER, SaveFunction, SaveJob, SaveResult, as_result
from rekindle.monitor.stops.stopping import Stopping
from rekindle.protocol.mailbox import CheckpointRequest, ReplyOutcome
from rekindle.protocol.manifests import SaveKind
from rekindle.protocol.signals import EventType

if TYPE_CHECKING:  # rank 0's
    from rekindle.monitor.link import ServiceLink
    from rekindle.monitor.saving.leading import Leader

SETTLE_S = 2.0  # for reading this step's loss, before a save; it is on its way from the device by then
_NO_PLAN = Plan(number=0, wish=RankRequest.NOTHING, at_call=0)


@dataclass(slots=True)
class _RunningSave:
    """A save until all ranks' parts are written, then until it is sealed. `requests`, `result`: rank 0's."""

    step: int
    kind: SaveKind
    requests: tuple[CheckpointRequest, ...] = ()
    result: SaveResult | None = None
    took_s: float | None = None
    writers: Sequence[threading.Thread] = ()
    plan: Plan = _NO_PLAN  # of an emergency save, which begins at the agreed step
    call: int = 0  # the call of `Monitor.step`: step numbers may repeat
    began: float = 0.0
    is_deferred: bool = False  # the framework makes it by itself, right after the step at which it was asked for


class Saver:
    """`link` is rank 0's; on other ranks, and without a mailbox, it stays None."""

    def __init__(
        self,
        run: Run,
        *,
        save: SaveFunction | None,
        ranks: Ranks,
        requests: Requests,
        stopping: Stopping,
        outbox: Outbox,
        settle: Callable[[float], bool],
    ) -> None:
        """settle: wait for the losses of all steps so far to be read, for so many seconds at most."""
        self._run = run
        self._save = save
        self._saves_alone, self._end_collectives = ranks.saves_alone, ranks.end_collectives
        abandon_s = run.config.abandon_s
        bounds = Bounds(stuck_s=abandon_s, enter_s=abandon_s, lifeless_s=2 * abandon_s)
        self.agreement = Agreement(run, wish=self._wish, take=self._take, bounds=bounds)
        self._is_first_rank = run.is_first
        self._requests, self._stopping = requests, stopping
        self._state, self._clock, self._trouble = run.state, run.clock, run.trouble
        self._outbox = outbox
        self._settle = settle
        self._under_way: dict[int, _RunningSave] = {}  # by the plan's number
        self._ended_before: dict[int, str] = {}  # plans that came to nothing before rank 0 came to their call, and why
        self._lock = threading.RLock()  # of the two above; a signal handler of the script may call the monitor
        self._deferred: _RunningSave | None = None
        self._threads = weakref.WeakSet(threading.enumerate())  # those of the newest look
        self._times: tuple[int, int] = (-1, 0)  # the newest saved step, and how often it was saved
        self._has_stopped = False
        self._is_abandoned = False
        self.is_calling = False  # the training thread is in the script's save function
        self.link: ServiceLink | None = None
        self.refuses: str | None = None  # why nothing that is saved from now on would count

    # ---- the training thread -----------------------------------------------------------------------------------

    def act(self, plan: Plan, step: int, phase: AbstractContextManager[None]) -> None:
        """Carry out the plan whose call of `Monitor.step` this is. phase: to save in."""
        if not plan.wish.saves:
            return
        try:
            with self._stopping.saving():
                self._save_now(plan, step, phase)
        finally:
            if plan.wish.stops:
                self._has_stopped = True

    def _wish(self) -> RankRequest:
        """What this rank would have all ranks do. On any thread."""
        if self._requests.superseded_by is not None:
            return RankRequest.NOTHING if self._stopping.should_stop else RankRequest.STOP
        asked = self._stopping.signals
        if asked.wants_stop and not self._stopping.should_stop:
            return RankRequest.SAVE_AND_STOP
        return RankRequest.SAVE if self._requests.has_wish or asked.wants_save else RankRequest.NOTHING

    def _take(self, wish: RankRequest) -> None:
        """All ranks that keep to the plan are at its step.

        What is saved once the run has stopped, in its tear-down, may not hold the step that it claims.
        """
        if wish.saves:
            self._stopping.forget_save()  # also where another rank's signal was the first to be seen
        if wish.stops:
            self._stopping.should_stop = True
        if wish is RankRequest.STOP:
            self._has_stopped = True

    def _save_now(self, plan: Plan, step: int, phase: AbstractContextManager[None]) -> None:
        """All ranks that keep to the plan are here, at the same call of `Monitor.step`."""
        calls, requests = self.agreement.calls, self._requests.take()
        began = self._clock.monotonic()
        running = _RunningSave(step, SaveKind.EMERGENCY, requests, plan=plan, call=calls, began=began)
        ended = self._begin(running) if plan.is_shared and self._is_first_rank else None
        why = self.agreement.meet(plan, step, self._objection_here(plan))
        if why is not None:
            if not plan.is_shared or ended is not None:
                self._cannot(running.requests, step, ended or why)
            return
        running.began = self._clock.monotonic()
        failure: str | None = None
        try:
            failure = self._call_save(running, phase)
        except BaseException as err:  # the script's own: see `_call_save`
            self._part_is_over(running, f"the save function ended by {err!r}")
            raise
        if failure is not None:
            self.failed(step, failure)
        elif running.is_deferred:
            self._deferred = running
            return
        self._part_is_over(running, failure)
        if failure is not None:
            self.agreement.hold(plan)

    def _call_save(self, running: _RunningSave, phase: AbstractContextManager[None]) -> str | None:
        """Why it failed, if it did. Raises what a user ends a run with."""
        if self._save is None:
            return "no save function was given to the monitor"
        self._born()
        try:
            with phase:
                self.is_calling = True
                returned = self._save(running.step, SaveKind.EMERGENCY.value)
            running.writers = self._born()
            running.is_deferred = returned is LATER
            if self._is_first_rank and not running.is_deferred:
                running.result = as_result(returned)
        except BaseException as err:  # the trainer's own function, whose errors need not be Exceptions
            if must_pass(err):
                raise
            return f"the save function failed: {err!r}"
        finally:
            self.is_calling = False
        return None

    def _born(self) -> list[threading.Thread]:
        """The script's threads that live now and did not when this was last asked: what they write may be a save's."""
        there = threading.enumerate()
        own = (thread for thread in there if not thread.name.startswith(OWN_PREFIX))
        born = [thread for thread in own if thread not in self._threads and thread is not threading.current_thread()]
        self._threads = weakref.WeakSet(there)
        return born

    def _objection_here(self, plan: Plan) -> str:
        """Why this rank must not save now; empty where it may."""
        if not plan.is_shared and self.agreement.world_size > 1 and not (self._saves_alone and self._is_first_rank):
            return f"no coordinator: {self.agreement.lost}"
        objection = self.objection()
        if objection:
            return objection
        if not self._settle(SETTLE_S):
            return "the loss of this step could not be read in time, so the weights may be poisoned"
        if self._state.is_poisoned:
            return "the loss or the gradient is not finite: a checkpoint now would keep the poisoned weights"
        return ""

    def stepped(self) -> None:
        """A further call: a save that the framework was to make right after the call before has not come."""
        running = self._deferred
        if running is not None and self.agreement.calls > running.call:
            self._deferred = None
            self._part_is_over(running, "the framework did not save at the step at which it was asked to")

    def ended(self) -> None:
        """The run is over: a save that the framework was to make has not come."""
        running, self._deferred = self._deferred, None
        if running is not None:
            self._part_is_over(running, "the run ended before the framework saved")

    def saved(
        self, step: int, kind: SaveKind, result: SaveResult, took_s: float | None, *, by_all_ranks: bool = False
    ) -> None:
        """The trainer's own save of `step` is complete, or this rank's part of it where `by_all_ranks`."""
        deferred = self._deferred
        if deferred is not None and deferred.step == step:
            self._deferred = None
            deferred.result = result
            self._part_is_over(deferred, None)
            return
        if not by_all_ranks and not self._is_first_rank:
            return
        if self.refuses is not None:
            self.failed(step, self.refuses)
            return
        if self._has_stopped:
            logger.info("The checkpoint of step %d, saved after the run was stopped, gets no manifest", step)
            return
        # An emergency is what was asked for here; the trainer's own word for another save does not make it one.
        own_kind = SaveKind.PERIODIC if kind is SaveKind.EMERGENCY else kind
        running = _RunningSave(step, own_kind, self._answered_by(step), result, took_s, self._born())
        if by_all_ranks and self.agreement.world_size > 1:
            newest, times = self._times
            self._times = (step, times + 1 if newest == step else 1)
            self.agreement.finished(
                f"saved-{step}-{self._times[1]}",
                None,
                partial(self._end, running) if self._is_first_rank else None,
                running.writers,
                PartFiles.of(result.path, self._state.no_save_before(step) or 0.0),
            )
        else:
            self._end(running, None)

    def _answered_by(self, step: int) -> tuple[CheckpointRequest, ...]:
        """A save that is newer than a request, and clean, is what the request asked for."""
        now_at = self._state.step
        answers = not self._state.is_poisoned and now_at is not None and step >= now_at
        is_planned = self.agreement.armed is not None
        return self._requests.take() if answers and not is_planned and self._requests.has_wish else ()

    def _part_is_over(self, running: _RunningSave, failure: str | None) -> None:
        running.took_s = self._clock.monotonic() - running.began
        if running.plan.is_shared:
            # Rank 0's are waited for when its files are measured.
            writers = () if self._is_first_rank else running.writers
            path = None if running.result is None else running.result.path
            self.agreement.finished(
                str(running.plan.number), failure, writers=writers, files=PartFiles.of(path, running.began)
            )
        else:
            self._end(running, failure)

    # ---- any thread --------------------------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """An emergency save has begun here, and not all ranks' parts of it are known to be written."""
        return bool(self._under_way)

    def objection(self) -> str:
        """Why no save can be made at all; empty where one can."""
        if self.refuses is not None:
            return self.refuses
        return "no save function was given to the monitor" if self._save is None else ""

    @property
    def is_possible(self) -> bool:
        """Whether an emergency save is possible at all, with this rank."""
        agrees = not self.agreement.lost or self.agreement.world_size == 1 or self._saves_alone
        return agrees and not self.objection() and self._requests.superseded_by is None

    def abandoned(self, why: str) -> None:
        """A save that cannot end was given up: the run stops here, instead of at its process group's time-out."""
        if self._is_abandoned:
            return
        self._is_abandoned = self._stopping.should_stop = self._has_stopped = True
        self.failed(self._state.step or 0, why)
        logger.warning("The run stops: a save in which the ranks wait for each other was abandoned: %s", why)
        if self._end_collectives is not None:
            try:
                self._end_collectives()
            except Exception as err:
                self._trouble.inner("end_collectives", err)

    def resumed_apart(self, why: str) -> None:
        self.refuses = why
        self._trouble.once("resumed_apart", "%s", why)

    def leader(self) -> Leader:
        """Rank 0's, where there are several ranks."""
        from rekindle.monitor.saving.leading import Hooks, Leader

        hooks = Hooks(self.objection, self.refused, self.completed, self.resumed_apart)
        return Leader(self._run, agreement=self.agreement, hooks=hooks, step_s=lambda: self._state.slow_step_s)

    def refused(self, why: str) -> None:
        """A wish for a save cannot be met."""
        self._stopping.forget_save()
        self._cannot(self._requests.take(), self._state.step, why)

    def completed(self, plan: Plan, failure: str | None, told: Told) -> None:
        """On rank 0: all ranks' parts of the plan's save are written, or it came to nothing. told: of its files."""
        with self._lock:
            running = self._under_way.pop(plan.number, None)
            if running is None:
                self._ended_before = {plan.number: failure or ""}
        if running is not None:
            self._end(running, failure, told)

    def _begin(self, running: _RunningSave) -> str | None:
        """On rank 0, at the plan's call. Why the plan has come to nothing already, where another rank was first."""
        with self._lock:
            ended = self._ended_before.pop(running.plan.number, None)
            if ended is None:
                self._under_way[running.plan.number] = running
            return ended

    def failed(self, step: int, why: str) -> None:
        self._trouble.once("save_failed", "A checkpoint of step %d is not usable: %s", step, why)
        self._outbox.push(EventType.SAVE_FAILED, at_step=step, why=why[:2000])

    def _end(self, running: _RunningSave, failure: str | None, told: Told | None = None) -> None:
        step, is_emergency = running.step, running.kind is SaveKind.EMERGENCY
        if failure is not None and not is_emergency:
            self.failed(step, failure)
        if failure is not None or running.result is None:
            self._cannot(running.requests, step, failure or "the save function returned no checkpoint")
        elif self.link is not None:
            self.link.submit(
                SaveJob(
                    step=step,
                    kind=running.kind,
                    result=running.result,
                    saved_at=self._clock.now(),
                    took_s=running.took_s,
                    requests=running.requests,
                    began=self._state.no_save_before(step),
                    writers=running.writers,
                    told=told or {},
                    poisoned=self._state.may_be_poisoned_at(step),
                    is_loss_unread=self._state.is_loss_unread,
                )
            )

    def _cannot(self, requests: Sequence[CheckpointRequest], step: int | None, why: str) -> None:
        if self.link is not None:
            for request in requests:
                self.link.mail.answer(request, ReplyOutcome.CANNOT, why, step=step)
