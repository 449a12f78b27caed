"""Platforms: the scheduler of an attempt, its mailbox, clusters and their nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.job import RunPlace, WatchPlan

if TYPE_CHECKING:
    from chalicelib.domain.model.action import (
        ActionResult,
        QuarantineCheckpoint,
        RequestCheckpoint,
        ResubmitJob,
    )
    from chalicelib.domain.model.job import Attempt, Job
    from chalicelib.domain.model.known import Known, Maybe
    from chalicelib.domain.model.node import ClusterView, InstanceView
    from chalicelib.domain.model.observation import AttemptView, CheckpointView, ReplyView
    from chalicelib.domain.model.platform import Platform
    from chalicelib.domain.policy.document import Policy
    from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, NodesDoc
    from rekindle.protocol.cluster.orders import Order, OrderResult
    from rekindle.protocol.launch_orders import AttemptOrder
    from rekindle.protocol.reports import RankReport, ReportKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredJob:
    """A platform job that asks for protection by its tags (on Slurm: by its comment).

    `platform` and `cluster` say where it runs, as a Job does.
    `title` is the platform's own display name where that is not `name`. `number`: which start of the run this is.
    `limits` are what cannot be done for this job, one sentence each, notified once at registration. `user` is who runs
    it: the Slurm user, or the role of a training job. `stage`: which stage of Rekindle it belongs to
    (domain/guards/stages.py); empty where only one can know of it. `declared_job`: the Job's id that its environment
    gives its monitor, which signs with it; empty where it gives none.
    """

    name: str
    policy_name: str
    job_id: str | None  # rekindle:job, set on clones
    mailbox: str
    instance_count: int
    created_at: datetime
    checkpoints: str = ""
    watch: WatchPlan = field(default_factory=WatchPlan)
    platform: str = ""
    cluster: str = ""
    title: str = ""
    limits: tuple[str, ...] = ()
    number: int = 1
    user: str = ""
    size: JobSize = field(default_factory=JobSize)
    stage: str = ""
    declared_job: str = ""

    @property
    def place(self) -> RunPlace:
        return RunPlace(self.platform, self.cluster, self.mailbox)


class Scheduler(Protocol):
    """One platform that runs attempts."""

    @property
    def platform(self) -> Platform:
        """What it can do."""
        ...

    def owns(self, attempt: str) -> bool:
        """The name has the form of this platform's names. Asked only of names that come from outside, before a Job
        stores where it runs."""
        ...

    def restarts_between(self, earlier: str, later: str) -> int | None:
        """How many times the same submission was restarted from `earlier` to `later`; None if they are not the same."""
        ...

    def earlier_starts(self, attempt: str) -> tuple[str, ...]:
        """Names of the starts of the same submission before this one, the newest first; a platform may leave out very
        old ones. Empty where each attempt is a submission of its own.
        """
        ...

    def describe(self, attempt: str) -> AttemptView:
        """Status without steps (they come from the Mailbox). A name the platform does not know has status GONE."""
        ...

    def discover(self, attempt: str) -> DiscoveredJob | None:
        """Read tags and settings of a job we do not know; None if it does not ask for protection or is unknown.

        Raises:
            NotOurs: it asks another stage for protection.
        """
        ...

    def find(self, attempt: str) -> DiscoveredJob | None:
        """Like `discover`, whether or not the job asks for protection; `policy_name` is then empty. None if unknown."""
        ...

    def stop(self, attempt: str, *, hold: bool = False, incident_id: str | None = None) -> ActionResult:
        """Ask for the stop. DONE, ALREADY (ended or stopping), PENDING (Slurm), or REFUSED with the platform's reason.

        `hold`: it shall stay in the platform's queue for a later requeue; a platform without a queue stops it.
        `incident_id` is who wants it, and is woken by the answer.
        """
        ...

    def siblings(self, job: Job, *, besides: Collection[str], reported: Sequence[str] = ()) -> tuple[str, ...]:
        """Attempts of the Job that have not ended, `besides` left out: what a submission would run beside. One that has
        come to the end of its training counts as well, where the platform shows it: nothing is left to train. Of those
        that were `reported`, the first that is one answers without a list, which may be out of reach.

        An attempt is a sibling by its job tag, by its mailbox, or by a name that Rekindle gives to attempts of the Job
        while nothing says that it is another run's. It may be submitted by hand, and need not be registered.

        Raises:
            RecoveryError: whether there is one is not known now.
        """
        ...

    def missed(self, job: Job, *, besides: Collection[str]) -> str | None:
        """The newest run of the Job, `besides` left out, that was submitted after its newest attempt and has ended,
        however it ended; None where there is none. It is distinguished from others' like a sibling.

        Raises:
            RecoveryError: whether there is one is not known now.
        """
        ...

    def resubmit(self, action: ResubmitJob, *, job: Job, policy: Policy, incident_id: str) -> ActionResult:
        """Start the clone. DONE; ALREADY (a job of this name with our tags exists); SIBLING (the name is that of a
        living attempt of the Job); NAME_TAKEN (by another run, or by one that has ended); CAPACITY; REFUSED;
        PENDING (Slurm: ordered, not answered; asked again it is the same order).
        """
        ...


class Schedulers(Protocol):
    """The Schedulers of all platforms."""

    def of(self, platform: str) -> Scheduler:
        """That of the platform which a Job stores. Raises: Permanent where there is none of that name."""
        ...

    def of_name(self, attempt: str) -> Scheduler:
        """That of the platform whose names look so, for a name that comes from outside and that no Job stores yet."""
        ...


class Mailbox(Protocol):
    """The meeting place with the training process, under the Job's own prefix (rekindle/protocol/mailbox.py)."""

    def heartbeat(self, job: Job, attempt: AttemptView) -> AttemptView:
        """`attempt` with first and last step, loss state and time of its heartbeat added, if there is one."""
        ...

    def heartbeat_times(self, job: Job) -> Mapping[str, datetime]:
        """When the newest heartbeat of each attempt in the Job's mailbox was written, registered or not.

        Raises:
            RecoveryError: that is not known now.
        """
        ...

    def ask(self, job: Job, action: RequestCheckpoint, *, incident_id: str, now: datetime) -> ActionResult:
        """Write the request. DONE, ALREADY (the same request is there), REFUSED (no way to ask)."""
        ...

    def reply(self, job: Job, request_id: str) -> Maybe[ReplyView | None]:
        """The answer so far: Known(None) if there is none yet."""
        ...

    def checkpoints(
        self, job: Job, attempts: Sequence[Attempt], *, near: Sequence[int] = ()
    ) -> Known[tuple[CheckpointView, ...]]:
        """The newest checkpoints, verified against their manifests, newest first.

        `near`: steps at or below which the next few are wanted, too, however far back they lie.
        """
        ...

    def quarantine(self, job: Job, action: QuarantineCheckpoint, *, by: str, now: datetime) -> ActionResult:
        """Mark a checkpoint as bad: it stays where it is, and reads as a problem from then on.

        DONE, ALREADY (it is marked), REFUSED (no mailbox, or a root that lies nowhere).
        """
        ...

    def reports(self, job: Job, attempt: str, kind: ReportKind, *, life: int = 0) -> Maybe[tuple[RankReport, ...]]:
        """What single ranks say of themselves: those of `kind`, and others of ranks that have none.

        life: whose; which start of the attempt's processes. Unknown where they cannot be read, or are too many for one
        observation.
        """
        ...

    def fence(self, job: Job, *, attempt: str, number: int, superseded: Sequence[str], now: datetime) -> None:
        """Name the only attempt that may write from now on. Idempotent."""
        ...

    def plan(self, job: Job, attempt: str, order: AttemptOrder, *, now: datetime) -> None:
        """Give an attempt that is about to start its resume plan, by its name. Nothing for a Job without a mailbox.

        For platforms that start a job again with its old environment. Idempotent.

        Raises:
            Permanent: the mailbox is not usable, or the order cannot be written.
        """
        ...


