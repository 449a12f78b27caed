"""Composition root: settings, clients, clock -> ready services. The one place where the world enters.

Every part is made on first use and imports its own modules then, so that a function starts with what it needs: an event
handler never loads the workflow, the API never loads the parsers. On Lambda `warm_up` makes the function's parts at
init (full CPU), not in the first call. Clients come from one Session.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from chalicelib.config import Settings
from chalicelib.domain.guards.stages import stage_of

if TYPE_CHECKING:
    from chalicelib.api.hooks import Hooks
    from chalicelib.api.operation import Operation
    from chalicelib.api.routes import Api
    from chalicelib.api.slack import SlackHooks
    from chalicelib.aws.cloudwatch.alarms import CloudWatchAlarms
    from chalicelib.aws.cloudwatch.metrics import CloudWatchMetrics
    from chalicelib.aws.deadline import Patience
    from chalicelib.aws.durable import LambdaExecutions
    from chalicelib.aws.dynamodb.answers import DynamoAnswers
    from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads
    from chalicelib.aws.dynamodb.hardware_ledger import DynamoHardwareLedger
    from chalicelib.aws.dynamodb.hook_marks import DynamoHookMarks
    from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore
    from chalicelib.aws.dynamodb.jobs import DynamoJobRegistry
    from chalicelib.aws.dynamodb.listings import DynamoListings
    from chalicelib.aws.dynamodb.sweep_marks import DynamoSweepMarks
    from chalicelib.aws.s3.cluster_state import S3HeadNodes
    from chalicelib.aws.s3.mailbox import S3Mailbox
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
    from chalicelib.channels.address import Addresses
    from chalicelib.channels.bus import BusAnnouncer
    from chalicelib.channels.channel import Channel, Secrets
    from chalicelib.channels.delivery.deliver import Deliver
    from chalicelib.channels.delivery.fan_out import FanOut
    from chalicelib.channels.makers import Makers
    from chalicelib.domain.model.incident import Incident
    from chalicelib.domain.notices.channels import ChannelConfig
    from chalicelib.domain.reporting.ledger import IncidentLedger
    from chalicelib.ingress import Ingress
    from chalicelib.observability import Observability
    from chalicelib.platforms.schedulers import Schedulers
    from chalicelib.platforms.slurm.mailbox import SlurmMailbox
    from chalicelib.platforms.slurm.scheduler import SlurmScheduler
    from chalicelib.platforms.training_job.scheduler import TrainingJobScheduler
    from chalicelib.ports.clock import Clock
    from chalicelib.services.intake.intake import Intake
    from chalicelib.services.observe.nodes import Nodes
    from chalicelib.services.observe.observer import Observer
    from chalicelib.services.operator.approvals import Approvals
    from chalicelib.services.operator.clusters import Clusters
    from chalicelib.services.operator.curves import Curves
    from chalicelib.services.operator.drills import Drills
    from chalicelib.services.operator.orders import Orders
    from chalicelib.services.operator.policy_documents import PolicyDocuments
    from chalicelib.services.operator.price_table import PriceTable
    from chalicelib.services.operator.switches import Switches
    from chalicelib.services.perform.perform import Perform
    from chalicelib.services.reporting.alarms import Alarms
    from chalicelib.services.reporting.hardware_ledger import HardwareLedgers
    from chalicelib.services.reporting.ledgers import Ledgers
    from chalicelib.services.reporting.outcome import Outcome
    from chalicelib.services.reporting.pages import Pages
    from chalicelib.services.reporting.traces import Traces
    from chalicelib.services.sweep.sweep import Sweep

# What each function uses; the others are event handlers, which use the ingress.
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "recover": ("look", "perform", "observability"),
    "sweep": ("sweep", "observability"),
    "notice_event": ("fan_out", "observability"),
    "deliver": ("deliver", "observability"),
    "app": (
        "api",
        "orders",
        "listings",
        "answers",
        "observability",
    ),  # Chalice's own handler of the REST API: `app.app`
}
# What each function would import at its first event; on Lambda that is done at init, before anybody waits.
FIRST: Final[Mapping[str, tuple[str, ...]]] = {
    "hyperpod_event": ("chalicelib.ingest.hyperpod",),
    "training_job_event": ("chalicelib.ingest.training_job",),
    "alarm_event": ("chalicelib.ingest.alarm",),
    "health_event": ("chalicelib.ingest.health",),
    "ec2_event": ("chalicelib.ingest.ec2",),
    "monitor_event": ("chalicelib.ingest.monitor",),
    "agent_event": ("chalicelib.ingest.agent",),
    "mailbox_event": ("chalicelib.ingest.mailbox_objects",),
    "log_batch": ("chalicelib.ingest.logs",),
    "recover": ("chalicelib.recovery.entry", "chalicelib.aws.s3.discovered"),
}


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        """Aware UTC."""
        return datetime.now(UTC)


class Service:
    """Everything app.py's triggers call."""

    sweep_readers = 8  # fewer than a client's ten connections; the sweep's time goes into waiting (docs/sweep.md)

    def __init__(self, settings: Settings, *, clock: Clock, clients: Clients) -> None:
        self.settings = settings
        self.clock = clock
        self.clients = clients

    @cached_property
    def observability(self) -> Observability:
        """Log line and metrics."""
        from chalicelib.observability import Observability

        return Observability(service=self.settings.stage, level=self.settings.log_level)

    @cached_property
    def store(self) -> DynamoIncidentStore:
        """Incidents."""
        return _store(self.settings, self.clients)

    @cached_property
    def registry(self) -> DynamoJobRegistry:
        """Jobs and Attempts."""
        return _registry(self.settings, self.clients)

    @cached_property
    def scheduler(self) -> Schedulers:
        """Every platform."""
        from chalicelib.platforms.schedulers import Schedulers

        return Schedulers(self.slurm, self.training_jobs)

    @cached_property
    def training_jobs(self) -> TrainingJobScheduler:
        """SageMaker training jobs."""
        return _training_jobs(self.settings, self.clients)

    @cached_property
    def slurm(self) -> SlurmScheduler:
        """Slurm, through its agents."""
        from chalicelib.platforms.slurm.scheduler import SlurmScheduler

        return SlurmScheduler(
            self.head_nodes, self.mailbox, clock=self.clock, bucket=self.settings.bucket, bus=self.settings.bus
        )

    @cached_property
    def head_nodes(self) -> S3HeadNodes:
        """What the agents on Slurm head nodes write down."""
        return _head_nodes(self.settings, self.clients, self.clock)

    @cached_property
    def mailbox(self) -> SlurmMailbox:
        """The meeting place with the training process."""
        from chalicelib.platforms.slurm.mailbox import SlurmMailbox

        return SlurmMailbox(_mailbox(self.settings, self.clients), self.head_nodes, bucket=self.settings.bucket)

    @cached_property
    def policies(self) -> SsmPolicies:
        """Policy documents."""
        return _policies(self.settings, self.clients, self.clock)

    @cached_property
    def executions(self) -> LambdaExecutions:
        """Durable executions of `recover`."""
        return _executions(self.settings, self.clients)

    @cached_property
    def clusters(self) -> SageMakerClusters:
        """What HyperPod's events leave out."""
        return _clusters(self.settings, self.clients)

    @cached_property
    def quarantine(self) -> SqsQuarantine:
        """Events that could not be read."""
        return _quarantine(self.settings, self.clients)

    @cached_property
    def announcer(self) -> BusAnnouncer:
        """Tells people."""
        return _announcer(self.settings, self.clients)

    @cached_property
    def written(self) -> SsmSettings:
        """Channels, sources of alerts, and secrets."""
        return _written(self.settings, self.clients, self.clock)

    @cached_property
    def delivery_queue(self) -> SqsDeliveries:
        """Deliveries that wait, and those given up."""
        return _delivery_queue(self.settings, self.clients)

    @cached_property
    def delivery_log(self) -> DynamoDeliveryLog:
        """What has arrived."""
        return _delivery_log(self.settings, self.clients)

    @cached_property
    def makers(self) -> Makers:
        """Channels."""
        from chalicelib.channels.makers import Makers

        return Makers(secrets=self.written, clock=self.clock, slack=self.slack_channel, otlp=self.otlp_channel)

    def otlp_channel(self, config: ChannelConfig, secrets: Secrets) -> Channel:
        """One receiver of traces."""
        from chalicelib.channels.otlp import OtlpChannel

        return OtlpChannel(config, secrets, traces=self.traces, clock=self.clock)

    @cached_property
    def traces(self) -> Traces:
        """Incidents as traces."""
        from chalicelib.services.reporting.traces import Traces, resource_of

        settings = self.settings
        return Traces(
            store=self.store,
            ledger=self.ledger_of_one,
            resource=resource_of(stage=settings.stage, region=settings.region, account=settings.account),
        )

    def slack_channel(self, config: ChannelConfig, secrets: Secrets) -> Channel:
        """One Slack channel of the document; Slack's library is loaded by the first."""
        from chalicelib.channels.slack.channel import SlackChannel
        from chalicelib.channels.slack.settings import slack_settings
        from chalicelib.channels.slack.web_api import SlackApi

        given = slack_settings(config)
        return SlackChannel(
            name=given.name,
            conversation=given.conversation,
            api=SlackApi(lambda: secrets.secret(given.token_name), url=given.api_url),
            threads=self.chats,
            incidents=self.store,
            clock=self.clock,
            can_press=given.can_press,
            ledger=self.ledger_of_one,
            console_url=given.console_url or self.settings.console_url,
        )

    @cached_property
    def chats(self) -> DynamoChatThreads:
        """What was sent to chat channels, and what came in from there."""
        return _chats(self.settings, self.clients)

    @cached_property
    def slack_hooks(self) -> SlackHooks:
        """What Slack calls."""
        from chalicelib.api.slack import SlackHooks
        from chalicelib.channels.slack.groups import SlackGroups

        return SlackHooks(
            book=self.written,
            secrets=self.written,
            presses=self.chats,
            groups=SlackGroups(secrets=self.written, clock=self.clock),
            store=self.store,
            listings=self.listings,
            approvals=self.approvals,
            orders=self.orders,
            switches=self.switches,
            clock=self.clock,
            report=self.observability.record,
        )

    @cached_property
    def fan_out(self) -> FanOut:
        """Notice -> channels."""
        from chalicelib.channels.delivery.fan_out import FanOut

        return FanOut(
            book=self.written,
            queue=self.delivery_queue,
            clock=self.clock,
            report=self.observability.record,
            pages=self.pages,
        )

    @cached_property
    def pages(self) -> Pages:
        """Incidents' pages, drawn."""
        from chalicelib.services.reporting.losses import Losses
        from chalicelib.services.reporting.pages import Pages

        return Pages(
            store=self.store,
            registry=self.registry,
            prices=self.prices,
            pages=self.page_shelf,
            clock=self.clock,
            region=self.settings.region,
            within=self.clients.deadline.within,
            losses=Losses(curves=self.curves),
        )

    @cached_property
    def page_shelf(self) -> S3Pages:
        """Incidents' pages, stored."""
        return _page_shelf(self.settings, self.clients, self.clock)

    @cached_property
    def addresses(self) -> Addresses:
        """What notices lead to."""
        from chalicelib.channels.address import Addresses

        return Addresses(
            pages=self.page_shelf,
            console_url=self.settings.console_url,
            lasts=timedelta(hours=self.settings.notice_link_hours),
            within=self.clients.deadline.within,
        )

    @cached_property
    def deliver(self) -> Deliver:
        """Message of the queue -> receiver."""
        from chalicelib.channels.delivery.deliver import Deliver

        return Deliver(
            book=self.written,
            queue=self.delivery_queue,
            log=self.delivery_log,
            makers=self.makers,
            clock=self.clock,
            report=self.observability.record,
            left_s=self.clients.deadline.left_s,
            addresses=self.addresses,
        )

    @cached_property
    def hook_marks(self) -> DynamoHookMarks:
        """Signed requests that have been taken in."""
        return _hook_marks(self.settings, self.clients)

    @cached_property
    def hooks(self) -> Hooks:
        """Alerts of other people's monitoring."""
        from chalicelib.api.hooks import Hooks

        return Hooks(
            book=self.written,
            marks=self.hook_marks,
            intake=self.intake,
            clock=self.clock,
            report=self.observability.record,
        )

    @cached_property
    def metrics(self) -> CloudWatchMetrics:
        """Metrics of Jobs."""
        return _metrics(self.clients)

    @cached_property
    def saves(self) -> S3Saves:
        """When runs saved."""
        return _saves(self.clients)

    @cached_property
    def marks(self) -> DynamoSweepMarks:
        """The sweep's own memory."""
        return _marks(self.settings, self.clients)

    @cached_property
    def board(self) -> CloudWatchAlarms:
        """Our alarms."""
        return _board(self.settings, self.clients)

    @cached_property
    def alarms(self) -> Alarms:
        """Keeps the alarms, and weighs what they say."""
        from chalicelib.services.reporting.alarms import Alarms

        return Alarms(
            board=self.board,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clock=self.clock,
        )

    @cached_property
    def intake(self) -> Intake:
        """Signal -> Incident."""
        from chalicelib.services.intake.intake import Intake

        return Intake(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clusters=self.clusters,
            executions=self.executions,
            clock=self.clock,
            head_nodes=self.head_nodes,
            announcer=self.announcer,
        )

    @cached_property
    def ingress(self) -> Ingress:
        """Raw event -> Signals -> intake."""
        from chalicelib.ingress import Ingress

        return Ingress(
            intake=self.intake,
            alarms=self.alarms,
            clusters=self.clusters,
            quarantine=self.quarantine,
            clock=self.clock,
            report=self.observability.record,
            account=self.settings.account,
        )

    @cached_property
    def cluster_nodes(self) -> SageMakerClusterNodes:
        """HyperPod's instances."""
        return _cluster_nodes(self.clients)

    @cached_property
    def nodes(self) -> Nodes:
        """Nodes of Slurm clusters, and HyperPod's instances behind them."""
        from chalicelib.services.observe.nodes import Nodes

        return Nodes(
            head_nodes=self.head_nodes,
            cluster_nodes=self.cluster_nodes,
            store=self.store,
            clock=self.clock,
            lemons=self.lemons,
        )

    @cached_property
    def lemons(self) -> HardwareLedgers:
        """The hardware ledger."""
        from chalicelib.services.reporting.hardware_ledger import HardwareLedgers

        return HardwareLedgers(ledger=_lemon_ledger(self.settings, self.clients), clock=self.clock)

    @cached_property
    def look(self) -> Observer:
        """One observation, and its record."""
        from chalicelib.services.observe.observer import Observer

        return Observer(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            policies=self.policies,
            clock=self.clock,
            head_nodes=self.head_nodes,
            nodes=self.nodes,
        )

    @cached_property
    def perform(self) -> Perform:
        """Actions carried out."""
        from chalicelib.services.perform.perform import Perform

        return Perform(
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            announcer=self.announcer,
            clock=self.clock,
            head_nodes=self.head_nodes,
            intake=self.intake,
            nodes=self.nodes,
            changes=self.announcer,
            region=self.settings.region,
        )

    @cached_property
    def sweep(self) -> Sweep:
        """The minute sweep."""
        from chalicelib.services.sweep.clusters import SweepClusters
        from chalicelib.services.sweep.sweep import Sweep
        from chalicelib.services.sweep.unheard import UnheardAttempts

        unheard = UnheardAttempts(registry=self.registry, scheduler=self.scheduler, clock=self.clock)
        return Sweep(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            listing=self.training_jobs,
            mailbox=self.mailbox,
            metrics=self.metrics,
            saves=self.saves,
            marks=self.marks,
            alarms=self.alarms,
            executions=self.executions,
            intake=self.intake,
            clock=self.clock,
            clusters=SweepClusters(
                head_nodes=self.head_nodes,
                intake=self.intake,
                clock=self.clock,
                lemons=self.lemons,
                unheard=unheard,
            ),
            unheard=unheard,
            metrics_every=self.settings.sweep_metrics_minutes,
            readers=self.sweep_readers,
        )

    @cached_property
    def curves(self) -> Curves:
        """Runs' curves."""
        from chalicelib.services.operator.curves import Curves

        return Curves(registry=self.registry, metrics=self.metrics, clock=self.clock)

    @cached_property
    def orders(self) -> Orders:
        """What people order."""
        from chalicelib.services.operator.orders import Orders

        return Orders(
            intake=self.intake,
            registry=self.registry,
            scheduler=self.scheduler,
            policies=self.policies,
            alarms=self.alarms,
            clock=self.clock,
            head_nodes=self.head_nodes,
            mailbox=self.mailbox,
            stage=stage_of(self.settings.stage),
        )

    @cached_property
    def approvals(self) -> Approvals:
        """Questions to people, and their answers."""
        from chalicelib.services.operator.approvals import Approvals

        return Approvals(store=self.store, intake=self.intake, registry=self.registry, clock=self.clock)

    @cached_property
    def switches(self) -> Switches:
        """The pause, shadow mode, the breaker."""
        from chalicelib.services.operator.switches import Switches

        return Switches(registry=self.registry, clock=self.clock)

    @cached_property
    def drills(self) -> Drills:
        """Rehearsals."""
        from chalicelib.aws.dynamodb.drills import DynamoDrillRecords
        from chalicelib.services.operator.drills import Drills

        return Drills(
            look=self.look,
            store=self.store,
            registry=self.registry,
            records=DynamoDrillRecords(self.clients("dynamodb"), table=self.settings.table),
            clock=self.clock,
        )

    @cached_property
    def ledgers(self) -> Ledgers:
        """What Incidents cost and saved."""
        from chalicelib.services.reporting.ledgers import Ledgers

        return Ledgers(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            prices=self.prices,
            clock=self.clock,
        )

    def ledger_of_one(self, incident: Incident) -> IncidentLedger:
        """What one Incident took and cost; for functions that see neither platforms nor mailboxes."""
        from chalicelib.services.reporting.ledgers import of_one

        return of_one(incident, registry=self.registry, prices=self.prices, clock=self.clock)

    @cached_property
    def prices(self) -> SsmPrices:
        """What hours of instances cost."""
        return _prices(self.settings, self.clients, self.clock)

    @cached_property
    def api(self) -> Api:
        """The REST routes."""
        from chalicelib.api.routes import Api

        return Api(parts=self)

    @property
    def stage(self) -> str:
        """Which of several services in one account this is."""
        return self.settings.stage

    @cached_property
    def listings(self) -> DynamoListings:
        """Pages for people."""
        return _listings(self.settings, self.clients)

    @cached_property
    def answers(self) -> DynamoAnswers:
        """The memory of orders given with a key."""
        return _answers(self.settings, self.clients)

    @cached_property
    def undelivered(self) -> SqsUndelivered:
        """Notices that were given up."""
        from chalicelib.aws.sqs.undelivered import SqsUndelivered

        return SqsUndelivered(
            self.clients("sqs"), url=self.settings.deliveries_url, dead_url=self.settings.undelivered_url
        )

    @property
    def redriver(self) -> Ingress:
        """Feeds quarantined events in again."""
        return self.ingress

    @cached_property
    def slurm_clusters(self) -> Clusters:
        """Slurm clusters as people want to see them."""
        from chalicelib.services.operator.clusters import Clusters

        return Clusters(head_nodes=self.head_nodes, registry=self.registry, clock=self.clock)

    @cached_property
    def policy_documents(self) -> PolicyDocuments:
        """Policy documents, for those who edit them."""
        from chalicelib.services.operator.policy_documents import PolicyDocuments

        return PolicyDocuments(shelf=_policy_shelf(self.settings, self.clients), clock=self.clock)

    @cached_property
    def price_table(self) -> PriceTable:
        """The price table, for those who edit it."""
        from chalicelib.services.operator.price_table import PriceTable

        return PriceTable(shelf=_price_shelf(self.settings, self.clients), clock=self.clock)

    def report(self, outcome: Outcome) -> None:
        """Log line and metrics of one outcome."""
        self.observability.record(outcome)

    def prepare(self, function: str) -> None:
        """Make what `function` uses, now."""
        for part in _PARTS.get(function, ("ingress",)):
            getattr(self, part)
        for module in FIRST.get(function, ()):
            import_module(module)


