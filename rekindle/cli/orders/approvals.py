"""Questions to people: approvals, approve, deny."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.confirm import ordering
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import table
from rekindle.client.api import path
from rekindle.client.errors import CommandFailed, UsageError
from rekindle.client.shapes import day_and_time, member, objects, word
from rekindle.client.table import Column, clean

_COLUMNS = (
    Column("incident"),
    Column("approval"),
    Column("about"),
    Column("by"),
    Column("without an answer"),
    Column("what would be done"),
)


def approvals(args: argparse.Namespace) -> int:
    """What waits for an answer."""
    with connected(args, only_look=True) as client:
        body = client.get("/approvals")
    rows = [
        (
            _incident(approval),
            word(approval, "approval_id"),
            word(approval, "incident", "job_id" if member(approval, "incident", "job_id") else "node"),
            day_and_time(approval, "deadline_at"),
            word(approval, "default"),
            word(approval, "what"),
        )
        for approval in objects(body, "approvals")
    ]
    return table(args, body, _COLUMNS, rows, "Nothing waits for an answer.")


def _incident(approval: Mapping[str, Any]) -> str:
    return word(approval, "incident", "incident_id") if member(approval, "incident") else word(approval, "incident_id")


def answer(args: argparse.Namespace) -> int:
    """Approve or deny; `args.answer` says which."""
    with ordering(args) as order:
        args.incident, incident = read(order.client, Kind.INCIDENT, args.incident, whole=args.yes)
        question = _question(incident, args)
        order.held_by(incident_id=args.incident, besides=member(question, "key"))  # the breaker's own question lifts it
        order.confirm(_question_text(question, args))
        body: dict[str, Any] = {"answer": args.answer}
        if args.comment:
            body["comment"] = args.comment
        route = path("incidents", args.incident, "approvals", word(question, "approval_id"))
        return order.outcome(order.send("POST", route, body))


def _question(incident: Mapping[str, Any], args: argparse.Namespace) -> Mapping[str, Any]:
    """The one that is meant. Without its id: the only one that is open.

    Raises:
        CommandFailed: there is none, or none of that id.
        UsageError: there are several.
    """
    found = objects(incident, "approvals")
    if args.approval is not None:
        named = [approval for approval in found if member(approval, "approval_id") == args.approval]
        if not named:
            raise CommandFailed(f"{clean(args.incident)} asks nothing called {clean(args.approval)}")
        return named[0]
    waiting = [
        approval for approval in found if member(approval, "answer") is None and member(approval, "lapsed_at") is None
    ]
    if not waiting:
        raise CommandFailed(f"{clean(args.incident)} waits for no answer")
    if len(waiting) > 1:
        ids = ", ".join(clean(word(approval, "approval_id")) for approval in waiting)
        raise UsageError(f"{clean(args.incident)} asks several things: name one of {ids}")
    return waiting[0]


def _question_text(question: Mapping[str, Any], args: argparse.Namespace) -> str:
    if args.answer == "approve":
        return "\n".join(
            [
                f"Approve for {clean(args.incident)}:",
                f"  {clean(word(question, 'what'))}",
                f"  asked because {clean(word(question, 'why'))}",
            ]
        )
    return "\n".join(
        [
            f"Deny for {clean(args.incident)}:",
            f"  {clean(word(question, 'what'))}",
            "  it is not done; the Incident is closed and the run is left as it is",
        ]
    )
