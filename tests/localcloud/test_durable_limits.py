"""What AWS refuses of a durable execution, the embedded cloud refuses too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration, StepConfig
from aws_durable_execution_sdk_python.constants import CHECKPOINT_SIZE_LIMIT_BYTES
from aws_durable_execution_sdk_python.exceptions import CheckpointError
from aws_durable_execution_sdk_python.lambda_service import OperationAction, OperationType, OperationUpdate
from aws_durable_execution_sdk_python.retries import RetryStrategyConfig, create_retry_strategy

from localcloud.aws.clock import SimClock
from localcloud.engine.durable_limits import MAX_OPERATIONS, MAX_STORED_BYTES, ExecutionLimits
from localcloud.engine.engine import DurableEngine

QUOTES = 2  # a step's text result is JSON: the text and two quotes


@contextmanager
def played(handler: Callable[..., Any], store: Path | None = None) -> Iterator[tuple[DurableEngine, str]]:
    clock = SimClock()
    engine = DurableEngine(clock=clock, resolve=lambda _: handler, store=store)
    engine.open()
    try:
        arn = engine.start(function="recover", name="one", payload="{}").arn
        assert clock.run_until(lambda: engine.status(arn) != "RUNNING", limit=timedelta(hours=1))
        yield engine, arn
    finally:
        engine.close()
        clock.close()


def returning(length: int) -> Callable[..., Any]:
    @durable_execution
    def handler(event: Any, context: DurableContext) -> int:
        return len(str(context.step(lambda _: "x" * length, name="large")))

    return handler


@pytest.mark.parametrize(("above", "status"), [(0, "SUCCEEDED"), (1, "FAILED")])
def test_a_result_above_256_kb_ends_the_execution(above: int, status: str) -> None:
    with played(returning(CHECKPOINT_SIZE_LIMIT_BYTES - QUOTES + above)) as (engine, arn):
        assert engine.status(arn) == status
        if above:
            error = engine.load(arn).result.error  # type: ignore[union-attr]
            assert error is not None
            assert "large has 262145 bytes" in str(error.message)


def test_retries_count_as_operations() -> None:
    tried: list[int] = []

    @durable_execution
    def handler(event: Any, context: DurableContext) -> str:
        def flaky(_: object) -> str:
            tried.append(1)
            if len(tried) < 3:
                raise RuntimeError("throttled")
            return "done"

        return str(context.step(flaky, name="flaky", config=_RETRIED))

    with played(handler) as (engine, arn):
        assert engine.status(arn) == "SUCCEEDED"
        assert engine.limits_of(arn).operations == 3


def test_an_execution_has_3000_operations_and_100_mb() -> None:
    limits = ExecutionLimits()
    limits.take(_update(f"op-{number}") for number in range(MAX_OPERATIONS))
    limits.take([_update("op-0")])  # the end of one that has begun is not another one
    with pytest.raises(CheckpointError, match="3000 durable operations"):
        limits.take([_update("one more")])
    assert limits.operations == MAX_OPERATIONS

    limits = ExecutionLimits()
    for number in range(MAX_STORED_BYTES // 200_000):
        limits.take([_update(f"op-{number}", "x" * 200_000)])
    with pytest.raises(CheckpointError, match="stored"):
        limits.take([_update("one more", "x")])


def test_what_an_earlier_process_has_used_counts(tmp_path: Path) -> None:
    handler = returning(50_000)
    with played(handler, tmp_path / "engine.sqlite") as (engine, arn):
        used = engine.limits_of(arn)
    again = DurableEngine(clock=SimClock(), resolve=lambda _: handler, store=tmp_path / "engine.sqlite")
    again.open()
    try:
        assert (again.limits_of(arn).operations, again.limits_of(arn).stored_bytes) == (
            used.operations,
            used.stored_bytes,
        )
        assert used.stored_bytes > 50_000
    finally:
        again.close()


_RETRIED = StepConfig(
    retry_strategy=create_retry_strategy(
        RetryStrategyConfig(max_attempts=5, initial_delay=Duration.from_seconds(1), max_delay=Duration.from_seconds(1))
    )
)


def _update(operation_id: str, payload: str | None = None) -> OperationUpdate:
    return OperationUpdate(
        operation_id=operation_id,
        operation_type=OperationType.STEP,
        action=OperationAction.SUCCEED,
        payload=payload,
    )
