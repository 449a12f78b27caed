"""Remove the stack: look for it, say what its removal ends, ask, delete it, and name what stays."""

from __future__ import annotations

import argparse
from typing import Any

from infra.asking import Asked, DeploymentError, stack_name
from infra.deploy.deployment import Deployment
from infra.session import SessionError, open_session
from rekindle.cli.service.target import OUTPUT_KEYS
from rekindle.cli.terminal.confirm import ask
from rekindle.client.api import Client, check_url, signer
from rekindle.client.errors import CliError, Unreachable
from rekindle.client.shapes import word
from rekindle.client.table import clean


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
        asked = deployment.asked()
        where = f"account {asked.account_id}, region {asked.region}"
        if asked.existing is None:
            raise Unreachable(f"there is no stack {deployment.stack} in {where}: nothing was removed")
        ask(args, _summary(asked, f"stack {deployment.stack} (stage {args.stage}), {where}"))
        _print_removed(deployment, deployment.remove())
    except (SessionError, BotoCoreError, ClientError) as err:
        raise DeploymentError(str(err)) from err


def _summary(asked: Asked, target: str) -> str:
    return "\n".join(
        [
            f"Remove {target}:",
            f"  1. {_protection(asked.existing)}",
            "  2. its functions, API, queues, and alarms are deleted",
            "  3. the table and the mailbox bucket stay; the next deployment takes them up again",
        ]
    )


def _protection(stack: Any) -> str:
    """What the stack protects now, which its removal ends."""
    outputs = {output["OutputKey"]: str(output["OutputValue"]) for output in stack.get("Outputs", ())}
    url = next((outputs[key] for key in OUTPUT_KEYS if key in outputs), None)
    if url is None:
        return "all protection ends; what it protects now is not known, the stack names no API"
    try:
        status = Client(url=check_url(url), sign=signer(url)).get("/status")
    except CliError as err:
        return f"all protection ends; what it protects now is not known: {clean(err)}"
    jobs, incidents = clean(word(status, "jobs_active")), clean(word(status, "incidents_open"))
    return f"{jobs} active Jobs are not protected any more, and {incidents} open Incidents are left as they are"


def _print_removed(deployment: Deployment, kept: tuple[str, ...]) -> None:
    print(f"{deployment.stack} is removed.")
    for name in kept:
        print(f"kept: {name}")
    if kept:
        print("The next deployment takes these up again. How to delete them for good: docs/deploy.md")
    for leftover in deployment.leftovers():
        print(f"left: {leftover.what} -> {leftover.remedy}")
