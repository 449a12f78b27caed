"""`rekindle slurm-agent install`: the folder that a head node installs the agent from.

This module is loaded by every `rekindle` command (its entry point names it), so it imports what it needs only to run.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from infra.lifecycle.options import add_options
from rekindle.cli.errors import CommandFailed, Misused

_INSTALL: Final = """\
Write what a Slurm head node needs to run the agent: lifecycle script, systemd unit, settings, the packages with their
hashes, and the IAM policy for its role. Nothing is changed in the account. Where each goes:
docs/hyperpod-slurm.md."""


def register(subparsers: Any) -> None:
    """Add the command to the `rekindle` parser."""
    agent = subparsers.add_parser("slurm-agent", help="what a Slurm head node needs to run the agent")
    verbs = agent.add_subparsers(dest="verb", required=True, metavar="VERB")
    install = verbs.add_parser(
        "install",
        help="write the folder that the head node installs the agent from",
        description=_INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(install)
    install.set_defaults(run=_install, extra="cli")


def _install(args: argparse.Namespace) -> int:
    """Raises: Misused, CommandFailed."""
    from infra.lifecycle import LifecycleError
    from infra.lifecycle.make import make
    from rekindle.wire import MailboxError

    if args.no_wheels != bool(args.package):
        raise Misused("--no-wheels and --package belong together")
    try:
        make(args)
    except (LifecycleError, MailboxError) as err:
        raise CommandFailed(str(err)) from err
    return 0