class ClusterReader(Protocol):
    """What HyperPod's envelope leaves out."""

    def describe_event(self, cluster: str, event_id: str) -> Mapping[str, Any] | None:
        """DescribeClusterEvent's answer; None on a legacy-mode cluster or when the event is unknown."""
        ...

    def groups_in_motion(self, cluster: str) -> bool | None:
        """True while any instance group scales (CurrentCount != TargetCount); None if that is unknown."""
        ...

    def policy_of(self, cluster: str) -> str | None:
        """The `rekindle:policy` tag of a cluster; None if it asks for no protection, or asks another stage."""
        ...


class ClusterNodes(Protocol):
    """HyperPod's nodes as instances. `cluster` is a name or an ARN throughout."""

    def cluster(self, cluster: str) -> ClusterView | None:
        """Its state, and what its groups are for; None: there is no such cluster."""
        ...

    def alias(self, arn: str) -> str:
        """What the cluster's owner says that its head nodes call it, by the tag `rekindle:cluster`; "" without one."""
        ...

    def instance(
        self, cluster: str, *, node: str, instance_id: str | None, logical_id: str | None
    ) -> InstanceView | None:
        """The instance that the Slurm node `node` runs on now: `instance_id`, or what has taken its place.

        None: no list names one, as between two attempts of a replacement.
        """
        ...

    def reboot(self, cluster: str, instance_ids: Sequence[str]) -> Mapping[str, ActionResult]:
        """One answer per instance. DONE; ALREADY (gone, or at work); UNAVAILABLE (not now); REFUSED, in words."""
        ...

    def replace(self, cluster: str, instance_ids: Sequence[str]) -> Mapping[str, ActionResult]:
        """As `reboot`. Every volume of the instances is lost."""
        ...

    def check(self, cluster: str, *, group: str, instance_ids: Sequence[str]) -> ActionResult:
        """Start a deep health check. DONE; CAPACITY (another one runs in the cluster); REFUSED."""
        ...


