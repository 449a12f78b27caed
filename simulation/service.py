"""The real service over the world's clients. A test breaks a part by replacing it before the story is played."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any

from chalicelib.adapters.mailbox_s3 import S3Mailbox
from chalicelib.adapters.metrics_cloudwatch import CloudWatchMetrics
from chalicelib.adapters.saves_s3 import S3Saves
from chalicelib.domain.policy import Policy
from chalicelib.ingress import Ingress
from chalicelib.orchestrators.training_job import TrainingJobScheduler
from chalicelib.recovery.workflow import run_recovery
from chalicelib.services.alarms import Alarms
from chalicelib.services.intake import Intake
from chalicelib.services.look import Look
from chalicelib.services.orders import Orders
from chalicelib.services.perform import Perform
from chalicelib.services.sweep import Sweep
from localcloud.clock import SimClock
from localcloud.replay_books import MemoryJobs
from localcloud.replay_world import OnePolicy, ProtectedClusters
from localcloud.sagemaker import TrainingJobs
from simulation.durable import Context, MemoryExecutions
from simulation.lies import Lies
from simulation.memory import Incidents, KeptAside, Marks, People, Unkept
from simulation.platform import MemoryCloudWatch, MemorySageMaker, NoAlarms
from simulation.store import MemoryObjects, MemoryS3


class RealService:
    """Each part is made on first use. What a world has to bring stands first."""

    clock: SimClock
    lies: Lies
    objects: MemoryObjects
    jobs: TrainingJobs
    policy: Policy
    store: Incidents
    registry: MemoryJobs
    people: People
    quarantine: KeptAside
    reported: Unkept

    def _service_calls(self, operation: str, request: dict[str, Any]) -> None:
        """The service is about to submit or stop a training job."""
        raise NotImplementedError

    def _service_called(self, operation: str, request: dict[str, Any]) -> None:
        """It has."""
        raise NotImplementedError

    def _metric(self, name: str, job_id: str, since: datetime, until: datetime) -> list[tuple[datetime, float]]:
        """Data points as they have arrived."""
        raise NotImplementedError

    @cached_property
    def s3(self) -> MemoryS3:
        """The service's own client."""
        return MemoryS3(self.objects, lambda operation, _key: self.lies.check("s3", operation))

    @cached_property
    def scheduler(self) -> Any:
        client = MemorySageMaker(
            self.jobs,
            check=lambda operation, _name: self.lies.check("sagemaker", operation),
            before=self._service_calls,
            after=self._service_called,
        )
        return TrainingJobScheduler(client)

    @cached_property
    def mailbox(self) -> Any:
        return S3Mailbox(self.s3)

    @cached_property
    def executions(self) -> MemoryExecutions:
        return MemoryExecutions(self.clock, self._recover, self.lies.hold)

    @cached_property
    def intake(self) -> Intake:
        return Intake(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clusters=ProtectedClusters(self.policy.name),
            executions=self.executions,
            clock=self.clock,
            announcer=self.people,
        )

    @cached_property
    def alarms(self) -> Alarms:
        return Alarms(
            board=NoAlarms(), registry=self.registry, scheduler=self.scheduler, mailbox=self.mailbox, clock=self.clock
        )

    @cached_property
    def ingress(self) -> Ingress:
        return Ingress(
            intake=self.intake,
            alarms=self.alarms,
            clusters=ProtectedClusters(self.policy.name),
            quarantine=self.quarantine,
            clock=self.clock,
            report=self.reported,
        )

    @cached_property
    def look(self) -> Look:
        return Look(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            policies=OnePolicy(self.policy),
            clock=self.clock,
        )

    @cached_property
    def perform(self) -> Perform:
        return Perform(
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            announcer=self.people,
            clock=self.clock,
            intake=self.intake,
        )

    @cached_property
    def sweep(self) -> Sweep:
        client = MemoryCloudWatch(self._metric, lambda operation, _: self.lies.check("cloudwatch", operation))
        return Sweep(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            listing=self.scheduler,
            mailbox=self.mailbox,
            metrics=CloudWatchMetrics(client),
            saves=S3Saves(self.s3),
            marks=Marks(),
            alarms=self.alarms,
            executions=self.executions,
            intake=self.intake,
            clock=self.clock,
        )

    @cached_property
    def orders(self) -> Orders:
        return Orders(
            intake=self.intake,
            registry=self.registry,
            scheduler=self.scheduler,
            policies=OnePolicy(self.policy),
            alarms=self.alarms,
            clock=self.clock,
        )

    def _recover(self, payload: dict[str, Any], context: Context) -> object:
        durable: Any = context
        return run_recovery(payload, durable, look=self.look, perform=self.perform, report=self.reported)
