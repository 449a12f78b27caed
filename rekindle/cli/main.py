"""`rekindle`: the operator's command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from rekindle.cli import checkpoints, classify, clusters, console, detect, doctor, orders, reading, run
from rekindle.cli.errors import CliError, CommandFailed, Exit
from rekindle.cli.table import clean
from rekindle.cli.target import add_options

COMMANDS = "rekindle.commands"  # entry points of packages that bring commands of their own
MAX_NAME_CHARS = 256  # the API's own limit for texts
MAX_STEP = 2**53 - 1  # JSON's safe whole numbers

_EPILOG = """\
exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not found, 4 the service cannot be reached, 5 try again.
docs/cli.md tells more."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code. Usage errors exit with 2 by themselves."""
    if sys.stdout is None:  # closed by whoever started us (`>&-`): nobody listens, as with a closed pipe
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks is no crash
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except CliError as err:
        print(f"rekindle: {err}", file=sys.stderr)
        return int(err.code)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read us has seen enough. Python would complain at exit when it flushes into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, with the commands that other packages bring."""
    parser = argparse.ArgumentParser(
        prog="rekindle",
        description="Watch and order the recovery of training runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_reading(commands)
    _add_orders(commands)
    _add_quarantine(commands)
    checkpoints.register(commands)
    classify.register(commands)
    detect.register(commands)
    console.register(commands)
    doctor.register(commands)
    run.register(commands)
    for entry in {entry.name: entry for entry in entry_points(group=COMMANDS)}.values():
        _add_foreign(commands, entry)
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], help_: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_, description=help_, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="for machines")
    add_options(parser)
    parser.set_defaults(run=run)
    return parser


SLURM_HELP: Final = (
    "a Slurm job by its number, which its cluster's agent watches: its comment begins with `rekindle`; else "
    "`scontrol update jobid=JOB comment=rekindle` first, and the job joins by itself"
)


def _order(commands: Any, name: str, run: Callable[[argparse.Namespace], int], help_: str) -> argparse.ArgumentParser:
    parser = _command(commands, name, run, help_)
    parser.add_argument("--key", type=_key, help="the same key twice is one order (default: a random one)")
    return parser


def _add_reading(commands: Any) -> None:
    _command(commands, "status", reading.status, "what is going on now")
    jobs = _command(commands, "jobs", reading.jobs, "protected Jobs, or one with its attempts")
    jobs.add_argument("job", nargs="?", type=_name, metavar="JOB")
    incidents = _command(commands, "incidents", reading.incidents, "open Incidents, and the newest closed ones")
    which = incidents.add_mutually_exclusive_group()
    which.add_argument("--open", action="store_true", help="open ones only")
    which.add_argument("--closed", action="store_true", help="closed ones only, newest first")
    which.add_argument("--all", action="store_true", help="open ones and every closed one")
    incidents.add_argument("--limit", type=_limit, metavar="N", help="at most N closed ones")
    seen = _command(commands, "clusters", clusters.clusters, "Slurm clusters and their agents, or one with its nodes")
    seen.add_argument("cluster", nargs="?", type=_name, metavar="NAME")
    show = _command(commands, "show", reading.show, "one Incident's story")
    show.add_argument("incident", type=_name, metavar="INCIDENT")


def _add_orders(commands: Any) -> None:
    checkpoint = _order(commands, "checkpoint", orders.checkpoint, "ask a run for a checkpoint now; it goes on")
    checkpoint.add_argument("job", type=_name, metavar="JOB")
    resubmit = _order(commands, "resubmit", orders.resubmit, "save, stop and submit a Job again")
    resubmit.add_argument("job", type=_name, metavar="JOB")
    resubmit.add_argument("--from-step", type=_step, metavar="N", help="resume at step N at the latest")
    resubmit.add_argument(
        "--skip",
        type=_window,
        action="append",
        metavar="A:B",
        help="leave out the data of steps A to B-1; may be repeated",
    )
    resubmit.add_argument("--yes", action="store_true", help="do not ask")
    cancel = _order(commands, "cancel", orders.cancel, "end an Incident; what has been done stays done")
    cancel.add_argument("incident", type=_name, metavar="INCIDENT")
    cancel.add_argument("--yes", action="store_true", help="do not ask")
    register = _order(commands, "register", orders.register, "protect a training job or a Slurm job from now on")
    which = register.add_mutually_exclusive_group(required=True)
    which.add_argument("training_job", nargs="?", type=_name, metavar="TRAINING_JOB")
    which.add_argument("--slurm", type=_slurm_job, metavar="CLUSTER/JOB", help=SLURM_HELP)
    register.add_argument("--policy", type=_name, metavar="NAME", help="which policy (default: its tag's, or default)")
    register.add_argument("--mailbox", type=_s3, metavar="s3://BUCKET/PREFIX", help="where its monitor and we meet")
    _order(commands, "pause", orders.set_paused, "do nothing, everywhere, until unpaused").set_defaults(paused=True)
    _order(commands, "unpause", orders.set_paused, "lift the pause").set_defaults(paused=False)


def _add_quarantine(commands: Any) -> None:
    help_ = "events that could not be read"
    quarantine = commands.add_parser("quarantine", help=help_, description=help_, allow_abbrev=False)
    inner = quarantine.add_subparsers(dest="what", required=True, metavar="list|redrive")
    _command(inner, "list", reading.quarantine_list, "the oldest of them, left where they are")
    _order(inner, "redrive", orders.redrive, "feed them in again, after what was wrong has been mended")


def _add_foreign(commands: Any, entry: EntryPoint) -> None:
    """A command of another package; one whose package is not installed whole says so when it is called."""
    try:
        register = entry.load()
    except (ImportError, AttributeError) as err:
        missing = f"`rekindle {entry.name}` is not installed whole ({clean(err)}): pip install 'rekindle[local]'"
        # No character begins an option here, so that whatever was typed reaches the refusal.
        stub = commands.add_parser(entry.name, help="not installed", add_help=False, prefix_chars="\0")
        stub.add_argument("rest", nargs="*")
        stub.set_defaults(run=_refusal(missing))
        return
    register(commands)


def _refusal(why: str) -> Callable[[argparse.Namespace], int]:
    def refuse(_: argparse.Namespace) -> int:
        raise CommandFailed(why)

    return refuse


def _name(text: str) -> str:
    if not 1 <= len(text) <= MAX_NAME_CHARS:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_NAME_CHARS} characters")
    return text


def _key(text: str) -> str:
    if not (1 <= len(text) <= MAX_NAME_CHARS and text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_NAME_CHARS} printable ASCII characters")
    return text


def _s3(text: str) -> str:
    if not text.startswith("s3://") or len(text) > MAX_NAME_CHARS:
        raise argparse.ArgumentTypeError("must be an s3:// prefix")
    return text


def _whole(text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and low <= int(text) <= high):
        raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}")
    return int(text)


def _step(text: str) -> int:
    return _whole(text, 0, MAX_STEP)


def _limit(text: str) -> int:
    return _whole(text, 1, 100_000)


def _slurm_job(text: str) -> tuple[str, int]:
    cluster, slash, number = text.rpartition("/")
    if not slash or not cluster:
        raise argparse.ArgumentTypeError("must be CLUSTER/JOB, as in ml/4211")
    return _name(cluster), _whole(number, 1, 0x7FFFFFFF)


def _window(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("must be A:B, two whole numbers with A smaller than B")
    window = (_step(low), _step(high))
    if window[0] >= window[1]:
        raise argparse.ArgumentTypeError("must be A:B with A smaller than B")
    return window


if __name__ == "__main__":
    sys.exit(main())
