"""The checks of `python -m infra.preflight`, and their answers as lines.

Each finding is one line with its remedy. A problem stops `make deploy`; a note does not. What AWS refuses to
answer is a note as well.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from infra.package import BUNDLE, TEMPLATE
from infra.preflight.names import kept_resources
from infra.preflight.template import TEMPLATE_CHECKS
from infra.quotas import quotas
from infra.target_stack import (
    Check,
    DeploymentError,
    Finding,
    Importance,
    TargetStack,
    code_of,
    existing_stack,
    findings,
    problem,
    stack_name,
)

# A stack in one of these can only be removed. Source: CloudFormation guide, stack status codes.
CANNOT_BE_UPDATED: Final = frozenset({"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED"})
# A Lambda of a Region that does not know an operation. Source: Lambda answers so for any path that it has not.
_UNKNOWN_OPERATION: Final = frozenset(
    {"UnknownOperationException", "UnknownOperation", "InvalidAction", "MissingAuthenticationTokenException"}
)


def durable_functions(target: TargetStack) -> Iterator[Finding]:
    """Asks the Region itself: Lambda lists the durable executions of a function that need not exist."""
    from botocore.exceptions import ClientError, EndpointConnectionError

    missing = problem(
        f"Lambda in {target.region} has no durable functions",
        "choose a Region that has them: https://docs.aws.amazon.com/lambda/latest/dg/durable-functions.html",
    )
    try:
        target.client("lambda").list_durable_executions_by_function(FunctionName=f"{target.stack}-recover", MaxItems=1)
    except EndpointConnectionError:
        yield missing
    except ClientError as err:
        if code_of(err) == "ResourceNotFoundException":  # Lambda knows the question, and has no such function yet
            return
        if code_of(err) in _UNKNOWN_OPERATION or code_of(err) == "404":
            yield missing
            return
        raise


def state(target: TargetStack) -> Iterator[Finding]:
    """Whether CloudFormation would take a deployment now."""
    status, stack = target.status, target.stack
    if status in CANNOT_BE_UPDATED:
        stage = "prod" if stack == "rekindle" else stack.removeprefix("rekindle-")
        yield problem(
            f"{stack} is {status}: it never worked, or could not be removed",
            f"remove it first: make undeploy STAGE={stage}; tables and buckets stay and are taken up again",
        )
    elif status == "UPDATE_ROLLBACK_FAILED":
        yield problem(
            f"{stack} is {status}",
            f"aws cloudformation continue-update-rollback --stack-name {stack}, then deploy again",
        )
    elif target.is_busy:
        yield problem(
            f"{stack} is {status}: another operation is running", "wait until that has ended, then deploy again"
        )


def local_tools(_: TargetStack) -> Iterator[Finding]:
    """What this machine needs to build the package; the Makefile has looked for Python itself."""
    import importlib.util

    if importlib.util.find_spec("pip") is None:
        yield problem("this Python has no pip", "python -m ensurepip --upgrade (Debian: apt-get install python3-pip)")


ACCOUNT_CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("this machine", local_tools),
    ("durable functions", durable_functions),
    ("the stack's state", state),
    ("quotas", quotas),
)


def run_checks(
    session: Any, stack: str, *, package: Path | None = None, parameters: Mapping[str, str] | None = None
) -> tuple[Finding, ...]:
    """What stands against deploying to `stack` now. package: what `make package` made; None before that.

    Raises:
        ClientError, BotoCoreError: CloudFormation does not say whether there is such a stack.
    """
    target = read_stack(session, stack, package=package, parameters=parameters or {})
    checks = list(ACCOUNT_CHECKS)
    if target.template is not None:
        checks += [*TEMPLATE_CHECKS, ("what an earlier deployment kept", kept_resources)]
    return tuple(findings(target, checks))


def read_stack(session: Any, stack: str, *, package: Path | None, parameters: Mapping[str, str]) -> TargetStack:
    """The stack as it is now, with the package and the parameters that are to be deployed."""
    template, size = None, 0
    if package is not None:
        template = json.loads((package / TEMPLATE).read_text(encoding="utf-8"))
        size = (package / BUNDLE).stat().st_size
    return TargetStack(
        session=session,
        stack=stack,
        account_id=str(session.client("sts").get_caller_identity()["Account"]),
        existing=existing_stack(session.client("cloudformation"), stack),
        template=template,
        bundle_bytes=size,
        given=parameters,
    )


def print_findings(found: Sequence[Finding]) -> bool:
    """Print the findings, problems first; True where nothing stops the deployment."""
    for finding in sorted(found, key=lambda finding: finding.importance is not Importance.PROBLEM):
        print(finding, file=sys.stderr)
    return all(finding.importance is not Importance.PROBLEM for finding in found)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. 0 where nothing stops a deployment, 1 with one line for each thing that does."""
    from botocore.exceptions import BotoCoreError, ClientError

    from infra.session import SessionError, open_session

    parser = argparse.ArgumentParser(prog="python -m infra.preflight", description="What would stop a deployment.")
    parser.add_argument("--stage", default="prod")
    parser.add_argument("--region", help="AWS Region; the profile's when not given")
    args = parser.parse_args(argv)
    try:
        found = run_checks(open_session(args.region), stack_name(args.stage))
    except (DeploymentError, SessionError, BotoCoreError, ClientError) as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return 0 if print_findings(found) else 1
