"""The adapters of every platform, of its mailbox, and of its clusters, each built on first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from chalicelib.bootstrap.adapters import AdapterParts
from chalicelib.domain.guards.stages import stage_of

if TYPE_CHECKING:
    from chalicelib.aws.s3.cluster_state import S3HeadNodes
    from chalicelib.aws.sagemaker.cluster_nodes import SageMakerClusterNodes
    from chalicelib.aws.sagemaker.clusters import SageMakerClusters
    from chalicelib.platforms.schedulers import Schedulers
    from chalicelib.platforms.slurm.mailbox import SlurmMailbox
    from chalicelib.platforms.slurm.scheduler import SlurmScheduler
    from chalicelib.platforms.training_job.scheduler import TrainingJobScheduler


class PlatformParts(AdapterParts):
    """Adds the platforms to the adapters. Every property imports its adapter when it is first read."""

    @cached_property
    def scheduler(self) -> Schedulers:
        from chalicelib.platforms.schedulers import Schedulers

        return Schedulers(self.slurm, self.training_jobs)

    @cached_property
    def training_jobs(self) -> TrainingJobScheduler:
        from chalicelib.platforms.training_job.scheduler import TrainingJobScheduler

        return TrainingJobScheduler(
            self.clients("sagemaker"),
            bus=self.settings.bus,
            stage=stage_of(self.settings.stage),
            roles=self.settings.training_roles,
        )

    @cached_property
    def slurm(self) -> SlurmScheduler:
        """Slurm, through its agents."""
        from chalicelib.platforms.slurm.scheduler import SlurmScheduler

        return SlurmScheduler(
            self.head_nodes, self.mailbox, clock=self.clock, bucket=self.settings.bucket, bus=self.settings.bus
        )

    @cached_property
    def head_nodes(self) -> S3HeadNodes:
        """The cluster state that the agents on Slurm head nodes write to S3."""
        from chalicelib.aws.s3.cluster_state import S3HeadNodes

        return S3HeadNodes(
            self.clients("s3"),
            self.clients("sqs"),
            bucket=self.settings.bucket,
            stack=self.settings.stage,
            clock=self.clock,
        )

    @cached_property
    def mailbox(self) -> SlurmMailbox:
        """The mailbox shared with the training process: in S3, or relayed by a cluster's agent."""
        from chalicelib.aws.s3.mailbox import S3Mailbox
        from chalicelib.platforms.slurm.mailbox import SlurmMailbox

        own = S3Mailbox(self.clients("s3"), bucket=self.settings.bucket)
        return SlurmMailbox(own, self.head_nodes, bucket=self.settings.bucket)

    @cached_property
    def clusters(self) -> SageMakerClusters:
        """HyperPod's API of clusters, for what its events leave out."""
        from chalicelib.aws.sagemaker.clusters import SageMakerClusters

        return SageMakerClusters(self.clients("sagemaker"), stage=stage_of(self.settings.stage))

    @cached_property
    def cluster_nodes(self) -> SageMakerClusterNodes:
        from chalicelib.aws.sagemaker.cluster_nodes import SageMakerClusterNodes

        return SageMakerClusterNodes(self.clients("sagemaker"))
