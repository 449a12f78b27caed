"""Runs each function's AWS calls under that function's own role, as Lambda does.

`acting_as` names the running function; a call that its role does not allow is answered with AccessDenied. Threads that
a function starts inherit its role. Calls made outside any function (a test that uses an adapter directly) are not
evaluated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final

from botocore.awsrequest import AWSResponse

from localcloud.aws.authorization import Account, Permission, needs
from localcloud.aws.policies import Policy

_FUNCTION: ContextVar[str] = ContextVar("function")
# AWS's code for "not allowed", where it is not the usual one. Source: each service's API reference, common errors.
_CODES: Final = {"s3": "AccessDenied", "sqs": "AccessDenied", "sns": "AuthorizationError", "cloudwatch": "AccessDenied"}

# (function, action, name of the statement that allowed it) of every call in this process: what tests make use of.
USED: Final[set[tuple[str, str, str]]] = set()
DENIED: Final[list[tuple[str, Permission]]] = []
_DENIED: Final = "rekindle_denied"  # where a call's verdict waits in botocore's context of the call
_current: Roles | None = None
Handler = Callable[..., Any]


class Roles:
    """The roles of a stack's functions. roles: a role's statements by its function's name in app.py, asked for at each
    change of the stack."""

    def __init__(self, roles: Callable[[], Mapping[str, Sequence[Mapping[str, Any]]]], account: Account) -> None:
        self._roles = roles
        self._account = account
        self._policies: dict[str, Policy] = {}
        self._verdicts: dict[tuple[str, Permission], tuple[str, ...]] = {}
        self.denied: list[tuple[str, Permission]] = []  # of this cloud; `DENIED` has those of the whole process

    def changed(self) -> None:
        """The stack's parameters have changed: everything is worked out again."""
        self._policies.clear()
        self._verdicts.clear()

    def policy(self, function: str) -> Policy:
        """What the function's role allows. Raises: KeyError: no such function."""
        if function not in self._policies:
            self._policies[function] = Policy({"Statement": list(self._roles()[function])})
        return self._policies[function]

    def check(self, service: str, operation: str, params: Mapping[str, Any]) -> str | None:
        """Why the function that runs may not make this call; None where it may, or where none runs."""
        function = _FUNCTION.get(None)
        if function is None:
            return None
        for need in needs(self._account, service, operation, params):
            allowed_by = self._allowed_by(function, need)
            if not allowed_by:
                self.denied.append((function, need))
                DENIED.append((function, need))
                role = f"arn:aws:sts::{self._account.account_id}:assumed-role/{function}/{function}"
                return (
                    f"User: {role} is not authorized to perform: {need.action} on resource: {need.resource} "
                    f"because no identity-based policy allows the {need.action} action"
                )
            USED.update((function, need.action, sid) for sid in allowed_by)
        return None

    def _allowed_by(self, function: str, need: Permission) -> tuple[str, ...]:
        key = (function, need)
        if key not in self._verdicts:
            policy = self.policy(function)
            self._verdicts[key] = policy.granting(need) if policy.allows(need) else ()
        return self._verdicts[key]


def acting_as(function: str, handler: Handler) -> Handler:
    """The handler as this function: `rekindle-sweep` and `sweep` have one role."""
    name = function.removeprefix("rekindle-")

    def run(*args: Any) -> Any:
        token = _FUNCTION.set(name)
        try:
            return handler(*args)
        finally:
            _FUNCTION.reset(token)

    return run


@contextmanager
def in_force(roles: Roles) -> Iterator[None]:
    """Judge the calls of every watched client by these roles, for as long as the block lasts."""
    global _current
    start = threading.Thread.start

    def start_as_the_same_function(thread: threading.Thread) -> None:
        setattr(thread, "run", partial(copy_context().run, thread.run))  # noqa: B010  mypy takes no plain assignment
        start(thread)

    setattr(threading.Thread, "start", start_as_the_same_function)  # noqa: B010
    before, _current = _current, roles
    try:
        yield
    finally:
        _current = before
        setattr(threading.Thread, "start", start)  # noqa: B010


def watch(client: Any) -> None:
    """Have every call of this boto3 client judged by the roles that are in force then: clients outlive a cloud."""
    service = client.meta.service_model.service_name

    def judge(params: Mapping[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        context[_DENIED] = _current.check(service, model.name, params) if _current is not None else None

    def answer(context: Mapping[str, Any], **_: Any) -> Any:
        if context.get(_DENIED) is None:
            return None
        code = _CODES.get(service, "AccessDeniedException")
        parsed = {
            "Error": {"Code": code, "Message": context[_DENIED]},
            "ResponseMetadata": {"HTTPStatusCode": 403, "RequestId": "denied", "RetryAttempts": 0},
        }
        return AWSResponse("", 403, {}, None), parsed

    client.meta.events.register("before-parameter-build", judge)
    client.meta.events.register("before-call", answer)
