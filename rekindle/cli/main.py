"""`rekindle`: the operator's command line."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from rekindle.cli import commands
from rekindle.cli.options import Unlisted
from rekindle.cli.service.files import MIN_PYTHON, make_importable, service_root
from rekindle.cli.service.target import add_options
from rekindle.cli.terminal import completion
from rekindle.cli.terminal.parsing import Parser
from rekindle.cli.terminal.watch import watched
from rekindle.cli.tools import checkpoints, classify, detect, doctor, hang, run
from rekindle.cli.views import console
from rekindle.client.errors import MEANINGS, CliError, Exit, UsageError
from rekindle.client.table import clean

COMMANDS = "rekindle.commands"  # entry points of the commands that the service's sources bring
# The same commands where those sources are not installed: name -> the extra that brings all it needs.
NEEDS_SERVICE = {
    "demo": "local",
    "init": "cli",
    "plan": "cli",
    "replay": "local",
    "slurm-agent": "cli",
    "stack": "deploy",
    **dict.fromkeys(("deploy", "estimate", "package", "slack-app", "undeploy"), "deploy"),
}

# A module of ours that is missing is a fault of ours, never an extra that was not installed.
_OURS = frozenset({"rekindle", "chalicelib", "localcloud", "fleets", "infra", "simulation", "app"})
_EPILOG = "\n".join(["exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in MEANINGS.items())])
_PAGES = "\n\npages: what a message names as docs/... is below {root}"


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code. Usage errors exit with 2 by themselves."""
    if sys.stdout is None:  # closed by whoever started us (`>&-`): nobody listens, as with a closed pipe
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks is no crash
    args = build_parser().parse_args(argv)
    try:
        return watched(args) if getattr(args, "watch", None) is not None else int(args.run(args))
    except CliError as err:
        print(f"rekindle: {err}", file=sys.stderr)
        return int(err.code)
    except ModuleNotFoundError as err:
        if (err.name or "").partition(".")[0] in _OURS:
            raise
        extra = "local" if getattr(args, "store", None) else getattr(args, "extra", "cli")
        print(f"rekindle: this command needs {err.name}: pip install 'rekindle[{extra}]'", file=sys.stderr)
        return int(Exit.USAGE)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read us has seen enough. Python would complain at exit when it flushes into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)
    except OSError as err:
        # A full disk, an unwritable terminal. What is still waiting to be written would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"rekindle: {clean(err.filename or 'output')}: {clean(err.strerror or err)}", file=sys.stderr)
        return int(Exit.FAILED)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, with the commands that other packages bring."""
    root = service_root()
    parser = Parser(
        prog="rekindle",
        description="Watch and order the recovery of training runs.",
        epilog=_EPILOG + (_PAGES.format(root=root) if root else ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    parser.add_argument("--version", action="version", version=f"rekindle {_version()}")
    known = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.register(known)
    checkpoints.register(known)
    classify.register(known)
    console.register(known)
    detect.register(known)
    doctor.register(known)
    hang.register(known)
    run.register(known)
    completion.register(Unlisted(known), build_parser)  # typed once on a machine: docs/cli.md has it
    _add_of_service(known)
    return parser


def _version() -> str:
    try:
        return version("rekindle")
    except PackageNotFoundError:
        return "(not installed)"


def _add_of_service(known: Any) -> None:
    """The commands of the service's sources; one that cannot run here says so when it is called."""
    if sys.version_info < MIN_PYTHON or service_root() is None:
        for name, extra in NEEDS_SERVICE.items():
            why = f"needs rekindle-service of this version: pip install 'rekindle[{extra}]'"
            if sys.version_info < MIN_PYTHON:
                why = f"needs Python {'.'.join(map(str, MIN_PYTHON))} or newer"
            _add_stub(known, name, f"`rekindle {name}` {why}")
        return
    make_importable()
    for entry in {entry.name: entry for entry in entry_points(group=COMMANDS)}.values():
        try:
            register = entry.load()
        except (ImportError, AttributeError) as err:
            why = f"is not installed whole ({clean(err)}): pip install 'rekindle[local]'"
            _add_stub(known, entry.name, f"`rekindle {entry.name}` {why}")
        else:
            register(known)


def _add_stub(known: Any, name: str, why: str) -> None:
    def refuse(_: argparse.Namespace) -> int:
        raise UsageError(why)

    # No character begins an option here, so that whatever was typed reaches the refusal.
    stub = known.add_parser(name, help="not installed", add_help=False, prefix_chars="\0")
    stub.add_argument("rest", nargs="*")
    stub.set_defaults(run=refuse)


if __name__ == "__main__":
    sys.exit(main())
