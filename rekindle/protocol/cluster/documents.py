"""The cluster state's documents: what a cluster's agent knows, written by it alone, read before each decision. Pure.

Every reader either returns a whole document or raises `MailboxError` naming the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from rekindle.compat import Self, StrEnum
from rekindle.protocol.cluster.names import check_cluster, is_slurm
from rekindle.protocol.cluster.orders import MAX_SLURM_JOB, check_node
from rekindle.protocol.wire import MAX_STEP, MailboxError, Message, Reader

MAX_NODES_DOC_BYTES: Final = 8 * 1024 * 1024
MAX_SPEC_BYTES: Final = 8 * 1024 * 1024  # Slurm's own limit of a script is 4 MiB (max_script_size)
MAX_LISTED: Final = 10_000
SILENT_AFTER: Final = timedelta(seconds=180)  # six heartbeats: one lost write, or a short network outage, is no silence


class SlurmState(StrEnum):
    """A job's base state, in lower case. Source: squeue, JOB STATE CODES. `UNKNOWN` is any word we do not know."""

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


# A job in one of these is over, and can only be requeued. Source: squeue, JOB STATE CODES.
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
    USER = "user"  # scancel or scontrol by its owner, or by an operator
    SLURM = "slurm"  # node failure, time limit, preemption
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDoc(Message):
    """One start of one Slurm job: all that the service knows of it comes from this one document (hence its fields).

    `successor` is the attempt that has taken its place in the same Slurm job (a requeue), ours or not;
    `requeued_by` says who. `held`: the job waits in the queue and will not start before it is released. `reason` is
    Slurm's own word (Resources, Dependency, NodeDown, …). `spec` is the sha256 of what is needed to submit it again,
    None where that could not be captured; `cannot_resubmit` says why a resubmission would not be faithful, an empty
    tuple that it would. `mailbox` and `checkpoints` are URIs; a `file://` one lies on a shared path. `signal` is what
    its script traps in order to save (None: nothing that is known). `is_ready` tells whether a signal would be
    understood: steps run and their processes catch it; None where that is unknown. `node_count` is how many nodes it
    has, or the fewest that it asks for while it waits; `min_nodes` how few its comment says that it can do with;
    `gpu_count` all its GPUs, None where Slurm does not tell.
    """

    attempt: str
    cluster: str
    slurm_job: int
    restart: int
    state: SlurmState
    seen_at: datetime
    name: str = ""
    job_id: str | None = None  # the Job it belongs to, where its comment names one (a resubmission of ours)
    policy: str = "default"
    user: str = ""
    partition: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    node_count: int = 0
    min_nodes: int | None = None
    gpu_count: int | None = None
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    ended_by: EndedBy = EndedBy.UNKNOWN
    detail: str = ""
    successor: str | None = None
    requeued_by: EndedBy = EndedBy.UNKNOWN
    held: bool = False
    is_requeueable: bool = False
    is_known: bool = True  # slurmctld still knows the job (MinJobAge), so that it can be requeued
    has_auto_resume: bool | None = None
    time_limit_s: int | None = None
    exclude: tuple[str, ...] = ()
    mailbox: str = ""
    checkpoints: str = ""
    stdout: str = ""
    signal: str | None = None
    is_ready: bool | None = None
    spec: str | None = None
    cannot_resubmit: tuple[str, ...] = ()
    dependents: tuple[int, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "cluster": self.cluster,
            "slurm_job": self.slurm_job,
            "restart": self.restart,
            "state": self.state.value,
            "seen_at": self.seen_at.isoformat(),
            "name": self.name,
            "job_id": self.job_id,
            "policy": self.policy,
            "user": self.user,
            "partition": self.partition,
            "reason": self.reason,
            "nodes": list(self.nodes),
            "node_count": self.node_count,
            "min_nodes": self.min_nodes,
            "gpu_count": self.gpu_count,
            "submitted_at": _at(self.submitted_at),
            "started_at": _at(self.started_at),
            "ended_at": _at(self.ended_at),
            "exit_code": self.exit_code,
            "exit_signal": self.exit_signal,
            "ended_by": self.ended_by.value,
            "detail": self.detail,
            "successor": self.successor,
            "requeued_by": self.requeued_by.value,
            "held": self.held,
            "is_requeueable": self.is_requeueable,
            "is_known": self.is_known,
            "has_auto_resume": self.has_auto_resume,
            "time_limit_s": self.time_limit_s,
            "exclude": list(self.exclude),
            "mailbox": self.mailbox,
            "checkpoints": self.checkpoints,
            "stdout": self.stdout,
            "signal": self.signal,
            "is_ready": self.is_ready,
            "spec": self.spec,
            "cannot_resubmit": list(self.cannot_resubmit),
            "dependents": list(self.dependents),
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        successor = reader.optional_text("successor", 128)
        attempt = reader.text("attempt", 128)
        for name, value in (("attempt", attempt), ("successor", successor)):
            if value is not None and not is_slurm(value):
                raise reader.fail(name, "is no name of an attempt on Slurm")
        return cls(
            attempt=attempt,
            cluster=check_cluster(reader.text("cluster", 63)),
            slurm_job=reader.whole("slurm_job", 1, MAX_SLURM_JOB),
            restart=reader.whole("restart", 0, 10**6),
            state=reader.word("state", SlurmState),
            seen_at=reader.moment("seen_at"),
            name=reader.text("name", default=""),
            job_id=reader.optional_identity("job_id"),
            policy=reader.text("policy", 64, default="default"),
            user=reader.text("user", 255, default=""),
            partition=reader.text("partition", 255, default=""),
            reason=reader.text("reason", default=""),
            nodes=_nodes(reader, "nodes"),
            node_count=reader.optional_whole("node_count", 0, 10**6) or 0,
            min_nodes=reader.optional_whole("min_nodes", 1, 10**6),
            gpu_count=reader.optional_whole("gpu_count", 1, 10**7),
            submitted_at=_moment(reader, "submitted_at"),
            started_at=_moment(reader, "started_at"),
            ended_at=_moment(reader, "ended_at"),
            exit_code=reader.optional_whole("exit_code", 0, 255),
            exit_signal=reader.optional_whole("exit_signal", 0, 255),
            ended_by=reader.word("ended_by", EndedBy, EndedBy.UNKNOWN),
            detail=reader.text("detail", default=""),
            successor=successor,
            requeued_by=reader.word("requeued_by", EndedBy, EndedBy.UNKNOWN),
            held=_flag(reader, "held") or False,
            is_requeueable=_flag(reader, "is_requeueable") or False,
            is_known=_flag(reader, "is_known") is not False,
            has_auto_resume=_flag(reader, "has_auto_resume"),
            time_limit_s=reader.optional_whole("time_limit_s"),
            exclude=_nodes(reader, "exclude"),
            mailbox=reader.text("mailbox", 2048, default=""),
            checkpoints=reader.text("checkpoints", 2048, default=""),
            stdout=reader.text("stdout", 4096, default=""),
            signal=reader.optional_text("signal", 16),
            is_ready=_flag(reader, "is_ready"),
            spec=reader.optional_text("spec", 64),
            cannot_resubmit=_texts(reader, "cannot_resubmit"),
            dependents=tuple(_list(reader, "dependents")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node as Slurm shows it. `state` is the base state in lower case, `flags` the others (drain, fail, …).

    `instance_id` and `group` come from resource_config.json, None where it does not name the node. `jobs` are the
    Slurm jobs on it now, `others` those of them that never asked for protection. `gpus` are GPU UUIDs, and `serial` the
    machine's serial number, where these were recorded for the instance that stands there (docs/hardware.md);
    empty and None where not. `booted_at` is when its operating system started, as Slurm shows it. `seen_at`, which the
    document leaves out, is when all that held last.
    """

    name: str
    state: str
    flags: tuple[str, ...] = ()
    reason: str = ""
    instance_id: str | None = None
    group: str | None = None
    jobs: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    serial: str | None = None
    booted_at: datetime | None = None
    seen_at: datetime | None = None

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "name": self.name,
            "state": self.state,
            "flags": list(self.flags),
            "reason": self.reason,
            "instance_id": self.instance_id,
            "group": self.group,
            "jobs": list(self.jobs),
            "others": list(self.others),
            "gpus": list(self.gpus),
            "serial": self.serial,
            "booted_at": _at(self.booted_at),
            "seen_at": _at(self.seen_at),
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        """Raises: MailboxError."""
        return cls(
            name=check_node(reader.text("name", 64), "name"),
            state=reader.text("state", 64),
            flags=_texts(reader, "flags"),
            reason=reader.text("reason", default=""),
            instance_id=reader.optional_text("instance_id", 32),
            group=reader.optional_text("group", 63),
            jobs=tuple(_list(reader, "jobs")),
            others=tuple(_list(reader, "others")),
            gpus=_texts(reader, "gpus"),
            serial=reader.optional_text("serial", 64),
            booted_at=_moment(reader, "booted_at"),
            seen_at=_moment(reader, "seen_at"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesDoc(Message):
    """All nodes of a cluster, as they were at `seen_at`. Written when one of them changes."""

    LIMIT_BYTES: ClassVar[int] = MAX_NODES_DOC_BYTES

    cluster: str
    seen_at: datetime
    nodes: tuple[NodeFacts, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "seen_at": self.seen_at.isoformat(),
            "nodes": [node.to_wire() for node in self.nodes],
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        nodes = reader.items("nodes", MAX_LISTED)
        return cls(
            cluster=check_cluster(reader.text("cluster", 63)),
            seen_at=reader.moment("seen_at"),
            nodes=tuple(NodeFacts.from_reader(_inner(one, f"nodes.{index}.")) for index, one in enumerate(nodes)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDoc(Message):
    """The agent's heartbeat: it is there (`at`), and Slurm was last read whole at `read_at` (None: not yet).

    The other documents are written when they change; what they say held at `read_at`. `cluster_arn` is set on HyperPod.
    `problems` are what the agent cannot do at present, one line each. It is written by the one agent that holds the
    cluster's lease, its `epoch`th holder (0: of a version without a lease), on `host`; `standbys` are the others' ids.
    """

    cluster: str
    agent_id: str
    at: datetime
    started_at: datetime
    read_at: datetime | None = None
    version: str = ""
    slurm_version: str = ""
    cluster_arn: str = ""
    problems: tuple[str, ...] = ()
    host: str = ""
    epoch: int = 0
    standbys: tuple[str, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "agent_id": self.agent_id,
            "at": self.at.isoformat(),
            "started_at": self.started_at.isoformat(),
            "read_at": _at(self.read_at),
            "version": self.version,
            "slurm_version": self.slurm_version,
            "cluster_arn": self.cluster_arn,
            "problems": list(self.problems),
            "host": self.host,
            "epoch": self.epoch,
            "standbys": list(self.standbys),
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        return cls(
            cluster=check_cluster(reader.text("cluster", 63)),
            agent_id=reader.identity("agent_id"),
            at=reader.moment("at"),
            started_at=reader.moment("started_at"),
            read_at=_moment(reader, "read_at"),
            version=reader.text("version", 64, default=""),
            slurm_version=reader.text("slurm_version", 64, default=""),
            cluster_arn=reader.text("cluster_arn", 256, default=""),
            problems=_texts(reader, "problems"),
            host=reader.text("host", 128, default=""),
            epoch=reader.optional_whole("epoch", 0, MAX_STEP) or 0,
            standbys=_texts(reader, "standbys", 128),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Message):
    """What is needed to submit a Slurm job again, also from another head node. Content-addressed, so it holds no times.

    `options` are sbatch's long options with their values (None for a flag), what the job was given beyond its script's
    own `#SBATCH` lines included. `environment` is the submitter's; names in `left_out` looked like secrets and are not
    kept. `dependency` is Slurm's expression as it was at submission, not yet satisfied parts only. `shown` is what
    Slurm showed of the job, which a copy of it must show too.
    """

    LIMIT_BYTES: ClassVar[int] = MAX_SPEC_BYTES

    script: str
    arguments: tuple[str, ...] = ()
    workdir: str = ""
    user: str = ""
    options: Mapping[str, str | None] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    dependency: str = ""
    shown: Mapping[str, str] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        return {
            "script": self.script,
            "arguments": list(self.arguments),
            "workdir": self.workdir,
            "user": self.user,
            "options": dict(self.options),
            "environment": dict(self.environment),
            "left_out": list(self.left_out),
            "dependency": self.dependency,
            "shown": dict(self.shown),
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        options, environment = reader.mapping("options"), reader.mapping("environment")
        shown = reader.mapping("shown")
        if not all(isinstance(value, str) for value in shown.values()):
            raise reader.fail("shown", "must hold texts")
        if not all(value is None or isinstance(value, str) for value in options.values()):
            raise reader.fail("options", "must hold texts")
        if not all(isinstance(value, str) for value in environment.values()):
            raise reader.fail("environment", "must hold texts")
        return cls(
            script=reader.text("script", MAX_SPEC_BYTES),
            arguments=_texts(reader, "arguments", 128 * 1024),
            workdir=reader.text("workdir", 4096, default=""),
            user=reader.text("user", 255, default=""),
            options=options,
            environment=environment,
            left_out=_texts(reader, "left_out"),
            dependency=reader.text("dependency", 64 * 1024, default=""),
            shown=shown,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """One checkpoint on a shared path. `root` is a file:// URI; `problems` empty means whole, by manifest or format."""

    step: int
    root: str
    kind: str
    saved_at: datetime
    attempt: str = ""
    manifest: str = ""
    problems: tuple[str, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "step": self.step,
            "root": self.root,
            "kind": self.kind,
            "saved_at": self.saved_at.isoformat(),
            "attempt": self.attempt,
            "manifest": self.manifest,
            "problems": list(self.problems),
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        """Raises: MailboxError."""
        return cls(
            step=reader.whole("step", 0, MAX_STEP),
            root=reader.text("root", 2048),
            kind=reader.text("kind", 64),
            saved_at=reader.moment("saved_at"),
            attempt=reader.text("attempt", 128, default=""),
            manifest=reader.text("manifest", 2048, default=""),
            problems=_texts(reader, "problems"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDoc(Message):
    """The checkpoints that lie on a Job's shared path, newest first, as the agent judged them at `seen_at`."""

    job_id: str
    seen_at: datetime
    checkpoints: tuple[FoundCheckpoint, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "seen_at": self.seen_at.isoformat(),
            "checkpoints": [one.to_wire() for one in self.checkpoints],
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        found = reader.items("checkpoints", 200)
        return cls(
            job_id=reader.identity("job_id"),
            seen_at=reader.moment("seen_at"),
            checkpoints=tuple(
                FoundCheckpoint.from_reader(_inner(one, f"checkpoints.{index}.")) for index, one in enumerate(found)
            ),
        )


def _at(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _moment(reader: Reader, name: str) -> datetime | None:
    return None if reader.optional_text(name, 64) is None else reader.moment(name)


def _flag(reader: Reader, name: str) -> bool | None:
    value = reader.value(name)
    if value is not None and not isinstance(value, bool):
        raise reader.fail(name, "must be true, false or null")
    return value


def _list(reader: Reader, name: str) -> list[int]:
    found = list(reader.items(name, MAX_LISTED)) if reader.value(name) is not None else []
    if not all(type(one) is int and 0 < one <= MAX_SLURM_JOB for one in found):
        raise reader.fail(name, "must hold Slurm job ids")
    return found


def _texts(reader: Reader, name: str, limit: int = 2000) -> tuple[str, ...]:
    found = list(reader.items(name, MAX_LISTED)) if reader.value(name) is not None else []
    if not all(isinstance(one, str) and len(one) <= limit for one in found):
        raise reader.fail(name, f"must hold texts of at most {limit} characters")
    return tuple(found)


def _nodes(reader: Reader, name: str) -> tuple[str, ...]:
    found = list(reader.items(name, MAX_LISTED)) if reader.value(name) is not None else []
    return tuple(check_node(one, f"{name}.{index}") for index, one in enumerate(found))


def _inner(value: object, at: str) -> Reader:
    if not isinstance(value, dict):
        raise MailboxError(at.rstrip("."), "must be an object")
    return Reader(value, at)
