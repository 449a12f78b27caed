"""Every AWS call that leaves a client in this process: counted, timed, locked against its neighbours, and disturbed.

moto checks a DynamoDB condition and writes in two steps, so two threads could both win: calls of one service therefore
run one at a time, as AWS's own serialisation of one item would have it.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError
from botocore.httpsession import URLLib3Session
from moto.core.botocore_stubber import BotocoreStubber, MockRawResponse

from localcloud.aws.sizes import TooLarge, too_large

PLATFORM = "rekindle-cloud"  # as whom the account's own parts, training jobs and tests call
SERVICE = "rekindle-service"  # as whom the service that is deployed to it does
# Calls of this process that were refused for their size: a defect of their sender.
TOO_LARGE: Final[list[str]] = []
Send = Callable[[], AWSResponse | None]


class FailureMode(StrEnum):
    """How a call goes wrong."""

    THROTTLE = "throttle"  # refused before anything happened, to be tried again
    REFUSE = "refuse"  # AccessDenied, before anything happened
    FAIL = "fail"  # an internal error, before anything happened
    TIMEOUT_BEFORE = "timeout_before"  # never arrived
    TIMEOUT_AFTER = "timeout_after"  # took effect, but the answer was lost


_ERRORS = {
    FailureMode.THROTTLE: (400, "ThrottlingException", "Rate exceeded"),
    FailureMode.REFUSE: (400, "AccessDeniedException", "not authorized to perform this operation"),
    FailureMode.FAIL: (500, "InternalServerError", "internal error"),
}
# S3 speaks of the same three in its own codes. Source: S3 API reference, error responses.
_S3_ERRORS = {
    FailureMode.THROTTLE: (503, "SlowDown", "Please reduce your request rate."),
    FailureMode.REFUSE: (403, "AccessDenied", "Access Denied"),
    FailureMode.FAIL: (500, "InternalError", "We encountered an internal error. Please try again."),
}
_LAMBDA_ERRORS = {
    FailureMode.THROTTLE: (429, "TooManyRequestsException", "Rate Exceeded."),
    FailureMode.REFUSE: (403, "AccessDeniedException", "not authorized to perform this operation"),
    FailureMode.FAIL: (500, "ServiceException", "internal error"),
}


@dataclass(slots=True, kw_only=True)
class Disturbance:
    """Something that happens to calls of one operation (`sagemaker.StopTrainingJob`)."""

    operation: str
    how: FailureMode
    skip: int
    times: int
    happened: int = 0


@dataclass(slots=True)
class Wire:
    """The clients' side of the embedded cloud.

    calls: how often each operation was sent. calls_by: the same by caller and operation.
    """

    calls: Counter[str] = field(default_factory=Counter)
    calls_by: Counter[tuple[str, str]] = field(default_factory=Counter)
    disturbances: list[Disturbance] = field(default_factory=list)
    lambda_handler: Callable[[AWSPreparedRequest], AWSResponse | None] | None = None
    in_process: bool = True
    _locks: dict[str, threading.RLock] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def disturb(self, operation: str, how: FailureMode, *, times: int = 1, skip: int = 0) -> Disturbance:
        """Let `times` calls of the operation go wrong, after `skip` that go right."""
        disturbance = Disturbance(operation=operation, how=how, skip=skip, times=times)
        with self._guard:
            self.disturbances.append(disturbance)
        return disturbance

    def lock(self, service: str) -> threading.RLock:
        """The lock that one service's calls share."""
        with self._guard:
            return self._locks.setdefault(service, threading.RLock())

    def send(self, event_name: str, request: AWSPreparedRequest, to_moto: Send) -> AWSResponse | None:
        """Send one call on its way; None lets botocore send it over HTTP."""
        _, service, operation = event_name.split(".")
        key = f"{service}.{operation}"
        how = self._strike(key)
        try:
            if how in _ERRORS:
                return _error_response(service, how, request)
            if how is FailureMode.TIMEOUT_BEFORE:
                raise ConnectTimeoutError(endpoint_url=request.url)
            refused = too_large(key, request)
            if refused is not None:
                TOO_LARGE.append(refused.text)
                return _refusal(request, refused)
            answer = self._pass(service, request, to_moto)
            if how is FailureMode.TIMEOUT_AFTER:
                if answer is None:
                    URLLib3Session().send(request)
                raise ReadTimeoutError(endpoint_url=request.url)
            return answer
        finally:
            with self._guard:
                self.calls[key] += 1
                self.calls_by[_caller(request), key] += 1

    def _pass(self, service: str, request: AWSPreparedRequest, to_moto: Send) -> AWSResponse | None:
        if not self.in_process:
            return None
        if service == "lambda" and self.lambda_handler is not None:
            return self.lambda_handler(request)  # answers callbacks that may call AWS: never under a lock
        with self.lock(service):
            return to_moto()

    def _strike(self, key: str) -> FailureMode | None:
        with self._guard:
            for disturbance in self.disturbances:
                if disturbance.operation != key or disturbance.happened >= disturbance.times:
                    continue
                if disturbance.skip > 0:
                    disturbance.skip -= 1
                    continue
                disturbance.happened += 1
                return disturbance.how
        return None


