"""`rekindle slurm-agent`: the agent on a cluster's head node, from its installation to its removal.

This module is loaded by every `rekindle` command (its entry point names it), so it imports what it needs only to run.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rekindle.cli.terminal.parsing import described
from rekindle.client.errors import CliError, CommandFailed, Exit, NotFound, Unreachable, UsageError

if TYPE_CHECKING:
    from infra.lifecycle import ServiceLocation
    from infra.lifecycle.head_node import HeadNodeAccess, ScriptResult

_BUNDLE: Final = """\
Write what a Slurm head node needs to run the agent: lifecycle script, systemd unit, settings, the packages with their
hashes, and the IAM policy for its role. Nothing is changed in the account. Where each goes:
docs/hyperpod-slurm.md."""
_WHERE: Final = """
It runs on the head node: over a session of Systems Manager (needs the AWS CLI and session-manager-plugin), or with
--here on this machine, as root. What it does there stands in /var/log/rekindle-install.log. It may be run again."""
# verb -> (help, needs the folder, is asked for)
VERBS: Final[dict[str, tuple[str, bool, bool]]] = {
    "install": ("install the agent or update it, and start it; 0: it is installed and runs", True, True),
    "upgrade": ("install this version where an agent is installed; one that does not run is taken back", True, True),
    "rollback": ("go back to the version before, with its settings and a journal that it can read", False, True),
    "uninstall": ("stop it, give back the jobs it holds and the nodes it drained, and remove it", False, True),
    "status": (
        "what is installed and whether it runs; 0: it runs, 1: it does not, 3: nothing is installed",
        False,
        False,
    ),
    "stop": (
        "stop all agents of this cluster alone, within ten seconds, and say what they hold; no run is ended, and "
        "nothing is asked",
        False,
        False,
    ),
}


def register(subparsers: Any) -> None:
    """Add the command to the `rekindle` parser."""
    agent = subparsers.add_parser("slurm-agent", help="the agent on a Slurm head node: install, upgrade, stop, remove")
    verbs = agent.add_subparsers(dest="verb", required=True, metavar="VERB")
    bundle = described(verbs, "bundle", "write the folder that a head node installs the agent from", _BUNDLE)
    _add_names(bundle)
    bundle.add_argument("--out", type=Path, default=Path("build/lifecycle"), help="where to write (build/lifecycle)")
    _add_python(bundle)
    bundle.set_defaults(run=_bundle, extra="cli")
    for name, (help_, has_folder, _) in VERBS.items():
        verb = described(verbs, name, help_, f"{help_[0].upper()}{help_[1:]}.{_WHERE}")
        _add_names(verb)
        verb.add_argument("--here", action="store_true", help="this machine is the head node")
        verb.add_argument("--group", metavar="NAME", help="the instance group of the head node (asked of the cluster)")
        if has_folder:
            _add_python(verb)
        if name != "status":
            verb.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
            verb.add_argument("--yes", action="store_true", help="do not ask")
        if name == "stop":
            verb.add_argument("--give-back", action="store_true", help="release and resume what they hold")
        if name == "uninstall":
            verb.add_argument("--force", action="store_true", help="remove it also where not all can be given back")
        verb.set_defaults(run=_on_the_head_node, extra="cli")


def _add_names(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the cluster and the service it reports to."""
    parser.add_argument("--cluster", required=True, help="the HyperPod cluster's name, or Slurm's ClusterName")
    parser.add_argument("--stack", default="rekindle", help="the service's stack (rekindle)")
    by_hand = parser.add_argument_group("where the service is; by default the stack is asked")
    for name in ("bucket", "bus", "region", "account", "partition"):
        by_hand.add_argument(f"--{name}")


