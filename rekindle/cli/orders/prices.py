"""The price table: shown with its sources, set as a whole document."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from rekindle.cli.orders.policies import read_document
from rekindle.cli.service.target import connected
from rekindle.cli.terminal.confirm import ordering
from rekindle.cli.terminal.output import answer
from rekindle.client.shapes import member, objects, word
from rekindle.client.table import Column, Style, clean, render


def show(args: argparse.Namespace) -> int:
    """What an hour of each type costs, with source and date, and the types of which that is not known."""
    with connected(args, only_look=True) as client:
        body = client.get("/prices")
    return answer(args, body, _shown(body, Style.of(sys.stdout)))


def set_(args: argparse.Namespace) -> int:
    """Store another table, after showing what that changes."""
    document = read_document(args.file)
    with ordering(args) as order:
        before = order.client.get("/prices")
        order.confirm(_preview(before, document))
        body = {"document": document, "version": member(before, "version")}
        now = order.send("PUT", "/prices", body)
    version = clean(word(now, "version"))
    return answer(args, now, f"The price table is version {version} now; it counts within five minutes.")


def _preview(now: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """What is about to be stored, and which prices no longer count by that."""
    instances = document.get("instances", {})
    names = set(instances) if isinstance(instances, Mapping) else set()
    names = {str(name).removeprefix("ml.") for name in names}
    lost = [clean(word(row, "instance")) for row in objects(now, "rows") if member(row, "instance") not in names]
    text = f"Store the price table in place of version {clean(word(now, 'version'))}:\n{json.dumps(document, indent=2)}"
    if lost:
        text += f"\nNo longer priced, so unknown: {', '.join(lost)}"
    return text


def _shown(body: Mapping[str, Any], style: Style) -> str:
    columns = (Column("type"), Column("USD an hour", right=True), Column("as of"), Column("source"))
    rows = [
        (word(row, "instance"), word(row, "usd_per_hour"), word(row, "as_of") or "-", word(row, "source"))
        for row in objects(body, "rows")
    ]
    table = render(columns, rows, style) if rows else "No price is set: every cost is unknown."
    if member(body, "is_builtin") is True:
        head = (
            "Built in, for orders of magnitude; `rekindle ledger prices set` stores your own, which then count alone."
        )
    else:
        head = f"Your own, version {clean(word(body, 'version'))}."
    parts = [head, table]
    if member(body, "problem"):
        parts.append(f"The stored document {clean(word(body, 'problem'))}.")
    if member(body, "usd_per_gpu_hour") is not None:
        parts.append(f"Runs whose types are not known: {clean(word(body, 'usd_per_gpu_hour'))} USD per GPU-hour.")
    missing = member(body, "without_price")
    if isinstance(missing, list) and missing:
        parts.append(f"Unknown: {', '.join(clean(name) for name in missing)}")
    return "\n\n".join(parts)
