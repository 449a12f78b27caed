"""Signals about nodes: each goes to the protected runs on the node, and to the node's own Incident."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from chalicelib.domain.model.errors import NotOurs, RecoveryError
from chalicelib.domain.model.incident import Incident, node_scope
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.node_findings import instance_of, is_all_clear
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import ClusterReader
from chalicelib.services.intake.incident_opener import IncidentOpener
from chalicelib.services.intake.known_trouble import NODE_RESPITE, is_node_left_alone, is_told_already
from chalicelib.services.intake.node_map import NodeMap, key_for_job
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIntake:
    """`receive_for_job` takes what concerns a run on the node. Every part is safe to repeat."""

    store: IncidentStore
    registry: JobRegistry
    clusters: ClusterReader
    clock: Clock
    opener: IncidentOpener
    receive_for_job: Callable[[Signal, Job], Outcome]

    def receive(self, signal: Signal, about: NodeMap) -> Outcome | None:
        """A Signal that names neither a run nor an attempt; None where it is about no node that is known.

        Raises:
            NotOurs: neither the node nor a run on it is protected.
            RecoveryError: for one of the runs; the event comes again, and what was taken is taken once.
        """
        located = about.located(signal)
        if located is not None:
            return self._receive_located(located, about)
        if signal.cluster is None and (announced := about.announced(signal)) is not None:
            return self._receive_announced(announced, about)
        if is_all_clear(signal) and (known := self._of_instance(signal)) is not None:
            return self.opener.hand(known.incident_id, signal)
        return None

    def _receive_located(self, located: Signal, about: NodeMap) -> Outcome:
        """To each protected run on the node, and to the node's own Incident. Every part is safe to repeat."""
        runs: list[Outcome] = []
        policies: list[str] = []
        failed: list[RecoveryError] = []
        # A suspicion comes from a run. That a node is healthy again is for those that hold it broken, also where they
        # run elsewhere by now.
        # What a cluster itself drained a node for is told for the node alone; its runs say under whose policy.
        if located.kind is not SignalKind.NODE_SUSPECT and (located.triggers or is_all_clear(located)):
            runs, policies, failed = self._receive_for_runs(located, about)
        if is_all_clear(located):
            runs += self._receive_all_clear(located, besides={outcome.incident_id for outcome in runs})
        try:
            # Not only by the run's report: the event itself has the health agent's recommendation.
            node: Outcome | None = self.receive_for_node(located, of_run=next(iter(policies), None))
        except NotOurs:
            if not runs and not failed:
                raise
            node = None
        if failed:
            raise failed[0]  # the event comes again; what was taken is taken once
        if node is None or not runs:
            return node or runs[0]
        return replace(runs[0], facts={**runs[0].facts, "node": node.what.value, "node_incident": node.incident_id})

    def _receive_for_runs(
        self, located: Signal, about: NodeMap
    ) -> tuple[list[Outcome], list[str], list[RecoveryError]]:
        """To each protected run on the node: what came of it, the runs' policies, and what failed for some of them."""
        runs: list[Outcome] = []
        policies: list[str] = []
        failed: list[RecoveryError] = []
        try:
            for job, about_run in about.for_runs(located, now=self.clock.now()):
                policies.append(job.policy_name)
                try:
                    if located.fault is not None or (job.open_incident is not None and not located.triggers):
                        runs.append(self.receive_for_job(about_run, job))
                except RecoveryError as err:  # the others on the node are told first
                    failed.append(err)
        except RecoveryError as err:
            failed.append(err)
        return runs, policies, failed

    def _receive_announced(self, announced: Signal, about: NodeMap) -> Outcome:
        """To each protected run on the node. The node itself is not repaired for it.

        Raises:
            NotOurs: no protected run is on the node.
        """
        runs, _, failed = self._receive_for_runs(announced, about)
        if failed:
            raise failed[0]
        if not runs:
            raise NotOurs("an announced end of a node with no protected run")
        return runs[0]

    def _receive_all_clear(self, located: Signal, *, besides: Collection[str | None]) -> list[Outcome]:
        """To each open Incident of a run that holds the node broken and was not reached by the run's own nodes."""
        return [
            self.opener.hand(
                incident.incident_id,
                replace(located, job_id=incident.job_id, dedupe_key=key_for_job(located.dedupe_key, incident.job_id)),
            )
            for incident, _ in self.store.list_open()
            if incident.job_id is not None
            and incident.cluster == located.cluster
            and incident.incident_id not in besides
            and any(bad.node == located.node for bad in incident.resubmission.bad_nodes)
        ]

    def receive_for_node(self, signal: Signal, *, of_run: str | None = None) -> Outcome:
        """Open or join the node's own Incident; `signal.node` is its name in the cluster. News joins and opens nothing.
        Neither does more of what a person has denied (known_trouble.py).

        of_run: the policy of a protected run on the node.

        Raises:
            NotOurs: neither the cluster's nodes nor a run on this node is protected.
        """
        cluster, node = signal.cluster or "", signal.node or ""
        if not signal.triggers:
            newest = self._newest_of(cluster, node)
            if newest is None or not newest.is_open:
                return Outcome(what=OutcomeKind.DROPPED, reason="news, not trouble", signal=signal.kind.value)
            return self.opener.hand(newest.incident_id, signal)
        policy_name = self._policy_for_node(signal, of_run)
        newest = self._newest_of(cluster, node)
        if newest is not None and is_told_already(newest, signal, now=self.clock.now()):
            text = f"{newest.incident_id} has told of it, less than {NODE_RESPITE.total_seconds() / 3600:.0f} h ago"
            return Outcome(what=OutcomeKind.DROPPED, reason=text, signal=signal.kind.value)
        if newest is not None and is_node_left_alone(newest, signal, now=self.clock.now()):
            hours = NODE_RESPITE.total_seconds() / 3600
            text = (
                f"a person has denied or cancelled this very thing in {newest.incident_id}, less than {hours:.0f} h ago"
            )
            return Outcome(what=OutcomeKind.DROPPED, reason=text, signal=signal.kind.value)
        incident = self.opener.new(signal, scope=node_scope(cluster, node), policy_name=policy_name)
        return self.opener.open(replace(incident, node=node), signal)

    def _of_instance(self, signal: Signal) -> Incident | None:
        """The open Incident of the node in whose place the instance stands, while no head node says where that is."""
        instance_id = instance_of(signal)
        for incident, _ in self.store.list_open() if instance_id is not None else ():
            if (
                incident.cluster == signal.cluster
                and incident.repair is not None
                and incident.repair.instance_id == instance_id
            ):
                return incident
        return None

    def _newest_of(self, cluster: str, node: str) -> Incident | None:
        return next(iter(self.store.list_for_node(cluster, node, limit=1)), None)

    def _policy_for_node(self, signal: Signal, of_run: str | None) -> str:
        """The cluster's, or that of the run that is on the node or reports it."""
        named = self.clusters.policy_of(signal.cluster or "") or of_run
        if named is not None:
            return named
        job_id = signal.evidence.get("job_id")
        if signal.kind is SignalKind.NODE_SUSPECT and isinstance(job_id, str):
            return self.registry.get(job_id).policy_name
        raise NotOurs("the cluster has no rekindle:policy tag, or another stage's")
