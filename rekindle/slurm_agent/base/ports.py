"""What the agent's core needs of Slurm, and what it gives in return.

`rekindle.slurm_agent.slurm` implements `Slurm`, `Watcher` and `Relay`; its `build.build(ground) -> Parts` puts them
together. The core (orders, journal, publisher) knows nothing of squeue or scontrol.

SlurmError
├── SlurmUnavailable   no answer that counts: slurmctld away, a time limit passed, a command missing. What was asked may
│                      have taken effect or not. Try again later.
│   └── NotHolder      this agent does not hold the cluster's lease now: nothing was run
└── SlurmRefused       slurmctld refused, and nothing was changed: trying again changes nothing.
    ├── UnknownJob     slurmctld does not know the job (any more)
    ├── UnknownNode    slurmctld knows no such node
    ├── NotProtected   the job is none of ours, and is left alone
    └── BarredHere     an administrator of this head node does not allow it, or not so often
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from rekindle.compat import StrEnum
from rekindle.protocol.cluster.documents import AttemptDoc, JobSpec, NodeFacts
from rekindle.protocol.cluster.orders import Barred, Order, Repair, Sibling, Signal, Verb
from rekindle.protocol.cluster.queue_place import QueueFact, QueueLoss


class SlurmError(Exception):
    """A command did not do what was asked. The text is one line, for people."""


class SlurmUnavailable(SlurmError):
    """No answer that counts; unknown whether it took effect."""


class NotHolder(SlurmUnavailable):
    """This agent does not hold the cluster's lease now: it may not act, and nothing was run."""


class SlurmRefused(SlurmError):
    """Slurm refused; nothing was changed."""


class UnknownJob(SlurmRefused):
    """slurmctld does not know the job."""


class UnknownNode(SlurmRefused):
    """slurmctld knows no such node."""


class NotProtected(SlurmRefused):
    """The job has never asked for protection: no order may touch it."""


