"""Typed orders to the agent on a head node, and its answers. Pure; standard library only.

Nothing in an order is ever handed to a shell, and nothing in it is free text to Slurm: job ids are numbers, nodes match
Slurm's own pattern, reasons are made from constants of ours (`REASON_PREFIX`, `Repair`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from rekindle.compat import Self, StrEnum
from rekindle.protocol.cluster.names import check_cluster, is_slurm
from rekindle.protocol.wire import MailboxError, Message, Reader, check_id

MAX_SLURM_JOB: Final = 0x7FFFFFFF
MAX_NODES: Final = 1000
MAX_NODE_COUNT: Final = 10**6
MAX_ENV: Final = 64
MAX_ENV_CHARS: Final = 4096
REASON_PREFIX: Final = "rekindle:"  # ours, so that only ours is undone: `rekindle:<incident id>`
_NODE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_ENV_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


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
    RESUME = "resume"  # undo a drain of ours; anybody else's is refused
    MARK = "mark"  # state=fail reason="Action:Replace|Reboot": HyperPod's own repair
    REBOOT = "reboot"  # scontrol reboot ASAP: plain Slurm
    STACKS = "stacks"  # scancel --signal: all ranks write their stacks; the run's own heartbeat states at which signal
    READ = "read"  # read everything again now and bring the cluster state up to date


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
    the environment of its submission), `spec` the sha256 of what to submit. `exclude` are nodes that it must not get.
    `nodes_min` to `nodes_max` is how many it takes: for SHRINK, and for a start of a Job that was made smaller before.
    `instance_id` is the machine that an order about a node means: HyperPod gives its replacement the same name.
    """

    token: str
    verb: Verb
    cluster: str
    issued_at: datetime
    expires_at: datetime
    attempt: str | None = None
    slurm_job: int | None = None
    new_attempt: str | None = None
    spec: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    nodes_min: int | None = None
    nodes_max: int | None = None
    node: str | None = None
    instance_id: str | None = None
    repair: Repair | None = None
    signal: Signal | None = None
    incident_id: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return {
            "token": self.token,
            "verb": self.verb.value,
            "cluster": self.cluster,
            "issued_at": self.issued_at.isoformat(),
            "expires_at": self.expires_at.isoformat(),
            "attempt": self.attempt,
            "slurm_job": self.slurm_job,
            "new_attempt": self.new_attempt,
            "spec": self.spec,
            "environment": dict(self.environment),
            "exclude": list(self.exclude),
            "nodes_min": self.nodes_min,
            "nodes_max": self.nodes_max,
            "node": self.node,
            "repair": self.repair.value if self.repair else None,
            "signal": self.signal.value if self.signal else None,
            "incident_id": self.incident_id,
        } | ({} if self.instance_id is None else {"instance_id": self.instance_id})

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        order = cls(
            token=reader.identity("token"),
            verb=reader.word("verb", Verb),
            cluster=check_cluster(reader.text("cluster", 63)),
            issued_at=reader.moment("issued_at"),
            expires_at=reader.moment("expires_at"),
            attempt=_attempt(reader, "attempt"),
            slurm_job=reader.optional_whole("slurm_job", 1, MAX_SLURM_JOB),
            new_attempt=_attempt(reader, "new_attempt"),
            spec=_hex(reader, "spec"),
            environment=_environment(reader),
            exclude=tuple(
                check_node(one, f"exclude.{index}") for index, one in enumerate(_list(reader, "exclude", MAX_NODES))
            ),
            nodes_min=reader.optional_whole("nodes_min", 1, MAX_NODE_COUNT),
            nodes_max=reader.optional_whole("nodes_max", 1, MAX_NODE_COUNT),
            node=None if reader.optional_text("node", 64) is None else check_node(reader.text("node", 64)),
            instance_id=reader.optional_text("instance_id", 64),
            repair=None if reader.optional_text("repair") is None else reader.word("repair", Repair),
            signal=None if reader.optional_text("signal") is None else reader.word("signal", Signal),
            incident_id=reader.optional_identity("incident_id"),
        )
        for name in NEEDED[order.verb]:
            if getattr(order, name) is None:
                raise MailboxError(name, f"is needed for {order.verb}")
        return order


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
    Verb.STACKS: ("attempt", "slurm_job", "signal"),
    Verb.READ: (),
}


