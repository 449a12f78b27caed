"""`rekindle stack` with its commands, and `rekindle init`, from a checkout or from a wheel alone.

This module is loaded by every `rekindle` command (its entry point names it), so it imports what it needs only to run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from rekindle.cli.options import Unlisted, group
from rekindle.cli.terminal.parsing import described
from rekindle.client.errors import CommandFailed, Unreachable, UsageError

_DEPLOY: Final = """\
Build the bundle and the template, say what will be done, ask, and create or update the stack through a change set.
--plan prints the change set, IAM first, and makes nothing. The AWS credentials and the
Region are those of the usual settings (AWS_PROFILE, AWS_DEFAULT_REGION). docs/deploy.md lists the parameters, the
rights that are needed, what the stack costs, and how it is removed."""
_PACKAGE: Final = """\
Write sam.json and deployment.zip, and beside them a Terraform module (terraform/) and a stack for the AWS CDK (cdk/),
for those who may not run `rekindle stack deploy`: docs/terraform-cdk.md. Nothing is asked of AWS; pip fetches the
bundle's packages."""
_UNDEPLOY: Final = """\
Say what the stack protects, ask, and delete it. The table and the mailbox bucket stay, and are named."""
_SLACK: Final = "Print the Slack app's manifest with the addresses of the API (output ApiUrl), to be pasted into Slack."


def register(subparsers: Any) -> None:
    """Add the commands to the `rekindle` parser; those of the stack without their group's name too."""
    from infra.init.command import add_init

    words = "deploy|package|undeploy|estimate|slack-app"
    _add_stack(group(subparsers, "stack", "the stack in your account: create, update, price or remove it", words))
    _add_stack(Unlisted(subparsers))
    add_init(subparsers)


def _add_stack(subparsers: Any) -> None:
    from infra.deploy.deployment import add_options, add_stack_options
    from infra.init.command import add_estimate

    deploy = described(subparsers, "deploy", "create or update the stack in your account", _DEPLOY)
    add_options(deploy)
    deploy.add_argument("--package", type=Path, metavar="DIR", help="a built package (default: one is built)")
    deploy.set_defaults(run=_deploy, extra="deploy")
    package = described(
        subparsers, "package", "the template and the bundle, with a Terraform module and a CDK stack", _PACKAGE
    )
    package.add_argument("--out", type=Path, required=True, metavar="DIR", help="where they go")
    package.set_defaults(run=_package, extra="deploy")
    undeploy = described(subparsers, "undeploy", "remove the stack; table and bucket stay", _UNDEPLOY)
    add_stack_options(undeploy)
    undeploy.add_argument("--yes", action="store_true", help="do not ask")
    undeploy.set_defaults(run=_undeploy, extra="cli")
    slack = described(subparsers, "slack-app", "the Slack app's manifest for this deployment", _SLACK)
    slack.add_argument("api", metavar="API-ADDRESS", help="https://<id>.execute-api.<region>.amazonaws.com/api")
    slack.set_defaults(run=_slack)
    add_estimate(subparsers)


def _deploy(args: argparse.Namespace) -> int:
    _check(args)
    if args.package is not None:
        return _run(args, args.package)
    with tempfile.TemporaryDirectory(prefix="rekindle-deploy-") as scratch:
        _build(Path(scratch))
        return _run(args, Path(scratch))


def _package(args: argparse.Namespace) -> int:
    from infra.wrap import FOLDERS, write

    if args.out.exists() and not args.out.is_dir():
        raise UsageError(f"--out: {args.out} is no folder")
    _build(args.out)
    write(args.out)
    print(f"{args.out}: sam.json, deployment.zip, {', '.join(f'{name}/' for name in FOLDERS)}")
    return 0


def _undeploy(args: argparse.Namespace) -> int:
    from infra.deploy.removal import remove
    from infra.target_stack import DeploymentError

    _check(args)
    try:
        remove(args)
    except DeploymentError as err:
        raise CommandFailed(str(err)) from err
    return 0


def _check(args: argparse.Namespace) -> None:
    """Report configuration errors before a package is built."""
    from infra.session import SessionError, open_session
    from infra.target_stack import DeploymentError, stack_name

    try:
        stack_name(args.stage)
    except DeploymentError as err:
        raise UsageError(f"--stage: {err}") from err
    try:
        open_session(args.region)
    except SessionError as err:
        raise Unreachable(str(err)) from err


def _build(out: Path) -> None:
    from infra.package import PackagingError, build

    try:
        build(out)
    except PackagingError as err:
        raise CommandFailed(str(err)) from err


def _run(args: argparse.Namespace, package: Path) -> int:
    from infra.deploy.deployment import run
    from infra.target_stack import DeploymentError

    try:
        run(args, package=package)
    except DeploymentError as err:
        raise CommandFailed(str(err)) from err
    return 0


def _slack(args: argparse.Namespace) -> int:
    from infra.slack.app import manifest

    try:
        print(json.dumps(manifest(args.api), indent=2))
    except ValueError as err:
        raise UsageError(f"API-ADDRESS: {err}") from err
    return 0
