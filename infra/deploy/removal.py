"""Remove the stack: look for it, say what its removal ends, ask, delete it, and name what stays."""

from __future__ import annotations

import argparse

from infra.deploy.deployment import Deployment
from infra.deploy.summary import removal_summary
from infra.session import SessionError, open_session
from infra.target_stack import DeploymentError, stack_name
from rekindle.cli.terminal.confirm import ask as confirm
from rekindle.client.errors import Unreachable


def remove(args: argparse.Namespace) -> None:
    """Remove the stack of `args.stage`, once that is confirmed; prints what stays.

    Raises:
        Unreachable: there is no such stack.
        CommandFailed: it was not confirmed.
        DeploymentError: it stopped; the message says why and what to do.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        deployment = Deployment(stack=stack_name(args.stage), session=open_session(args.region))
        target = deployment.target()
        where = f"account {target.account_id}, region {target.region}"
        if target.existing is None:
            raise Unreachable(f"there is no stack {deployment.stack} in {where}: nothing was removed")
        confirm(args, removal_summary(target, f"stack {deployment.stack} (stage {args.stage}), {where}"))
        _print_removed(deployment, deployment.remove())
    except (SessionError, BotoCoreError, ClientError) as err:
        raise DeploymentError(str(err)) from err


def _print_removed(deployment: Deployment, kept: tuple[str, ...]) -> None:
    print(f"{deployment.stack} is removed.")
    for name in kept:
        print(f"kept: {name}")
    if kept:
        print("The next deployment takes these up again. How to delete them for good: docs/deploy.md")
    for leftover in deployment.leftovers():
        print(f"left: {leftover.what} -> {leftover.remedy}")