class BarredHere(SlurmRefused):
    """An administrator of this head node does not allow it, or not so often."""

    def __init__(self, why: str, barred: Barred) -> None:
        super().__init__(why)
        self.barred = barred


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """A node as slurmctld shows it at this moment. `booted_at` is None where its slurmd has not reported it;
    `reason_at`: when its reason was given."""

    facts: NodeFacts
    booted_at: datetime | None = None
    reason_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many nodes a pending job asks for at least, and why it cannot run on fewer ("": it can)."""

    low: int
    fixed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """Where a job stands in the queue. `priority` None: it is held, or that is not known."""

    waiting_since: datetime | None = None
    priority: int | None = None
    nice: int | None = None
    qos: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repointed:
    """Jobs that wait for another one: those that wait for its next start now, and those of other users, left as they
    are."""

    changed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


class Slurm(Protocol):
    """Commands. Each is one argument list with a time limit, and raises SlurmError; none retries.

    Reads ask slurmctld, never a cache. Each command that changes something inherits `AgentContext.guard_fd`
    (`subprocess` `pass_fds`), so that an agent that is started again can tell that none of its forerunner's still runs.
    """

    def check(self, order: Order) -> None:
        """Before the first command of an order. Raises: BarredHere where an administrator does not allow it here."""
        ...

    def barred_here(self) -> tuple[str, ...]:
        """What an administrator does not allow as a whole, one line each, for people."""
        ...

    # ---- reads
    def job(self, slurm_job: int) -> AttemptDoc | None:
        """The job's present start (after a requeue: the new one). None: slurmctld does not know the job (any more).

        Raises: NotProtected for a job that is none of ours.
        """
        ...

    def start(self, attempt: str) -> AttemptDoc | None:
        """What this agent, or one before it, has written down of a start; None: nothing. It tells whose job it was,
        and when it was submitted. Raises: SlurmUnavailable where that is unknown now."""
        ...

    def steps(self, slurm_job: int) -> int:
        """How many steps of the job run, batch and extern not counted. 0 for a job that is not known."""
        ...

    def find_by_attempt(self, attempt: str) -> AttemptDoc | None:
        """The job whose comment carries `attempt=<attempt>`, whatever its state and restart count; None: none known."""
        ...

    def sibling(self, old: AttemptDoc, *, besides: Collection[int]) -> Sibling | None:
        """Another start of the run, of the same user, that has nodes or will get them without us; `besides` are none.

        Raises: SlurmUnavailable where that is unknown now.
        """
        ...

    def node(self, name: str) -> NodeNow | None:
        """None: no such node."""
        ...

    def is_held_by_admin(self, slurm_job: int) -> bool:
        """An administrator holds the pending job, also where we had held it before: only he may let it go.

        Raises: SlurmError where slurmctld does not tell who holds it.
        """
        ...

    def waiting(self) -> tuple[AttemptDoc, ...]:
        """The protected jobs that wait held, by us or by others."""
        ...

    def nodes_out_by_us(self) -> tuple[NodeFacts, ...]:
        """The nodes that are out of service with a reason of ours."""
        ...

    def held_unprotected(self) -> tuple[int, ...]:
        """The jobs that want no protection any more and wait because we hold them."""
        ...

    def refusals_of_copies(self) -> tuple[str, ...]:
        """What would be refused of copies of the jobs that are followed, one line each; asked of sbatch one by one."""
        ...

    def late_copies(self) -> tuple[int, ...]:
        """Copies that wait beside the one that an order was answered with: slurmctld made them late."""
        ...

    # ---- jobs
    def note(self, slurm_job: int, order: Order, did: Verb | None = None) -> None:
        """Write what is done to the job (the order's verb; `HOLD` while we hold it), and for which Incident, where
        sacct shows it. Not over another's words, and of no effect on the order: raises nothing."""
        ...

    def signal(self, slurm_job: int, signal: Signal) -> None:
        """scancel --signal, to what the script traps it with (steps, or the batch shell where only that does)."""
        ...

    def signal_steps(self, slurm_job: int, signal: Signal) -> None:
        """scancel --signal, to the steps whatever the script traps."""
        ...

    def cancel(self, slurm_job: int) -> None:
        """scancel."""
        ...

    def hold(self, slurm_job: int) -> None:
        """scontrol uhold: a pending job. Its user's hold, as requeuehold's is: an administrator's differs from it."""
        ...

    def requeue_hold(self, slurm_job: int) -> None:
        """scontrol requeuehold: of a running job, or of one that has ended and is still known."""
        ...

    def release(self, slurm_job: int) -> None:
        """scontrol release."""
        ...

    def release_unprotected(self, slurm_job: int) -> None:
        """scontrol release of one that is not ours any more."""
        ...

    def cancel_copy(self, slurm_job: int) -> None:
        """scancel of a copy of ours that waits and has never run; of no other job."""
        ...

    def queue_place(self, slurm_job: int) -> QueuePlace:
        """Of a job that waits held because of us: with the priority that it had before."""
        ...

    def restore_place(self, slurm_job: int, before: QueuePlace) -> tuple[QueueLoss, ...]:
        """Give a start as much of its place again as Slurm lets an operator give; what it has lost."""
        ...

    def start_now(self, slurm_job: int) -> None:
        """scontrol update starttime=now: a requeued job need not wait cred_expire+1 s."""
        ...

    def exclude(self, slurm_job: int, nodes: Collection[str]) -> None:
        """scontrol update excnodelist: of a pending job; none lifts it. Names that are nodes no more are left out."""
        ...

    def needs_one_of(self, slurm_job: int, nodes: Collection[str]) -> str:
        """Why a pending job could never start without those nodes; "" where nothing says so. slurmctld takes such a
        list, and the job waits for ever (BadConstraints)."""
        ...

    def size(self, slurm_job: int) -> Size:
        """Of a pending job."""
        ...

    def resize(self, slurm_job: int, low: int, high: int) -> None:
        """scontrol update numnodes: of a pending job."""
        ...

    def submit(self, spec: JobSpec, order: Order) -> int:
        """sbatch of the spec, held, as its user, with the order's environment, excluded nodes and comment; its id.

        The comment carries `attempt=<order.new_attempt>`: it is how a submission is found again.
        """
        ...

    def differences(self, slurm_job: int, spec: JobSpec, order: Order) -> tuple[str, ...]:
        """In what a copy that was submitted so is not the same job as its original; none: in nothing.

        Raises: SlurmUnavailable where slurmctld has lost the copy, whatever job has its number now.
        """
        ...

    def other_secrets(self, slurm_job: int, spec: JobSpec, order: Order) -> tuple[str, ...]:
        """The variables that the spec leaves out and that have another value in the copy than in its original."""
        ...

    def repoint(self, slurm_job: int, new_job: int, *, others: bool) -> Repointed:
        """Let the jobs that wait for one wait for the other, or again for the same: those of its user, with `others`
        everybody's. Idempotent."""
        ...

    # ---- nodes
    def drain(self, node: str, reason: str) -> None:
        """scontrol update state=drain."""
        ...

    def resume(self, node: str) -> None:
        """scontrol update state=resume."""
        ...

    def mark(self, node: str, repair: Repair) -> None:
        """scontrol update state=fail, with the reason that is exactly `repair`."""
        ...

    def reboot(self, node: str, reason: str) -> None:
        """scontrol reboot ASAP. A node that was drained before comes back drained."""
        ...


class NewsType(StrEnum):
    """Detail-types on the bus, source `rekindle.agent`."""

    STARTED = "Rekindle Agent Started"
    JOB = "Rekindle Slurm Job"
    NODE = "Rekindle Slurm Node"
    ANSWERED = "Rekindle Order Answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One event for the bus. `detail` is its whole wire, with the version."""

    type: NewsType
    at: datetime
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one pass of a watcher or relay gives.

    documents: whole objects for the cluster state, by key in the bucket; only those that changed. memory: what the
    watcher wants to know again after a restart (None deletes). Documents, news and memory are kept in one transaction:
    a change is never remembered as published before it is. problems: what cannot be done at present, one line each.
    """

    documents: Mapping[str, bytes] = field(default_factory=dict)
    news: tuple[News, ...] = ()
    memory: Mapping[str, bytes | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing about how Slurm is set up. `is_ok` None: it may go wrong by this one day."""

    what: str
    text: str
    is_ok: bool | None


class Watcher(Protocol):
    """Reads Slurm and says what changed."""

    slurm_version: str  # "" until it was read
    queue_losses: tuple[QueueFact, ...]  # what a new start loses here; none until it was read
    cluster_arn: str  # "" off HyperPod

    def read(self, now: datetime) -> Reading:
        """Read everything. Raises: SlurmUnavailable, with nothing remembered of that pass."""
        ...

    def tell_again(self) -> None:
        """The next reading holds every document, changed or not."""
        ...

    @property
    def commands(self) -> int:
        """How many of Slurm's the looks have taken so far."""
        ...

    def advice(self, now: datetime) -> tuple[Advice, ...]:
        """How Slurm is set up, as of the last reading. Raises: SlurmError."""
        ...


class Relay(Protocol):
    """Carries the mailboxes on shared paths, and looks at the checkpoints there. Runs in a thread of its own."""

    def run_once(self, now: datetime) -> Reading:
        """One pass. Raises nothing but what is a fault of ours."""
        ...


class Memory(Protocol):
    """What a watcher or relay kept, as of the start of this process."""

    def items(self, prefix: str) -> Mapping[str, bytes]:
        """All that was kept under keys that start so."""
        ...


class OwnActions(Protocol):
    """What this agent itself did to jobs, from its journal; also what a forerunner killed half-way began."""

    def has_ended(self, attempt: str) -> bool:
        """An order to CANCEL or HOLD this start was carried out, or begun."""
        ...

    def has_requeued(self, new_attempt: str) -> bool:
        """An order to REQUEUE or HOLD that makes this start was carried out, or begun."""
        ...

    def holds(self, attempt: str) -> bool | None:
        """Whether the last order that held or let go this start held it; None: there was none."""
        ...

    def is_unproven(self, new_attempt: str) -> bool:
        """An order to SUBMIT this attempt is begun, or was refused: its job, if it never ran, is a copy not let go."""
        ...

    def copy_of(self, new_attempt: str) -> int | None:
        """The job that an order to SUBMIT this attempt was answered with; None: none is known."""
        ...


class LeaseHolder(Protocol):
    """What the parts that act ask of the cluster's lease."""

    def left_s(self) -> float:
        """For how many seconds this agent may still act; 0: not now. Asked right before each side effect."""
        ...

    def begin(self, token: str, at: datetime) -> None:
        """Write down that an order is about to run its first command. Raises: NotHolder, and then none may run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """What the Slurm side is given. `s3` is a boto3 client. `guard_fd`: see `Slurm`; None in tests of one part."""

    cluster: str
    bucket: str
    s3: Any
    memory: Memory
    own_actions: OwnActions
    resource_config: str  # path of resource_config.json; need not exist
    state_dir: Path
    allow_file: str  # see `privileged.allowed`; need not exist
    is_leaving: bool = False  # what is held is given back, and nothing else is done
    guard_fd: int | None = None
    holding: LeaseHolder | None = None  # None in tests of one part, and where nothing is changed
    environ: Mapping[str, str] = field(default_factory=dict)  # of the commands: PATH, SLURM_CONF
    wall: Callable[[], datetime] | None = None  # the host's clock, which is slurmctld's; None: this machine's
    partitions: frozenset[str] = frozenset()  # whose batch jobs are protected without a word of theirs
    accounts: frozenset[str] = frozenset()
    channels: Any = (
        None  # `privileged.remote.Channels` to root's helper; None where this process has all the rights there are
    )
    keeps: bool = True  # False: specs are kept in memory alone


class KeptSpecs(Protocol):
    """What is needed to submit jobs again, on the head node's own file system; see copies/kept.py."""

    def get(self, name: str) -> JobSpec | None:
        """None: it is not here, or not what its name says."""
        ...

    def remove(self) -> tuple[str, ...]:
        """Remove all of it. The folders that there were. Raises: OSError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The Slurm side, put together."""

    slurm: Slurm
    watcher: Watcher
    kept: KeptSpecs
    relay: Relay | None = None
