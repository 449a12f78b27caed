"""From a node that AWS or an agent speaks of to the protected runs on it, through the agent's map of the cluster.

AWS knows instances, the cluster knows names, and the map between them changes with each replacement while names stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.faults.slurm_states import STATUSES
from chalicelib.domain.model.errors import NotOurs, RecoveryError
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.node import is_in_service, is_marked
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import HeadNodes
from rekindle.protocol.cluster.documents import AttemptDoc, NodeFacts, NodesDoc
from rekindle.protocol.signals import FaultClass
from rekindle.protocol.wire import MailboxError

# What speaks of one node of a cluster.
NODE_KINDS: Final = frozenset(
    {
        SignalKind.NODE_HEALTH,
        SignalKind.CLUSTER_EVENT,
        SignalKind.AGENT_LOG_FAULT,
        SignalKind.NODE_STATE,
        SignalKind.NODE_SUSPECT,
        SignalKind.EXTERNAL_ALERT,
    }
)
# What announces the end of an instance, and names neither a cluster nor a run.
ANNOUNCED: Final = frozenset({SignalKind.SPOT_INTERRUPTION, SignalKind.CAPACITY_ENDING, SignalKind.HEALTH_NOTICE})
# By the cluster's own names: these need no map to be about a node.
_BY_NAME: Final = frozenset({SignalKind.NODE_STATE, SignalKind.NODE_SUSPECT})
# Word of a fault may come after the run has died of it, and says why; later it is about the node alone.
AFTER_END: Final = timedelta(minutes=30)
# What was said so long before a start is said of what ran there then. Less may be on its way, of the fault that the
# start before has died of.
BEFORE_START: Final = timedelta(minutes=10)
MAX_KEY_CHARS: Final = 200  # the contract of Signal.dedupe_key


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMap:
    """Finds nodes and runs. Each Job of the cluster costs 2 reads of the cluster state."""

    head_nodes: HeadNodes
    registry: JobRegistry

    def located(self, signal: Signal) -> Signal | None:
        """The Signal about a node by its name in the cluster, with what the map knows; None where it is about no node
        that an agent knows.

        Raises:
            NotOurs: an agent's event about a node that its cluster's own document shows in service, or not at all. Any
                head node may put events about any cluster on the bus, but can only write its own cluster's documents.
        """
        if signal.kind not in NODE_KINDS or signal.cluster is None or signal.node is None:
            return None
        try:
            nodes = self.head_nodes.nodes(signal.cluster)
        except MailboxError:
            return None  # no name that an agent could have: there is none
        facts = _facts_of(nodes, signal.node)
        if signal.kind is SignalKind.NODE_STATE and signal.source is SignalSource.AGENT and isinstance(nodes, Known):
            is_well = facts is None or (is_in_service(facts) and not is_marked(facts))
            if signal.fault is not None and is_well:
                raise NotOurs("an event of the bus that the cluster's own document does not confirm")
        if facts is None:
            return signal if signal.kind in _BY_NAME else None
        reported: dict[str, Any] = {"instance_id": facts.instance_id, "group": facts.group}
        # What the event says of itself counts first: a late one speaks of the instance that stood there then.
        known = {name: value for name, value in signal.evidence.items() if value is not None}
        evidence = {
            **signal.evidence,
            **{name: value for name, value in reported.items() if value is not None},
            **known,
        }
        return replace(signal, node=facts.name, evidence=evidence)

    def announced(self, signal: Signal) -> Signal | None:
        """An announced end of an instance, about the node of the cluster that has it; None where no cluster with a
        protected run does. Costs a read of the cluster state for each such cluster.
        """
        if signal.kind not in ANNOUNCED or signal.fault is not FaultClass.PLANNED_END or signal.node is None:
            return None
        for cluster in sorted({job.cluster for job in self.registry.active() if job.cluster}):
            facts = _facts_of(self.head_nodes.nodes(cluster), signal.node)
            if facts is not None and facts.instance_id == signal.node:
                evidence = {**signal.evidence, "instance_id": facts.instance_id}
                return replace(signal, cluster=cluster, node=facts.name, evidence=evidence)
        return None

    def for_runs(self, located: Signal, *, now: datetime) -> Iterator[tuple[Job, Signal]]:
        """The same for each protected run whose current attempt has the node.

        One whose document cannot be read is passed over; the error is raised when all others were given.

        `evidence` gets `node_index`, the node's place in the attempt's list of nodes, and `nodes`, how many there are:
        with as many ranks on each, rank r runs on node r * nodes // world size.
        """
        if located.cluster is None or located.node is None:
            return
        failed: list[RecoveryError] = []
        for job in self.registry.active():
            if job.cluster != located.cluster:
                continue
            try:
                doc = self.head_nodes.attempt(job.current_attempt)
            except RecoveryError as err:
                failed.append(err)
                continue
            if doc is None or located.node not in doc.nodes or not _concerns(doc, now):
                continue
            if doc.started_at is not None and located.occurred_at < doc.started_at - BEFORE_START:
                continue
            place = {"node_index": doc.nodes.index(located.node), "nodes": len(doc.nodes)}
            yield (
                job,
                replace(
                    located,
                    job_id=job.job_id,
                    attempt=job.current_attempt,
                    dedupe_key=key_for_job(located.dedupe_key, job.job_id),
                    evidence={**located.evidence, **place},
                ),
            )
        if failed:
            raise failed[0]


def _facts_of(nodes: Maybe[NodesDoc], node: str) -> NodeFacts | None:
    """Facts of the node with this name in the cluster, or of this instance."""
    if not isinstance(nodes, Known):
        return None
    return next((found for found in nodes.value.nodes if node in (found.name, found.instance_id)), None)


def _concerns(doc: AttemptDoc, now: datetime) -> bool:
    """The start uses its nodes, or ended just now and has no successor yet."""
    status = STATUSES.get(doc.state)
    if status is None or doc.successor is not None:
        return False
    return not status.has_ended or now - (doc.ended_at or doc.seen_at) <= AFTER_END


def key_for_job(fact: str, job_id: str) -> str:
    """One fact for several Incidents: each takes it once."""
    key = f"{fact}|job|{job_id}"
    if len(key) <= MAX_KEY_CHARS:
        return key
    return f"{fact[:120]}|job|{hashlib.sha256(key.encode()).hexdigest()[:40]}"
