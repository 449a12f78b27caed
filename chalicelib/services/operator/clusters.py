"""Slurm clusters as people want to see them: their agents, nodes and protected runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chalicelib.domain.model.errors import InvalidRequest, UnknownEntity
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known
from chalicelib.domain.node.cluster_state import why_unknown
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import HeadNodes
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.names import check_cluster
from rekindle.protocol.wire import MailboxError

MAX_NODES_SHOWN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Reads only. A cluster costs 3 GETs; the runs are one query of the registry for all."""

    head_nodes: HeadNodes
    registry: JobRegistry
    clock: Clock

    def listing(self) -> list[dict[str, Any]]:
        """Every cluster that has a cluster state, in brief. Where there is none, no Job is read."""
        names = list(self.head_nodes.clusters())
        jobs = self._jobs() if names else {}
        return [self._brief(name, jobs.get(name, [])) for name in names]

    def one(self, cluster: str) -> dict[str, Any]:
        """One cluster with its nodes and runs.

        Raises:
            InvalidRequest: no such name.
            UnknownEntity: no agent of it has ever reported, and no run is on it.
        """
        jobs = self.known(cluster)
        nodes = self.head_nodes.nodes(cluster)
        listed = nodes.value.nodes[:MAX_NODES_SHOWN] if isinstance(nodes, Known) else ()
        return {
            **self._brief(cluster, jobs),
            "nodes": [_node(facts) for facts in listed],
            "jobs": [_job(job) for job in jobs],
        }

    def known(self, cluster: str) -> Sequence[Job]:
        """The active Jobs of a cluster that is known.

        Raises:
            InvalidRequest: no such name.
            UnknownEntity: no agent of it has ever reported, and no run is on it.
        """
        try:
            check_cluster(cluster)
        except MailboxError as err:
            raise InvalidRequest("cluster", err.problem) from err
        jobs = self._jobs().get(cluster, [])
        if not jobs and not isinstance(self.head_nodes.agent(cluster), Known):
            raise UnknownEntity(f"no agent of cluster {cluster!r} has ever reported, and no run is on it")
        return jobs

    def _jobs(self) -> dict[str, list[Job]]:
        found: dict[str, list[Job]] = {}
        for job in self.registry.active():
            if job.cluster:
                found.setdefault(job.cluster, []).append(job)
        return found

    def _brief(self, cluster: str, jobs: Sequence[Job]) -> dict[str, Any]:
        now = self.clock.now()
        agent, nodes = self.head_nodes.agent(cluster), self.head_nodes.nodes(cluster)
        doc = agent.value if isinstance(agent, Known) else None
        states: dict[str, int] | None = None
        if isinstance(nodes, Known):
            states = dict(sorted(Counter(state_of(facts) for facts in nodes.value.nodes).items()))
        return {
            "cluster": cluster,
            "unknown": why_unknown(agent, now=now),
            "heartbeat_age_s": _age_s(doc.at if doc else None, now),
            "slurm_read_age_s": _age_s(doc.read_at if doc else None, now),
            "agent_version": doc.version if doc else "",
            "slurm_version": doc.slurm_version if doc else "",
            "cluster_arn": doc.cluster_arn if doc else "",
            "active_host": doc.host if doc else "",
            "lease_epoch": doc.epoch if doc else 0,
            "standbys": list(doc.standbys) if doc else [],
            "problems": list(doc.problems) if doc else [],
            "node_states": states,
            "jobs_active": len(jobs),
        }


def state_of(facts: NodeFacts) -> str:
    """As sinfo shows it: the base state with its flags."""
    return "+".join((facts.state, *sorted(facts.flags)))


def _age_s(at: datetime | None, now: datetime) -> int | None:
    return None if at is None else max(0, round((now - at).total_seconds()))


def _node(facts: NodeFacts) -> dict[str, Any]:
    return {
        "name": facts.name,
        "state": state_of(facts),
        "reason": facts.reason,
        "instance_id": facts.instance_id,
        "group": facts.group,
        "slurm_jobs": list(facts.jobs),
    }


def _job(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "current_attempt": job.current_attempt,
        "attempt_number": job.attempt_number,
        "policy": job.policy_name,
        "open_incident": job.open_incident,
        "limits": list(job.limits),
    }
