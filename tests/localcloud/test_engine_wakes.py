"""A wake that falls between the end of an invocation and what the engine makes of it is never lost; on a real clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import (
    CallbackConfig,
    CompletionConfig,
    Duration,
    NestingType,
    ParallelConfig,
    StepConfig,
)
from aws_durable_execution_sdk_python.lambda_service import OperationAction, OperationType
from aws_durable_execution_sdk_python.retries import RetryStrategyConfig, create_retry_strategy
from aws_durable_execution_sdk_python_testing.worker.checkpoint_tasks import CallableTask

from localcloud.aws.clock import RealClock
from localcloud.engine.engine import DurableEngine

LONG = timedelta(minutes=3)  # of real time, for what takes a moment: only a lost wake takes longer
_PATIENT_S = LONG.total_seconds()
_RETRIED = StepConfig(
    retry_strategy=create_retry_strategy(
        RetryStrategyConfig(max_attempts=5, initial_delay=Duration.from_hours(1), max_delay=Duration.from_hours(1))
    )
)
_RACE = ParallelConfig(
    completion_config=CompletionConfig.first_successful(),  # type: ignore[no-untyped-call]
    nesting_type=NestingType.FLAT,
)


class ShiftedClock(RealClock):
    """The wall clock, on which a test may let hours pass at once."""

    shift = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.shift


@contextmanager
def engine_for(handler: Callable[..., Any]) -> Iterator[tuple[DurableEngine, ShiftedClock]]:
    clock = ShiftedClock()
    engine = DurableEngine(clock=clock, resolve=lambda _: handler)
    engine.open()
    try:
        yield engine, clock
    finally:
        engine.close()
        clock.close()


def test_a_retry_that_comes_due_while_another_invocation_is_ending_is_made() -> None:
    """The retry's timer fires; before it has asked for the next invocation, the present one ends and arms anew."""
    attempts: list[int] = []
    callbacks: list[str] = []
    replayed, go_on = threading.Event(), threading.Event()

    @durable_execution
    def handler(event: Any, context: DurableContext) -> str:
        callbacks.append(context.create_callback("wake", CallbackConfig(timeout=Duration.from_hours(1))).callback_id)
        if len(callbacks) == 2:
            replayed.set()
            go_on.wait(_PATIENT_S)

        def flaky(_: object) -> str:
            attempts.append(len(attempts))
            if len(attempts) == 1:
                raise RuntimeError("throttled")
            return "done"

        return str(context.step(flaky, name="flaky", config=_RETRIED))

    with engine_for(handler) as (engine, clock):
        arn = engine.start(function="recover", name="i-1", payload="{}").arn

        def is_to_be_retried() -> bool:
            return any(op.status.value == "PENDING" for op in engine.load(arn).operations)

        assert clock.run_until(is_to_be_retried, limit=LONG)
        lane = engine._registry.get_or_create(arn)
        engine.succeed(callbacks[0], b"")
        assert replayed.wait(_PATIENT_S)
        # What is done to the execution, in this order: the retry comes due, the invocation ends. Nothing is done in the
        # scheduler's own thread until both are through.
        held, hold_lane, hold_loop = threading.Event(), threading.Event(), threading.Event()
        lane.submit(CallableTask(lambda: (held.set(), hold_lane.wait(_PATIENT_S))))
        assert held.wait(_PATIENT_S)
        clock.shift = timedelta(hours=2)
        engine._executor._schedule_earliest_pending(arn)
        assert clock.run_until(lambda: lane._lane._queue.qsize() == 1, limit=LONG)  # the timer's
        go_on.set()
        assert clock.run_until(lambda: lane._lane._queue.qsize() == 2, limit=LONG)  # the end of the invocation
        engine._scheduler._loop.call_soon_threadsafe(hold_loop.wait, _PATIENT_S)
        hold_lane.set()
        lane.submit(CallableTask(lambda: None)).result(_PATIENT_S)
        hold_loop.set()
        assert clock.run_until(lambda: engine.status(arn) == "SUCCEEDED", limit=LONG)
        assert len(attempts) == 2


def test_a_wake_that_the_answer_to_the_last_checkpoint_brings_is_taken() -> None:
    """The branch that waits for it has looked, and the answer comes to the other branch, which does not ask for it."""
    callbacks: list[str] = []
    looked = threading.Event()

    @durable_execution
    def handler(event: Any, context: DurableContext) -> list[str]:
        callback = context.create_callback("wake", CallbackConfig(timeout=Duration.from_hours(1)))
        callbacks.append(callback.callback_id)

        def woken(_: DurableContext) -> str:
            try:
                callback.result()
            finally:
                looked.set()
            return "woken"

        def timer(branch: DurableContext) -> str:
            branch.wait(Duration.from_hours(2), name="timer")
            return "timer"

        return list(context.parallel([woken, timer], name="wait", config=_RACE).get_results())

    with engine_for(handler) as (engine, clock):

        def wake_before_the_timer_is_stored(arn: str, updates: Any) -> None:
            if any(
                update.operation_type is OperationType.WAIT and update.action is OperationAction.START
                for update in updates
            ):
                assert looked.wait(_PATIENT_S)
                engine.succeed(callbacks[0], b'"now"')
                # the invocation that it asks for is refused meanwhile: this one is running
                assert clock.run_until(lambda: engine.load(arn).needs_reinvoke, limit=LONG)

        engine.hook(before=wake_before_the_timer_is_stored)
        arn = engine.start(function="recover", name="i-1", payload="{}").arn
        assert clock.run_until(lambda: engine.status(arn) == "SUCCEEDED", limit=LONG)
        assert engine.load(arn).result.result == '["woken"]'  # type: ignore[union-attr]
