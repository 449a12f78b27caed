"""The durable executions of `recover`, through Lambda's API."""

from __future__ import annotations

import json
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.domain.model.incident import execution_name

_STARTED: Final = "DurableExecutionAlreadyStartedException"
# A callback that was answered, timed out, or whose execution has ended. Lambda names the case differently in the three
# ways of ending [botocore: CallbackTimeoutException, ResourceNotFoundException; InvalidParameterValueException seen
# for an id that no execution waits on]. None of them is an error of ours: the look that waited has moved on.
_GONE: Final = ("CallbackTimeoutException", "ResourceNotFoundException", "InvalidParameterValueException")
_PAGE: Final = 1000  # Source: botocore, ListDurableExecutionsByFunction.MaxItems
_LIVE: Final = ("RUNNING", "PAUSING", "PAUSED")  # a paused one is a person's doing and must not get a twin


class LambdaExecutions:
    """ports.Executions; `client` is a boto3 Lambda client, `function` the ARN or `name:alias` that is invoked.

    A version or alias is needed: AWS refuses an unqualified name for a durable function.
    """

    def __init__(self, client: Any, *, function: str) -> None:
        self._client = client
        self._function = function

    def start(self, incident_id: str, *, generation: int) -> None:
        """See ports.Executions.

        The payload follows from the name: the same name with another payload would be a conflict. A conflict all the
        same (the name was used on another version) means that it runs: left alone.
        """
        try:
            call(
                self._client.invoke,
                expect=(_STARTED,),
                FunctionName=self._function,
                InvocationType="Event",
                DurableExecutionName=execution_name(incident_id, generation),
                Payload=json.dumps({"incident_id": incident_id, "generation": generation}).encode(),
            )
        except AwsRefusal:
            return

    def wake(self, callback_id: str, *, why: str) -> bool:
        try:
            call(
                self._client.send_durable_execution_callback_success,
                expect=_GONE,
                CallbackId=callback_id,
                Result=json.dumps({"why": why[:256]}).encode(),
            )
        except AwsRefusal:
            return False
        return True

    def running(self) -> frozenset[str]:
        """See ports.Executions. Of every version: an execution stays on the one it began with."""
        name, _ = unqualified(self._function)
        names: set[str] = set()
        request: dict[str, Any] = {"FunctionName": name, "Statuses": list(_LIVE), "MaxItems": _PAGE}
        while True:
            page = call(self._client.list_durable_executions_by_function, **request)
            names |= {execution["DurableExecutionName"] for execution in page.get("DurableExecutions", ())}
            if not page.get("NextMarker"):
                return frozenset(names)
            request["Marker"] = page["NextMarker"]


def unqualified(function: str) -> tuple[str, str | None]:
    """`name:alias` or an ARN taken apart into function and qualifier.

    Source: Lambda API, FunctionName: an ARN, `<account>:function:<name>[:<qualifier>]` or `<name>[:<qualifier>]`.
    """
    head, found, tail = function.rpartition("function:")
    name, _, qualifier = tail.partition(":")
    return f"{head}{found}{name}", qualifier or None
