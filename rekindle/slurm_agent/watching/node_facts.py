"""The nodes' facts for the cluster state, and which changes of theirs are news. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.node_states import StateMeaning, that_say
from rekindle.protocol.wire import WIRE_VERSION
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.nodemap import Resources, gpus_of, serial_of
from rekindle.slurm_agent.reading.nodes import Node
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.watching.attempt_docs import STARTED, clip

MAX_NODES: Final = 10_000
_GOOD: Final = that_say(StateMeaning.WORKS)
_USUAL: Final = that_say(StateMeaning.NOTHING)  # flags that come and go with the work itself
_ASLEEP: Final = frozenset({"powered_down", "powering_up", "powering_down", "power_down", "power_up"})


def facts_of(
    nodes: Iterable[Node], jobs: Iterable[Job], resources: Resources, is_ours: Callable[[Job], bool]
) -> tuple[NodeFacts, ...]:
    """All nodes, by name, with the jobs on them. `is_ours`: the job has asked for protection."""
    on: dict[str, list[int]] = {}
    others: set[int] = set()
    for job in jobs:
        if job.state in STARTED and not job.is_lump:
            try:
                names = job.nodes()
            except Unreadable:
                continue
            if not is_ours(job):
                others.add(job.job)
            for name in names:
                on.setdefault(name, []).append(job.job)
    found = []
    for node in sorted(nodes, key=lambda node: node.name)[:MAX_NODES]:
        place = resources.place_of(node)
        found.append(
            NodeFacts(
                name=node.name,
                state=node.state,
                flags=node.flags,
                reason=clip(node.reason),
                instance_id=place.instance_id if place else None,
                group=place.group if place else None,
                jobs=tuple(sorted(on.get(node.name, ()))),
                others=tuple(sorted(others.intersection(on.get(node.name, ())))),
                gpus=gpus_of(node, place.instance_id if place else None),
                serial=serial_of(node, place.instance_id if place else None),
                booted_at=node.booted,
            )
        )
    return tuple(found)


def is_bad(node: NodeFacts) -> bool:
    """A state that people may want to know of: anything but ready, at work, or asleep to save power."""
    return node.state not in _GOOD or bool(set(node.flags) - _USUAL - _ASLEEP)


def is_news(node: NodeFacts, before: NodeFacts | None, *, is_first: bool) -> bool:
    """Work that starts and ends on a node is none; nor is a good node at the very first reading."""
    if before is None:
        return is_bad(node) or not is_first
    return _reported(node) != _reported(before)


def _reported(node: NodeFacts) -> tuple[object, ...]:
    state = "ready" if node.state in _GOOD else node.state
    return state, frozenset(node.flags) - _USUAL, node.reason, node.instance_id


def node_news(cluster: str, node: NodeFacts, at: datetime) -> dict[str, Any]:
    """The wire of "Rekindle Slurm Node"."""
    return {
        "v": WIRE_VERSION,
        "cluster": cluster,
        "node": node.name,
        "state": node.state,
        "flags": list(node.flags),
        "reason": node.reason,
        "instance_id": node.instance_id,
        "group": node.group,
        "jobs": list(node.jobs)[:1000],
        "at": at.isoformat(),
    }
