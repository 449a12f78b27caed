"""What people order: each order becomes a Signal and goes the way of all Signals, so that it is on the record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from chalicelib.domain.guards.stages import PROD
from chalicelib.domain.model.errors import DependencyUnavailable, InvalidRequest, RecoveryError, UnknownEntity
from chalicelib.domain.model.evidence import FORENSIC
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptView, node_count
from chalicelib.domain.model.repair import Rung
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.operator import Policies
from chalicelib.ports.platforms import DiscoveredJob, HeadNodes, Mailbox, Schedulers
from chalicelib.services.intake.intake import Intake
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.names import check_cluster, first_attempt
from rekindle.protocol.cluster.orders import check_node
from rekindle.protocol.signals import FaultClass
from rekindle.protocol.wire import MailboxError

MAX_RESTARTS = 100  # of one submission, followed from its first start
# An order is a Signal, whose evidence is at most 1,200 bytes as it is stored: this many names fit.
MAX_EXCLUDED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Manual orders. `key` makes an order idempotent: the same key is the same order.

    Without `head_nodes` nothing can be ordered about single nodes; without `mailbox` no checkpoint is looked for.
    """

    intake: Intake
    registry: JobRegistry
    scheduler: Schedulers
    policies: Policies
    alarms: Alarms
    clock: Clock
    head_nodes: HeadNodes | None = None
    mailbox: Mailbox | None = None
    stage: str = PROD

    def register(
        self, *, training_job: str, policy: str | None, mailbox: str | None, watch: Mapping[str, Any] | None = None
    ) -> Job:
        """Protect a training job from now on, whatever its tags say. `watch`: fields of WatchPlan to be set.

        A Job that is protected already stays as it is, but for how it is watched.

        Raises:
            UnknownEntity: the platform does not know the job, or no such policy.
            InvalidPolicy: the policy document cannot be used.
            InvalidRequest: another stage protects it.
        """
        known = self.registry.job_of_attempt(training_job)
        if known is not None:
            job = self.registry.get(known)
            return self.alarms.change(job, replace(job.watch, **watch)) if watch else job
        found = self.scheduler.of_name(training_job).find(training_job)
        if found is None:
            raise UnknownEntity(f"training job {training_job!r} does not exist")
        if (found.policy_name or found.job_id) and found.stage not in ("", self.stage):
            raise InvalidRequest(
                "training_job",
                f"belongs to the stage {found.stage!r}: give it the tag rekindle:stage={self.stage} to change that",
            )
        wanted: DiscoveredJob = replace(
            found,
            policy_name=policy or found.policy_name or "default",
            mailbox=mailbox or found.mailbox,
            watch=replace(found.watch, **(watch or {})),
        )
        self.policies.load(wanted.policy_name)
        return self.alarms.ensure(self.intake.register(wanted))

    def register_slurm(self, *, cluster: str, slurm_job: int, policy: str | None, mailbox: str | None) -> Job:
        """Protect a Slurm job from now on: its present start. A Job that is protected already stays as it is.

        Raises:
            InvalidRequest: no such name or number.
            UnknownEntity: the agent does not know the job, or there is no such policy.
            InvalidPolicy: the policy document cannot be used.
            Retryable: the agent is silent, so the job's state is unknown now.
        """
        found = self._present_start(cluster, slurm_job)
        known = self.registry.job_of_attempt(found.name)
        if known is not None:
            return self.registry.get(known)
        if found.job_id is not None:  # a restart, or a submission of ours: the Job that it belongs to goes on with it
            with suppress(UnknownEntity):
                return self.intake.adopt(self.registry.get(found.job_id), found)
        wanted = replace(found, policy_name=policy or found.policy_name, mailbox=mailbox or found.mailbox)
        self.policies.load(wanted.policy_name)
        return self.alarms.ensure(self.intake.register(wanted))

    def _present_start(self, cluster: str, slurm_job: int) -> DiscoveredJob:
        """Each start that Slurm has put back names the next one."""
        try:
            name = first_attempt(cluster, slurm_job).name
        except MailboxError as err:
            raise InvalidRequest(f"slurm_job.{err.field}", err.problem) from err
        if self.head_nodes is not None and cluster not in self.head_nodes.clusters():
            raise UnknownEntity(f"no agent of cluster {cluster!r} has ever reported")
        platform = self.scheduler.of_name(name)
        for _ in range(MAX_RESTARTS):
            successor = platform.describe(name).successor
            if successor is None:
                break
            name = successor
        found = platform.find(name)
        if found is None:
            raise UnknownEntity(
                f"the agent of {cluster} does not watch Slurm job {slurm_job}: give the job a comment, "
                f"`scontrol update jobid={slurm_job} comment=rekindle`, and it joins automatically"
            )
        return found

    def checkpoint(self, job_id: str, *, who: str, key: str) -> Outcome:
        """Ask the run for a checkpoint now; nothing is stopped."""
        return self._order(job_id, SignalKind.ORDER_CHECKPOINT, who=who, key=key, evidence={}, text="checkpoint now")

    def stop(self, job_id: str, *, who: str, key: str, checkpoint: bool) -> Outcome:
        """Stop the run for good, after a checkpoint if one is asked for. Whatever is under way ends with it.

        The Job is then inactive, and neither the sweep nor an event starts it again; `resubmit` does.
        """
        text = "checkpoint and stop" if checkpoint else "stop"
        evidence = {"checkpoint": checkpoint}
        return self._order(job_id, SignalKind.ORDER_STOP, who=who, key=key, evidence=evidence, text=text)

    def resubmit(
        self,
        job_id: str,
        *,
        who: str,
        key: str,
        from_step: int | None,
        skip: Sequence[tuple[int, int]],
        exclude: Sequence[str] = (),
    ) -> Outcome:
        """Save, stop and submit again, from `from_step` at most, skipping the data of the given step windows.

        `exclude`: nodes, by their names in Slurm, that no attempt of this recovery shall get.

        Raises:
            InvalidRequest: names the field; `exclude` too for a training job, whose nodes cannot be chosen.
            UnknownEntity: no such Job.
        """
        for index, (low, high) in enumerate(skip):
            if not 0 <= low < high:
                raise InvalidRequest(f"skip[{index}]", "must be [from_step, to_step) with 0 <= from_step < to_step")
        evidence: dict[str, Any] = {"skip": [list(window) for window in skip]}
        if from_step is not None:
            if from_step < 0:
                raise InvalidRequest("from_step", "must not be negative")
            job = self.registry.get(job_id)
            if not job.mailbox and not job.checkpoints:  # it would be stopped, and then nothing could be resumed from
                raise InvalidRequest("from_step", "the run has no mailbox, and nothing tells where its checkpoints are")
            self._check_from_step(job, from_step)
            evidence["from_step"] = from_step
        text = "resubmit" + (f" from step {from_step}" if from_step is not None else "")
        if exclude:
            nodes = self._excluded(self.registry.get(job_id), exclude)
            evidence["exclude"] = nodes
            text += f" without {', '.join(nodes)}"
        return self._order(job_id, SignalKind.ORDER_RESUBMIT, who=who, key=key, evidence=evidence, text=text)

    def _check_from_step(self, job: Job, from_step: int) -> None:
        """The run would be stopped for a resume point that is not there. What cannot be read refuses nothing.

        Raises:
            InvalidRequest: no verified checkpoint lies at or before the step, or it is beyond the newest.
        """
        if self.mailbox is None:
            return
        from chalicelib.services.observe.run_checkpoints import RunCheckpoints  # loaded by such an order alone

        reader = RunCheckpoints(
            registry=self.registry, scheduler=self.scheduler, mailbox=self.mailbox, store=self.intake.store
        )
        try:
            attempts = self.registry.attempts(job.job_id)
            found = reader.read(job, attempts, seen=lambda: self._current(job), near=(from_step,))
        except RecoveryError:
            return
        steps = sorted(
            checkpoint.step
            for checkpoint in found
            if not checkpoint.problems and not checkpoint.fenced and checkpoint.kind != FORENSIC
        )
        if not steps or steps[0] > from_step:
            oldest = f"the oldest is at step {steps[0]}" if steps else "there is none"
            raise InvalidRequest("from_step", f"no verified checkpoint lies at or before step {from_step}: {oldest}")
        if from_step > steps[-1]:
            raise InvalidRequest(
                "from_step",
                f"is beyond the newest verified checkpoint, at step {steps[-1]}; without from_step the run is saved "
                "first and resumes from the newest",
            )

    def _current(self, job: Job) -> Maybe[AttemptView]:
        """The run's current attempt with its heartbeat."""
        try:
            seen = self.scheduler.of(job.platform).describe(job.current_attempt)
            return Known(self.mailbox.heartbeat(job, seen) if self.mailbox is not None else seen)
        except RecoveryError as err:
            return Unknown(str(err)[:200])

    def _excluded(self, job: Job, exclude: Sequence[str]) -> list[str]:
        if not self.scheduler.of(job.platform).platform.can_exclude_nodes:
            raise InvalidRequest(
                "exclude", "SageMaker chooses a training job's instances; only Slurm takes nodes to avoid"
            )
        names = list(dict.fromkeys(exclude))
        if len(names) > MAX_EXCLUDED:
            raise InvalidRequest("exclude", f"holds more than {MAX_EXCLUDED} nodes; drain them in Slurm instead")
        cluster = job.cluster
        listed = self.head_nodes.nodes(cluster) if self.head_nodes is not None else None
        known = {node.name for node in listed.value.nodes} if isinstance(listed, Known) else None
        for index, name in enumerate(names):
            try:
                check_node(name)
            except MailboxError as err:
                raise InvalidRequest(f"exclude[{index}]", err.problem) from err
            if known is not None and name not in known:
                raise InvalidRequest(f"exclude[{index}]", f"Slurm of {cluster} has no node {name}")
        needed = self._nodes_of(job)
        if known is not None and len(known) - len(names) < needed:  # it would be stopped, and could not be started
            raise InvalidRequest(
                "exclude", f"leaves {len(known) - len(names)} nodes of {cluster}, and the run is on {needed}"
            )
        return names

    def _nodes_of(self, job: Job) -> int:
        """On how many nodes the run is; at least one."""
        try:
            seen: Maybe[AttemptView] = Known(self.scheduler.of(job.platform).describe(job.current_attempt))
        except RecoveryError as err:
            seen = Unknown(str(err)[:200])
        count = node_count(job, seen)
        return max(count.value, 1) if isinstance(count, Known) else 1

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def repair_node(
        self, cluster: str, node: str, *, do: str, who: str, key: str, why: str = "", force: bool = False
    ) -> Outcome:
        """Reboot or replace a node (`do`): opens its Incident, or joins the one that is open.

        The node is drained first, and no job on it is ever killed: a protected run is saved and moved, and continues if
        it cannot be saved; every other job is waited for. `node` is its name in Slurm, or its instance id. `force`
        passes over the policy's budgets of repairs, and over nothing else.

        Raises:
            InvalidRequest: names the field; `do` where nothing on this cluster can do that.
            UnknownEntity: no agent of the cluster has ever reported, or Slurm has no such node. A controller or login
                node is none, and is repaired by no program.
            Retryable: the agent is silent, so the node's state is unknown now.
        """
        if do not in (Rung.REBOOT, Rung.REPLACE):
            raise InvalidRequest("do", "must be reboot or replace")
        facts = self._node(cluster, node)
        agent = self.head_nodes.agent(cluster) if self.head_nodes is not None else None
        if do == Rung.REPLACE and isinstance(agent, Known) and not agent.value.cluster_arn:
            raise InvalidRequest("do", f"nothing replaces machines of {cluster}: its nodes are no HyperPod instances")
        evidence = {
            "do": str(do),
            "why": why[:300],
            "force": force,
            **{name: value for name, value in (("instance_id", facts.instance_id), ("group", facts.group)) if value},
        }
        text = f"{do} node {facts.name} of {cluster}" + (f": {why}" if why else "")
        signal = self._signal(
            SignalKind.ORDER_NODE, f"{cluster}/{facts.name}", who=who, key=key, evidence=evidence, text=text
        )
        signal = replace(signal, cluster=cluster, node=facts.name, fault=FaultClass.OPERATOR_ORDER)
        # A person's order is authority enough where the cluster names no policy of its own.
        return _kept(self.intake.receive_for_node(signal, of_run="default"))

    def _node(self, cluster: str, node: str) -> NodeFacts:
        try:
            check_cluster(cluster)
        except MailboxError as err:
            raise InvalidRequest("cluster", err.problem) from err
        try:
            check_node(node)
        except MailboxError as err:
            raise InvalidRequest("node", err.problem) from err
        if self.head_nodes is None or cluster not in self.head_nodes.clusters():
            raise UnknownEntity(f"no agent of cluster {cluster!r} has ever reported")
        listed = self.head_nodes.nodes(cluster)
        if not isinstance(listed, Known):
            raise DependencyUnavailable(f"the nodes of {cluster} cannot be read: {listed.why}")
        found = next(
            (listed_node for listed_node in listed.value.nodes if node in (listed_node.name, listed_node.instance_id)),
            None,
        )
        if found is None:
            raise UnknownEntity(
                f"Slurm of {cluster} has no node {node!r}: a controller or login node is none, and is never repaired"
            )
        return found

    def cancel(self, incident_id: str, *, who: str, key: str) -> Outcome:
        """End an Incident at its next observation; what has been done stays done and is reported."""
        signal = self._signal(SignalKind.ORDER_CANCEL, incident_id, who=who, key=key, evidence={}, text="cancel")
        return _kept(self.intake.cancel(incident_id, signal))

    def _order(
        self, job_id: str, kind: SignalKind, *, who: str, key: str, evidence: dict[str, Any], text: str
    ) -> Outcome:
        job = self.registry.get(job_id)
        signal = self._signal(kind, job_id, who=who, key=key, evidence=evidence, text=text)
        signal = replace(signal, job_id=job_id, attempt=job.current_attempt, fault=FaultClass.OPERATOR_ORDER)
        return _kept(self.intake.receive(signal))

    def _signal(
        self, kind: SignalKind, target: str, *, who: str, key: str, evidence: dict[str, Any], text: str
    ) -> Signal:
        digest = hashlib.sha256(key.encode()).hexdigest()[:24]
        return Signal(
            kind=kind,
            source=SignalSource.OPERATOR,
            occurred_at=self.clock.now(),
            dedupe_key=f"order:{kind}:{target}:{digest}"[:200],
            summary=f"{who} ordered: {text}"[:400],
            evidence={"who": who[:128], **evidence},
        )


def _kept(outcome: Outcome) -> Outcome:
    """An order that was not accepted must fail visibly. Raises: DependencyUnavailable, where there was no room."""
    if outcome.what is OutcomeKind.OVERFLOWED:
        raise DependencyUnavailable("the Incident's inbox is full; order again in a minute")
    return outcome
