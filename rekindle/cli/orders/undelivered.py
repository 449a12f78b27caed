"""Notices that did not reach a channel: undelivered list, undelivered redrive."""

from __future__ import annotations

import argparse
from typing import Final

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.confirm import ordering
from rekindle.cli.terminal.output import answer, out, table, wants_json
from rekindle.client.errors import Exit
from rekindle.client.shapes import day_and_time, member, objects, word
from rekindle.client.table import Column, clean

_SHOWN: Final = 10  # of one look: SQS gives ten messages at once
_COLUMNS: Final = tuple(Column(title) for title in ("written", "severity", "channel", "incident", "title", "why"))


def listing(args: argparse.Namespace) -> int:
    """Which notices did not arrive, where, and why."""
    with connected(args, only_look=True) as client:
        body = client.get("/undelivered", limit=_SHOWN)
    rows = [
        (
            day_and_time(notice, "written_at"),
            word(notice, "severity"),
            word(notice, "channel"),
            word(notice, "incident_id"),
            word(notice, "title"),
            word(notice, "why"),
        )
        for notice in objects(body, "notices")
    ]
    shown = table(args, body, _COLUMNS, rows, "Every notice has reached its channels, or is on its way.")
    if len(rows) == _SHOWN and not wants_json(args):
        out(f"At most {_SHOWN} are shown at a time; there may be more.")
    return shown


def redrive(args: argparse.Namespace) -> int:
    """Send them again, after asking. Fails where something lies there that is no notice, so that a script can tell."""
    with ordering(args) as order:
        order.confirm(
            "Send the undelivered notices again:\n  at most 100, to the channels of now; nothing else is done"
        )
        done = order.send("POST", "/undelivered/redrive", {})
    unreadable = member(done, "unreadable")
    text = f"{clean(word(done, 'sent_again'))} notices are on their way again; what fails again comes back here."
    if unreadable:
        text += f"\n{clean(unreadable)} messages there are no notices; they stay (docs/runbook/undelivered-depth.md)."
    answer(args, done, text)
    return Exit.FAILED if unreadable else Exit.OK
