"""`rekindle doctor` checks whether an installation is ready for the next fault; `rekindle doctor cluster` checks a
cluster's files, a live cluster or a batch script.

Every finding is printed, not only the first. The exit code is 1 if any is an error, else 0: a warning describes a
set-up that works until something fails, and a check that could not be made is neither a pass nor a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rekindle.cli.service.target import DEFAULT_STACK, add_options, connected
from rekindle.client.api import Client, is_loopback
from rekindle.client.errors import CliError, Exit, NotFound, Unreachable, UsageError
from rekindle.client.table import Column, Style, clean, render
from rekindle.compat import UTC
from rekindle.doctor.aws.account import Account
from rekindle.doctor.base.findings import Finding, Severity, counted, has_errors
from rekindle.doctor.examine import ExamineInputs, examine, layers_at
from rekindle.doctor.setup import ON_THIS_MACHINE, Service, ServiceRefused, Setup, look_at

_COLUMNS = (Column("severity"), Column("check"), Column("where"), Column("what"))
_TONES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.UNKNOWN: "dim"}


def register(commands: Any) -> None:
    """Add the command. `doctor cluster` asks AWS, never a Rekindle API, so it has no option that chooses one."""
    help_ = "find problems before they cost a run: the set-up as it is, or (`doctor cluster`) a cluster and a script"
    doctor = commands.add_parser("doctor", help=help_, description=help_, allow_abbrev=False)
    doctor.add_argument("--json", action="store_true", help="one object per line")
    doctor.add_argument("--region", metavar="NAME", help="AWS region (default: as the AWS CLI has it)")
    doctor.add_argument("--profile", metavar="NAME", help="AWS profile (default: as the AWS CLI has it)")
    doctor.add_argument("--cluster", metavar="NAME", action="append", default=[], help="look at this cluster, too")
    add_options(doctor)
    doctor.set_defaults(run=setup)
    inner = doctor.add_subparsers(dest="what", metavar="cluster")
    help_ = "check a HyperPod cluster's files, a live cluster, and a batch script"
    parser = inner.add_parser("cluster", help=help_, description=help_, allow_abbrev=False)
    parser.add_argument("--config", type=Path, metavar="FILE", help="a CreateCluster request (create_cluster.json)")
    parser.add_argument("--provisioning", type=Path, metavar="FILE", help="provisioning_parameters.json")
    parser.add_argument("--script", type=Path, metavar="FILE", help="a batch script")
    parser.add_argument("--live", metavar="CLUSTER", help="a live cluster's name or ARN")
    parser.add_argument("--offline", action="store_true", help="do not ask AWS anything")
    parser.add_argument("--region", metavar="NAME", help="AWS region (default: as the AWS CLI has it)")
    parser.add_argument("--profile", metavar="NAME", help="AWS profile (default: as the AWS CLI has it)")
    parser.add_argument("--stack", metavar="NAME", help=f"Rekindle's stack (or REKINDLE_STACK; {DEFAULT_STACK})")
    parser.add_argument("--bucket", metavar="NAME", help="Rekindle's bucket (or REKINDLE_BUCKET; default: the stack's)")
    parser.add_argument("--json", action="store_true", help="one object per line")
    parser.set_defaults(run=run)


def setup(args: argparse.Namespace) -> int:
    """Look at the set-up as it stands: stack, API, Jobs, clusters."""
    account = account_of(args)
    is_shown = sys.stderr.isatty() and not args.json
    with ExitStack() as held:
        service: Service | None = None
        why, is_local = "", False
        try:
            client = held.enter_context(connected(args, only_look=True))
            service, is_local = _reader(client), is_loopback(client.url)
        except (Unreachable, UsageError) as err:
            why = str(err)
        if is_local and "AWS_ENDPOINT_URL" not in os.environ:
            account = Account(why_none=ON_THIS_MACHINE)
        found = look_at(
            Setup(
                now=datetime.now(UTC),
                stack=getattr(args, "stack", None) or os.environ.get("REKINDLE_STACK") or DEFAULT_STACK,
                service=service,
                why_no_service=why,
                is_local=is_local,
                clusters=tuple(args.cluster),
            ),
            account,
            progress=_progress if is_shown else lambda _: None,
        )
    if is_shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return _end(args, found)


def _progress(what: str) -> None:
    print(f"\r\033[K{clean(what)[:70]} ...", end="", file=sys.stderr, flush=True)


def _reader(client: Client) -> Service:
    def get(route: str, **query: str | int | None) -> dict[str, Any]:
        try:
            return client.get(route, **query)
        except NotFound as err:
            raise ServiceRefused(str(err), is_absent=True) from err
        except CliError as err:
            raise ServiceRefused(str(err)) from err

    return get


def run(args: argparse.Namespace) -> int:
    """Examine what was given. Raises: UsageError, where nothing was."""
    if args.config is None and args.provisioning is None and args.script is None and args.live is None:
        raise UsageError("nothing to look at: give --config, --provisioning, --script or --live")
    if args.live is not None and args.offline:
        raise UsageError("--live asks AWS, which --offline forbids")
    needs_aws = args.config is not None or args.provisioning is not None or args.live is not None
    given = ExamineInputs(
        now=datetime.now(UTC),
        config=args.config,
        provisioning=args.provisioning,
        script=args.script,
        live=args.live,
        stack=args.stack or os.environ.get("REKINDLE_STACK") or DEFAULT_STACK,
        bucket=args.bucket or os.environ.get("REKINDLE_BUCKET") or None,
    )
    files = {"config": args.config, "provisioning": args.provisioning, "script": args.script}
    found = examine(given, account_of(args) if needs_aws else Account())
    code = _end(args, found, {option: str(path) for option, path in files.items() if path is not None})
    if args.script is not None and not args.json and (layers := layers_at(args.script)):
        print("\nIf this job fails, these may act on it, in this order:", *(f"- {layer}" for layer in layers), sep="\n")
    return code


def _end(args: argparse.Namespace, found: list[Finding], files: Mapping[str, str] | None = None) -> int:
    if args.json:
        for finding in found:
            print(json.dumps(finding.to_json()))
    else:
        print(as_text(found, Style.of(sys.stdout), files or {}))
    return int(Exit.FAILED if has_errors(found) else Exit.OK)


def account_of(args: argparse.Namespace) -> Account:
    """The account that the operator's own credentials lead to. Raises: UsageError for a profile that does not exist."""
    if getattr(args, "offline", False):
        return Account(why_none="--offline")
    # Only here: boto3's import takes longer than a script's check.
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    quick = Config(connect_timeout=3, read_timeout=15, retries={"mode": "standard", "total_max_attempts": 3})
    try:
        session = boto3.session.Session(profile_name=args.profile, region_name=args.region)
        if session.get_credentials() is None:
            return Account()
    except ProfileNotFound as err:
        raise UsageError(f"--profile: {clean(err)}") from err
    except BotoCoreError as err:
        return Account(why_none=clean(err)[:200])
    if not session.region_name:
        return Account(why_none="no AWS region (--region)")
    return Account(clients=lambda service: session.client(service, config=quick), region=session.region_name)


