"""The nodes that matter to a run's Incident, as its cluster shows them now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chalicelib.domain.faults.slurm_states import count_lost
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import NodesSeen, is_in_service
from chalicelib.domain.model.node_findings import PLATFORM_KINDS
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.run.bad_nodes import MAX_BAD
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.platforms import HeadNodes

MAX_NODES_SEEN = 64  # an observation is a durable step's result (256 KB at most); a fact is about half a kilobyte
_OF_A_NODE: Final = 4  # of its Incidents: the one that heard of the withdrawal may be closed, and another one be open


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNodes:
    """Reads a run's nodes. Without `head_nodes` there is no cluster."""

    store: IncidentStore
    head_nodes: HeadNodes | None

    def read(self, job: Job, incident: Incident, seen: Maybe[AttemptView], inbox: Sequence[Signal]) -> Maybe[NodesSeen]:
        """The nodes that matter to the Incident, read once one of them may be to blame: a report about a node is
        decided by what the platform shows of it now."""
        if self.head_nodes is None or incident.attempt is None or not job.cluster:
            return Unknown("not on a cluster")
        wanted = names_of_interest(incident, seen, inbox)
        if not wanted:
            return Unknown("not needed")
        nodes = self.head_nodes.nodes(job.cluster)
        if not isinstance(nodes, Known):
            return nodes
        found = sorted((facts for facts in nodes.value.nodes if facts.name in wanted), key=is_in_service)
        own = seen.value.start.nodes if isinstance(seen, Known) and seen.value.start is not None else ()
        idle = (facts for facts in nodes.value.nodes if facts.state == "idle" and is_in_service(facts))
        return Known(
            NodesSeen(
                facts=tuple(found[:MAX_NODES_SEEN]),  # those out of service first: they are what is looked for
                total=len(nodes.value.nodes),
                down=count_lost(nodes.value.nodes),
                idle=sum(facts.name not in own for facts in idle),  # what it ran on is no spare, also once it is free
                cleared=self._cleared(incident, inbox),
            )
        )

    def _cleared(self, incident: Incident, inbox: Sequence[Signal]) -> dict[str, datetime]:
        """When HyperPod's agents withdrew reports about nodes that this Incident holds broken, by the nodes' own
        Incidents: the withdrawal may not have reached this one.
        """
        accused = {
            (signal.cluster, signal.node)
            for signal in (*incident.signals, *inbox)
            if signal.kind in PLATFORM_KINDS and signal.fault is not None and signal.node is not None
        }
        found: dict[str, datetime] = {}
        for cluster, node in sorted(accused, key=str)[:MAX_BAD]:
            of_node = self.store.list_for_node(cluster or "", node or "", limit=_OF_A_NODE)
            withdrawn = [
                past.repair.cleared_at
                for past in of_node
                if past.repair is not None and past.repair.cleared_at is not None
            ]
            if withdrawn:
                found[node or ""] = max(withdrawn)
        return found


def names_of_interest(incident: Incident, seen: Maybe[AttemptView], inbox: Sequence[Signal]) -> frozenset[str]:
    """Nodes held or reported to be broken, and those of an attempt that has ended."""
    names = {item.node for item in incident.resubmission.bad_nodes}
    names |= {signal.node for signal in (*incident.signals, *inbox) if signal.node is not None}
    if incident.resubmission.tries:
        names |= {*incident.resubmission.tries[-1].exclude, *incident.resubmission.tries[-1].left_nodes}
    view = seen.value if isinstance(seen, Known) else None
    if view is not None and view.start is not None and (view.status.has_ended or view.successor is not None):
        names |= set(view.start.nodes)
    return frozenset(names)
