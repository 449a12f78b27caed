"""`rekindle clusters`: Slurm clusters, whether their agents live, what they cannot do, nodes and protected runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import answer, table
from rekindle.client.shapes import member, objects, texts, word
from rekindle.client.table import Column, Style, clean, render
from rekindle.protocol.quantities import duration


def clusters(args: argparse.Namespace) -> int:
    if args.cluster is not None:
        return _one(args)
    with connected(args, only_look=True) as client:
        body = client.get("/clusters")
    columns = [Column("cluster"), Column("agent"), Column("heartbeat", right=True), Column("problems", right=True)]
    columns += [Column("nodes"), Column("jobs", right=True)]
    rows = [
        (
            word(cluster, "cluster"),
            "unknown" if member(cluster, "unknown") else "alive",
            _age(cluster, "heartbeat_age_s"),
            str(len(texts(cluster, "problems"))),
            _states(cluster),
            word(cluster, "jobs_active"),
        )
        for cluster in objects(body, "clusters")
    ]
    nothing = "No clusters. A Slurm cluster appears here once its agent has reported: docs/agent.md"
    return table(args, body, columns, rows, nothing)


def _one(args: argparse.Namespace) -> int:
    with connected(args, only_look=True) as client:
        args.cluster, body = read(client, Kind.CLUSTER, args.cluster)
    style = Style.of(sys.stdout)
    facts = [
        ("agent", str(member(body, "unknown") or "alive")),
        ("heartbeat", f"{_ago(body, 'heartbeat_age_s')}; Slurm read {_ago(body, 'slurm_read_age_s')}"),
        ("acts on", _acting(body)),
        ("versions", f"agent {word(body, 'agent_version')}, Slurm {word(body, 'slurm_version')}"),
        ("nodes", _states(body)),
    ]
    facts += [("problem", problem) for problem in texts(body, "problems")]
    title = style.paint(clean(word(body, "cluster")), "bold")
    parts = ["\n".join([title, *(f"  {name:<10}  {clean(value)}" for name, value in facts)])]
    nodes, jobs = objects(body, "nodes"), objects(body, "jobs")
    if nodes:
        titles = ("name", "state", "instance_id", "group", "reason")
        rows = [tuple(word(node, name) for name in titles) for node in nodes]
        parts.append(render([Column(name.replace("_id", "")) for name in titles], rows, style))
    if jobs:
        rows = [
            tuple(word(job, name) for name in ("job_id", "name", "current_attempt", "open_incident")) for job in jobs
        ]
        parts.append(render([Column(name) for name in ("job", "name", "running as", "incident")], rows, style))
    return answer(args, body, "\n\n".join(parts))


def _states(body: Mapping[str, Any]) -> str:
    states = member(body, "node_states")
    if not isinstance(states, Mapping):
        return "unknown"
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "none"


def _age(body: Mapping[str, Any], name: str) -> str:
    age = member(body, name)
    return duration(float(age)) if isinstance(age, int | float) else "never"


def _ago(body: Mapping[str, Any], name: str) -> str:
    age = _age(body, name)
    return age if age == "never" else f"{age} ago"


def _acting(body: Mapping[str, Any]) -> str:
    """Which head node, and who would take over; an older service or agent does not say it."""
    standbys = texts(body, "standbys")
    return f"{word(body, 'active_host') or '?'}{'; standing by: ' + ', '.join(standbys) if standbys else ''}"