class Clients:
    """One client per AWS service, all from one Session: a Session each would cost about 100 ms more (style §5)."""

    def __init__(self, session: Any, *, patience: Patience | None = None) -> None:
        from chalicelib.aws.deadline import Deadline, patience_of

        self._session = session
        self._patience = patience or patience_of("")
        self._made: dict[str, Any] = {}
        self.deadline = Deadline()

    @property
    def made(self) -> tuple[str, ...]:
        """The services that have been asked for."""
        return tuple(self._made)

    def __call__(self, name: str) -> Any:
        """The client of one AWS service."""
        if name not in self._made:
            client = self._session.client(name, config=self._patience.config(name))
            self._made[name] = self.deadline.guard(client, self._patience)
        return self._made[name]


def build(environ: Mapping[str, str], *, clock: Clock | None = None, session: Any = None) -> Service:
    """Put the service together.

    Raises:
        BadSettings: names every missing variable at once.
    """
    settings = Settings.from_env(environ)
    from chalicelib.aws.deadline import patience_of

    clients = Clients(session or _session(settings.region), patience=patience_of(_function(environ)))
    return Service(settings, clock=clock or SystemClock(), clients=clients)


def _store(settings: Settings, clients: Clients) -> DynamoIncidentStore:
    from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore

    return DynamoIncidentStore(clients("dynamodb"), table=settings.table)


