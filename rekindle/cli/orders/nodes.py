"""`rekindle node`: reboot, replace; suspect hardware."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.confirm import ordering
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import table
from rekindle.client.api import path
from rekindle.client.shapes import day_and_time, member, objects, word
from rekindle.client.table import Column, clean


def repair(args: argparse.Namespace) -> int:
    """Reboot or replace a node; `args.do` says which."""
    cluster, node = args.node
    body: dict[str, Any] = {"do": args.do}
    if args.why:
        body["why"] = args.why
    if args.force:
        body["force"] = True
    with ordering(args) as order:
        _, seen = read(order.client, Kind.CLUSTER, cluster, whole=True)
        order.held_by(cluster=cluster).confirm(_order_text(seen, node, args))
        return order.outcome(order.send("POST", path("clusters", cluster, "nodes", node, "repair"), body))


def _order_text(cluster: Mapping[str, Any], node: str, args: argparse.Namespace) -> str:
    name = clean(node)
    lines = [
        f"{args.do.capitalize()} {name} of {clean(word(cluster, 'cluster'))}:",
        "  1. give it no more jobs; a protected run on it is saved and moved, every other job is waited for",
        f"  2. {args.do} its instance" + (": EVERYTHING ON ITS VOLUMES IS LOST" if args.do == "replace" else ""),
        "  3. check it, and give it jobs again",
    ]
    found = next((seen for seen in objects(cluster, "nodes") if member(seen, "node") == node), None)
    found = found or next((seen for seen in objects(cluster, "nodes") if member(seen, "name") == node), None)
    if found is not None:
        lines.append(f"  now: {clean(word(found, 'state'))}")
    elif objects(cluster, "nodes"):
        lines.append(f"  the cluster's agent knows no node called {name}")
    lines += [f"  {clean(word(job, 'job_id'))} runs in this cluster" for job in objects(cluster, "jobs")[:5]]
    if args.force:
        lines.append("  the policy's budgets of repairs are passed over")
    return "\n".join(lines)


_COLUMNS = (
    Column("hardware"),
    Column("kind"),
    Column("suspect"),
    Column("lately", right=True),
    Column("ever", right=True),
    Column("last fault"),
    Column("seen in"),
    Column("what"),
)


def hardware(args: argparse.Namespace) -> int:
    """Hardware that has failed, whatever instance or node it stands behind; what failed more than once first."""
    with connected(args, only_look=True) as client:
        body = client.get("/hardware")
    rows = [_row(record) for record in objects(body, "hardware")]
    return table(args, body, _COLUMNS, rows, "No hardware is known to have failed.")


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    newest = next(iter(objects(record, "faults")), {})
    node = f"{word(newest, 'cluster')}/{word(newest, 'node')}" if member(newest, "node") else word(newest, "cluster")
    return (
        word(record, "identity"),
        word(record, "kind"),
        word(record, "is_suspect"),
        word(record, "faults_in_window"),
        word(record, "faults_total"),
        day_and_time(newest, "at"),
        node,
        word(newest, "text") if member(newest, "text") else word(newest, "kind"),
    )
