"""Typed orders to the agent on a head node, and its answers. Pure; standard library only.

Nothing in an order is ever handed to a shell, and nothing in it is free text to Slurm: job ids are numbers, nodes match
Slurm's own pattern, reasons are made from constants of ours (`REASON_PREFIX`, `Repair`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

from rekindle.compat import StrEnum
from rekindle.protocol.bounds import Identity, Items, Sha256, Text, Whole, Words
from rekindle.protocol.cluster.names import AttemptName, ClusterName
from rekindle.protocol.cluster.queue_place import QueueFact, QueueLoss
from rekindle.protocol.codec import Document
from rekindle.protocol.message import Message
from rekindle.protocol.wire import MailboxError, check_id

MAX_SLURM_JOB: Final = 0x7FFFFFFF
MAX_NODES: Final = 1000
MAX_NODE_COUNT: Final = 10**6
MAX_ENV: Final = 64
MAX_ENV_CHARS: Final = 4096
REASON_PREFIX: Final = "rekindle:"  # ours, so that only ours is undone: `rekindle:<incident id>`
_NODE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def check_node(node: object, field: str = "node") -> str:
    """One node's name, never a list or a range. Raises: MailboxError."""
    if not isinstance(node, str) or _NODE.fullmatch(node) is None:
        raise MailboxError(field, "must be one node's name: 1 to 64 characters of A-Z a-z 0-9 . _ -")
    return node


NodeName = Annotated[str, Text(64, check=check_node)]
NodeCount = Annotated[int, Whole(1, MAX_NODE_COUNT)]
SlurmJobId = Annotated[int, Whole(1, MAX_SLURM_JOB)]
# An order can tell a run where to resume, not change what it does otherwise.
VariableName = Annotated[str, Text(64, pattern="REKINDLE_[A-Z0-9_]*", problem="is not a variable of ours")]
VariableValue = Annotated[str, Text(MAX_ENV_CHARS, pattern=r"[^\x00-\x1f]*", problem="must be one line of text")]


class Verb(StrEnum):
    """What an agent can be asked for. Closed."""

    SIGNAL = "signal"  # scancel --signal: a checkpoint of a script that traps it
    CANCEL = "cancel"  # scancel: the attempt ends, and with it the Slurm job
    HOLD = "hold"  # scontrol requeuehold: the attempt ends, the Slurm job stays in the queue, held by us
    REQUEUE = "requeue"  # start the same Slurm job again: released if held, requeued if ended
    SUBMIT = "submit"  # sbatch of the spec under a new Slurm job id
    SHRINK = "shrink"  # let a pending job take fewer nodes, if it says that it can
    EXCLUDE = "exclude"  # set the nodes that a pending job must not get; empty lifts it
    DRAIN = "drain"  # take a node out of scheduling, with our reason
    RESUME = "resume"  # undo a drain of ours; another owner's is refused
    MARK = "mark"  # state=fail reason="Action:Replace|Reboot": HyperPod's own repair
    REBOOT = "reboot"  # scontrol reboot ASAP: plain Slurm


class Repair(StrEnum):
    """HyperPod acts on exactly these words in a node's reason; a near miss is ignored silently.

    Source: SageMaker developer guide, sagemaker-hyperpod-resiliency-slurm-replace-faulty-instance.
    """

    REPLACE = "Action:Replace"
    REBOOT = "Action:Reboot"