def _registry(settings: Settings, clients: Clients) -> DynamoJobRegistry:
    from chalicelib.aws.dynamodb.jobs import DynamoJobRegistry

    return DynamoJobRegistry(clients("dynamodb"), table=settings.table)


def _training_jobs(settings: Settings, clients: Clients) -> TrainingJobScheduler:
    from chalicelib.platforms.training_job.scheduler import TrainingJobScheduler

    return TrainingJobScheduler(
        clients("sagemaker"), bus=settings.bus, stage=stage_of(settings.stage), roles=settings.training_roles
    )


def _listings(settings: Settings, clients: Clients) -> DynamoListings:
    from chalicelib.aws.dynamodb.listings import DynamoListings

    return DynamoListings(clients("dynamodb"), table=settings.table)


def _answers(settings: Settings, clients: Clients) -> DynamoAnswers:
    from chalicelib.aws.dynamodb.answers import DynamoAnswers

    return DynamoAnswers(clients("dynamodb"), table=settings.table)


def _policy_shelf(settings: Settings, clients: Clients) -> SsmPolicyDocumentStore:
    from chalicelib.aws.ssm.policy_documents import SsmPolicyDocumentStore

    return SsmPolicyDocumentStore(
        clients("ssm"), prefix=settings.policy_prefix, table_client=clients("dynamodb"), table=settings.table
    )


