"""Lambda durable functions on one machine: AWS's own testing engine, on our clock, with executions that outlive it.

The engine itself (checkpoints, waits, callbacks, replay) is `aws-durable-execution-sdk-python-testing`. Added here:
starting by name as Lambda does it, every delay on the cloud's clock (so that callback timeouts and retries run in
virtual time too), and taking up all running executions again when a new process opens the same store.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from aws_durable_execution_sdk_python.lambda_service import OperationStatus
from aws_durable_execution_sdk_python_testing.checkpoint.processor import CheckpointProcessor
from aws_durable_execution_sdk_python_testing.exceptions import ResourceNotFoundException
from aws_durable_execution_sdk_python_testing.execution import Execution
from aws_durable_execution_sdk_python_testing.model import StartDurableExecutionInput
from aws_durable_execution_sdk_python_testing.stores.memory import InMemoryExecutionStore
from aws_durable_execution_sdk_python_testing.stores.sqlite import SQLiteExecutionStore
from aws_durable_execution_sdk_python_testing.token import CallbackToken
from aws_durable_execution_sdk_python_testing.worker.registry import ExecutionRegistry

from localcloud.aws.authorization import ACCOUNT_ID, REGION
from localcloud.aws.clock import Clock
from localcloud.engine.durable import (
    CheckpointHook,
    CloudExecutor,
    CloudScheduler,
    FunctionInvoker,
    Handler,
    ServiceClient,
)
from localcloud.engine.durable_limits import ExecutionLimits
from localcloud.engine.functions import Invocations, LambdaContext, Settings

# Version that an alias points to here. Source: the durable ARN pattern in botocore's lambda model, which
# holds a published version, never an alias.
PUBLISHED_VERSION = "1"


# How long `close` waits for an invocation: it ends at its next wait, within milliseconds, unless it is meant to hang.
_ENDS_S = 5.0


class AlreadyStarted(Exception):
    """An execution of this name exists with another payload (DurableExecutionAlreadyStartedException)."""

    def __init__(self, arn: str) -> None:
        super().__init__(f"an execution with this name was already started with another payload: {arn}")
        self.arn = arn


class NoSuchExecution(Exception):
    """No execution, or no open callback, has this id."""


class CallbackClosed(Exception):
    """The callback was answered, timed out, or its execution has ended (CallbackTimeoutException)."""


class Crash(Exception):
    """What a checkpoint hook raises to have the invocation die at that very place, as a killed Lambda would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartResult:
    """What starting by name came to."""

    arn: str
    is_new: bool


