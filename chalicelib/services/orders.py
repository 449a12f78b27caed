"""What people order: each order becomes a Signal and goes the way of all Signals, so that it is on the record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from chalicelib.domain.errors import InvalidRequest, UnknownEntity
from chalicelib.domain.faults import FaultClass
from chalicelib.domain.jobs import Job
from chalicelib.domain.signals import Signal, SignalKind, SignalSource
from chalicelib.ports import Clock, Discovered, JobRegistry, Policies, Scheduler
from chalicelib.services.alarms import Alarms
from chalicelib.services.intake import Intake
from chalicelib.services.outcome import Outcome
from rekindle.headnode.names import first_attempt
from rekindle.wire import MailboxError

MAX_RESTARTS = 100  # of one submission, followed from its first start


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Manual orders. `key` makes an order idempotent: the same key is the same order."""

    intake: Intake
    registry: JobRegistry
    scheduler: Scheduler
    policies: Policies
    alarms: Alarms
    clock: Clock

    def register(
        self, *, training_job: str, policy: str | None, mailbox: str | None, watch: Mapping[str, Any] | None = None
    ) -> Job:
        """Protect a training job from now on, whatever its tags say. `watch`: fields of WatchPlan to be set.

        A Job that is protected already stays as it is, but for how it is watched.

        Raises:
            UnknownEntity: the platform does not know the job, or no such policy.
            InvalidPolicy: the policy document cannot be used.
        """
        known = self.registry.job_of_attempt(training_job)
        if known is not None:
            job = self.registry.get(known)
            return self.alarms.change(job, replace(job.watch, **watch)) if watch else job
        found = self.scheduler.find(training_job)
        if found is None:
            raise UnknownEntity(f"training job {training_job!r} does not exist")
        wanted: Discovered = replace(
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
            Retryable: the agent is silent, so nothing can be said about the job now.
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

    def _present_start(self, cluster: str, slurm_job: int) -> Discovered:
        """Each start that Slurm has put back names the next one."""
        try:
            name = first_attempt(cluster, slurm_job).name
        except MailboxError as err:
            raise InvalidRequest(f"slurm_job.{err.field}", err.problem) from err
        for _ in range(MAX_RESTARTS):
            successor = self.scheduler.describe(name).successor
            if successor is None:
                break
            name = successor
        found = self.scheduler.find(name)
        if found is None:
            raise UnknownEntity(
                f"the agent of {cluster} does not watch Slurm job {slurm_job}: give the job a comment, "
                f"`scontrol update jobid={slurm_job} comment=rekindle`, and it joins by itself"
            )
        return found

    def checkpoint(self, job_id: str, *, who: str, key: str) -> Outcome:
        """Ask the run for a checkpoint now; nothing is stopped."""
        return self._order(job_id, SignalKind.ORDER_CHECKPOINT, who=who, key=key, evidence={}, said="checkpoint now")

    def resubmit(
        self, job_id: str, *, who: str, key: str, from_step: int | None, skip: Sequence[tuple[int, int]]
    ) -> Outcome:
        """Save, stop and submit again, from `from_step` at most, skipping the data of the given step windows."""
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
            evidence["from_step"] = from_step
        said = "resubmit" + (f" from step {from_step}" if from_step is not None else "")
        return self._order(job_id, SignalKind.ORDER_RESUBMIT, who=who, key=key, evidence=evidence, said=said)

    def cancel(self, incident_id: str, *, who: str, key: str) -> Outcome:
        """End an Incident at its next look; what has been done stays done and is told."""
        signal = self._signal(SignalKind.ORDER_CANCEL, incident_id, who=who, key=key, evidence={}, said="cancel")
        return self.intake.cancel(incident_id, signal)

    def _order(
        self, job_id: str, kind: SignalKind, *, who: str, key: str, evidence: dict[str, Any], said: str
    ) -> Outcome:
        job = self.registry.get(job_id)
        signal = self._signal(kind, job_id, who=who, key=key, evidence=evidence, said=said)
        return self.intake.receive(
            replace(signal, job_id=job_id, attempt=job.current_attempt, fault=FaultClass.OPERATOR_ORDER)
        )

    def _signal(
        self, kind: SignalKind, target: str, *, who: str, key: str, evidence: dict[str, Any], said: str
    ) -> Signal:
        digest = hashlib.sha256(key.encode()).hexdigest()[:24]
        return Signal(
            kind=kind,
            source=SignalSource.OPERATOR,
            occurred_at=self.clock.now(),
            dedupe_key=f"order:{kind}:{target}:{digest}"[:200],
            summary=f"{who} ordered: {said}"[:400],
            evidence={"who": who[:128], **evidence},
        )
