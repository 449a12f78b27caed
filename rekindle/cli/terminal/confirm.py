"""The frame of every order: name the service, say what will be done and what holds it, ask, and say what came of it.

Every order asks, and is refused without a terminal and without --yes, with nothing changed. Three are given at once,
because they start nothing and take no protection away that `unpause` or `shadow off` would not give back: `pause` and
`shadow on`, the brakes, which must work in the first seconds and from any script, and `drill`, which only rehearses.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.output import out, out_json, wants_json
from rekindle.client.api import Client
from rekindle.client.errors import CommandFailed, Exit, NotFound
from rekindle.client.shapes import member, objects, word
from rekindle.client.table import clean


@dataclass(slots=True, kw_only=True)
class Order:
    """One order to one service. `holds`: what keeps it from being carried out now, in words for people."""

    args: argparse.Namespace
    client: Client
    key: str
    holds: tuple[str, ...] = ()
    confirmed: bool = False

    def held_by(self, *, besides: str | None = None, **about: str) -> Order:
        """Ask the service what holds an order about this job_id or cluster, or the next step of this incident_id;
        without one, what holds everywhere.

        besides: the guard that the order itself is about.
        """
        try:
            self.holds = _texts(self.client.get("/holds", **about), besides=besides)
        except (CommandFailed, NotFound) as err:
            self.holds = (f"not known: {clean(err)}",)
        return self

    def confirm(self, what: str) -> None:
        """Say what will be done and what holds it, and ask. `what` must be free of control characters.

        Raises:
            CommandFailed: the answer was no, or there is no terminal to ask on and no --yes.
        """
        ask(self.args, "\n".join([what, *(f"  HELD NOW: {hold}" for hold in self.holds)]))
        self.confirmed = True

    def confirm_at_once(self) -> None:
        """Give the order without a question: for a brake, and for what changes nothing (see the module's words)."""
        self.confirmed = True

    def send(self, method: str, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Give the order, once it is confirmed. Raises: CliError."""
        if not self.confirmed:
            raise RuntimeError(f"{method} {route}: the order was not confirmed")
        return self.client.order(method, route, body, key=self.key)

    def outcome(self, answer: Mapping[str, Any]) -> int:
        """Say what came of an order about a run or a node, and what holds it.

        Raises:
            CommandFailed: it was not taken.
        """
        what, incident = member(answer, "what"), member(answer, "incident_id")
        refused = what == "dropped"
        if wants_json(self.args):
            out_json(answer)
            return Exit.FAILED if refused else Exit.OK
        if refused:
            raise CommandFailed(f"not taken: {clean(word(answer, 'reason'))}")
        stated = {"opened": "Ordered", "joined": "Ordered", "duplicate": "Ordered before with this key"}
        if member(answer, "replayed") is True:
            what = "duplicate"
        holds = ("not known",) if member(answer, "held_by") is None else _texts(answer)
        held = "".join(f"; held now: {hold}" for hold in holds)
        follow = f"; follow it with: rekindle show {clean(incident)}" if incident else ""
        out(f"{stated.get(str(what), clean(word(answer, 'what')))}{held}{follow}")
        return Exit.OK


@contextmanager
def ordering(args: argparse.Namespace) -> Iterator[Order]:
    """The chosen service, named first, for one order with the key of --key, or a random one.

    Raises: UsageError, Unreachable as `connected` does.
    """
    with connected(args, only_look=False) as client:
        yield Order(args=args, client=client, key=random_key(args.key))


def random_key(given: str | None = None) -> str:
    """An idempotency key: the one that was given, else a random one."""
    return given or secrets.token_hex(16)


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


def _texts(body: Mapping[str, Any], *, besides: str | None = None) -> tuple[str, ...]:
    """The words for people of what holds, as the service gives it beside its fields."""
    return tuple(clean(word(hold, "text")) for hold in objects(body, "held_by") if member(hold, "guard") != besides)
