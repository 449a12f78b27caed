"""The frame of every order: name the service, say what will be done and what holds it, ask, and say what came of it.

What ends, moves, or replaces something asks, and is refused without a terminal and without --yes. What only holds back
(pause, shadow mode on), saves, or adds a record is done at once.
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
from rekindle.client.api import Client, path
from rekindle.client.errors import CommandFailed, Exit, NotFound
from rekindle.client.shapes import day_and_time, member, texts, word
from rekindle.client.table import clean


@dataclass(slots=True, kw_only=True)
class Order:
    """One order to one service. `holds`: what keeps it from being carried out now, in words for people."""

    args: argparse.Namespace
    client: Client
    key: str
    holds: tuple[str, ...] = ()
    confirmed: bool = False

    def held_by(self, *, job: Mapping[str, Any] | None = None, cluster: str | None = None) -> Order:
        """Read what holds an order about this Job or cluster. Windows and the breaker hold no order by a person."""
        try:
            switches = self.client.get("/switches")
            policy = self.client.get(path("policies", word(job, "policy"))) if member(job, "policy") else {}
            self.holds = tuple(_holds(switches, policy, job_id=member(job, "job_id"), cluster=cluster))
        except (CommandFailed, NotFound) as err:
            self.holds = (f"not known, the switches cannot be read: {clean(err)}",)
        return self

    def confirm(self, what: str, *, asks: bool = True) -> None:
        """Say what will be done and what holds it, and ask. `what` must be free of control characters.

        Raises:
            CommandFailed: the answer was no, or there is no terminal to ask on and no --yes.
        """
        if asks:
            ask(self.args, "\n".join([what, *(f"  HELD NOW: {hold}" for hold in self.holds)]))
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
            out_json({**answer, "held_by": list(self.holds)})
            return Exit.FAILED if refused else Exit.OK
        if refused:
            raise CommandFailed(f"not taken: {clean(word(answer, 'reason'))}")
        stated = {"opened": "Ordered", "joined": "Ordered", "duplicate": "Ordered before with this key"}
        if member(answer, "replayed") is True:
            what = "duplicate"
        held = "".join(f"; held now: {hold}" for hold in self.holds)
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


def _holds(
    switches: Mapping[str, Any], policy: Mapping[str, Any], *, job_id: str | None, cluster: str | None
) -> Iterator[str]:
    """The pause and shadow mode: what an order by a person waits for, or is only told under."""
    if member(switches, "paused") is True:
        why = f" ({clean(word(switches, 'paused_why'))})" if member(switches, "paused_why") else ""
        by = f"{clean(word(switches, 'paused_by'))} since {clean(day_and_time(switches, 'paused_at'))}"
        yield f"the pause by {by}{why} holds it until `rekindle switches unpause`"
    where = []
    if member(switches, "shadow", "everywhere") is True:
        where.append("everywhere")
    if job_id in texts(switches, "shadow", "jobs"):
        where.append("for this Job")
    if cluster and cluster in texts(switches, "shadow", "clusters"):
        where.append("for this cluster")
    if member(policy, "effective", "shadow") is True:
        where.append(f"in policy {clean(word(policy, 'name'))}")
    if where:
        yield f"shadow mode ({', '.join(where)}): it is recorded and told, and nothing is done"
