"""Notices that did not reach a channel: undelivered list, undelivered redrive."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.confirm import ordering
from rekindle.cli.terminal.output import out, out_json, wants_json
from rekindle.client.errors import Exit
from rekindle.client.shapes import day_and_time, member, objects, word
from rekindle.client.table import Column, Style, clean, render

_SHOWN: Final = 10  # of one look: SQS gives ten messages at once
_COLUMNS: Final = tuple(Column(title) for title in ("written", "severity", "channel", "incident", "title", "why"))


def listing(args: argparse.Namespace) -> int:
    """Which notices did not arrive, where, and why."""
    with connected(args, only_look=True) as client:
        body = client.get("/undelivered", limit=_SHOWN)
    notices = objects(body, "notices")
    if wants_json(args):
        out_json(body)
    elif not notices:
        out("Every notice has reached its channels, or is on its way.")
    else:
        rows = [
            (
                day_and_time(notice, "written_at"),
                word(notice, "severity"),
                word(notice, "channel"),
                word(notice, "incident_id"),
                word(notice, "title"),
                word(notice, "why"),
            )
            for notice in notices
        ]
        out(render(_COLUMNS, rows, Style.of(sys.stdout)))
        if len(notices) == _SHOWN:
            out(f"At most {_SHOWN} are shown at a time; there may be more.")
    return Exit.OK


def redrive(args: argparse.Namespace) -> int:
    """Send them again, after asking. Fails where something lies there that is no notice, so that a script can tell."""
    with ordering(args) as order:
        order.confirm(
            "Send the undelivered notices again:\n  at most 100, to the channels of now; nothing else is done"
        )
        answer = order.send("POST", "/undelivered/redrive", {})
    unreadable = member(answer, "unreadable")
    if wants_json(args):
        out_json(answer)
    else:
        out(f"{clean(word(answer, 'sent_again'))} notices are on their way again; what fails again comes back here.")
        if unreadable:
            out(f"{clean(unreadable)} messages there are no notices; they stay (docs/runbook/undelivered-depth.md).")
    return Exit.FAILED if unreadable else Exit.OK
