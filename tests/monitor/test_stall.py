from __future__ import annotations

import threading

from rekindle.monitor.base.settings import Config
from rekindle.monitor.base.stacks import capture_stacks
from rekindle.monitor.liveness.stall import StallWatch
from rekindle.protocol.mailbox import RunPhase

CONFIG = Config(stall_floor_s=2, stall_factor=5, stall_startup_s=100, stall_evaluation_s=50, stall_saving_s=30)


def trained(seconds: int = 10) -> StallWatch:
    watch = StallWatch(CONFIG.limits(), now=0.0)
    for now in range(1, seconds + 1):
        watch.stepped(float(now))
    return watch


def test_start_up_has_its_own_limit() -> None:
    watch = StallWatch(CONFIG.limits(), now=0.0)
    assert watch.look(99.0) is None
    stall = watch.look(101.0)
    assert stall is not None
    assert (stall.phase, stall.limit_s) == (RunPhase.STARTUP, 100)


def test_a_stall_is_reported_once_and_its_end_once() -> None:
    watch = trained()
    assert watch.look(15.0) is None
    stall = watch.look(15.1)
    assert stall is not None
    assert (stall.phase, stall.limit_s) == (RunPhase.TRAINING, 5.0)
    assert watch.look(500.0) is None
    assert watch.stepped(501.0) == (491.0, 491.0)
    assert watch.stepped(502.0) == (1.0, None)


def test_an_evaluation_has_its_own_limit_and_is_not_a_slow_step() -> None:
    watch = trained()
    entry, _ = watch.enter(RunPhase.EVALUATION, 10.5)
    assert watch.look(60.0) is None
    assert watch.leave(entry, 50.5) == (40.0, None)
    assert watch.stepped(51.0) == (None, None)
    assert watch.stepped(52.0) == (1.0, None)
    assert watch.look(57.5) is not None


def test_a_long_evaluation_teaches_only_evaluations() -> None:
    watch = trained()
    entry, _ = watch.enter(RunPhase.EVALUATION, 10.0)
    watch.leave(entry, 30.0)
    watch.enter(RunPhase.EVALUATION, 31.0)
    assert watch.look(31.0 + 99.0) is None
    assert watch.look(31.0 + 101.0) is not None


def test_phases_that_end_out_of_order_leave_the_run_in_training() -> None:
    watch = trained()
    first, _ = watch.enter(RunPhase.EVALUATION, 10.0)
    second, _ = watch.enter(RunPhase.SAVING, 11.0)
    watch.leave(first, 12.0)
    assert watch.phase is RunPhase.SAVING
    watch.leave(second, 13.0)
    assert watch.phase is RunPhase.TRAINING
    assert watch.leave(second, 14.0) == (None, None), "left twice"
    assert watch.marked_at == 13.0
    watch.stepped(14.0)
    assert watch.stepped(15.0) == (1.0, None)


def test_a_step_inside_a_phase_is_training_afterwards_even_if_it_was_the_first() -> None:
    watch = StallWatch(CONFIG.limits(), now=0.0)
    entry, _ = watch.enter(RunPhase.EVALUATION, 1.0)
    assert watch.stepped(2.0) == (None, None)
    assert watch.phase is RunPhase.EVALUATION
    watch.leave(entry, 3.0)
    assert watch.phase is RunPhase.TRAINING


def test_a_process_that_was_frozen_as_a_whole_does_not_call_that_a_stall() -> None:
    watch = trained()
    watch.excuse(600.0)
    assert watch.look(612.0) is None
    assert watch.look(616.0) is not None


def test_saying_alive_re_arms_without_teaching() -> None:
    watch = trained()
    watch.alive(14.0)
    assert watch.look(18.9) is None
    assert watch.stepped(20.0) == (None, None)


def test_stacks_show_where_a_blocked_thread_waits_and_stay_within_their_limit() -> None:
    entered, release = threading.Event(), threading.Event()

    def a_barrier_nobody_leaves() -> None:
        entered.set()
        release.wait(120)

    thread = threading.Thread(target=a_barrier_nobody_leaves, name="trainer")
    thread.start()
    assert entered.wait(120)
    text = capture_stacks(limit_chars=1_000_000)  # threads of other tests may be among them
    release.set()
    thread.join()
    assert "Thread trainer" in text
    assert "a_barrier_nobody_leaves" in text
    assert len(capture_stacks(limit_chars=100)) <= 100
    assert text.index("Thread trainer") < text.index("Thread MainThread"), (
        "the training thread's end survives every cut"
    )
