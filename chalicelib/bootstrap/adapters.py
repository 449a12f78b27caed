"""What the service reads and writes in AWS and on platforms: one adapter per port, each made on first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from chalicelib.domain.guards.stages import stage_of

if TYPE_CHECKING:
    from chalicelib.aws.cloudwatch.alarms import CloudWatchAlarms
    from chalicelib.aws.cloudwatch.metrics import CloudWatchMetrics
    from chalicelib.aws.durable import LambdaExecutions
    from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads
    from chalicelib.aws.dynamodb.hardware_ledger import DynamoHardwareLedger
    from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore
    from chalicelib.aws.dynamodb.jobs import DynamoJobRegistry
    from chalicelib.aws.dynamodb.listings import DynamoListings
    from chalicelib.aws.dynamodb.small_items import DynamoAnswers, DynamoDrillRecords, DynamoHookMarks, DynamoSweepMarks
    from chalicelib.aws.s3.cluster_state import S3HeadNodes
    from chalicelib.aws.s3.pages import S3Pages
    from chalicelib.aws.s3.saves import S3Saves
    from chalicelib.aws.sagemaker.cluster_nodes import SageMakerClusterNodes
    from chalicelib.aws.sagemaker.clusters import SageMakerClusters
    from chalicelib.aws.sqs.deliveries import DynamoDeliveryLog, SqsDeliveries
    from chalicelib.aws.sqs.quarantine import SqsQuarantine
    from chalicelib.aws.sqs.undelivered import SqsUndelivered
    from chalicelib.aws.ssm.policies import SsmPolicies
    from chalicelib.aws.ssm.policy_documents import SsmPolicyDocumentStore
    from chalicelib.aws.ssm.prices import SsmPrices
    from chalicelib.aws.ssm.settings import SsmSettings
    from chalicelib.bootstrap.clients import Clients
    from chalicelib.channels.bus import BusAnnouncer
    from chalicelib.config import Settings
    from chalicelib.observability import Observability
    from chalicelib.platforms.schedulers import Schedulers
    from chalicelib.platforms.slurm.mailbox import SlurmMailbox
    from chalicelib.platforms.slurm.scheduler import SlurmScheduler
    from chalicelib.platforms.training_job.scheduler import TrainingJobScheduler
    from chalicelib.ports.clock import Clock
    from chalicelib.services.reporting.outcome import Outcome


class AdapterParts:
    """Every property imports its adapter when it is first read."""

    def __init__(self, settings: Settings, *, clock: Clock, clients: Clients) -> None:
        self.settings = settings
        self.clock = clock
        self.clients = clients

    @cached_property
    def observability(self) -> Observability:
        from chalicelib.observability import Observability

        return Observability(service=self.settings.stage, level=self.settings.log_level)

    def report(self, outcome: Outcome) -> None:
        """Log line and metrics of one outcome."""
        self.observability.record(outcome)

    @cached_property
    def store(self) -> DynamoIncidentStore:
        from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore

        return DynamoIncidentStore(self.clients("dynamodb"), table=self.settings.table)

    @cached_property
    def registry(self) -> DynamoJobRegistry:
        from chalicelib.aws.dynamodb.jobs import DynamoJobRegistry

        return DynamoJobRegistry(self.clients("dynamodb"), table=self.settings.table)

    @cached_property
    def listings(self) -> DynamoListings:
        from chalicelib.aws.dynamodb.listings import DynamoListings

        return DynamoListings(self.clients("dynamodb"), table=self.settings.table)

    @cached_property
    def answers(self) -> DynamoAnswers:
        """The memory of orders given with a key."""
        from chalicelib.aws.dynamodb.small_items import DynamoAnswers

        return DynamoAnswers(self.clients("dynamodb"), table=self.settings.table)

    @cached_property
    def policies(self) -> SsmPolicies:
        from chalicelib.aws.ssm.policies import SsmPolicies

        return SsmPolicies(self.clients("ssm"), prefix=self.settings.policy_prefix, clock=self.clock)

    @cached_property
    def policy_store(self) -> SsmPolicyDocumentStore:
        """Policy documents and their versions, to be edited."""
        from chalicelib.aws.ssm.policy_documents import SsmPolicyDocumentStore

        return SsmPolicyDocumentStore(
            self.clients("ssm"),
            prefix=self.settings.policy_prefix,
            table_client=self.clients("dynamodb"),
            table=self.settings.table,
        )

    @cached_property
    def prices(self) -> SsmPrices:
        """What hours of instances cost."""
        from chalicelib.aws.ssm.prices import SsmPrices

        return SsmPrices(self.clients("ssm"), name=f"{self._beside_policies}/prices", clock=self.clock)

    @property
    def _beside_policies(self) -> str:
        """`/<stack>`, where `/<stack>/policies/…` and `/<stack>/prices` lie."""
        return self.settings.policy_prefix.rstrip("/").rpartition("/")[0]

    @cached_property
    def written(self) -> SsmSettings:
        """Channels, sources of alerts, and secrets."""
        from chalicelib.aws.ssm.settings import SsmSettings

        return SsmSettings(self.clients("ssm"), prefix=self.settings.settings_prefix, clock=self.clock)

    @cached_property
    def executions(self) -> LambdaExecutions:
        from chalicelib.aws.durable import LambdaExecutions

        return LambdaExecutions(self.clients("lambda"), function=self.settings.recover_function)

    @cached_property
    def quarantine(self) -> SqsQuarantine:
        from chalicelib.aws.sqs.quarantine import SqsQuarantine

        return SqsQuarantine(self.clients("sqs"), url=self.settings.quarantine_url)

    @cached_property
    def announcer(self) -> BusAnnouncer:
        from chalicelib.channels.bus import BusAnnouncer

        return BusAnnouncer(
            self.clients("events"),
            bus=self.settings.bus,
            sns=self.clients("sns") if self.settings.topic else None,
            topic=self.settings.topic or None,
            console_url=self.settings.console_url,
        )

    @cached_property
    def delivery_queue(self) -> SqsDeliveries:
        from chalicelib.aws.sqs.deliveries import SqsDeliveries

        return SqsDeliveries(
            self.clients("sqs"), url=self.settings.deliveries_url, dead_url=self.settings.undelivered_url
        )

    @cached_property
    def delivery_log(self) -> DynamoDeliveryLog:
        from chalicelib.aws.sqs.deliveries import DynamoDeliveryLog

        return DynamoDeliveryLog(self.clients("dynamodb"), table=self.settings.table)

    @cached_property
    def undelivered(self) -> SqsUndelivered:
        from chalicelib.aws.sqs.undelivered import SqsUndelivered

        return SqsUndelivered(
            self.clients("sqs"), url=self.settings.deliveries_url, dead_url=self.settings.undelivered_url
        )

    @cached_property
    def chats(self) -> DynamoChatThreads:
        """What was sent to chat channels, and what came in from there."""
        from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads

        return DynamoChatThreads(self.clients("dynamodb"), table=self.settings.table)

    @cached_property
    def hook_marks(self) -> DynamoHookMarks:
        from chalicelib.aws.dynamodb.small_items import DynamoHookMarks

        return DynamoHookMarks(self.clients("dynamodb"), table=self.settings.table)

    @cached_property
    def page_store(self) -> S3Pages:
        from chalicelib.aws.s3.pages import S3Pages

        return S3Pages(self.clients("s3"), bucket=self.settings.bucket, clock=self.clock)

    @cached_property
    def metrics(self) -> CloudWatchMetrics:
        from chalicelib.aws.cloudwatch.metrics import CloudWatchMetrics

        return CloudWatchMetrics(self.clients("cloudwatch"))

    @cached_property
    def saves(self) -> S3Saves:
        from chalicelib.aws.s3.saves import S3Saves

        return S3Saves(self.clients("s3"))

    @cached_property
    def alarm_store(self) -> CloudWatchAlarms:
        from chalicelib.aws.cloudwatch.alarms import CloudWatchAlarms

        return CloudWatchAlarms(self.clients("cloudwatch"), stack=self.settings.stage)

    @cached_property
    def marks(self) -> DynamoSweepMarks:
        from chalicelib.aws.dynamodb.small_items import DynamoSweepMarks

        return DynamoSweepMarks(self.clients("dynamodb"), table=self.settings.table)

    @cached_property
    def hardware_ledger(self) -> DynamoHardwareLedger:
        from chalicelib.aws.dynamodb.hardware_ledger import DynamoHardwareLedger

        return DynamoHardwareLedger(self.clients("dynamodb"), table=self.settings.table)

    @cached_property
    def drill_records(self) -> DynamoDrillRecords:
        from chalicelib.aws.dynamodb.small_items import DynamoDrillRecords

        return DynamoDrillRecords(self.clients("dynamodb"), table=self.settings.table)

    # ---- platforms, their mailboxes and clusters ---------------------------------------------------------------------

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
