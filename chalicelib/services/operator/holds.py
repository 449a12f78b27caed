"""What holds an order now, for those who are about to give it, and in the answer to one."""

from __future__ import annotations

from dataclasses import dataclass

from chalicelib.domain.guards.standing import StandingHold, standing_holds
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.operator import Policies
from chalicelib.ports.platforms import ClusterReader
from chalicelib.services.observe.policy import incident_policy, named_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """Reads only: the switches, and the policy that counts for what is named."""

    store: IncidentStore
    registry: JobRegistry
    policies: Policies
    clusters: ClusterReader
    clock: Clock

    def of(
        self, *, job_id: str | None = None, cluster: str | None = None, incident_id: str | None = None
    ) -> tuple[StandingHold, ...]:
        """What holds an order about a Job or a cluster's nodes, or Rekindle's own next step in an Incident.

        The first of incident_id, job_id and cluster that is given counts; without any, the policy `default`.

        Raises:
            UnknownEntity: no such Job or Incident.
        """
        if incident_id is not None:
            return self.of_incident(incident_id, is_order=False)
        if job_id is not None:
            job = self.registry.get(job_id)
            if job.open_incident is not None:
                return self.of_incident(job.open_incident, is_order=True)
            policy, cluster = named_policy(job.policy_name, self.policies), job.cluster
        else:  # a person's order is authority enough where the cluster names no policy of its own
            policy = named_policy(self.clusters.policy_of(cluster or "") or "default", self.policies)
        return standing_holds(
            self.registry.switches(), policy, job_id=job_id, cluster=cluster, now=self.clock.now(), is_order=True
        )

    def of_incident(self, incident_id: str, *, is_order: bool) -> tuple[StandingHold, ...]:
        """What holds what is done next in an Incident. `is_order`: a person has ordered it.

        Raises:
            UnknownEntity: no such Incident.
        """
        incident = self.store.load(incident_id).incident
        return standing_holds(
            self.registry.switches(),
            incident_policy(incident, self.policies),
            job_id=incident.job_id,
            cluster=incident.cluster,
            now=self.clock.now(),
            is_order=is_order,
        )