def _mailbox(settings: Settings, clients: Clients) -> S3Mailbox:
    from chalicelib.aws.s3.mailbox import S3Mailbox

    return S3Mailbox(clients("s3"), bucket=settings.bucket)


def _head_nodes(settings: Settings, clients: Clients, clock: Clock) -> S3HeadNodes:
    from chalicelib.aws.s3.cluster_state import S3HeadNodes

    return S3HeadNodes(clients("s3"), clients("sqs"), bucket=settings.bucket, stack=settings.stage, clock=clock)


def _policies(settings: Settings, clients: Clients, clock: Clock) -> SsmPolicies:
    from chalicelib.aws.ssm.policies import SsmPolicies

    return SsmPolicies(clients("ssm"), prefix=settings.policy_prefix, clock=clock)


def _prices(settings: Settings, clients: Clients, clock: Clock) -> SsmPrices:
    from chalicelib.aws.ssm.prices import SsmPrices

    return SsmPrices(clients("ssm"), name=f"{_beside_policies(settings)}/prices", clock=clock)


def _price_shelf(settings: Settings, clients: Clients) -> SsmPolicyDocumentStore:
    from chalicelib.aws.ssm.policy_documents import SsmPolicyDocumentStore

    return SsmPolicyDocumentStore(
        clients("ssm"),
        prefix=_beside_policies(settings),
        table_client=clients("dynamodb"),
        table=settings.table,
        kind="price table",
    )


