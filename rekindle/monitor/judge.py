"""The late thread: reads tensors, which may have to wait for the device, and feeds the loss detectors.

The training thread only appends to a queue. The detectors run on rank 0 alone; every rank looks after its own values
that are not finite.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rekindle.detectors import Health, LossWatch, Point, Severity, ThroughputWatch, Verdict
from rekindle.detectors import Trouble as Kind
from rekindle.monitor.metrics import Sample, as_number
from rekindle.monitor.outbox import EventType
from rekindle.monitor.trouble import Trouble, logger
from rekindle.monitor.voice import Voice

QUEUE_MAX = 4096  # points; the oldest go first, and are counted
_SICK = (Health.SPIKING, Health.DIVERGING, Health.NON_FINITE)


@dataclass(frozen=True, slots=True)
class LossNews:
    """What the detectors last said of the loss, exchanged as one value between threads."""

    health: Health = Health.UNKNOWN
    onset_step: int | None = None
    healed_step: int | None = None
    baseline: float | None = None
    judged_step: int | None = None  # the newest step whose loss they were given


class Judge:
    """`take` is the training thread's and never waits; everything else happens in `turn`."""

    def __init__(
        self,
        *,
        is_first_rank: bool,
        judge_s: float,
        voice: Voice,
        trouble: Trouble,
        see_loss: Callable[[int, float], None],
        forward: Callable[[Sample], None],
        on_news: Callable[[], None],
    ) -> None:
        self._judges = is_first_rank
        self._judge_s = judge_s
        self._voice = voice
        self._trouble = trouble
        self._see_loss = see_loss
        self._forward = forward
        self._on_news = on_news
        self._queue: deque[tuple[Sample, bool]] = deque(maxlen=QUEUE_MAX)
        self._loss = LossWatch()
        self._throughput = ThroughputWatch()
        self.news = LossNews()

    def wants(self, *, is_late: bool) -> bool:
        """Whether a sample belongs in here: all that have to be read, and on rank 0 every other one too."""
        return is_late or self._judges

    def take(self, sample: Sample, *, is_late: bool) -> None:
        """Queue one step. `is_late`: its loss has yet to be read, seen for what it is, and forwarded as a metric."""
        if len(self._queue) == QUEUE_MAX:
            self._trouble.count("points_dropped")
        self._queue.append((sample, is_late))

    def turn(self) -> float:
        """Work off the queue. Returns seconds until the next turn."""
        while self._queue:
            sample, is_late = self._queue.popleft()
            loss = as_number(sample.loss) if sample.loss is not None else None  # may wait for the device
            if is_late:
                if loss is None:
                    self._trouble.once(
                        "unreadable_loss", "The loss of step %d is not a number: %r", sample.step, type(sample.loss)
                    )
                else:
                    self._see_loss(sample.step, loss)
                self._forward(replace(sample, loss=loss))
            if self._judges:
                self._judge(sample, loss)
        return self._judge_s

    def _judge(self, sample: Sample, loss: float | None) -> None:
        grad_norm = as_number(sample.grad_norm) if sample.grad_norm is not None else None
        point = Point(step=sample.step, loss=loss, grad_norm=grad_norm, step_s=sample.step_s)
        was = self.news
        verdicts = self._loss.update(point)
        watch = self._loss
        judged = was.judged_step if loss is None else sample.step
        now = LossNews(watch.health, watch.onset_step, watch.healed_step, watch.baseline, judged)
        self.news = now
        for verdict in verdicts:
            self._say_loss(verdict, loss)
        is_healed = now.healed_step is not None and now.healed_step != was.healed_step
        if is_healed:
            self._voice.push(
                EventType.LOSS_RECOVERED,
                at_step=sample.step,
                healed_step=now.healed_step,
                onset_step=now.onset_step,
                loss=_finite(loss),
            )
            logger.info("The loss is back to normal at step %d", sample.step)
        # Rows that come back one by one and leave again are no news: each would be a beat of its own.
        flickers = {was.health, now.health} == {Health.SPIKING, Health.WATCH} and was.onset_step == now.onset_step
        changes = was.health is not now.health and (was.health in _SICK or now.health in _SICK)
        if is_healed or (changes and not flickers):
            self._on_news()
        for verdict in self._throughput.update(point):
            if verdict.severity is Severity.ACT:
                self._say_throughput(verdict)

    def _say_loss(self, verdict: Verdict, loss: float | None) -> None:
        """A verdict worth a recovery becomes an event; values that are not finite have one of their own already."""
        if verdict.severity is not Severity.ACT or verdict.kind is Kind.NON_FINITE:
            return
        event = EventType.DIVERGENCE if verdict.kind is Kind.DIVERGENCE else EventType.LOSS_SPIKE
        self._voice.push(
            event,
            at_step=verdict.step,
            onset_step=self.news.onset_step if self.news.onset_step is not None else verdict.step,
            loss=_finite(loss),
            baseline=_finite(self.news.baseline),
            trouble=verdict.kind.value,
            rule=verdict.rule,
            evidence=plain(verdict.evidence),
        )
        logger.warning("%s at step %d: %s", verdict.kind, verdict.step, verdict.rule)

    def _say_throughput(self, verdict: Verdict) -> None:
        evidence = plain(verdict.evidence)
        self._voice.push(
            EventType.THROUGHPUT_DROP,
            at_step=verdict.step,
            step_s=number(evidence.get("step_s")),
            baseline_s=number(evidence.get("baseline_s")),
            rule=verdict.rule,
            evidence=evidence,
        )
        logger.info("Steps take longer than they did: step %d, %s", verdict.step, verdict.rule)


def plain(evidence: Mapping[str, float | int | str]) -> dict[str, Any]:
    """Evidence as JSON can hold it: what is not finite is said in words."""
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
        for name, value in evidence.items()
    }


def number(value: object) -> float | None:
    """A figure of the evidence, where it is one."""
    return float(value) if isinstance(value, int | float) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