def as_text(found: list[Finding], style: Style, files: Mapping[str, str]) -> str:
    """The files by the name of their option, a line per finding, worst first, and the sum.

    A finding's place begins with that name: a path on each line would push what is wrong out of sight.
    """
    if not found:
        return "Everything was looked at, and nothing is wrong."
    counts = {severity: sum(finding.severity is severity for finding in found) for severity in Severity}
    sums = [counted(counts[Severity.ERROR], "error"), counted(counts[Severity.WARNING], "warning")]
    total = ", ".join([*sums, f"{counts[Severity.UNKNOWN]} unknown (could not be looked at)"])
    shown = _unknowns_merged(found)
    rows = [(finding.severity.value, finding.check, _where(finding.path, files), finding.message) for finding in shown]
    lines = render(_COLUMNS, rows, style, last_may_shrink=False).split("\n")
    painted = [
        line.replace(finding.severity.value, style.paint(finding.severity.value, _TONES[finding.severity]), 1)
        for line, finding in zip(lines[1:], shown, strict=True)
    ]
    named = [f"{option}: {clean(path)}" for option, path in files.items()]
    return "\n".join([*named, "", lines[0], *painted, "", total] if named else [lines[0], *painted, "", total])


def _where(path: str, files: Mapping[str, str]) -> str:
    for option, file in files.items():
        if path == file or path.startswith(f"{file}:"):
            return option + path[len(file) :]
    return path


def _unknowns_merged(found: list[Finding]) -> list[Finding]:
    """What is unknown of many for one and the same reason in one line: 200 Jobs would hide what is wrong."""
    alike = Counter((finding.check, finding.message) for finding in found if finding.severity is Severity.UNKNOWN)
    merged: dict[tuple[object, ...], Finding] = {}
    for finding in found:
        more = alike[finding.check, finding.message] - 1
        if finding.severity is not Severity.UNKNOWN or more < 1:
            merged[finding.check, finding.severity, finding.path, finding.message] = finding
        else:
            merged.setdefault(
                (finding.check, finding.message), replace(finding, path=f"{finding.path} and {more} more")
            )
    return list(merged.values())