def _beside_policies(settings: Settings) -> str:
    """`/<stack>`, where `/<stack>/policies/…` and `/<stack>/prices` lie."""
    return settings.policy_prefix.rstrip("/").rpartition("/")[0]


def _executions(settings: Settings, clients: Clients) -> LambdaExecutions:
    from chalicelib.aws.durable import LambdaExecutions

    return LambdaExecutions(clients("lambda"), function=settings.recover_function)


def _clusters(settings: Settings, clients: Clients) -> SageMakerClusters:
    from chalicelib.aws.sagemaker.clusters import SageMakerClusters

    return SageMakerClusters(clients("sagemaker"), stage=stage_of(settings.stage))


def _cluster_nodes(clients: Clients) -> SageMakerClusterNodes:
    from chalicelib.aws.sagemaker.cluster_nodes import SageMakerClusterNodes

    return SageMakerClusterNodes(clients("sagemaker"))


def _quarantine(settings: Settings, clients: Clients) -> SqsQuarantine:
    from chalicelib.aws.sqs.quarantine import SqsQuarantine

    return SqsQuarantine(clients("sqs"), url=settings.quarantine_url)


def _metrics(clients: Clients) -> CloudWatchMetrics:
    from chalicelib.aws.cloudwatch.metrics import CloudWatchMetrics

    return CloudWatchMetrics(clients("cloudwatch"))


