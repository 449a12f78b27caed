"""The price table: shown with its sources, set type by type or as a whole document."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

from rekindle.cli.orders.policies import read_document
from rekindle.cli.service.target import connected
from rekindle.cli.terminal.confirm import ordering
from rekindle.cli.terminal.output import answer
from rekindle.client.errors import UsageError
from rekindle.client.shapes import member, objects, word
from rekindle.client.table import Column, Style, clean, render

_TYPE: Final = re.compile(r"(ml\.)?[a-z0-9][a-z0-9-]{0,20}\.[a-z0-9-]{1,20}")
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")


def show(args: argparse.Namespace) -> int:
    """What an hour of each type costs, with source and date, and the types of which that is not known."""
    with connected(args, only_look=True) as client:
        body = client.get("/prices")
    return answer(args, body, _shown(body, Style.of(sys.stdout)))


def set_(args: argparse.Namespace) -> int:
    """Store another table, after showing what that changes.

    Raises:
        UsageError: nothing was given, or the document that counts cannot be used and none is given in its place.
    """
    if not (args.price or args.remove or args.per_gpu is not None or args.source or args.as_of or args.file):
        raise UsageError("nothing to set: TYPE=USD, --remove, --per-gpu, --source, --as-of or --file")
    if args.file is not None and (args.price or args.remove or args.per_gpu is not None):
        raise UsageError("--file is the whole document: give no prices beside it")
    given = read_document(args.file) if args.file is not None else None
    with ordering(args) as order:
        now = order.client.get("/prices")
        if given is None and member(now, "problem"):
            raise UsageError(f"the stored document {clean(word(now, 'problem'))}; give a whole one with --file")
        stored = member(now, "document")
        document = dict(given if given is not None else stored if isinstance(stored, Mapping) else {})
        _change(document, args)
        order.confirm(_preview(now, document))
        body = {"document": document, "version": member(now, "version")}
        now = order.send("PUT", "/prices", body)
    version = clean(word(now, "version"))
    return answer(args, now, f"The price table is version {version} now; it counts within five minutes.")


def price(text: str) -> tuple[str, float]:
    """TYPE=USD of an option. Raises: ArgumentTypeError."""
    kind, _, amount = text.partition("=")
    if not _TYPE.fullmatch(kind):
        raise argparse.ArgumentTypeError(f"{clean(kind)!r} is no instance type, such as p5.48xlarge")
    return kind.removeprefix("ml."), usd(amount)


def instance(text: str) -> str:
    """A type to be taken out. Raises: ArgumentTypeError."""
    if not _TYPE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{clean(text)!r} is no instance type, such as p5.48xlarge")
    return text.removeprefix("ml.")


def usd(text: str) -> float:
    """USD per hour, above zero: what is not known is left out. Raises: ArgumentTypeError."""
    amount = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 < amount <= 100_000:
        raise argparse.ArgumentTypeError(
            "must be USD per hour, above 0 and at most 100000; leave out what is not known"
        )
    return amount


def day(text: str) -> str:
    """A date. Raises: ArgumentTypeError."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as err:
        raise argparse.ArgumentTypeError("must be a date such as 2026-11-01") from err


def _change(document: dict[str, Any], args: argparse.Namespace) -> None:
    """Raises: UsageError."""
    held = document.get("instances", {})
    instances = {str(name).removeprefix("ml."): usd for name, usd in held.items()} if isinstance(held, Mapping) else {}
    for name in args.remove:
        if name not in instances:
            raise UsageError(f"--remove: no price of your own is set for {name}")
        del instances[name]
    instances |= dict(args.price)
    if args.price or args.remove:
        document["instances"] = instances
    if args.per_gpu is not None:
        document["usd_per_gpu_hour"] = args.per_gpu
    if args.source:
        document["source"] = args.source
    if args.as_of:
        document["as_of"] = args.as_of


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