def _caller(request: AWSPreparedRequest) -> str:
    named = request.headers.get("User-Agent") or ""
    text = named.decode() if isinstance(named, bytes) else str(named)
    return text.partition(" ")[0]  # botocore appends its own name and version


@contextmanager
def installed(wire: Wire) -> Iterator[None]:
    """Lead every boto3 client of this process through the wire. One cloud at a time."""
    original = BotocoreStubber.__call__

    def call(stubber: BotocoreStubber, event_name: str, request: AWSPreparedRequest, **more: Any) -> Any:
        return wire.send(event_name, request, lambda: original(stubber, event_name, request, **more))

    with ExitStack() as stack:
        if getattr(original, "is_wire", False):
            raise RuntimeError("another embedded cloud is running in this process")
        call.is_wire = True  # type: ignore[attr-defined]
        setattr(BotocoreStubber, "__call__", call)  # noqa: B010  mypy takes no plain assignment to a method
        stack.callback(setattr, BotocoreStubber, "__call__", original)
        yield


def response(url: str, status: int, headers: dict[str, str], body: bytes) -> AWSResponse:
    """An answer as botocore's own HTTP session would give it."""
    return AWSResponse(url, status, headers, MockRawResponse(body))


def _refusal(request: AWSPreparedRequest, refused: TooLarge) -> AWSResponse:
    content = request.headers.get("Content-Type") or ""
    if "x-www-form-urlencoded" in (content.decode() if isinstance(content, bytes) else str(content)):
        error = f"<Error><Code>{refused.code}</Code><Message>{refused.text}</Message></Error>"
        body = f"<ErrorResponse>{error}</ErrorResponse>".encode()
        return response(request.url, refused.status, {"Content-Type": "text/xml"}, body)
    headers = {"Content-Type": "application/json", "x-amzn-ErrorType": refused.code}
    text = json.dumps({"__type": refused.code, "message": refused.text, "Message": refused.text})
    return response(request.url, refused.status, headers, text.encode())


def _error_response(service: str, how: FailureMode, request: AWSPreparedRequest) -> AWSResponse:
    if service == "s3":
        status, code, text = _S3_ERRORS[how]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{text}</Message></Error>"
        return response(request.url, status, {"Content-Type": "application/xml"}, body.encode())
    status, code, text = (_LAMBDA_ERRORS if service == "lambda" else _ERRORS)[how]
    body = f'{{"__type": "{code}", "message": "{text}"}}'
    headers = {"Content-Type": "application/json", "x-amzn-ErrorType": code}
    return response(request.url, status, headers, body.encode())
