"""The pieces of AWS's durable testing engine that the embedded cloud replaces or extends (used by `engine`)."""

from __future__ import annotations

import asyncio
import threading
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from aws_durable_execution_sdk_python.lambda_service import (
    CheckpointOutput,
    OperationStatus,
    OperationType,
    OperationUpdate,
)
from aws_durable_execution_sdk_python_testing.checkpoint.processor import CheckpointProcessor
from aws_durable_execution_sdk_python_testing.client import InMemoryServiceClient
from aws_durable_execution_sdk_python_testing.execution import Execution
from aws_durable_execution_sdk_python_testing.executor import Executor
from aws_durable_execution_sdk_python_testing.invoker import InProcessInvoker, InvokeResponse
from aws_durable_execution_sdk_python_testing.model import StartDurableExecutionInput
from aws_durable_execution_sdk_python_testing.scheduler import Event, Scheduler
from aws_durable_execution_sdk_python_testing.token import CallbackToken
from aws_durable_execution_sdk_python_testing.worker.registry import ExecutionRegistry

from localcloud.aws.clock import Clock, SimClock
from localcloud.engine.durable_limits import ExecutionLimits
from localcloud.engine.functions import LambdaContext

Handler = Callable[[Any, Any], Any]
CheckpointHook = Callable[[str, list[OperationUpdate]], None]
_PATIENCE_S = 120.0


class CloudScheduler(Scheduler):
    """The package's scheduler with its delays on a simulated clock; on a real clock it is unchanged."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        # The package leaves its event loop open, started or not. Closed once nothing can use it any more, because what
        # still runs when the scheduler is stopped may call it late.
        weakref.finalize(self, self._loop.close).atexit = False
        self._sim = clock if isinstance(clock, SimClock) else None

    def call_later(
        self,
        func: Callable[[], Any],
        delay: float = 0,
        count: int | None = 1,
        completion_event: Event | None = None,
    ) -> Future[Any]:
        sim = self._sim
        if sim is None:
            return super().call_later(func, delay, count, completion_event)
        if delay <= 0:
            return self._now(sim, func, completion_event)
        promised: Future[Any] = Future()

        def fire() -> None:
            if promised.set_running_or_notify_cancel():
                self._now(sim, func, completion_event).add_done_callback(lambda ran: _copy(ran, promised))

        timer = sim.after(timedelta(seconds=delay), fire, label=f"durable {getattr(func, '__name__', 'timer')}")
        promised.add_done_callback(lambda ended: timer.cancel() if ended.cancelled() else None)
        return promised

    def create_event(self) -> Event:
        """The package's, which gives the loop's thread five seconds: too few where the machine is very busy."""
        return Event(self, asyncio.run_coroutine_threadsafe(self._create_event(), self._loop).result(_PATIENCE_S))

    def _now(self, sim: SimClock, func: Callable[[], Any], completion_event: Event | None) -> Future[Any]:
        """Run at once, and keep virtual time standing until it has ended."""
        done = sim.busy(f"durable {getattr(func, '__name__', 'call')}")
        try:
            future: Future[Any] = super().call_later(func, 0, 1, completion_event)
        except BaseException:
            done()
            raise
        future.add_done_callback(lambda _: done())
        return future


def _copy(source: Future[Any], target: Future[Any]) -> None:
    if source.cancelled():
        target.set_exception(RuntimeError("cancelled"))
    elif error := source.exception():
        target.set_exception(error)
    else:
        target.set_result(source.result())


class ServiceClient(InMemoryServiceClient):
    """The durable API as the SDK inside the handler sees it: within AWS's limits, and with a place to die around each
    checkpoint."""

    before: CheckpointHook | None = None
    after: CheckpointHook | None = None

    def __init__(
        self, processor: CheckpointProcessor, registry: ExecutionRegistry, load: Callable[[str], Execution]
    ) -> None:
        """load: an execution's record by its ARN; what it has used up is read from there."""
        super().__init__(processor, registry)
        self._load = load
        self._limits: dict[str, ExecutionLimits] = {}

    def limits_of(self, durable_execution_arn: str) -> ExecutionLimits:
        """What this execution has used of AWS's limits, in this process and in earlier ones."""
        limits = self._limits.get(durable_execution_arn)
        if limits is None:
            limits = self._limits[durable_execution_arn] = ExecutionLimits()
            limits.take(self._load(durable_execution_arn).updates)
        return limits

    def checkpoint(
        self,
        durable_execution_arn: str,
        checkpoint_token: str,
        updates: list[OperationUpdate],
        client_token: str | None,
    ) -> CheckpointOutput:
        if self.before is not None:
            self.before(durable_execution_arn, updates)
        self.limits_of(durable_execution_arn).take(updates)
        output = super().checkpoint(durable_execution_arn, checkpoint_token, updates, client_token)
        if self.after is not None:
            self.after(durable_execution_arn, updates)
        return output