def _saves(clients: Clients) -> S3Saves:
    from chalicelib.aws.s3.saves import S3Saves

    return S3Saves(clients("s3"))


def _lemon_ledger(settings: Settings, clients: Clients) -> DynamoHardwareLedger:
    from chalicelib.aws.dynamodb.hardware_ledger import DynamoHardwareLedger

    return DynamoHardwareLedger(clients("dynamodb"), table=settings.table)


def _marks(settings: Settings, clients: Clients) -> DynamoSweepMarks:
    from chalicelib.aws.dynamodb.sweep_marks import DynamoSweepMarks

    return DynamoSweepMarks(clients("dynamodb"), table=settings.table)


def _board(settings: Settings, clients: Clients) -> CloudWatchAlarms:
    from chalicelib.aws.cloudwatch.alarms import CloudWatchAlarms

    return CloudWatchAlarms(clients("cloudwatch"), stack=settings.stage)


def _written(settings: Settings, clients: Clients, clock: Clock) -> SsmSettings:
    from chalicelib.aws.ssm.settings import SsmSettings

    return SsmSettings(clients("ssm"), prefix=settings.settings_prefix, clock=clock)


def _chats(settings: Settings, clients: Clients) -> DynamoChatThreads:
    from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads

    return DynamoChatThreads(clients("dynamodb"), table=settings.table)


