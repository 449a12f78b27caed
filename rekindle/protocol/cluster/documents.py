"""The cluster state: what the agent of a Slurm cluster knows. The service reads it before each decision.

Each document is an object in the stack's bucket (`names.py` has the keys) that only the agent writes. Reading one
(`from_json`) gives the whole document or raises MailboxError naming the field. Absent fields have their defaults, so
that agents and services of different versions read each other. Pure; standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final

from rekindle.compat import StrEnum
from rekindle.protocol.bounds import Count, Identity, Items, Required, Sparse, Text, Whole, Words
from rekindle.protocol.cluster.names import AttemptName, ClusterName, cluster_prefix
from rekindle.protocol.cluster.orders import MAX_NODE_COUNT, NodeCount, NodeName, SlurmJobId
from rekindle.protocol.cluster.queue_place import QueueFact
from rekindle.protocol.codec import Document
from rekindle.protocol.message import Message
from rekindle.protocol.run_places import RunPlaces
from rekindle.protocol.signals import FaultClass

MAX_NODES_DOC_BYTES: Final = 8 * 1024 * 1024
MAX_SPEC_BYTES: Final = 8 * 1024 * 1024  # Slurm's own limit of a script is 4 MiB (max_script_size)
MAX_CHECKPOINTS: Final = 200
SILENT_AFTER: Final = timedelta(seconds=180)  # six heartbeats: one lost write, or a short network outage, is no silence

# ---- types of fields -------------------------------------------------------------------------------------------------

ExitByte = Annotated[int, Whole(0, 255)]
FilePath = Annotated[str, Text(4096)]  # Source: Linux, PATH_MAX
GpuCount = Annotated[int, Whole(1, 10**7)]
HostName = Annotated[str, Text(128)]
Label = Annotated[str, Text(64)]
MailboxUri = Annotated[str, Text(2048)]
RestartCount = Annotated[int, Whole(0, 10**6)]
SlurmName = Annotated[str, Text(255)]  # of a user or a partition

NodeNames = Annotated[tuple[NodeName, ...], Items()]
SlurmJobIds = Annotated[tuple[SlurmJobId, ...], Items()]
Lines = Annotated[tuple[Words, ...], Items()]

# ---- attempts --------------------------------------------------------------------------------------------------------


class SlurmState(StrEnum):
    """The base state of a Slurm job, in lower case; `UNKNOWN` is any word we do not know.

    Source: squeue manual, JOB STATE CODES.
    """

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETING = "completing"
    CONFIGURING = "configuring"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    TIMEOUT = "timeout"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    BOOT_FAIL = "boot_fail"
    DEADLINE = "deadline"
    OUT_OF_MEMORY = "out_of_memory"
    REQUEUED = "requeued"  # this start is over: Slurm, a person or we put the job back into the queue
    REVOKED = "revoked"
    STOPPED = "stopped"
    GONE = "gone"  # slurmctld no longer knows the job, and nothing told how it ended
    UNKNOWN = "unknown"


# A job in one of these has ended: it can only be requeued. Source: squeue manual, JOB STATE CODES.
OVER: Final = frozenset(
    {
        SlurmState.COMPLETED,
        SlurmState.CANCELLED,
        SlurmState.FAILED,
        SlurmState.TIMEOUT,
        SlurmState.NODE_FAIL,
        SlurmState.PREEMPTED,
        SlurmState.BOOT_FAIL,
        SlurmState.DEADLINE,
        SlurmState.OUT_OF_MEMORY,
        SlurmState.REVOKED,
    }
)


class EndedBy(StrEnum):
    """Who ended a start, as far as the agent can tell."""

    ITSELF = "itself"
    AGENT = "agent"  # an order of ours
    USER = "user"  # scancel or scontrol by its owner, or by another user; and where Slurm does not tell by whom
    ADMIN = "admin"  # by root or Slurm's own user: an administrator, or another recovery layer
    SLURM = "slurm"  # node failure, time limit, preemption
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseDoc(Document):
    """What the signatures found in a start's own output: the root cause, as the reader of a document takes it.

    `label`, `rule` and `response` are words of the signatures' tables. `line` counts from 1 in the end of the output
    that was read, and `evidence` is that line.
    """

    label: Label
    fault: FaultClass
    response: Label
    rule: Label
    node: HostName | None = None
    rank: Count | None = None
    line: Count | None = None
    evidence: Words = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDoc(Message):
    """One start of one Slurm job. The service knows of an attempt what this document says, hence its many fields."""

    attempt: AttemptName
    cluster: ClusterName
    slurm_job: SlurmJobId
    restart: RestartCount  # 0 for the first start
    state: SlurmState
    seen_at: datetime

    name: Words = ""  # the job's name, as its owner gave it
    job_id: Identity | None = None  # the Job it belongs to, where its comment names one (a resubmission of ours)
    policy: Label = "default"
    user: SlurmName = ""
    partition: SlurmName = ""
    reason: Words = ""  # Slurm's own word for why it waits or ended: Resources, Dependency, NodeDown, …

    nodes: NodeNames = ()
    node_count: Annotated[int, Whole(0, MAX_NODE_COUNT)] = (
        0  # how many it has; while it waits, the fewest that it asks for
    )
    min_nodes: NodeCount | None = None  # the fewest that its comment says it can do with
    gpu_count: GpuCount | None = None  # of all nodes together; None where Slurm does not tell

    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: ExitByte | None = None
    exit_signal: ExitByte | None = None
    step_exit_code: ExitByte | None = None  # the highest of its steps, which its script may not have passed on
    step_exit_signal: ExitByte | None = None
    ended_by: EndedBy = EndedBy.UNKNOWN
    cancelled_by: Count | None = None  # the uid that cancelled it; None where Slurm does not tell
    detail: Words = ""  # how it ended, for people
    cause: CauseDoc | None = None  # what its output says of it; None where it says nothing, or could not be read

    successor: AttemptName | None = None  # the attempt that took its place in the same Slurm job (a requeue)
    requeued_by: EndedBy = EndedBy.UNKNOWN  # who made that successor
    lost_nodes: NodeNames = ()  # those of its nodes that were down or did not answer when it was over
    held: bool = False  # it waits in the queue and does not start before it is released
    is_requeueable: bool = False
    is_known: bool = True  # slurmctld still knows the job (MinJobAge), so that it can be requeued
    has_auto_resume: bool | None = None
    time_limit_s: Count | None = None
    exclude: NodeNames = ()  # nodes that it must not get

    mailbox: MailboxUri = ""  # a file:// URI lies on a shared path
    checkpoints: MailboxUri = ""  # likewise
    places: RunPlaces | None = None  # both with their real paths; None: of an older agent
    stdout: FilePath = ""
    signal: Annotated[str, Text(16)] | None = None  # what its script traps in order to save; None: nothing known
    is_ready: bool | None = None  # that signal would be understood: steps run and their processes catch it

    spec: Label | None = None  # name of the JobSpec to submit it again; None where that could not be captured
    cannot_resubmit: Lines = ()  # why a resubmission would not be faithful; empty: it would be
    dependents: SlurmJobIds = ()  # jobs that wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Message):
    """What is needed to submit a Slurm job again, also from another head node. It holds no times: the same has the same
    name. It is on the cluster's own file system alone.

    `options` are sbatch's long options with their values (None for a flag), what the job was given beyond its script's
    own `#SBATCH` lines included. `environment` is the submitter's; names in `left_out` looked like secrets and are not
    kept. `dependency` is Slurm's expression as it was at submission, not only the parts that are not yet satisfied.
    `shown` is what Slurm showed of the job, which a copy of it must show too.
    """

    LIMIT_BYTES: ClassVar[int] = MAX_SPEC_BYTES

    script: Annotated[str, Text(MAX_SPEC_BYTES)]
    arguments: Annotated[tuple[Annotated[str, Text(128 * 1024)], ...], Items()] = ()  # Source: Linux, MAX_ARG_STRLEN
    workdir: FilePath = ""
    user: SlurmName = ""
    options: Mapping[str, str | None] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    left_out: Lines = ()
    dependency: Annotated[str, Text(64 * 1024)] = ""
    shown: Mapping[str, str] = field(default_factory=dict)


# ---- nodes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts(Document):
    """One node as Slurm shows it."""

    name: NodeName
    state: Label  # the base state, in lower case
    flags: Lines = ()  # the other states: drain, fail, …
    reason: Words = ""
    instance_id: Annotated[str, Text(32)] | None = None  # of resource_config.json; None where it does not name the node
    group: Annotated[str, Text(63)] | None = None  # likewise
    jobs: SlurmJobIds = ()  # that run on it now
    others: SlurmJobIds = ()  # those of them that never asked for protection
    gpus: Lines = ()  # GPU UUIDs, where they were recorded for the instance that stands there (docs/hardware.md)
    serial: Label | None = None  # the machine's serial number, likewise
    booted_at: datetime | None = None  # when its operating system started, as Slurm shows it
    ending_since: datetime | None = None  # since when all jobs on it are COMPLETING, where that takes too long
    seen_at: datetime | None = None  # when all of this held last; a NodesDoc says it for all of its nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesDoc(Message):
    """All nodes of a cluster, as they were at `seen_at`. Written when one of them changes."""

    LIMIT_BYTES: ClassVar[int] = MAX_NODES_DOC_BYTES

    cluster: ClusterName
    seen_at: datetime
    nodes: Annotated[tuple[NodeFacts, ...], Items(), Required()] = ()


# ---- the agent -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDoc(Message):
    """The heartbeat of the one agent that holds the cluster's lease.

    The other documents are written when they change; what they say held at `read_at`.
    """

    cluster: ClusterName
    agent_id: Identity
    at: datetime
    started_at: datetime
    read_at: datetime | None = None  # when Slurm was last read whole; None: not yet
    version: Label = ""
    slurm_version: Label = ""
    cluster_arn: Annotated[str, Text(256)] = ""  # on HyperPod
    problems: Lines = ()  # what the agent cannot do at present, one line each
    host: HostName = ""
    epoch: Count = 0  # the lease's, which counts its holders; 0: it never held it
    standbys: Annotated[tuple[Annotated[str, Text(128)], ...], Items()] = ()  # ids of the agents that stand by
    queue_losses: Annotated[tuple[QueueFact, ...], Items()] = ()  # what a new start loses in this cluster's queue


# ---- checkpoints on a shared path ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint(Document):
    """One checkpoint on a shared path, as the agent judged it."""

    step: Count
    root: MailboxUri  # a file:// URI
    kind: Label
    saved_at: datetime
    attempt: Annotated[str, Text(128)] = ""
    manifest: MailboxUri = ""
    problems: Lines = ()  # by its manifest or its format; empty: it is whole
    loss_unread: Annotated[bool, Sparse()] = False  # as its manifest says


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDoc(Message):
    """The checkpoints that lie on a Job's shared path, newest first, as the agent judged them at `seen_at`."""

    job_id: Identity
    seen_at: datetime
    checkpoints: Annotated[tuple[FoundCheckpoint, ...], Items(MAX_CHECKPOINTS), Required()] = ()


MAX_FOLLOWED: Final = 20_000


def followed_key(cluster: str) -> str:
    return f"{cluster_prefix(cluster)}followed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedDoc(Message):
    """The names, in order; each one's own document says the rest."""

    LIMIT_BYTES: ClassVar[int] = 4 * 1024 * 1024

    cluster: ClusterName
    attempts: Annotated[tuple[AttemptName, ...], Items(MAX_FOLLOWED), Required()] = ()
