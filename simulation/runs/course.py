"""How a run's loss and pace go on: spikes, poison, skipped updates, slow steps, and what its monitor says of them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Final

from rekindle.monitor.loss.scaler import ScaleWatch
from rekindle.protocol.mailbox import LossState
from rekindle.protocol.signals import EventType
from simulation.runs.spans import Spans
from simulation.runs.truth import Attempt
from simulation.stories.story import Trouble

SLOW_SHOWS_AFTER: Final = 24  # steps; rekindle.detectors.pace asks for 20 rows that are very slow, and for time
SLOW_RULE: Final = "the median step stays slow"
FIRST_SCALE: Final = 65536.0  # torch.amp.GradScaler
CONFIRMED_AFTER: Final = 3  # bad steps in a row; rekindle.monitor.base.state.ACT_AFTER


class Course:
    """Of every attempt."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._clock, self._monitor = spans.clock, spans.monitor

    def skips(self, attempt: Attempt, trouble: Trouble, step: int) -> None:
        """Updates are left out, the loss is a number. What is reported is what rekindle.monitor's own watch says."""
        watch, scale = ScaleWatch(), FIRST_SCALE
        watch.see(step - 1, scale)
        for number in range(trouble.heals or 0):
            scale /= 2
            found = watch.see(step + number, scale)
            if found is not None:
                delay = timedelta(seconds=number * attempt.run.spec.step_s)
                self._spans.later(attempt, "collapse", delay, partial(self._collapses, attempt, found.step))
                return

    def pace_at(self, attempt: Attempt, step: int) -> None:
        """Its monitor reports steps that stay slow; afterwards they may be as fast as before."""
        pace, usual_s = attempt.stretches[-1].pace, attempt.run.spec.step_s
        if attempt.slow_from is None or pace == 1.0:
            return
        if step == attempt.fast_from:
            self._spans.enter(attempt, step, moves=True, pace=1.0)
            if attempt.run.ill is not None and attempt.run.ill.kind == "slow":
                attempt.run.is_well_again(self._clock.now())
        elif step == attempt.slow_from + SLOW_SHOWS_AFTER and attempt.first_step < attempt.slow_from:
            figures = {"step_s": usual_s * pace, "baseline_s": usual_s, "rule": SLOW_RULE}
            self._monitor.push(attempt, EventType.THROUGHPUT_DROP, figures)

    def slows(self, attempt: Attempt, trouble: Trouble, step: int) -> None:
        attempt.slow_from = step
        attempt.fast_from = None if trouble.heals is None else step + trouble.heals
        self._spans.enter(attempt, step, moves=True, pace=trouble.times)
        attempt.run.falls_ill("slow", self._clock.now(), reached=step)

    def _collapses(self, attempt: Attempt, first: int) -> None:
        """It learns nothing any more."""
        attempt.spikes_on, attempt.collapsed_at = True, first
        attempt.run.falls_ill("spiking", self._clock.now(), reached=first - 1)
        self.loss_at(attempt, attempt.step_at(self._clock.now()), blips=False)
        self._monitor.push_collapse(attempt, first)

    def poison(self, attempt: Attempt, last_good_loss: int, *, update: int | None = None) -> None:
        """The weights are poisoned by `update`; the first bad loss is the one after `last_good_loss`."""
        if attempt.is_poisoned:
            return
        attempt.is_poisoned = True
        attempt.bad_update = last_good_loss if update is None else update
        attempt.first_bad_loss = last_good_loss + 1

    def loss_at(self, attempt: Attempt, step: int, *, blips: bool) -> None:
        """Bring the loss that is seen up to the step."""
        stretch = attempt.stretches[-1]
        first_bad = attempt.first_bad_loss
        changes = _loss_seen(attempt, step, blips=blips)
        if stretch.health == "spiking" and not attempt.spikes_on and _heals_at(attempt, step):
            self._spans.enter(attempt, step, moves=True, **(changes | {"health": "ok", "healed": step}))
            if attempt.run.ill is not None and attempt.run.ill.kind == "spiking":
                self._spans.gets_over(attempt, step)
            self._monitor.push_loss(
                attempt, "Rekindle Loss Recovered", {"healed_step": step, "onset_step": stretch.onset}, rule=False
            )
        else:
            self._spans.enter(attempt, step, moves=True, **changes)
        if first_bad is not None and step == max(first_bad + CONFIRMED_AFTER - 1, attempt.first_step):
            self._monitor.push_bad(attempt, first_bad)


def _loss_seen(attempt: Attempt, step: int, *, blips: bool) -> dict[str, Any]:
    """What the step changes of the loss that its monitor shows."""
    first_bad, health = attempt.first_bad_loss, attempt.stretches[-1].health
    if first_bad is None and attempt.collapsed_at is not None:
        return {"loss": LossState.INF, "health": "non_finite", "onset": attempt.collapsed_at}
    if first_bad is not None and step >= first_bad + CONFIRMED_AFTER - 1:
        return {"loss": LossState.NAN, "health": "non_finite", "onset": first_bad}
    if not blips and (first_bad is None or step < first_bad):
        return {"loss": LossState.FINITE} | ({"health": "ok"} if health == "watch" else {})
    # One bad value is no state yet, as in rekindle.monitor.base.state.newest_loss: it is watched until it lasts.
    return {"loss": LossState.NONE} | ({"health": "watch"} if health == "ok" else {})


def _heals_at(attempt: Attempt, step: int) -> bool:
    return any(
        trouble.kind == "spike" and trouble.heals and trouble.step + trouble.heals == step
        for trouble in attempt.run.spec.troubles
    )