class HeadNodes(Protocol):
    """What the agents on Slurm head nodes have written down, and the orders they are given.

    A head node cannot be called: orders wait in the cluster's queue, answers and documents lie in its cluster state
    (rekindle/protocol/cluster). Cluster state whose agent is silent is not evidence about now.
    """

    def agent(self, cluster: str) -> Maybe[AgentDoc]:
        """The agent's heartbeat, however old. Unknown where there never was one, or it cannot be read."""
        ...

    def attempt(self, name: str) -> AttemptDoc | None:
        """One attempt as Slurm shows it; None: the agent is alive and has no such attempt.

        Raises:
            DependencyUnavailable: the agent is silent, has not read Slurm of late, or its document cannot be used.
        """
        ...

    def newest_attempts(self, cluster: str, *, limit: int) -> tuple[str, ...]:
        """The attempts of the cluster that the agent has written of last, newest first, however old that is.

        Raises:
            DependencyUnavailable: they cannot be listed.
        """
        ...

    def nodes(self, cluster: str) -> Maybe[NodesDoc]:
        """The cluster's nodes; Unknown where the agent is silent, Slurm unread, or nothing usable stands there."""
        ...

    def order(self, order: Order) -> OrderResult | None:
        """Give the order and return the answer so far, None while there is none.

        The first order of a token is the one that counts: the same token later sends that one again, which the agent
        carries out once. An order that has expired is sent, too: the agent's refusal is an answer.

        Raises:
            DependencyUnavailable: the cluster has no queue (its agent has never started).
            Permanent: the order cannot be written.
        """
        ...

    def ordered(self, cluster: str, token: str) -> tuple[Order | None, OrderResult | None]:
        """The order of this token as it was first given, and its answer; nothing is sent. Raises as `attempt`."""
        ...

    def prepare(self, cluster: str) -> None:
        """Make sure that the cluster's queue exists. Idempotent."""
        ...

    def clusters(self) -> tuple[str, ...]:
        """Every cluster that has a cluster state, in order."""
        ...
