"""What the service needs from the world, as Protocols. Adapters make them real; tests use fakes that keep the contract.

Every method may raise Retryable (Throttled, DependencyUnavailable) and NotAuthorized (domain/model/errors.py) besides
what its docstring names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.job import WatchPlan

if TYPE_CHECKING:
    from chalicelib.domain.model.action import (
        ActionResult,
        QuarantineCheckpoint,
        RequestCheckpoint,
        ResubmitJob,
        Severity,
    )
    from chalicelib.domain.model.hardware_ledger import HardwareFault, HardwareRecord
    from chalicelib.domain.model.incident import Incident, TimelineEntry
    from chalicelib.domain.model.job import Attempt, Job
    from chalicelib.domain.model.known import Known, Maybe
    from chalicelib.domain.model.node import ClusterView, InstanceView
    from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView, ReplyView
    from chalicelib.domain.model.platform import Platform
    from chalicelib.domain.model.signal import Signal
    from chalicelib.domain.model.switches import ShadowScope, Switches
    from chalicelib.domain.policy.document import Policy
    from chalicelib.domain.reporting.prices import Prices
    from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, NodesDoc
    from rekindle.protocol.cluster.orders import Answer, Order
    from rekindle.protocol.mailbox import AttemptOrder
    from rekindle.protocol.reports import RankReport, ReportKind


class Clock(Protocol):
    """The time, aware UTC."""

    def now(self) -> datetime: ...


class Joined(StrEnum):
    """How a Signal met an Incident."""

    OPENED = "opened"
    JOINED = "joined"
    DUPLICATE = "duplicate"  # this very fact was taken in before
    CLOSED = "closed"  # the Incident has closed meanwhile; ask again


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a Signal went. `callback_id` is the pending wake-up callback, None while nothing waits.

    `is_full`: there was no room for it; it is not kept, and wakes nobody.
    """

    outcome: Joined
    incident_id: str
    generation: int = 1
    callback_id: str | None = None
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """An Incident as stored, with the Signals its workflow has not absorbed yet, in order of arrival."""

    incident: Incident
    inbox: tuple[Signal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of Incidents, newest first; `cursor` is opaque, None on the last page."""

    incidents: tuple[Incident, ...]
    cursor: str | None


class IncidentStore(Protocol):
    """Incidents with inbox and timeline."""

    def open(self, incident: Incident, signal: Signal, *, now: datetime) -> Entry:
        """Create `incident` with `signal` in its inbox, unless its Job (or cluster) has an open one.

        Atomic: the Incident, the Job's pointer and the Signal's dedupe mark appear together or not at all. With an
        open Incident there already, the Signal joins that one instead (two writes). Outcomes: OPENED, JOINED,
        DUPLICATE (this fact was seen before, in whatever Incident; its id is returned), CLOSED (lost a race; retry).
        """
        ...

    def join(self, incident_id: str, signal: Signal, *, now: datetime) -> Entry:
        """Add `signal` to the inbox of an open Incident: at most two writes. JOINED, DUPLICATE or CLOSED.

        A DUPLICATE still returns the callback id, so that a lost wake is healed by the platform's own redelivery.
        """
        ...

    def look(self, incident_id: str, *, generation: int, callback_id: str, look_by: datetime) -> Looked:
        """Publish `callback_id` and read the whole Incident in one write (strongly consistent).

        `look_by` is when the sweep may conclude that the next look is overdue; `record` may move it later.

        Published before it is read: a Signal that arrives later completes this callback, an earlier one is in the
        answer; so no wake is ever lost in between.

        Raises:
            VersionConflict: a newer generation has taken over; this execution must end.
            UnknownEntity: no such Incident.
        """
        ...

    def record(
        self,
        incident: Incident,
        *,
        expected_version: int,
        token: str,
        absorbed: int,
        entry: TimelineEntry,
        look_by: datetime | None,
    ) -> Incident:
        """Write the Incident's new state and timeline line, fenced by version and generation; returns it as stored.

        Drops the first `absorbed` Signals of the inbox. Closing also frees the Job's pointer, in the same
        transaction. `look_by` is when the sweep may conclude that the next look is overdue. Writing again with the
        `token` that was written last is a no-op that returns the stored Incident.

        Raises:
            VersionConflict: somebody else wrote in between.
        """
        ...

    def append(self, incident_id: str, *, token: str, entry: TimelineEntry) -> None:
        """Add a line to the timeline without touching the Incident; the same token twice writes once."""
        ...

    def load(self, incident_id: str) -> Looked:
        """Read without publishing anything. Raises UnknownEntity."""
        ...

    def callback_of(self, incident_id: str) -> str | None:
        """The callback published by the newest look, None if there was none yet."""
        ...

    def timeline(self, incident_id: str) -> tuple[TimelineEntry, ...]:
        """The whole story in order."""
        ...

    def list_open(self) -> Iterator[tuple[Incident, datetime | None]]:
        """Every open Incident with its `look_by`. For the sweep: an index query, never a scan."""
        ...

    def list_closed(self, *, limit: int, cursor: str | None = None) -> Page:
        """Closed Incidents, newest first."""
        ...

    def list_for_job(self, job_id: str, *, limit: int) -> tuple[Incident, ...]:
        """A Job's Incidents, newest first."""
        ...

    def list_for_node(self, cluster: str, node: str, *, limit: int) -> tuple[Incident, ...]:
        """The Incidents of one node of a cluster, newest first."""
        ...

    def claim(self, incident_id: str, *, token: str) -> bool:
        """True for the first who asks for `token`, False ever after.

        For a side effect that takes no token itself: one who finds it claimed cannot know whether it was carried out.
        """
        ...

    def next_generation(self, incident_id: str, *, generation: int) -> int:
        """Take over from `generation`: returns generation + 1. Raises VersionConflict if somebody else did."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What each look at an Incident begins with. `job` is None where it is about none."""

    switches: Switches
    job: Job | None


class JobRegistry(Protocol):
    """Jobs, their Attempts, and the switches and the breaker that are true for all of them."""

    def register(self, job: Job, attempt: Attempt) -> Job:
        """Create the Job with its first Attempt, and return `job` itself; if the Job exists, return that as it is."""
        ...

    def get(self, job_id: str) -> Job:
        """Raises UnknownEntity."""
        ...

    def standing(self, job_id: str | None) -> Standing:
        """The switches, and that Job, as of one call. Raises UnknownEntity."""
        ...

    def known(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Those of these Jobs that are registered, by their ids; a hundred to a call."""
        ...

    def job_of_attempt(self, attempt_name: str) -> str | None:
        """The job id of a platform name, None if nobody registered it."""
        ...

    def add_attempt(self, job: Job, attempt: Attempt, *, now: datetime) -> Job:
        """Make `attempt` the Job's current one, fenced by the Job's version; marks the old one superseded. The run goes
        on by it: the sweep looks after the Job again, and no order halts it any more.

        Adding the attempt that is current already is a no-op. Raises VersionConflict.
        """
        ...

    def update_attempt(self, attempt: Attempt) -> None:
        """Write what is known of an Attempt (status, steps, end)."""
        ...

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        """All Attempts in order."""
        ...

    def active(self, *, after: str = "") -> Iterator[Job]:
        """Every Job the sweep looks after, in the order of their ids: an index query, never a scan, read as it goes.

        `after` leaves out the Jobs up to and including that id. A record that cannot be read is logged and left out.
        """
        ...

    def set_watch(self, job_id: str, watch: WatchPlan) -> None:
        """How the Job is watched from now on. Raises UnknownEntity."""
        ...

    def list_jobs(self, *, limit: int, cursor: str | None = None) -> tuple[tuple[Job, ...], str | None]:
        """Jobs, active first page by page."""
        ...

    def deactivate(self, job_id: str, *, now: datetime, halted_by: str = "") -> None:
        """The run is over: the sweep stops looking. Idempotent. `halted_by`: who wants it to stay so; once that is
        known a deactivation without it leaves it as it is.
        """
        ...

    def count_active(self) -> int:
        """How many Jobs the sweep looks after: keys only."""
        ...

    def is_paused(self) -> bool:
        """The global pause."""
        ...

    def set_paused(self, paused: bool, *, who: str, now: datetime, why: str = "") -> None:
        """Set or lift the global pause."""
        ...

    def switches(self) -> Switches:
        """Every switch and the breaker: one strongly consistent read."""
        ...

    def set_shadow(self, scope: ShadowScope, name: str, on: bool, *, who: str, now: datetime) -> None:
        """Put a Job, a cluster or everything into shadow mode, or out of it. `name` counts for the first two."""
        ...

    def will_act(self, incident_id: str, *, now: datetime, since: datetime) -> int:
        """Note that the Incident is about to act, and count the Incidents that said so after `since`, this one too.

        Noted before it is counted: of any number that do this at once, the last to be noted counts them all.
        """
        ...

    def trip(self, incident_id: str, *, now: datetime, said: str) -> None:
        """Open the breaker, unless it is open already."""
        ...

    def lift(self, *, who: str, now: datetime) -> None:
        """Close the breaker."""
        ...

    def pages_for_breaker(self, incident_id: str) -> bool:
        """True for the first Incident that asks since the breaker tripped, and for it again: people are paged once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """A platform job that asks for protection by its tags (on Slurm: by its comment).

    `platform` and `cluster` say where it runs, as a Job does.
    `title` is the platform's own display name where that is not `name`. `number`: which start of the run this is.
    `limits` are what cannot be done for this job, one sentence each, told once at registration. `user` is who runs
    it: the Slurm user, or the role of a training job. `stage`: which stage of Rekindle it belongs to
    (domain/guards/stages.py); empty where only one can know of it.
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

    def restarts_between(self, one: str, other: str) -> int | None:
        """How many times the same submission was restarted from `one` to `other`; None where they are not the same."""
        ...

    def describe(self, attempt: str) -> AttemptView:
        """Status without steps (they come from the Mailbox). A name the platform does not know has status GONE."""
        ...

    def discover(self, attempt: str) -> Discovered | None:
        """Read tags and settings of a job we do not know; None if it does not ask for protection or is unknown.

        Raises:
            NotOurs: it asks another stage for protection.
        """
        ...

    def find(self, attempt: str) -> Discovered | None:
        """Like `discover`, whether or not the job asks for protection; `policy_name` is then empty. None if unknown."""
        ...

    def stop(self, attempt: str, *, hold: bool = False, incident_id: str | None = None) -> ActionResult:
        """Ask for the stop. DONE, ALREADY (ended or stopping), PENDING (Slurm), or REFUSED with the platform's reason.

        `hold`: it shall stay in the platform's queue for a later requeue; a platform without a queue stops it.
        `incident_id` is who wants it, and is woken by the answer.
        """
        ...

    def siblings(self, job: Job, *, besides: Collection[str], told: Sequence[str] = ()) -> tuple[str, ...]:
        """Attempts of the Job that have not ended, `besides` left out: what a submission would run beside. One that has
        come to the end of its training counts as well, where the platform shows it: nothing is left to train. Of those
        that were `told` of, the first that is one answers without a list, which may be out of reach.

        An attempt is a sibling by its job tag, by its mailbox, or by a name that Rekindle gives to attempts of the Job
        while nothing says that it is another run's. It may be submitted by hand, and need not be registered.

        Raises:
            RecoveryError: whether there is one cannot be told now.
        """
        ...

    def missed(self, job: Job, *, besides: Collection[str]) -> str | None:
        """The newest run of the Job, `besides` left out, that was submitted after its newest attempt and has ended,
        however it ended; None where there is none. It is told from others' like a sibling.

        Raises:
            RecoveryError: whether there is one cannot be told now.
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

    def beat(self, job: Job, attempt: AttemptView) -> AttemptView:
        """`attempt` with first and last step, loss state and beat time added from its heartbeat, if there is one."""
        ...

    def beating(self, job: Job, *, since: datetime) -> tuple[str, ...]:
        """The attempts whose heartbeats in the Job's mailbox were written at or after `since`, registered or not.

        Raises:
            RecoveryError: that cannot be told now.
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

    def reports(self, job: Job, attempt: str, kind: ReportKind) -> Maybe[tuple[RankReport, ...]]:
        """What single ranks of the attempt say of themselves: those of `kind`, and others of ranks that have none.

        Unknown where they cannot be read, or are too many for one look.
        """
        ...

    def fence(self, job: Job, *, attempt: str, number: int, superseded: Sequence[str], now: datetime) -> None:
        """Name the only attempt that may write from now on. Idempotent."""
        ...

    def plan(self, job: Job, attempt: str, order: AttemptOrder, *, now: datetime) -> None:
        """Tell an attempt that is about to start where it goes on, by its name. Nothing for a Job without a mailbox.

        For platforms that start a job again with its old environment. Idempotent.

        Raises:
            Permanent: the mailbox is not usable, or the order cannot be written.
        """
        ...


class Policies(Protocol):
    """Policy documents."""

    def load(self, name: str) -> Policy:
        """Raises UnknownEntity, InvalidPolicy. "default" always exists: the built-in one where none is stored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """A policy document as it is stored. `version` counts its writings from 1."""

    name: str
    version: int
    text: str
    modified_at: datetime | None


class PolicyShelf(Protocol):
    """Where policy documents are kept, for those who edit them."""

    def listing(self) -> tuple[StoredPolicy, ...]:
        """Every stored document, by name."""
        ...

    def stored(self, name: str) -> StoredPolicy | None:
        """None where nothing is stored under that name."""
        ...

    def write(self, name: str, text: str, *, replaces: int, now: datetime) -> StoredPolicy:
        """Store `text` in place of version `replaces` (0: nothing is stored yet).

        Raises:
            Outdated: another version is there.
            VersionConflict: somebody else is writing this very document now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which Incidents. None: any. `is_open` None: both, the open ones first. `since`: opened then or later."""

    is_open: bool | None = None
    job_id: str | None = None
    cluster: str | None = None
    fault: str | None = None
    since: datetime | None = None


class Listings(Protocol):
    """Pages for people: each costs a bounded number of reads, however much is stored.

    All raise InvalidRequest for a cursor that is not theirs.
    """

    def incidents(self, wanted: Wanted, *, limit: int, cursor: str | None = None) -> Page:
        """Newest first. A page may hold fewer than `limit`, even none, and yet have a cursor: what `wanted` leaves out
        was read, too."""
        ...

    def jobs(self, *, active: bool | None, limit: int, cursor: str | None = None) -> tuple[tuple[Job, ...], str | None]:
        """By id; `active` None: both, the active ones first."""
        ...

    def timeline(
        self, incident_id: str, *, limit: int, cursor: str | None = None
    ) -> tuple[tuple[TimelineEntry, ...], str | None]:
        """The story from its beginning. Raises UnknownEntity."""
        ...

    def open_incidents(self) -> int:
        """How many are open. The index lags by a second."""
        ...

    def active_jobs(self) -> int:
        """How many Jobs are active. The index lags by a second."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What is known of an order's key. `answer` is what it was answered, None where that never came to be."""

    same: bool
    answer: Mapping[str, Any] | None = None


class AnswerMemory(Protocol):
    """The memory of orders that were given with a key."""

    def begin(self, key: str, *, fingerprint: str, now: datetime) -> Remembered | None:
        """Note that the order `key` begins. None: it is new; else what is known, `same` if it asked for the same."""
        ...

    def finish(self, key: str, *, answer: Mapping[str, Any]) -> None:
        """Keep what the order was answered."""
        ...


class PriceList(Protocol):
    """What hours of instances cost."""

    def load(self) -> Prices:
        """The user's table; the shipped one where none is stored. One that cannot be used prices nothing."""
        ...


class Executions(Protocol):
    """The durable executions of `recover`."""

    def start(self, incident_id: str, *, generation: int) -> None:
        """Start the Incident's execution; one that exists under the same name is left alone."""
        ...

    def wake(self, callback_id: str, *, why: str) -> bool:
        """Complete the callback that a look waits on. False if it is gone (answered, or its execution ended)."""
        ...

    def running(self) -> frozenset[str]:
        """Names of all running executions."""
        ...


class Quarantine(Protocol):
    """Where events go that could not be read. Nothing is lost, nothing is retried in a storm."""

    def put(self, *, raw: str, function: str, error: str, field: str, at: datetime) -> None: ...

    def peek(self, *, limit: int) -> tuple[Mapping[str, Any], ...]:
        """Up to `limit` quarantined events, left where they are."""
        ...

    def take(self, *, limit: int) -> Iterator[tuple[Mapping[str, Any], str]]:
        """Events with their receipts; each stays hidden until `drop`, or comes back."""
        ...

    def drop(self, receipt: str) -> None: ...


class NoticeKind(StrEnum):
    """What a notice is for."""

    NEWS = "news"
    APPROVAL = "approval"  # an answer is wanted: `approval_id`
    CHANGE = "change"  # the Incident stands elsewhere now; for those who show its state, nobody is to be disturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an Incident can be looked at.

    `url` is empty where nothing can be opened. `until` is when a signed link ends at the latest; None for an address
    that stays. `command` prints a new link.
    """

    url: str
    until: datetime | None
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message to people. `token` is equal for the same message sent twice; `incident_id` is empty where it is about
    none.

    `fault`, `phase` are the Incident's own words. `paste` are what an on-call person runs or opens next, each a label
    and a command or address. `sequence` orders the notices of one Incident when compared as text, however they arrive;
    empty where the notice is about none. `address` is None where it is about none, and before it is known.
    """

    token: str
    severity: Severity
    title: str
    text: str
    incident_id: str
    job_id: str | None
    at: datetime
    kind: NoticeKind = NoticeKind.NEWS
    approval_id: str = ""
    fault: str = ""
    phase: str = ""
    cluster: str = ""
    node: str = ""
    paste: tuple[tuple[str, str], ...] = ()
    sequence: str = ""
    address: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLink:
    """A signed link to an Incident's page: it opens for whoever holds it, until `until` at the latest.

    It ends sooner where the credentials that signed it end sooner.
    """

    url: str
    until: datetime
    written_at: datetime


class IncidentPages(Protocol):
    """Incidents' pages, private, each under one key that every new state is written over."""

    def put(self, incident_id: str, page: str) -> None:
        """Write the page."""
        ...

    def link(self, incident_id: str, *, lasts: timedelta) -> PageLink | None:
        """A fresh link; None where no page is there."""
        ...


class Announcer(Protocol):
    """Tells people. Losing a message must never fail a recovery: adapters raise only Retryable."""

    def announce(self, notice: Notice) -> None: ...


class ClusterReader(Protocol):
    """What HyperPod's envelope leaves out."""

    def describe_event(self, cluster: str, event_id: str) -> Mapping[str, Any] | None:
        """DescribeClusterEvent's answer; None on a legacy-mode cluster or when the event is unknown."""
        ...

    def groups_in_motion(self, cluster: str) -> bool | None:
        """True while any instance group scales (CurrentCount != TargetCount); None if it cannot be told."""
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

    Nobody reaches a head node: orders wait in the cluster's queue, answers and documents stand on its whiteboard
    (rekindle/protocol/cluster). A whiteboard whose agent is silent says nothing about now.
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

    def order(self, order: Order) -> Answer | None:
        """Give the order and return the answer so far, None while there is none.

        The first order of a token is the one that counts: the same token later sends that one again, which the agent
        carries out once. An order that has expired is sent, too: the agent's refusal is an answer.

        Raises:
            DependencyUnavailable: the cluster has no queue (its agent has never started).
            Permanent: the order cannot be written.
        """
        ...

    def ordered(self, cluster: str, token: str) -> tuple[Order | None, Answer | None]:
        """The order of this token as it was first given, and its answer; nothing is sent. Raises as `attempt`."""
        ...

    def prepare(self, cluster: str) -> None:
        """Make sure that the cluster's queue exists. Idempotent."""
        ...

    def clusters(self) -> tuple[str, ...]:
        """Every cluster that has a whiteboard, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricQuery:
    """One metric at one dimension, in periods of `period_s`. `key` is the caller's own name for it.

    Below a minute there are data only of the last three hours, and only where the sender sent that finely.
    """

    key: str
    namespace: str
    name: str
    dimension: tuple[str, str]
    stat: str
    period_s: int = 60


Series = tuple[tuple[datetime, float], ...]
"""Data points, oldest first."""


class Metrics(Protocol):
    """Many metrics in few calls."""

    def series_of(
        self, queries: Sequence[MetricQuery], *, since: datetime, until: datetime
    ) -> Mapping[str, Maybe[Series]]:
        """By key. Unknown where the call failed or only a part of the data came; Known(()) where there is none.

        Never raises for what AWS says: one failing call leaves its own metrics Unknown, and no others.
        """
        ...


class JobListing(Protocol):
    """The platform's states in few calls."""

    def changed(self, since: datetime) -> Maybe[Mapping[str, AttemptStatus]]:
        """Attempts whose state changed after `since`; Unknown where the list cannot be read to its end.

        A list lags, and names no reasons: what it says of an end is to be confirmed by `Scheduler.describe`, and a name
        that it does not hold has not changed, which is never "gone".
        """
        ...


class Saves(Protocol):
    """When a run saved."""

    def save_times(self, job: Job) -> Maybe[tuple[datetime, ...]]:
        """When the current attempt's newest checkpoints were completed, oldest first; bounded in calls and in length.

        Unknown where it cannot be listed, or not to its end.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepMark:
    """Where the sweep stands. A round is one pass over all active Jobs, in one sweep or in several.

    `cursor`: the id of the last Job that was looked at, empty at a round's begin. `jobs` is how many the last whole
    round met, `met` how many this one has so far. `alarms_token`: where the listing of alarms goes on.
    `has_shared`: the round has met a Job that the shared alarm is for.
    """

    round: int = 0
    cursor: str = ""
    began_at: datetime | None = None
    last_began_at: datetime | None = None
    jobs: int = 0
    met: int = 0
    alarms_token: str = ""
    has_shared: bool = False


class LemonLedger(Protocol):
    """What single pieces of hardware have had, by their marks (domain/model/hardware_ledger.py)."""

    def add(self, mark: str, fault: HardwareFault) -> HardwareRecord:
        """Add one fault; the same Incident's twice counts once. The record as it is then."""
        ...

    def read(self, marks: Sequence[str]) -> tuple[HardwareRecord, ...]:
        """The records that exist."""
        ...

    def listing(self, *, limit: int, repeated_only: bool) -> tuple[HardwareRecord, ...]:
        """Records with more than one fault, then the others; each by its newest fault, newest first. An index query."""
        ...


class SweepMarks(Protocol):
    """The sweep's own memory."""

    def load(self) -> SweepMark:
        """The mark, a fresh one where there is none."""
        ...

    def save(self, mark: SweepMark) -> None: ...


class AlarmBoard(Protocol):
    """CloudWatch alarms of ours. Names are made from the Job's id, so that every call may be repeated."""

    def put(self, job: Job) -> tuple[str, ...]:
        """Create the Job's own alarms or bring them up to date; their names.

        Raises:
            CapacityUnavailable: the account's quota of alarms is used up; those made so far stay.
        """
        ...

    def put_shared(self) -> str:
        """The one alarm over all Jobs that asked for it; its name. Raises CapacityUnavailable."""
        ...

    def remove(self, job_ids: Sequence[str]) -> None:
        """Delete these Jobs' alarms; one that is not there is no error."""
        ...

    def remove_shared(self) -> None:
        """Delete the shared alarm, if it is there."""
        ...

    def listed(self, token: str) -> tuple[frozenset[str], str]:
        """The Jobs that one page of our alarms is about, and the token of the next page, empty after the last."""
        ...

    def tags_of(self, arn: str) -> Mapping[str, str]:
        """Tags of any alarm; empty for one that is gone."""
        ...
