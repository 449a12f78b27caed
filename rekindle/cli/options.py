"""Arguments that several commands share: how a command is declared, and what names, steps and windows may look like."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from rekindle.cli.service.target import add_options
from rekindle.cli.terminal.watch import EVERY_S, MAX_EVERY_S, MIN_EVERY_S
from rekindle.compat import UTC, from_iso

Runs = Callable[[argparse.Namespace], int]

MAX_NAME_CHARS: Final = 256  # the API's own limit for texts
MAX_STEP: Final = 2**53 - 1  # JSON's safe whole numbers
# What the API takes; Python itself reads more.
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")
_AGE: Final = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def command(commands: Any, name: str, run: Runs, help_: str) -> argparse.ArgumentParser:
    """A command with `--json` and the options that name a service."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_, description=help_, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="for machines")
    add_options(parser)
    parser.set_defaults(run=run, watch=None)  # of an inner command: what its group is told of watching does not count
    return parser


def watchable(commands: Any, name: str, run: Runs, help_: str) -> argparse.ArgumentParser:
    """A command that only looks, once or again and again."""
    parser = command(commands, name, run, help_)
    parser.add_argument(
        "--watch",
        nargs="?",
        const=EVERY_S,
        type=seconds,
        metavar="SECONDS",
        help=f"look again every SECONDS ({EVERY_S:g}) until Ctrl-C; on a terminal in place, else appended when changed",
    )
    return parser


def order(commands: Any, name: str, run: Runs, help_: str) -> argparse.ArgumentParser:
    """A command that changes something. It takes --yes whether or not it asks: scripts give it to every order."""
    parser = command(commands, name, run, help_)
    parser.add_argument("--key", type=key, help="the same key twice is one order (default: a random one)")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def group(commands: Any, name: str, help_: str, words: str) -> Any:
    """A command with commands of its own, one of which has to be given."""
    parser = commands.add_parser(name, help=help_, description=help_, allow_abbrev=False)
    return parser.add_subparsers(dest=f"command_of_{name}", required=True, metavar=words)


def inner_commands(parser: argparse.ArgumentParser, words: str) -> Any:
    """Commands of a command that does something without them too."""
    return parser.add_subparsers(dest=f"command_of_{parser.prog.split()[-1]}", metavar=f"[{words}]")


class Unlisted:
    """Commands under a second name, and what is typed once: they can be given, and neither help, completion nor the
    reference lists them.
    """

    def __init__(self, commands: Any) -> None:
        self._commands = commands

    def add_parser(self, name: str, **settings: Any) -> argparse.ArgumentParser:
        """As argparse's, which lists only commands that are given a line of help."""
        settings.pop("help", None)
        parser: argparse.ArgumentParser = self._commands.add_parser(name, **settings)
        return parser


def name(text: str) -> str:
    """Of a Job, an Incident, a policy, ..."""
    if not 1 <= len(text) <= MAX_NAME_CHARS:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_NAME_CHARS} characters")
    return text


def key(text: str) -> str:
    """An idempotency key: it travels in a header."""
    if not (1 <= len(text) <= MAX_NAME_CHARS and text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_NAME_CHARS} printable ASCII characters")
    return text


def s3(text: str) -> str:
    """A prefix in S3."""
    if not text.startswith("s3://") or len(text) > MAX_NAME_CHARS:
        raise argparse.ArgumentTypeError("must be an s3:// prefix")
    return text


def whole(text: str, low: int, high: int) -> int:
    """A whole number within bounds."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and low <= int(text) <= high):
        raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}")
    return int(text)


def step(text: str) -> int:
    """A training step."""
    return whole(text, 0, MAX_STEP)


def limit(text: str) -> int:
    """How many rows."""
    return whole(text, 1, 100_000)


def days(text: str) -> int:
    """How far back: 7, or 7d as in --since of other commands."""
    return whole(text.removesuffix("d"), 1, 366)


def minutes(text: str) -> int:
    """How long a metric may be silent; the service says what it allows."""
    return whole(text, 1, 100_000)


def since(text: str) -> str:
    """A time, as the API takes it; an age is counted back from now. Only ASCII: Python reads other scripts' too."""
    detail = (
        "must be a time as in 2026-11-20, 2026-11-20T10:00Z or 2026-11-20T10:00+01:00, or an age as in 90m, 24h, 7d"
    )
    age = _AGE.fullmatch(text)
    if age is not None:
        try:
            return (datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})).isoformat(timespec="seconds")
        except OverflowError:
            raise argparse.ArgumentTypeError(detail) from None
    if not (text.isascii() and _MOMENT.fullmatch(text)):
        raise argparse.ArgumentTypeError(detail)
    try:
        from_iso(text)
    except ValueError:
        raise argparse.ArgumentTypeError(detail) from None
    return text


def seconds(text: str) -> float:
    """Parse the interval between two refreshes, in seconds."""
    detail = f"must be seconds from {MIN_EVERY_S:g} to {MAX_EVERY_S:g}; a name stands before --watch"
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(detail) from None
    if not MIN_EVERY_S <= value <= MAX_EVERY_S:
        raise argparse.ArgumentTypeError(detail)
    return value


def slurm_job(text: str) -> tuple[str, int]:
    """CLUSTER/JOB."""
    cluster, slash, number = text.rpartition("/")
    if not slash or not cluster:
        raise argparse.ArgumentTypeError("must be CLUSTER/JOB, as in ml/4211")
    return name(cluster), whole(number, 1, 0x7FFFFFFF)


def node(text: str) -> tuple[str, str]:
    """CLUSTER/NODE. The cluster may be an ARN, which has a slash of its own; a node's name has none."""
    cluster, slash, named = text.rpartition("/")
    if not slash or not cluster or not named:
        raise argparse.ArgumentTypeError("must be CLUSTER/NODE, as in ml/ip-10-1-2-3")
    return name(cluster), name(named)


def nodes(text: str) -> list[str]:
    """Names with commas between them."""
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError("must be NODE[,NODE...]")
    return [name(part) for part in found]


def window(text: str) -> tuple[int, int]:
    """A:B, the steps A to B-1."""
    low, colon, high = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("must be A:B, two whole numbers with A smaller than B")
    found = (step(low), step(high))
    if found[0] >= found[1]:
        raise argparse.ArgumentTypeError("must be A:B with A smaller than B")
    return found


def metric(text: str) -> tuple[str, str]:
    """ROLE=NAME."""
    role, equals, named = text.partition("=")
    if not equals or role not in ("loss", "step", "grad_norm") or not named:
        raise argparse.ArgumentTypeError("must be loss=NAME, step=NAME or grad_norm=NAME")
    return role, name(named)