class Outcome(StrEnum):
    """How an order ended."""

    DONE = "done"
    ALREADY = "already"  # the wanted state was there before us
    REFUSED = "refused"  # a reason that trying again cannot change: stale, expired, not ours, Slurm says no
    FAILED = "failed"  # tried, and it is not known whether it took effect: Slurm did not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderResult(Message):
    """What became of an order. `slurm_job` is the id of the job it started; `detail` is for people."""

    token: str
    verb: Verb
    cluster: str
    outcome: Outcome
    at: datetime
    detail: str = ""
    attempt: str | None = None
    slurm_job: int | None = None
    node: str | None = None
    incident_id: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return {
            "token": self.token,
            "verb": self.verb.value,
            "cluster": self.cluster,
            "outcome": self.outcome.value,
            "at": self.at.isoformat(),
            "detail": self.detail,
            "attempt": self.attempt,
            "slurm_job": self.slurm_job,
            "node": self.node,
            "incident_id": self.incident_id,
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        return cls(
            token=reader.identity("token"),
            verb=reader.word("verb", Verb),
            cluster=check_cluster(reader.text("cluster", 63)),
            outcome=reader.word("outcome", Outcome),
            at=reader.moment("at"),
            detail=reader.text("detail", default=""),
            attempt=_attempt(reader, "attempt"),
            slurm_job=reader.optional_whole("slurm_job", 1, MAX_SLURM_JOB),
            node=None if reader.optional_text("node", 64) is None else check_node(reader.text("node", 64)),
            incident_id=reader.optional_identity("incident_id"),
        )


def check_node(node: object, field: str = "node") -> str:
    """One node's name, never a list or a range. Raises: MailboxError."""
    if not isinstance(node, str) or _NODE.fullmatch(node) is None:
        raise MailboxError(field, "must be one node's name: 1 to 64 characters of A-Z a-z 0-9 . _ -")
    return node


def _attempt(reader: Reader, name: str) -> str | None:
    text = reader.optional_text(name, 128)
    if text is not None and not is_slurm(text):
        raise reader.fail(name, "is no name of an attempt on Slurm")
    return text


def _hex(reader: Reader, name: str) -> str | None:
    text = reader.optional_text(name, 64)
    if text is not None and re.fullmatch(r"[0-9a-f]{64}", text) is None:
        raise reader.fail(name, "must be 64 lower-case hex digits")
    return text


def _list(reader: Reader, name: str, limit: int) -> list[Any]:
    return [] if reader.value(name) is None else list(reader.items(name, limit))


def _environment(reader: Reader) -> dict[str, str]:
    """Only REKINDLE_ variables: an order can tell a run where to resume, not change what it does otherwise."""
    given = reader.mapping("environment")
    if len(given) > MAX_ENV:
        raise reader.fail("environment", f"holds more than {MAX_ENV} variables")
    for name, value in given.items():
        if _ENV_NAME.fullmatch(name) is None or not name.startswith("REKINDLE_"):
            raise reader.fail(f"environment.{name}"[:200], "is not a variable of ours")
        if not isinstance(value, str) or len(value) > MAX_ENV_CHARS or any(ord(char) < 32 for char in value):
            raise reader.fail(f"environment.{name}", f"must be a line of at most {MAX_ENV_CHARS} characters")
    return dict(given)


def token_of(*parts: str) -> str:
    """A token from what makes an order the same order. Raises: MailboxError where the parts make no id."""
    return check_id("-".join(parts), "token")