class DurableEngine:
    """Durable executions of any number of functions.

    resolve: gives the handler (event, context) for a function's bare name or `name:version`; raises KeyError.
    store: folder or file of the SQLite store; None keeps executions in memory only, which is faster.
    retry_after: pause after an invocation that died (Lambda's is some seconds).
    max_failed_attempts: how many invocations in a row may die before the execution fails.
    settings_of: a function's settings by its bare name. dead: takes (function, payload) of an execution that failed.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        resolve: Callable[[str], Handler],
        store: Path | None = None,
        retry_after: timedelta = timedelta(seconds=5),
        max_failed_attempts: int = 5,
        settings_of: Callable[[str], Settings] = lambda name: Settings(name=name, entry=name),
        dead: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._clock = clock
        self._resolve = resolve
        self._settings_of = settings_of
        self._dead = dead
        self.invocations = Invocations(clock)
        self._store = InMemoryExecutionStore() if store is None else SQLiteExecutionStore.create_and_initialize(store)
        self._scheduler = CloudScheduler(clock)
        self._registry = ExecutionRegistry(self._store, self._scheduler)
        processor = CheckpointProcessor(self._store, self._scheduler, clock=clock)
        self._client = ServiceClient(processor, self._registry, self._store.load)
        self._executor = CloudExecutor(
            store=self._store,
            scheduler=self._scheduler,
            invoker=FunctionInvoker(self._handler_for, self._client, self.context_for, self._one),
            checkpoint_processor=processor,
            registry=self._registry,
            clock=clock,
            region=REGION,
            ended=self._ended,
        )
        self._executor.RETRY_BACKOFF_SECONDS = retry_after.total_seconds()  # type: ignore[assignment]
        self._executor.MAX_CONSECUTIVE_FAILED_ATTEMPTS = max_failed_attempts
        processor.add_execution_observer(self._executor)
        self._by_name: dict[str, str] = {}
        self._left_running: list[str] = []
        self._starting = threading.Lock()

    def open(self) -> None:
        """Begin. Executions that an earlier process left running wait for `resume`, because handlers come later."""
        self._scheduler.start()  # type: ignore[no-untyped-call]
        for execution in self._store.list_all():
            self._by_name[execution.start_input.execution_name] = execution.durable_execution_arn
            if not execution.is_complete:
                self._left_running.append(execution.durable_execution_arn)

    def resume(self, function: str) -> list[str]:
        """Take up what an earlier process left running of this function, whose handler is there now. Their ARNs."""
        taken_up = []
        for arn in list(self._left_running):
            execution = self._store.load(arn)
            if execution.start_input.function_name == function:
                self._left_running.remove(arn)
                taken_up.append(arn)
                self._executor.resume(execution)
        return taken_up

    def close(self) -> None:
        """Stop the engine and leave executions open; a later engine on the same store continues them.

        Invocations that are under way end first: they would go on calling AWS, and logging, once their cloud is gone.
        """
        self._executor.shutdown()
        self.invocations.have_ended(_ENDS_S)
        self._scheduler.stop()  # type: ignore[no-untyped-call]
        self._registry.shutdown()

    def hook(self, *, before: CheckpointHook | None = None, after: CheckpointHook | None = None) -> None:
        """Be called around every checkpoint with (execution ARN, updates); raising `Crash` kills the invocation there.

        Before: nothing of these updates is stored yet, though the side effect of a finished step has happened.
        After: they are stored, but the handler never learns it.
        """
        self._client.before = before
        self._client.after = after

    def limits_of(self, arn: str) -> ExecutionLimits:
        """What the execution has used of AWS's limits. Raises: NoSuchExecution."""
        self.load(arn)
        return self._client.limits_of(arn)

    def context_for(self, function: str) -> LambdaContext:
        """The context of one invocation of `name` or `name:qualifier`."""
        name, _, qualifier = function.partition(":")
        arn = f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{function}"
        return self.invocations.context(self._settings_of(name), name=name, qualifier=qualifier, arn=arn)

    def _one(self, function: str) -> AbstractContextManager[None]:
        return self.invocations.running(self._settings_of(function.partition(":")[0]))

    def _ended(self, execution: Execution) -> None:
        self._dead(execution.start_input.function_name, execution.start_input.input or "null")

    def start(self, *, function: str, name: str | None, payload: str, version: str = PUBLISHED_VERSION) -> StartResult:
        """Start an execution, or find the one that has this name, running or closed. Raises: AlreadyStarted."""
        settings = self._settings_of(function)
        name = name or str(uuid.uuid4())
        with self._starting:
            existing = self._by_name.get(name)
            if existing is not None:
                if not _same_json(self._store.load(existing).start_input.input, payload):
                    raise AlreadyStarted(existing)
                return StartResult(arn=existing, is_new=False)
            output = self._executor.start_execution(
                StartDurableExecutionInput(
                    account_id=ACCOUNT_ID,
                    function_name=function,
                    function_qualifier=version,
                    execution_name=name,
                    execution_timeout_seconds=settings.execution_s,
                    execution_retention_period_days=settings.execution_days,
                    input=payload,
                )
            )
            arn = output.execution_arn
            if arn is None:
                raise RuntimeError("the engine gave no ARN")
            self._by_name[name] = arn
            return StartResult(arn=arn, is_new=True)

    def named(self, name: str) -> str | None:
        """ARN of the execution with this name."""
        return self._by_name.get(name)

    def load(self, arn: str) -> Execution:
        """The execution's whole record. Raises: NoSuchExecution."""
        try:
            return self._store.load(arn)
        except (KeyError, ResourceNotFoundException) as err:
            raise NoSuchExecution(arn) from err

    def status(self, arn: str) -> str:
        """RUNNING, SUCCEEDED, FAILED, STOPPED or TIMED_OUT. Raises: NoSuchExecution."""
        return str(self.load(arn).current_status().value)

    def executions(self, *, function: str | None = None, statuses: frozenset[str] = frozenset()) -> list[Execution]:
        """Executions, oldest first; no statuses means all."""
        found = [
            e
            for e in self._store.list_all()
            if (function is None or e.start_input.function_name == function)
            and (not statuses or e.current_status().value in statuses)
        ]
        return sorted(found, key=_started_at)

    def stop(self, arn: str) -> None:
        """End an execution, as its owner may; a closed one stays as it is. Raises: NoSuchExecution."""
        self.load(arn)
        self._executor.stop_execution(arn)

    def succeed(self, callback_id: str, result: bytes) -> None:
        """Complete a callback. Raises: NoSuchExecution, CallbackClosed."""
        self._require_open(callback_id)
        try:
            self._executor.send_callback_success(callback_id, result)
        except ResourceNotFoundException as err:
            raise CallbackClosed(callback_id) from err

    def _require_open(self, callback_id: str) -> None:
        try:
            execution = self.load(CallbackToken.from_str(callback_id).execution_arn)
            _, operation = execution.find_callback_operation(callback_id)
        except NoSuchExecution:
            raise
        except Exception as err:
            raise NoSuchExecution(callback_id) from err
        if execution.is_complete or operation.status is not OperationStatus.STARTED:
            raise CallbackClosed(callback_id)

    def _handler_for(self, function: str) -> Handler:
        try:
            return self._resolve(function)
        except KeyError as err:
            raise ResourceNotFoundException(f"Function not found: {function}") from err


def _started_at(execution: Execution) -> float:
    at = execution.get_operation_execution_started().start_timestamp
    return at.timestamp() if at is not None else 0.0


def _same_json(one: str | None, other: str | None) -> bool:
    if one == other:
        return True
    try:
        return bool(json.loads(one or "null") == json.loads(other or "null"))
    except ValueError:
        return False
