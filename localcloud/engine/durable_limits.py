"""What AWS allows one durable execution, held against each checkpoint as Lambda would.

Sources: Lambda quotas and "Monitoring durable functions" in the Lambda guide (3,000 operations and 100 MB of stored
data per execution), and the SDK's own `CHECKPOINT_SIZE_LIMIT_BYTES` (256 KB per checkpointed payload). A refused call
is answered as botocore would raise it, so that the SDK in the handler classifies it by its own rules: a 4xx other than
429 ends the execution.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aws_durable_execution_sdk_python.constants import CHECKPOINT_SIZE_LIMIT_BYTES
from aws_durable_execution_sdk_python.exceptions import CheckpointError
from aws_durable_execution_sdk_python.lambda_service import OperationAction, OperationUpdate
from botocore.exceptions import ClientError

MAX_OPERATIONS: Final = 3_000
MAX_STORED_BYTES: Final = 100 * 1000 * 1000


class ExecutionLimits:
    """Counts what one execution has used. A retry of a step counts as an operation, as Lambda's quota does."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._retries = 0
        self.stored_bytes = 0

    @property
    def operations(self) -> int:
        """Operations so far, retries included."""
        return len(self._known) + self._retries

    def take(self, updates: Iterable[OperationUpdate]) -> None:
        """Count what one checkpoint call writes.

        Raises:
            CheckpointError: a payload or the execution is over a limit; the call takes no effect.
        """
        updates = list(updates)
        for update in updates:
            if (size := _bytes(update)) > CHECKPOINT_SIZE_LIMIT_BYTES:
                raise _refused(
                    f"the payload of operation {update.name or update.operation_id} has {size} bytes; "
                    f"at most {CHECKPOINT_SIZE_LIMIT_BYTES} are allowed"
                )
        known = self._known | {update.operation_id for update in updates}
        retries = self._retries + sum(update.action is OperationAction.RETRY for update in updates)
        stored_bytes = self.stored_bytes + sum(map(_bytes, updates))
        if len(known) + retries > MAX_OPERATIONS:
            raise _refused(f"the execution has used its {MAX_OPERATIONS} durable operations")
        if stored_bytes > MAX_STORED_BYTES:
            raise _refused(f"the execution has stored its {MAX_STORED_BYTES} bytes")
        self._known, self._retries, self.stored_bytes = known, retries, stored_bytes


def _bytes(update: OperationUpdate) -> int:
    return len((update.payload or "").encode())


def _refused(message: str) -> CheckpointError:
    answer = {
        "Error": {"Code": "InvalidParameterValueException", "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }
    return CheckpointError.from_exception(ClientError(answer, "CheckpointDurableExecution"))