class FunctionInvoker(InProcessInvoker):
    """Runs the handler on the engine's thread, under the name and version Lambda would show it."""

    def __init__(
        self,
        resolve: Callable[[str], Handler],
        client: ServiceClient,
        context: Callable[[str], LambdaContext],
        one: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """one: holds an invocation to its function's settings."""
        super().__init__(resolve, client)
        self._one = one
        self._find = resolve
        self._context = context

    def invoke(
        self,
        function_name: str,
        input: Any,
        endpoint_url: str | None = None,  # noqa: ARG002
        tenant_id: str | None = None,  # noqa: ARG002
        account_id: str | None = None,  # noqa: ARG002
        region_name: str | None = None,  # noqa: ARG002
    ) -> InvokeResponse:
        qualified = input.durable_execution_arn.partition(":function:")[2].partition("/")[0] or function_name
        context = self._context(qualified)
        with self._one(qualified):
            output = self._find(qualified)(input, context)
        return InvokeResponse.from_output(output, context.aws_request_id)


class CloudExecutor(Executor):
    """The package's executor; executions get ARNs of the form that botocore's lambda model asks for.

    Three ways in which the package (1.4.0) loses a wake are closed here; tests/localcloud/test_engine_wakes.py shows.
    """

    def __init__(self, *, ended: Callable[[Execution], None], **parts: Any) -> None:
        """ended: hears of each execution that has failed, was stopped, or ran out of its time."""
        super().__init__(**parts)
        self._arming = threading.RLock()
        self._ended = ended

    def _complete_events(self, execution_arn: str) -> None:
        super()._complete_events(execution_arn)
        execution = self._store.load(execution_arn)
        if execution.current_status().value != "SUCCEEDED":
            self._ended(execution)

    def _schedule_earliest_pending(self, execution_arn: str) -> None:
        """Reads what is pending and arms the one timer for it under one lock: else a caller that read before another's
        retry was stored would cancel the timer that the other has just armed."""
        with self._arming:
            super()._schedule_earliest_pending(execution_arn)

    def _fire_due_operations(self, execution_arn: str) -> bool:
        """Asks for the next invocation in the very turn that completes what is due. The package does so one turn of its
        event loop later, and an invocation that ends in between cancels that: a retry or a wait would never go on."""
        if super()._fire_due_operations(execution_arn):
            self._invoke_execution(execution_arn)
        return False

    def _finish_invocation(
        self,
        execution_arn: str,
        invoke_response: InvokeResponse,
        invocation_start: datetime,
        invocation_end: datetime,
        invocation_seq: int | None = None,
    ) -> None:
        """Invoke again if an operation completed while the handler ran, even one already returned in a checkpoint
        response: the response may have reached another branch while the waiting branch was suspended.
        """
        before = self._store.load(execution_arn)
        is_notified = before.needs_reinvoke and not before.has_unseen_changes()  # where it was not, the package does so
        super()._finish_invocation(execution_arn, invoke_response, invocation_start, invocation_end, invocation_seq)
        if is_notified and not self._store.load(execution_arn).is_complete:
            self._invoke_execution(execution_arn)

    def _create_execution(
        self, input: StartDurableExecutionInput, parent_execution_arn: str | None = None
    ) -> Execution:
        unique = input.invocation_id or str(uuid.uuid4())
        execution = Execution.new(input=replace(input, invocation_id=unique))
        execution.durable_execution_arn = (
            f"arn:aws:lambda:{self._region}:{input.account_id}:function:{input.function_name}:"
            f"{input.function_qualifier}/durable-execution/{input.execution_name}/{unique}"
        )
        execution.region = self._region
        execution.parent_execution_arn = parent_execution_arn
        execution.start(now=self._clock.now())
        self._store.save(execution)
        return execution

    def resume(self, execution: Execution) -> None:
        """Take up a running execution of an earlier process: its handler is invoked, and replays."""
        arn = execution.durable_execution_arn
        # The invocation that was under way died with its process; a first failure must not count against the new one.
        execution.needs_reinvoke = False
        execution.consecutive_failed_invocation_attempts = 0
        self._store.save(execution)
        started = execution.get_operation_execution_started().start_timestamp or self._clock.now()
        allowed = execution.start_input.execution_timeout_seconds
        left = allowed - (self._clock.now() - started).total_seconds() if allowed > 0 else 0
        self._launch_execution(execution, max(1, int(left)) if allowed > 0 else 0)
        for update in execution.updates:
            options = update.callback_options
            if options is None or not self._is_open(execution, update.operation_id):
                continue
            token = CallbackToken(execution_arn=arn, operation_id=update.operation_id)
            self._schedule_callback_timeouts(arn, options, token.to_str())

    @staticmethod
    def _is_open(execution: Execution, operation_id: str) -> bool:
        return any(
            op.operation_id == operation_id
            and op.operation_type is OperationType.CALLBACK
            and op.status is OperationStatus.STARTED
            for op in execution.operations
        )