class Signal(StrEnum):
    """Signals that may be sent: those that scripts trap to save."""

    USR1 = "USR1"
    USR2 = "USR2"
    TERM = "TERM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Message):
    """One order. The same `token` twice is one order; after `expires_at` it is refused, never carried out.

    `attempt` is the attempt it is about; an order about a start that is over is refused as stale (but for CANCEL, HOLD
    and REQUEUE of the one whose state already is the wanted one, which answer ALREADY). For SUBMIT and REQUEUE,
    `new_attempt` is the name of the start to come, `environment` what it is given (SUBMIT only: a requeued job keeps
    the environment of its submission), `spec` the name of what to submit. `exclude` are nodes that it must not get.
    `nodes_min` to `nodes_max` is how many it takes: for SHRINK, and for a start of a Job that was made smaller before.
    `repoint_others`: jobs of other users that wait for the old start are made to wait for the new one, too.
    `instance_id` is the machine that an order about a node means: HyperPod gives its replacement the same name.
    """

    token: Identity
    verb: Verb
    cluster: ClusterName
    issued_at: datetime
    expires_at: datetime
    attempt: AttemptName | None = None
    slurm_job: SlurmJobId | None = None
    new_attempt: AttemptName | None = None
    spec: Sha256 | None = None
    environment: Annotated[Mapping[VariableName, VariableValue], Items(MAX_ENV)] = field(default_factory=dict)
    exclude: Annotated[tuple[NodeName, ...], Items(MAX_NODES)] = ()
    nodes_min: NodeCount | None = None
    nodes_max: NodeCount | None = None
    repoint_others: bool = False
    node: NodeName | None = None
    repair: Repair | None = None
    signal: Signal | None = None
    incident_id: Identity | None = None
    instance_id: Annotated[str, Text(64)] | None = None

    def check_fields(self) -> None:
        """What its verb needs is there. Raises: MailboxError."""
        for name in NEEDED[self.verb]:
            if getattr(self, name) is None:
                raise MailboxError(name, f"is needed for {self.verb}")


NEEDED: Final[Mapping[Verb, tuple[str, ...]]] = {
    Verb.SIGNAL: ("attempt", "slurm_job", "signal"),
    Verb.CANCEL: ("attempt", "slurm_job"),
    Verb.HOLD: ("attempt", "slurm_job"),
    Verb.REQUEUE: ("attempt", "slurm_job", "new_attempt"),
    Verb.SUBMIT: ("attempt", "new_attempt", "spec"),
    Verb.SHRINK: ("attempt", "slurm_job", "nodes_min", "nodes_max"),
    Verb.EXCLUDE: ("attempt", "slurm_job"),
    Verb.DRAIN: ("node",),
    Verb.RESUME: ("node",),
    Verb.MARK: ("node", "repair"),
    Verb.REBOOT: ("node",),
}


class Outcome(StrEnum):
    """How an order ended."""

    DONE = "done"
    ALREADY = "already"  # the wanted state was there before us
    REFUSED = "refused"  # a reason that trying again cannot change: stale, expired, not ours, Slurm says no
    FAILED = "failed"  # tried, and it is not known whether it took effect: Slurm did not answer


class Barred(StrEnum):
    """Why the head node itself does not carry out an order: what its administrator wrote there."""

    NOT_ALLOWED_HERE = "not_allowed_here"
    OVER_A_CAP = "over_a_cap"  # too many of its kind in an hour or a day
    OBSERVED = "observed"  # it would have been carried out


class RunTie(StrEnum):
    """By what two jobs are starts of one run."""

    JOB = "job"  # both name the same Job
    MAILBOX = "mailbox"
    CHECKPOINTS = "checkpoints"
    CHAIN = "chain"  # the one waits for the other's end, or was submitted within it
    SCRIPT = "script"  # the same script, submitted again in the same way
    UNSURE = "unsure"  # the same script; with which arguments cannot be told


class Standing(StrEnum):
    """How another start of the run stands, without us."""

    HAS_NODES = "has_nodes"
    WILL_RUN = "will_run"  # it waits for nodes, or for what comes by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling(Document):
    """Another start of the run that an order would have started beside. `attempt`: of a protected job."""

    slurm_job: SlurmJobId
    standing: Standing
    tie: RunTie
    attempt: AttemptName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderResult(Message):
    """What became of an order. `slurm_job` is the id of the job it started; `detail` is for people.

    `sibling`: REFUSED, because another start of the run lives or will run by itself. `is_held_by_user`: REFUSED,
    because the job waits held, and not by us. `barred`: REFUSED, by the head node's own file. `queue_losses`: what the
    start that was made has lost.
    """

    token: Identity
    verb: Verb
    cluster: ClusterName
    outcome: Outcome
    at: datetime
    detail: Words = ""
    attempt: AttemptName | None = None
    slurm_job: SlurmJobId | None = None
    node: NodeName | None = None
    incident_id: Identity | None = None
    sibling: Sibling | None = None
    is_held_by_user: bool = False
    barred: Barred | None = None
    queue_losses: Annotated[tuple[QueueLoss, ...], Items(len(QueueFact))] = ()


def token_of(*parts: str) -> str:
    """A token from what makes an order the same order. Raises: MailboxError where the parts make no id."""
    return check_id("-".join(parts), "token")
