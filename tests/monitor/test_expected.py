"""What a script may say of its loss: a change that is planned, its learning rate, what kind of loss it is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rekindle.monitor import Monitor
from rekindle.protocol.keys import heartbeat_key
from rekindle.protocol.mailbox import Heartbeat
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor

CHANGE = 300  # the step from which the loss is up
STEPS = 600


@pytest.fixture
def box(tmp_path: Path) -> Iterator[ObservedBox]:
    return ObservedBox(tmp_path / "mailbox")


def _heartbeat(
    box: ObservedBox,
    *,
    height: Callable[[int], float] = lambda _: 3.0,
    before: Callable[[Monitor], None] = lambda _: None,
    lr: Callable[[int], float | None] = lambda _: None,
    **more: Any,
) -> Heartbeat:
    """The last beat of a run whose loss stands `height(steps since the change)` times higher after the change."""
    env = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
    monitor = start_monitor(mailbox=box, config=QUICK, env=env, **more)
    assert not monitor.is_silent
    chance = random.Random(0)
    for step in range(1, STEPS + 1):
        if step == CHANGE:
            before(monitor)
        loss = (2 + 6 * math.exp(-step / 40)) * (1 + chance.gauss(0, 0.01))
        metrics = {} if lr(step) is None else {"lr": lr(step)}
        monitor.step(step, loss=loss * (1 + height(step - CHANGE)) if step >= CHANGE else loss, **metrics)
    monitor.finish(timeout_s=PATIENCE_S)
    assert monitor.health().get("inner_errors", 0) == 0
    text = box.get(heartbeat_key("run-1"))
    assert text is not None
    return Heartbeat.from_json(text)


def test_a_new_level_is_trouble_where_it_was_not_expected(box: ObservedBox) -> None:
    assert (_heartbeat(box).onset_step, _heartbeat(box).loss_health) == (CHANGE, "diverging")


def test_a_new_level_that_was_announced_is_no_trouble(box: ObservedBox) -> None:
    heartbeat = _heartbeat(box, before=lambda monitor: monitor.expect("loss weights"))
    assert (heartbeat.onset_step, heartbeat.loss_health in ("ok", "watch")) == (None, True)


def test_a_loss_that_swings_far_up_after_an_announced_change_is_trouble(box: ObservedBox) -> None:
    chance = random.Random(1)
    heartbeat = _heartbeat(
        box, height=lambda _: chance.uniform(3, 40), before=lambda monitor: monitor.expect("batch size", steps=300)
    )
    assert heartbeat.onset_step == CHANGE


def test_a_learning_rate_that_begins_again_announces_itself(box: ObservedBox) -> None:
    heartbeat = _heartbeat(box, lr=lambda step: 0.5 * (1 + math.cos(math.pi * (step % CHANGE) / CHANGE)) + 0.01)
    assert heartbeat.onset_step is None


def test_a_loss_of_a_kind_that_says_little_is_only_watched(box: ObservedBox) -> None:
    assert _heartbeat(box, loss_kind="td").onset_step is None


def test_a_kind_that_does_not_exist_is_passed_over(box: ObservedBox) -> None:
    assert _heartbeat(box, loss_kind="tdd").onset_step == CHANGE


@pytest.mark.parametrize("steps", [0, -5, 10**12, 2.5, math.nan, math.inf, "many", object(), True])
@pytest.mark.parametrize("what", ["sequence length", "", None, 3, object()])
def test_no_arguments_make_an_announcement_raise(box: ObservedBox, what: Any, steps: Any) -> None:
    monitor = start_monitor(mailbox=box, config=QUICK, env={"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"})
    monitor.expect(what, steps=steps)
    monitor.step(1, loss=2.0)
    monitor.finish(timeout_s=PATIENCE_S)


def test_a_silent_monitor_takes_announcements_too() -> None:
    start_monitor(env={}).expect("curriculum", steps=10)
