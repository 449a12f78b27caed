"""`recover` as Lambda calls it: the workflow under the durable SDK's decorator."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from aws_durable_execution_sdk_python import DurableContext, durable_execution

from chalicelib.recovery.workflow import Reporter, run_recovery
from chalicelib.services.observe.observer import Observer
from chalicelib.services.perform.perform import ActionExecutor


@lru_cache(maxsize=4)  # one service a process, but for tests that build several
def durable_recovery(
    look: Observer, perform: ActionExecutor, report: Reporter, *, client: Any = None
) -> Callable[[Any, Any], Any]:
    """The handler (event, Lambda context) of one service.

    client: boto3's client of Lambda, by which the SDK keeps its checkpoints; else it makes one that waits 55 s for each
    of five attempts, longer than the function may last.
    """

    def recover(event: Any, context: DurableContext) -> Any:
        return run_recovery(event, context, look=look, perform=perform, report=report)

    return durable_execution(recover, boto3_client=client)
