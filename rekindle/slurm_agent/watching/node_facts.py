"""The nodes' entries in the cluster state, and which of their changes cause an event. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from rekindle.protocol.cluster.documents import NodeFacts, SlurmState
from rekindle.protocol.cluster.node_states import StateMeaning, that_say
from rekindle.protocol.wire import WIRE_VERSION
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.nodemap import Resources, gpus_of, serial_of
from rekindle.slurm_agent.reading.nodes import Node
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.watching.attempt_docs import STARTED, clip

MAX_NODES: Final = 10_000
# How long jobs may be COMPLETING: well beyond slurmd's own limits, and the checks that epilogs make of GPUs.
# Source: slurm.conf(5), UnkillableStepTimeout (60 s), PrologEpilogTimeout (none by default).
ENDING_TAKES: Final = timedelta(minutes=10)
_WORKING_STATES: Final = that_say(StateMeaning.WORKS)
_USUAL_FLAGS: Final = that_say(StateMeaning.NOTHING)  # set and cleared by ordinary work
_POWER_SAVING_FLAGS: Final = frozenset({"powered_down", "powering_up", "powering_down", "power_down", "power_up"})


def facts_of(
    nodes: Iterable[Node], jobs: Iterable[Job], resources: Resources, is_ours: Callable[[Job], bool], now: datetime
) -> tuple[NodeFacts, ...]:
    """All nodes in the order of their names, at most MAX_NODES, with the jobs that run on them.

    `is_ours`: whether the job asked for protection.
    """
    jobs_on_node: dict[str, list[int]] = {}
    unprotected: set[int] = set()
    endings: dict[str, list[datetime | None]] = {}
    for job, names in _running(jobs):
        if not is_ours(job):
            unprotected.add(job.job)
        for name in names:
            jobs_on_node.setdefault(name, []).append(job.job)
            endings.setdefault(name, []).append(job.ends if job.state is SlurmState.COMPLETING else None)
    facts = []
    for node in sorted(nodes, key=lambda node: node.name)[:MAX_NODES]:
        place = resources.place_of(node)
        instance_id = place.instance_id if place else None
        job_ids = jobs_on_node.get(node.name, [])
        facts.append(
            NodeFacts(
                name=node.name,
                state=node.state,
                flags=node.flags,
                reason=clip(node.reason),
                instance_id=instance_id,
                group=place.group if place else None,
                jobs=tuple(sorted(job_ids)),
                others=tuple(sorted(unprotected.intersection(job_ids))),
                gpus=gpus_of(node, instance_id),
                serial=serial_of(node, instance_id),
                booted_at=node.booted,
                ending_since=_ending_since(endings.get(node.name, ()), now),
            )
        )
    return tuple(facts)


def _ending_since(endings: Sequence[datetime | None], now: datetime) -> datetime | None:
    """When the last of a node's jobs has ended, where none runs there and that is long ago."""
    ended = [at for at in endings if at is not None]
    if not ended or len(ended) < len(endings):
        return None
    return max(ended) if now - max(ended) >= ENDING_TAKES else None


def _running(jobs: Iterable[Job]) -> Iterator[tuple[Job, tuple[str, ...]]]:
    """The jobs that occupy nodes, with the nodes' names. A job whose list of nodes is unreadable is left out."""
    for job in jobs:
        if job.state not in STARTED or job.is_lump:
            continue
        try:
            names = job.nodes()
        except Unreadable:
            continue
        yield job, names


def is_bad(node: NodeFacts) -> bool:
    """Whether the node is in a state that an operator should know of: not ready, not working, not saving power."""
    return node.state not in _WORKING_STATES or bool(set(node.flags) - _USUAL_FLAGS - _POWER_SAVING_FLAGS)


def is_news(node: NodeFacts, previous: NodeFacts | None, *, is_first: bool) -> bool:
    """Whether the node's change causes an event. Jobs that start and end on a node do not.

    `previous`: its facts at the previous reading; None for a new node. `is_first`: there was no previous reading, so
    only bad nodes are news.
    """
    if previous is None:
        return is_bad(node) or not is_first
    return _reported(node) != _reported(previous)


def _reported(node: NodeFacts) -> tuple[object, ...]:
    """What an event reports of a change, without what ordinary work changes."""
    state = "ready" if node.state in _WORKING_STATES else node.state
    return state, frozenset(node.flags) - _USUAL_FLAGS, node.reason, node.instance_id, node.ending_since


def node_news(cluster: str, node: NodeFacts, at: datetime) -> dict[str, Any]:
    """The detail of the event "Rekindle Slurm Node"."""
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
        "ending_since": node.ending_since.isoformat() if node.ending_since is not None else None,
        "at": at.isoformat(),
    }
