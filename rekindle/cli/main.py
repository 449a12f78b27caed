"""`rekindle`: the operator's command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

from rekindle.cli import commands
from rekindle.cli.service.files import MIN_PYTHON, make_importable
from rekindle.cli.service.target import add_options
from rekindle.cli.terminal import completion
from rekindle.cli.terminal.parsing import Parser
from rekindle.cli.terminal.watch import watched
from rekindle.cli.tools import checkpoints, classify, detect, doctor, run
from rekindle.cli.views import console
from rekindle.client.errors import MEANINGS, CliError, CommandFailed, Exit
from rekindle.client.table import clean

COMMANDS = "rekindle.commands"  # entry points of packages that bring commands of their own

# A module of ours that is missing is a fault of ours, never an extra that was not installed.
_OURS = frozenset({"rekindle", "chalicelib", "localcloud", "fleets", "infra", "simulation", "app"})
_EPILOG = "\n".join(["exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in MEANINGS.items())])


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
    parser = Parser(
        prog="rekindle",
        description="Watch and order the recovery of training runs.",
        epilog=_EPILOG,
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
    run.register(known)
    completion.register(known, build_parser)
    make_importable()
    for entry in {entry.name: entry for entry in entry_points(group=COMMANDS)}.values():
        _add_foreign(known, entry)
    return parser


def _version() -> str:
    try:
        return version("rekindle")
    except PackageNotFoundError:
        return "(not installed)"


def _add_foreign(known: Any, entry: EntryPoint) -> None:
    """A command of another package; one that cannot run here says so when it is called."""
    if sys.version_info < MIN_PYTHON:
        missing = f"`rekindle {entry.name}` needs Python {'.'.join(map(str, MIN_PYTHON))} or newer"
    else:
        try:
            register = entry.load()
        except (ImportError, AttributeError) as err:
            missing = f"`rekindle {entry.name}` is not installed whole ({clean(err)}): pip install 'rekindle[local]'"
        else:
            register(known)
            return
    # No character begins an option here, so that whatever was typed reaches the refusal.
    stub = known.add_parser(entry.name, help="not installed", add_help=False, prefix_chars="\0")
    stub.add_argument("rest", nargs="*")
    stub.set_defaults(run=_refusal(missing))


def _refusal(why: str) -> Callable[[argparse.Namespace], int]:
    def refuse(_: argparse.Namespace) -> int:
        raise CommandFailed(why)

    return refuse


if __name__ == "__main__":
    sys.exit(main())
