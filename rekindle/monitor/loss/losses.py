"""The losses and other values of each step: captured on the training thread, read and judged on the late thread.

    training thread   take     a value becomes a number, or a copy that its device makes in order (see `values`);
                               copies that are there are collected at every call of the monitor's on this thread
    late thread       turn     reads what is ready, notes what is not finite, feeds the detectors
    any thread        settle   waits, for a bounded time, until everything taken so far was read

A step whose values are all numbers is noted at once, unless older ones are still to be read: steps keep their order.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rekindle.detectors.kinds import LossKind
from rekindle.monitor.base.metrics import Sample
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.state import BadStretch
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.base.values import Captured, Unreadable, capture, collect, is_pending, is_ready, read
from rekindle.monitor.base.worker import Worker, wait_until
from rekindle.monitor.liveness.reporter import Reporter
from rekindle.monitor.loss.judge import Judge
from rekindle.monitor.loss.judging_rank import JudgingRank
from rekindle.monitor.loss.scaler import ScaleWatch
from rekindle.monitor.mail.outbox import Outbox

QUEUE_MAX = 4096  # steps; while so many wait, further ones are not taken, and counted
DEVICE_POLL_S = 0.02  # how often values that are not there yet are looked for
SETTLE_POLL_S = 0.001  # the same, where the training thread waits for them
NAMED_MAX = 32  # metrics that could not be read, each of which is named once
SETTLE_S = 10.0  # how long a seal waits for the loss of its step


class Losses:
    """`on_news` is called, on any thread, for what the heartbeat should tell. `reporter`: where there is a mailbox."""

    def __init__(self, run: Run, *, outbox: Outbox, loss_kind: LossKind, on_news: Callable[[], None]) -> None:
        self._identity, self._state, self._trouble = run.identity, run.state, run.trouble
        self._is_first_rank = run.is_first
        self.judging_rank = JudgingRank(run, news=lambda: self.judge.news, on_news=on_news)
        self.judge = Judge(
            self.judging_rank, has_pace=run.is_first, outbox=outbox, on_news=self._news, loss_kind=loss_kind
        )
        self._judge_s = run.config.judge_s
        self._outbox = outbox
        self._on_news = on_news
        self.reporter: Reporter | None = None
        self._queue: deque[tuple[Sample, bool]] = deque()
        self._unread = 0  # samples in the queue whose values are still to be noted; the training thread's
        self._noted = 0  # the late thread's count of those that it noted
        self._taken = 0
        self._done = 0
        self.scale = ScaleWatch()
        self._named: set[str] = set()  # metrics that could not be read
        self.worker = Worker("late", self.turn, run.trouble)
        self._has_worker = False
        self._bad_since: int | None = None  # the step of which a warning has said that a value is not finite

    # ---- the training thread ---------------------------------------------------------------------------------------

    def take(
        self,
        step: int,
        step_s: float | None,
        loss: object,
        grad_norm: object = None,
        tokens: object = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Note one step's values as they are now. Never waits; raises only `values.PASS`."""
        if len(self._queue) >= QUEUE_MAX:
            self._trouble.count("points_dropped")
            return
        sample = Sample(
            step=step,
            step_s=step_s,
            loss=self._captured("loss", loss),
            grad_norm=self._captured("grad_norm", grad_norm),
            tokens=self._captured("tokens", tokens),
            extra={name: self._captured(name, value) for name, value in extra.items()} if extra else None,
            scale=self._captured("scale", self.scale.now()),
        )
        is_late = self._unread > self._noted or any(map(is_pending, _values(sample)))
        if not is_late:
            self._note(sample)
        if is_late or self.judge.wants(sample):
            self._taken += 1
            self._unread += is_late
            self._queue.append((sample, is_late))
            if not self._has_worker:
                self._wake()

    def _wake(self) -> None:
        """Wake the late thread, which is started when the training thread first has something for it."""
        if not self._has_worker:
            try:
                self.worker.start()
            except RuntimeError as err:  # the process may have no more threads now: the next step tries again
                self._trouble.inner("late", err)
                return
            self._has_worker = True
        self.worker.wake()

    def _captured(self, name: str, value: object) -> Captured:
        found = None if value is None else capture(value)
        if isinstance(found, Unreadable):
            self._unreadable(name, found.why)
            return None
        return found

    def _unreadable(self, name: str, why: str) -> None:
        if name == "loss":
            self._state.is_loss_unread = True
        if len(self._named) < NAMED_MAX:
            self._named.add(name)
        kind = f"unreadable_{name}" if name in self._named else "unreadable_others"
        self._trouble.once(kind, "A value of a step is not known (%s): it is %s", name, why)

    # ---- the late thread -------------------------------------------------------------------------------------------

    def turn(self) -> float:
        """Work off what is ready. Returns seconds until the next turn."""
        while self._queue:
            sample, is_late = self._queue[0]
            if is_late and not all(map(is_ready, _values(sample))):
                return min(self._judge_s, DEVICE_POLL_S)
            self._queue.popleft()
            try:
                self._one(sample, is_late)
            finally:
                self._noted += is_late
                self._done += 1
        return self._judge_s

    def _one(self, sample: Sample, is_late: bool) -> None:
        if is_late:
            sample = replace(
                sample,
                loss=self._number("loss", sample.loss),
                grad_norm=self._number("grad_norm", sample.grad_norm),
                tokens=self._number("tokens", sample.tokens),
                extra={name: self._number(name, value) for name, value in (sample.extra or {}).items()} or None,
                scale=self._number("scale", sample.scale),
            )
            self._note(sample)
        self.judge.judge(sample)

    def _number(self, name: str, value: Captured) -> float | None:
        number = read(value)
        if number is None and value is not None:
            self._unreadable(name, "a value that its device did not deliver")
        return number

    def end(self, until: float) -> None:
        """Read what is there, and end the thread; until `until` by the process's monotonic clock. Tell what is bad."""
        if self._has_worker:
            self.settle(until - time.monotonic())
            self.worker.end(until)
        if (stretch := self._state.bad_at_the_end()) is not None:
            self._log_and_report(stretch)
        self.judging_rank.publish()

    # ---- either ----------------------------------------------------------------------------------------------------

    def _note(self, sample: Sample) -> None:
        """A step whose values are numbers."""
        loss, scale = sample.loss, sample.scale
        if isinstance(loss, float):
            stretch, is_first = self._state.see_loss(sample.step, loss)
            if is_first or stretch is not None:
                self._on_bad(sample.step, "loss", is_first, stretch)
            elif self._bad_since is not None and not self._state.is_poisoned:
                logger.warning(
                    "The loss of step %d is finite; values were not since step %d", sample.step, self._bad_since
                )
                self._bad_since = None
        if isinstance(sample.grad_norm, float) and not math.isfinite(sample.grad_norm) and not self.scale.is_on:
            self._state.see_bad_gradient(sample.step)
        if isinstance(scale, float):
            lost = self.scale.see(sample.step, scale)
            if self.scale.skipped:
                self._trouble.count("scaler_skips")
            if lost is not None:
                self._on_bad(sample.step, "gradient", True, lost)
        self._forward(sample)

    def own_bad(self, step: int, metric: str, ranks: Sequence[int] | None) -> None:
        """See `Monitor.local_non_finite`."""
        if self.scale.is_on and metric.startswith("grad"):
            self._trouble.count("scaled_gradients_not_finite")  # an overflow that the scaler answers with a skip
            return
        is_known = ranks is not None and self._identity.world_size > 1
        is_alone = set(ranks or ()) == {self._identity.rank} if is_known else None
        stretch, is_first = self._state.see_own_bad(step, metric, is_alone)
        self._on_bad(step, metric, is_first, stretch)

    def _forward(self, sample: Sample) -> None:
        """Rank 0's values are the run's metrics; of another rank only the loss, where that rank judges it."""
        if self._is_first_rank:
            self._outbox.sample(sample if self.judging_rank.is_mine else replace(sample, loss=None))
        elif self.judging_rank.is_mine and sample.loss is not None:
            self._outbox.sample(Sample(step=sample.step, step_s=None, loss=sample.loss))

    def _on_bad(self, step: int, metric: str, is_first: bool, stretch: BadStretch | None) -> None:
        """A value of this rank is not finite. The report is evidence, at once; the event waits until it lasts."""
        if is_first and self.reporter is not None:
            self.reporter.non_finite(step, metric)
        if stretch is not None:
            self._log_and_report(stretch)
            self._news()

    def _news(self) -> None:
        self._on_news()
        self.judging_rank.publish()

    def _log_and_report(self, stretch: BadStretch) -> None:
        """Also in the run's own log, where it is a value of this rank's own, or the loss of all and this one judges."""
        is_judge = self.judging_rank.is_mine
        self._outbox.push_bad_stretch(stretch, is_judge=is_judge)
        if is_judge or stretch.own:
            logger.warning("The %s is not finite since step %d", stretch.metric, stretch.step)
            self._bad_since = stretch.step

    def settle(self, timeout_s: float) -> bool:
        """Wait until all values that were taken before this call are read and judged; whether that was so in time.

        For a save or a seal: then `RunState.is_poisoned` and `loss_at` speak of this step. Where it returns False the
        newest losses are unknown.
        """
        mark, until = self._taken, time.monotonic() + timeout_s
        if self._done >= mark:
            return True
        self._wake()
        # No other thread may ask the device for what this one has begun to copy.
        return wait_until(lambda: not collect() and self._done >= mark, until, SETTLE_POLL_S)


def _values(sample: Sample) -> tuple[Captured, ...]:
    return (sample.loss, sample.grad_norm, sample.tokens, sample.scale, *(sample.extra or {}).values())
