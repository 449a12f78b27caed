"""The loss detectors of a run, on the late thread of the one rank that judges (see `judging_rank`)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rekindle.detectors.health import Health
from rekindle.detectors.kinds import LossKind
from rekindle.detectors.nonfinite import classify
from rekindle.detectors.pace import ThroughputWatch
from rekindle.detectors.points import Point, Severity, Verdict
from rekindle.detectors.points import Trouble as Kind
from rekindle.detectors.watch import LossWatch
from rekindle.monitor.base.metrics import Sample
from rekindle.monitor.base.state import BadSteps, BadStretch
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.loss.judging_rank import JudgingRank, LossNews
from rekindle.monitor.mail.outbox import Outbox
from rekindle.protocol.signals import EventType

LEARNING_RATES = ("lr", "learning_rate")  # metrics of these names are the learning rate of the step
ANNOUNCED_MAX = 64  # changes that wait for the late thread; the oldest go first
_SICK = (Health.SPIKING, Health.DIVERGING, Health.NON_FINITE)


class Judge:
    """`judge` is the late thread's; `news` may be read by any. The pace of steps is judged by rank 0."""

    def __init__(
        self,
        judging_rank: JudgingRank,
        *,
        has_pace: bool,
        outbox: Outbox,
        on_news: Callable[[], None],
        loss_kind: LossKind = LossKind.AUTO,
    ) -> None:
        self._judging_rank = judging_rank
        self._has_pace = has_pace
        self._outbox = outbox
        self._on_news = on_news
        self._loss = LossWatch(loss_kind)
        self._announced: deque[tuple[int, int | None]] = deque(maxlen=ANNOUNCED_MAX)  # step, and how many it takes
        self._throughput = ThroughputWatch()
        self._bad = BadSteps()
        self._held_back: list[Point] = []  # not finite, and not yet more than news
        self.news = LossNews()

    def expect(self, step: int, steps: int | None) -> None:
        """A change is planned at `step`. The training thread's; the late thread applies it before the next sample."""
        self._announced.append((step, steps))

    def wants(self, sample: Sample) -> bool:
        """Whether there is something to judge in a sample."""
        return self._has_pace or (sample.loss is not None and self._judging_rank.may_judge)

    def judge(self, sample: Sample) -> None:
        """Judge one step; its values are numbers by now."""
        loss = sample.loss if isinstance(sample.loss, float) else None
        while self._announced:
            self._loss.expect(*self._announced.popleft())
        lr = _learning_rate(sample)
        point = Point(step=sample.step, loss=loss, step_s=sample.step_s, lr=lr)
        if self._judging_rank.may_judge:
            self._judge_loss(point)
        if self._has_pace:
            for verdict in self._throughput.update(point):
                if verdict.severity is Severity.ACT:
                    self._say_throughput(verdict)

    def _judge_loss(self, point: Point) -> None:
        was = self.news
        verdicts: list[Verdict] = []
        for row in self._confirmed(point):
            verdicts += self._loss.update(row)
        watch, loss = self._loss, point.loss
        judged = was.judged_step if loss is None else point.step
        health = watch.health
        if self._held_back and health in (Health.OK, Health.UNKNOWN):
            health = Health.WATCH
        now = LossNews(health, watch.onset_step, watch.healed_step, watch.baseline, judged)
        self.news = now
        if not self._judging_rank.is_mine:
            return
        for verdict in verdicts:
            self._say_loss(verdict, loss)
        is_healed = now.healed_step is not None and now.healed_step != was.healed_step
        if is_healed:
            self._outbox.push(
                EventType.LOSS_RECOVERED,
                at_step=point.step,
                healed_step=now.healed_step,
                onset_step=now.onset_step,
                loss=_finite(loss),
            )
            logger.info("The loss is back to normal at step %d", point.step)
        # Rows that come back one by one and leave again are no news: each would be a heartbeat of its own.
        flickers = {was.health, now.health} == {Health.SPIKING, Health.WATCH} and was.onset_step == now.onset_step
        changes = was.health is not now.health and (was.health in _SICK or now.health in _SICK)
        if is_healed or (changes and not flickers):
            self._on_news()

    def _confirmed(self, point: Point) -> list[Point]:
        """The rows that the detectors are given now: a loss that is not finite only once it lasts, see `BadSteps`."""
        if point.loss is None:
            return [point]
        if math.isfinite(point.loss):
            self._bad.good()
            self._held_back.clear()
            return [point]
        state = classify(point.loss)
        self._bad.bad(BadStretch(step=point.step, loss_state=state, metric="loss", own=False, alone=None))
        if not self._bad.is_confirmed:
            self._held_back.append(point)
            return [replace(point, loss=None)]
        rows = [*self._held_back, point]
        self._held_back.clear()
        return rows

    def _say_loss(self, verdict: Verdict, loss: float | None) -> None:
        """A verdict worth a recovery becomes an event; values that are not finite have one of their own already."""
        if verdict.severity is not Severity.ACT or verdict.kind is Kind.NON_FINITE:
            return
        event = EventType.DIVERGENCE if verdict.kind is Kind.DIVERGENCE else EventType.LOSS_SPIKE
        self._outbox.push(
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
        self._outbox.push(
            EventType.THROUGHPUT_DROP,
            at_step=verdict.step,
            step_s=number(evidence.get("step_s")),
            baseline_s=number(evidence.get("baseline_s")),
            rule=verdict.rule,
            evidence=evidence,
        )
        logger.info("Steps take longer than they did: step %d, %s", verdict.step, verdict.rule)


def _learning_rate(sample: Sample) -> float | None:
    """The step's learning rate, where the script logs it under a usual name."""
    for name in LEARNING_RATES if sample.extra else ():
        value = (sample.extra or {}).get(name)
        if isinstance(value, float):
            return value
    return None


def plain(evidence: Mapping[str, float | int | str]) -> dict[str, Any]:
    """Evidence as JSON can hold it: what is not finite is spelled out."""
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
        for name, value in evidence.items()
    }


def number(value: object) -> float | None:
    """A figure of the evidence, where it is one."""
    return float(value) if isinstance(value, int | float) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
