"""What every order does: a key, a question where it ends or changes something, and one line about the answer."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from rekindle.cli.terminal.output import out, out_json, wants_json
from rekindle.client.errors import CommandFailed, Exit
from rekindle.client.shapes import member, word
from rekindle.client.table import clean


def key_of(args: argparse.Namespace) -> str:
    """The order's own, random unless given."""
    return str(args.key or secrets.token_hex(16))


def ask(args: argparse.Namespace, what: str) -> None:
    """Show what will be done and ask for confirmation. `what` must be free of control characters.

    Raises:
        CommandFailed: the answer was no, or there is no terminal to ask on and no --yes.
    """
    if args.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print(what, file=sys.stderr)
        raise CommandFailed("nothing was ordered: no one can be asked without a terminal; in a script say --yes")
    print(f"{what}\nGo on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was ordered")


def print_outcome(args: argparse.Namespace, answer: Mapping[str, Any]) -> int:
    """Say what came of an order.

    Raises:
        CommandFailed: it was not taken.
    """
    what, incident = member(answer, "what"), member(answer, "incident_id")
    refused = what == "dropped"
    if wants_json(args):
        out_json(answer)
        return Exit.FAILED if refused else Exit.OK
    if refused:
        raise CommandFailed(f"not taken: {clean(word(answer, 'reason'))}")
    stated = {"opened": "Ordered", "joined": "Ordered", "switched": "Done", "duplicate": "Ordered before with this key"}
    if member(answer, "replayed") is True:
        what = "duplicate"
    follow = f"; follow it with: rekindle show {clean(incident)}" if incident else ""
    out(f"{stated.get(str(what), clean(word(answer, 'what')))}{follow}")
    return Exit.OK
