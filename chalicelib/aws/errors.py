"""What AWS's error codes mean to the service: one table, used for every call.

A code that the table does not hold becomes Retryable and is counted, so that a new code costs retries and an alarm,
never an event. A not-found that the caller did not expect means that something the deployment makes is missing (a
table, a queue, a bucket): also Retryable, because the event is good.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ParamValidationError
from botocore.exceptions import ConnectionError as BotoConnectionError

from chalicelib.domain.model.errors import (
    CapacityUnavailable,
    DependencyUnavailable,
    NameTaken,
    NotAuthorized,
    Permanent,
    RecoveryError,
    Retryable,
    Throttled,
    VersionConflict,
)

_LOG = logging.getLogger(__name__)
_MAX_TEXT_CHARS: Final = 800  # a timeline line holds it whole

# Sources: botocore's retry tables (legacy `_retry.json`, `retries/standard.py`) for throttling and transient codes;
# the services' "Common Errors" pages; docs/facts-sagemaker.md for SageMaker's unmodelled ones.
_CODES: Final[dict[type[RecoveryError], tuple[str, ...]]] = {
    Throttled: (
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttled",
        "ThrottledException",
        "Throttling",
        "ThrottlingError",
        "ThrottlingException",
        "TooManyRequestsException",
        "TooManyUpdates",
        "TransactionConflict",  # two transactions met on one item; nothing was written
        "TransactionConflictException",
        "TransactionInProgressException",
    ),
    DependencyUnavailable: (
        "404",
        "500",
        "502",
        "503",
        "504",
        "AWS.SimpleQueueService.NonExistentQueue",
        "ConditionalRequestConflict",  # S3: another conditional write of the same key is under way
        "ExpiredToken",  # the platform renews the role's credentials
        "ExpiredTokenException",
        "InternalError",
        "InternalErrorException",
        "InternalFailure",
        "InternalServerError",
        "InternalServerException",
        "KMSInternalException",
        "NoSuchBucket",
        "NotFound",
        "OperationAborted",
        "OutOfTime",  # ours: the function ends too soon for the call
        "QueueDoesNotExist",
        "RequestExpired",
        "RequestTimeout",
        "RequestTimeoutException",
        "ResourceConflictException",  # Lambda: an update of the function is in progress
        "ResourceNotFound",
        "ResourceNotFoundException",
        "ResourceNotReadyException",
        "ServiceException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
    ),
    CapacityUnavailable: (
        "CapacityError",
        "InsufficientCapacity",
        "InsufficientCapacityException",
        "InsufficientInstanceCapacity",
        "ResourceLimitExceeded",
        "ServiceQuotaExceededException",
    ),
    VersionConflict: ("ConditionalCheckFailed", "ConditionalCheckFailedException", "PreconditionFailed"),
    NameTaken: ("ResourceInUse",),
    NotAuthorized: (
        "403",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "AuthorizationError",
        "Forbidden",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "KMSAccessDeniedException",
        "MissingAuthenticationToken",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    ),
    Permanent: (
        "EntityTooLarge",
        "InvalidParameter",
        "InvalidParameterException",
        "InvalidParameterValue",
        "InvalidParameterValueException",
        "InvalidRequest",
        "InvalidRequestContentException",
        "ItemCollectionSizeLimitExceeded",
        "MissingParameter",
        "RequestTooLargeException",
        "SerializationException",
        "ValidationError",
        "ValidationException",
    ),
}
MEANING: Final = {code: error for error, codes in _CODES.items() for code in codes}

unlisted_codes: Counter[str] = Counter()
"""How often each unlisted code was met since `drain_unlisted`; the handler's end turns it into a metric."""


def drain_unlisted() -> dict[str, int]:
    """The counts so far, and start again at nothing."""
    counts = dict(unlisted_codes)
    unlisted_codes.clear()
    return counts


class AwsRefusal(Exception):
    """AWS answered with one of the codes the caller expects. `response` is botocore's whole error response."""

    def __init__(self, code: str, message: str, response: dict[str, Any]) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.response = response


def call(method: Callable[..., Any], /, *, expect: Collection[str] = (), **request: Any) -> Any:
    """Run one method of a boto3 client.

    Raises:
        AwsRefusal: AWS answered with a code named in `expect`.
        RecoveryError: the class that the table gives for any other failure.
    """
    operation = getattr(method, "__name__", "call")
    try:
        return method(**request)
    except ClientError as err:
        code, message = error_of(err)
        if code in expect:
            raise AwsRefusal(code, message, dict(err.response)) from err
        raise meaning_of(code, f"{operation}: {message}") from err
    except ParamValidationError as err:
        raise Permanent(f"{operation}: the request does not fit the API: {err}"[:_MAX_TEXT_CHARS]) from err
    except (HTTPClientError, BotoConnectionError) as err:
        raise DependencyUnavailable(f"{operation}: no answer ({type(err).__name__})") from err
    except BotoCoreError as err:
        raise meaning_of(type(err).__name__, f"{operation}: {err}") from err


def error_of(err: ClientError) -> tuple[str, str]:
    """Code and message. SQS's query-compatible answers carry a namespaced code too; the plain one is used."""
    error = err.response.get("Error", {})
    return str(error.get("Code") or "Unknown"), str(error.get("Message") or "")


def meaning_of(code: str, message: str) -> RecoveryError:
    """The domain error for an AWS code; an unlisted one is Retryable and counted."""
    text = f"{message} [{code}]"[:_MAX_TEXT_CHARS]
    kind = MEANING.get(code)
    if kind is None:
        unlisted_codes[code] += 1
        _LOG.warning("unlisted AWS error code", extra={"aws_error_code": code})
        return Retryable(text)
    return kind(text)
