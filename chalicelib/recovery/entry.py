"""`recover` as Lambda calls it: the workflow under the durable SDK's decorator."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.lambda_service import LambdaClient

from chalicelib.recovery.workflow import Reporter, run_recovery
from chalicelib.services.look import Look
from chalicelib.services.perform import Perform


@lru_cache(maxsize=4)  # one service a process, but for tests that build several
def durable_recovery(look: Look, perform: Perform, report: Reporter) -> Callable[[Any, Any], Any]:
    """The handler (event, Lambda context) of one service."""

    @durable_execution
    def recover(event: Any, context: DurableContext) -> Any:
        return run_recovery(event, context, look=look, perform=perform, report=report)

    return recover


def warm_up() -> None:
    """Make the SDK's own client, which it keeps: at Lambda's init, and not while the first Incident waits."""
    LambdaClient.initialize_client()
