"""The options of the demo: `rekindle demo`.

This module is loaded by every `rekindle` command (its entry point names it), so it imports the demo only to run it.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from localcloud.demo.story import Fault

DEFAULT_SEED: Final = 7
MAX_SEED: Final = 2**31 - 1
_DESCRIPTION: Final = (
    "A real training run on the embedded cloud loses a GPU, is killed, frozen and poisoned. It comes back."
)


def register(subparsers: Any) -> None:
    """Add the command to the `rekindle` parser."""
    demo = subparsers.add_parser(
        "demo",
        help="a real run on the embedded cloud is killed, frozen and poisoned, and comes back",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    choices = [*(fault.value for fault in Fault), "all"]
    demo.add_argument("--fault", choices=choices, default="all", help="which fault; all: one after the other")
    demo.add_argument("--seed", type=_seed, default=DEFAULT_SEED, help="of the model and of the order of the data")
    demo.add_argument("--json", action="store_true", help="print the report on standard output, the rest on stderr")
    demo.add_argument("--keep", action="store_true", help="keep data, worker logs and the trace of every step")
    demo.add_argument("--out", default="build/demo", help="folder for report.json and the rest (default: %(default)s)")
    demo.set_defaults(run=_run, extra="local")


def _run(args: argparse.Namespace) -> int:
    from localcloud.demo.command import play

    return play(args)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEED)) and int(text) <= MAX_SEED):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {MAX_SEED}")
    return int(text)