def _add_python(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the Python which the folder carries."""
    parser.add_argument(
        "--python",
        type=Path,
        metavar="ARCHIVE",
        help="carry this Python: an install_only archive (.tar.gz) of python-build-standalone, for a head node that "
        "has none of 3.10 or newer and no way to get one",
    )


def _bundle(args: argparse.Namespace) -> int:
    """Raises: UsageError, CommandFailed."""
    from infra.lifecycle import LifecycleError
    from infra.lifecycle.make import make
    from rekindle.protocol.wire import MailboxError

    _check(args)
    try:
        make(args)
    except (LifecycleError, MailboxError) as err:
        raise CommandFailed(str(err)) from err
    return Exit.OK


def _check(args: argparse.Namespace) -> None:
    """Raises: UsageError."""
    if args.python is not None and not args.python.is_file():
        raise UsageError(f"--python: there is no file {args.python}")


def _on_the_head_node(args: argparse.Namespace) -> int:
    """Raises: CliError."""
    from rekindle.protocol.cluster.names import check_cluster
    from rekindle.protocol.wire import MailboxError

    _, has_folder, is_asked = VERBS[args.verb]
    if args.group and args.here:
        raise UsageError("--group and --here cannot both be")
    try:
        check_cluster(args.cluster)
    except MailboxError as err:
        raise UsageError(f"--cluster: {err}") from err
    with tempfile.TemporaryDirectory(prefix="rekindle-agent-") as scratch:
        place, folder = None, None
        if has_folder:
            _check(args)
            place = _place(args)
            folder = _folder(args, place, Path(scratch))
        ways = _ways(args, place)
        more = [f"--{option}" for option in ("give-back", "force") if getattr(args, option.replace("-", "_"), False)]
        if is_asked or getattr(args, "dry_run", False):
            code = _on_each(args, ways, [args.verb, "--dry-run", *more], folder)
            if code != Exit.OK or args.dry_run:
                return code
            _ask(args)
        return _on_each(args, ways, [args.verb, *more], folder)


def _on_each(
    args: argparse.Namespace, ways: Sequence[HeadNodeAccess], words: Sequence[str], folder: Path | None
) -> int:
    """On every head node, also after one that failed; the first failure tells how it ended. Raises: CliError."""
    from rekindle.cli.terminal.output import out

    failed: CliError | None = None
    for way in ways:
        if len(ways) > 1:
            out(f"--- {way.name}")
        try:
            _report(args, way.run(words, folder))
        except CliError as err:
            if len(ways) > 1:
                out(f"ERROR: {err}")
            failed = failed or err
    if failed is not None:
        raise failed
    return Exit.OK


def _ask(args: argparse.Namespace) -> None:
    """Raises: CommandFailed."""
    from rekindle.cli.terminal.confirm import ask

    ask(args, f"{args.verb} as listed above, on the head node of {args.cluster}")


def _report(args: argparse.Namespace, ran: ScriptResult) -> int:
    """Print the script's output; its exit code. Raises: CommandFailed, NotFound, UsageError."""
    from rekindle.cli.terminal.output import out
    from rekindle.client.table import clean

    for line in ran.output.splitlines():
        out(clean(line))
    if ran.code == Exit.OK:
        return Exit.OK
    what = f"slurm-agent {args.verb}: {args.cluster}"
    if ran.code == Exit.NOT_FOUND:
        raise NotFound(f"{what}: what is asked for is not installed there")
    raise CommandFailed(f"{what}: it ended with {ran.code}, see /var/log/rekindle-install.log there")


def _place(args: argparse.Namespace) -> ServiceLocation:
    """Raises: CommandFailed."""
    from infra.lifecycle import LifecycleError
    from infra.lifecycle.make import place_of
    from rekindle.protocol.wire import MailboxError

    try:
        return place_of(args)
    except (LifecycleError, MailboxError) as err:
        raise CommandFailed(str(err)) from err


def _folder(args: argparse.Namespace, place: ServiceLocation, scratch: Path) -> Path:
    """Raises: CommandFailed."""
    from infra.lifecycle import FOLDER, LifecycleError
    from infra.lifecycle.make import make_at

    try:
        make_at(args, place, scratch)
    except LifecycleError as err:
        raise CommandFailed(str(err)) from err
    return scratch / FOLDER


def _ways(args: argparse.Namespace, place: ServiceLocation | None) -> list[HeadNodeAccess]:
    """Raises: CliError."""
    from botocore.exceptions import BotoCoreError

    from infra.lifecycle.head_node import Session, ThisMachine, targets_of
    from rekindle.client.table import clean

    if args.here:
        return [ThisMachine()]
    import boto3

    region = place.region if place else args.region  # what brings no folder must not need the stack
    try:
        session = boto3.session.Session(region_name=region)
        targets = targets_of(session.client("sagemaker"), args.cluster, args.group)
        s3 = session.client("s3")
    except BotoCoreError as err:
        raise Unreachable(f"--region: {clean(str(err))}") from err
    bucket = place.bucket if place else ""
    return [Session(target=target, region=region, s3=s3, bucket=bucket, cluster=args.cluster) for target in targets]
