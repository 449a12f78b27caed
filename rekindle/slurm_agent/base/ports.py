"""What the agent's parts tell each other: errors, what Slurm shows, and what a reading gives.

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

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from rekindle.compat import StrEnum
from rekindle.protocol.cluster.documents import CauseDoc, NodeFacts
from rekindle.protocol.cluster.orders import Barred


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
    """What one pass of the watcher or the relay gives.

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
    """One thing that `--check` tells. `is_ok` None: worth knowing, and no reason to fail."""

    what: str
    text: str
    is_ok: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputVerdict:
    """What a start's output says: in a sentence for people, "" for nothing, and as fields for programs."""

    text: str = ""
    cause: CauseDoc | None = None


class Memory(Protocol):
    """What the watcher and the relay kept, as of the start of this process."""

    def items(self, prefix: str) -> Mapping[str, bytes]:
        """All that was kept under keys that start so."""
        ...


class OwnActions:
    """What this agent itself did to jobs, also what a forerunner killed half-way began: nothing, without a journal."""

    def has_ended(self, attempt: str) -> bool:  # noqa: ARG002
        """An order to CANCEL or HOLD this start was carried out, or begun."""
        return False

    def has_requeued(self, new_attempt: str) -> bool:  # noqa: ARG002
        """An order to REQUEUE or HOLD that makes this start was carried out, or begun."""
        return False

    def holds(self, attempt: str) -> bool | None:  # noqa: ARG002
        """Whether the last order that held or let go this start held it; None: there was none."""
        return None

    def is_unproven(self, new_attempt: str) -> bool:  # noqa: ARG002
        """An order to SUBMIT this attempt is begun, or was refused: its job, if it never ran, is a copy not let go."""
        return False

    def copy_of(self, new_attempt: str) -> int | None:  # noqa: ARG002
        """The job that an order to SUBMIT this attempt was answered with; None: none is known."""
        return None


class LeaseHolder(Protocol):
    """What the parts that act ask of the cluster's lease."""

    def left_s(self) -> float:
        """For how many seconds this agent may still act; 0: not now. Asked right before each side effect."""
        ...

    def begin(self, token: str, at: datetime) -> None:
        """Write down that an order is about to run its first command. Raises: NotHolder, and then none may run."""
        ...
