"""The stack that a deployment or a removal is about, and the findings of checks of it.

The checks themselves are in `preflight/`, `quotas.py` and `leftovers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

NAME: Final = "rekindle"
STAGES: Final = re.compile(r"[a-z][a-z0-9-]{0,19}")
# What a stack names at run time: queues `<stack>-agent-...`, alarms `<stack>-job...`, and the bucket of bundles. A
# stage of such a name would have its resources where the roles of another stage reach, and delete them.
_TAKEN: Final = re.compile(r"(?:.*-)?(?:agent(?:-.*)?|job.*)|artefacts")
NOT_MADE: Final = (None, "REVIEW_IN_PROGRESS")  # no stack, or one of which only a change set was ever made
_DENIED: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError", "NotAuthorized"}
)


class DeploymentError(Exception):
    """The deployment stopped; the message says why and what to do."""


def stack_name(stage: str) -> str:
    """`rekindle` for prod, `rekindle-<stage>` for every other: several stages can live in one account.

    Raises:
        DeploymentError: the stage cannot be part of an AWS name, or is what another stage calls its own resources.
    """
    if not STAGES.fullmatch(stage):
        raise DeploymentError(f"stage {stage!r} must be lower-case letters, digits and dashes, 20 at most")
    if _TAKEN.fullmatch(stage):
        raise DeploymentError(
            f"stage {stage!r}: no part of it may be `agent`, begin with `job`, or be `artefacts`: other stages' own "
            "resources have such names"
        )
    return NAME if stage == "prod" else f"{NAME}-{stage}"


class Importance(StrEnum):
    """How much a finding matters."""

    PROBLEM = "problem"  # the deployment would fail, or stand there without working
    NOTE = "note"  # worth knowing; also what could not be read


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. `remedy` is what to do, a command where there is one."""

    importance: Importance
    what: str
    remedy: str

    def __str__(self) -> str:
        text = f"{self.importance}: {self.what} -> {self.remedy}"
        return " ".join(text.split())


def problem(what: str, remedy: str) -> Finding:
    """A finding that stops the deployment."""
    return Finding(Importance.PROBLEM, what, remedy)


def note(what: str, remedy: str) -> Finding:
    """A finding that does not stop it."""
    return Finding(Importance.NOTE, what, remedy)


@dataclass(frozen=True)
class TargetStack:
    """One stack in one account and Region, before anything is done to it.

    session: a boto3 Session with both settled. existing: CloudFormation's description of the stack, None where there is
    none. template: the packaged one; None before it is built. given: the parameters of this deployment.
    """

    session: Any
    stack: str
    account_id: str
    existing: Mapping[str, Any] | None = None
    template: Mapping[str, Any] | None = None
    bundle_bytes: int = 0
    given: Mapping[str, str] = field(default_factory=dict)
    _clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        """boto3's client of a service, made once."""
        if service not in self._clients:
            self._clients[service] = self.session.client(service)
        return self._clients[service]

    @property
    def region(self) -> str:
        """Where the stack is, or is to be."""
        return str(self.session.region_name)

    @property
    def status(self) -> str | None:
        """CloudFormation's StackStatus; None where there is no stack."""
        return str(self.existing["StackStatus"]) if self.existing else None

    @property
    def is_new(self) -> bool:
        """True where the deployment creates the stack."""
        return self.status in NOT_MADE

    @property
    def is_busy(self) -> bool:
        """True while an operation on the stack is under way."""
        status = self.status or ""
        return status.endswith("_IN_PROGRESS") and status != "REVIEW_IN_PROGRESS"

    @cached_property
    def texts(self) -> dict[str, str]:
        """The parameters as the deployment would have them: given now, else chosen before, else the default."""
        declared = (self.template or {}).get("Parameters", {})
        before = {
            parameter["ParameterKey"]: parameter["ParameterValue"]
            for parameter in (self.existing or {}).get("Parameters", [])
        }
        defaults = {name: str(about["Default"]) for name, about in declared.items() if "Default" in about}
        kept = {name: text for name, text in before.items() if self.template is None or name in declared}
        return {**defaults, **kept, **self.given}

    def listed(self, parameter: str) -> list[str]:
        """The entries of a parameter that is a list."""
        return [value.strip() for value in self.texts.get(parameter, "").split(",") if value.strip()]


Check = Callable[[TargetStack], Iterable[Finding]]


def findings(target: TargetStack, checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """What the checks find. What AWS does not answer is a note: what is not known stops no deployment.

    checks: (what it is about, the check).
    """
    from botocore.exceptions import BotoCoreError, ClientError

    for about, check in checks:
        try:
            yield from check(target)
        except (ClientError, BotoCoreError) as err:
            yield note(f"{about} could not be checked: {err}", _why(err))


def _why(err: Exception) -> str:
    response = getattr(err, "response", None) or {}
    code = str(response.get("Error", {}).get("Code", ""))
    if code in _DENIED:
        return "deploy with credentials that may ask, or check it yourself"
    return "look yourself; the deployment continues"


def existing_stack(cloud: Any, name: str) -> dict[str, Any] | None:
    """CloudFormation's description of a stack; None where there is none. `cloud` is boto3's client.

    Raises:
        ClientError, BotoCoreError: CloudFormation does not say.
    """
    from botocore.exceptions import ClientError

    try:
        found = cloud.describe_stacks(StackName=name)["Stacks"]
    except ClientError as err:
        if not (code_of(err) == "ValidationError" and "does not exist" in str(err)):
            raise
        found = []
    return next((dict(stack) for stack in found if stack["StackStatus"] != "DELETE_COMPLETE"), None)


def code_of(err: Any) -> str:
    """The error code of a botocore ClientError."""
    return str(err.response.get("Error", {}).get("Code", ""))