def _delivery_queue(settings: Settings, clients: Clients) -> SqsDeliveries:
    from chalicelib.aws.sqs.deliveries import SqsDeliveries

    return SqsDeliveries(clients("sqs"), url=settings.deliveries_url, dead_url=settings.undelivered_url)


def _delivery_log(settings: Settings, clients: Clients) -> DynamoDeliveryLog:
    from chalicelib.aws.sqs.deliveries import DynamoDeliveryLog

    return DynamoDeliveryLog(clients("dynamodb"), table=settings.table)


def _page_shelf(settings: Settings, clients: Clients, clock: Clock) -> S3Pages:
    from chalicelib.aws.s3.pages import S3Pages

    return S3Pages(clients("s3"), bucket=settings.bucket, clock=clock)


def _hook_marks(settings: Settings, clients: Clients) -> DynamoHookMarks:
    from chalicelib.aws.dynamodb.hook_marks import DynamoHookMarks

    return DynamoHookMarks(clients("dynamodb"), table=settings.table)


def _announcer(settings: Settings, clients: Clients) -> BusAnnouncer:
    from chalicelib.channels.bus import BusAnnouncer

    return BusAnnouncer(
        clients("events"),
        bus=settings.bus,
        sns=clients("sns") if settings.topic else None,
        topic=settings.topic or None,
        console_url=settings.console_url,
    )


def _session(region: str) -> Any:
    import boto3
    from botocore.session import get_session

    core = get_session()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=timestamp)
    return boto3.session.Session(botocore_session=core, region_name=region)


def timestamp(value: Any) -> datetime:
    """A time of an answer, aware. botocore's own reader goes through the machine's time zone: for the numbers of
    GetMetricData, a quarter of a million of them in a large sweep, that took more than all else together."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    from botocore.utils import parse_timestamp

    return parse_timestamp(value)  # type: ignore[no-any-return]  # botocore has no types


def _function(environ: Mapping[str, str]) -> str:
    """Whose process this is, empty outside Lambda, which sets _HANDLER: `app.<function>`."""
    return environ.get("_HANDLER", "").rpartition(".")[2]


_installed: Service | None = None


def install(service: Service | None) -> None:
    """Use `service` in this process; None forgets it. For the embedded cloud, which brings its own clock."""
    global _installed
    _installed = service


def service() -> Service:
    """The process's service, made on first use."""
    if _installed is None:
        install(build(os.environ))
    assert _installed is not None  # noqa: S101  install() has just set it; this tells the type checker
    return _installed


def operations() -> tuple[Operation, ...]:
    """The API's operations; none in a Lambda function that is not the API's, which need not load them."""
    if _function(os.environ) not in ("", "app"):
        return ()
    from chalicelib.api.routes import OPERATIONS

    return OPERATIONS


def warm_up() -> None:
    """Make this function's parts at Lambda's init phase; elsewhere (packaging, tests) nothing is read at import.

    All that is made here stays: to look through it for garbage again and again takes a tenth of the init.
    """
    if "AWS_LAMBDA_FUNCTION_NAME" not in os.environ:
        return
    gc.disable()
    service().prepare(_function(os.environ))
    gc.freeze()
    gc.enable()
