"""What a platform with an agent or a queue of its own tells of one start of an attempt, and bad nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from rekindle.protocol.cluster.documents import EndedBy

# The platform dates a submission to the second, and always alike for the same start.
ANOTHER_RUN: Final = timedelta(minutes=10)
# How long an order to stop may wait for its agent. One that is carried out later could meet a run that has recovered by
# itself; where the stop is still wanted then, it is decided, and ordered, anew.
STOP_VALID: Final = timedelta(seconds=60)


class Submission(StrEnum):
    """How a new attempt is started."""

    CLONE = "clone"  # a copy of the platform's own record of the old one
    REQUEUE = "requeue"  # the same submission again
    SUBMIT = "submit"  # what was submitted before, as a new submission


class StartState(StrEnum):
    """The state of a start, where that is more than AttemptStatus tells."""

    UNKNOWN = "unknown"
    QUEUED = "queued"  # it waits in the platform's queue: nothing of it runs
    RUNNING = "running"
    SUSPENDED = "suspended"  # its processes are stopped, and may go on
    PUT_BACK = "put_back"  # over; the next start of the same submission has taken its place
    LOST_NODE = "lost_node"  # over, because it lost a node or a node did not come up
    PREEMPTED = "preempted"  # over, in favour of another run
    WITHDRAWN = "withdrawn"  # over; another cluster of the same federation runs it
    PAST_DEADLINE = "past_deadline"  # over, at the deadline that it was submitted with
    ENDED = "ended"  # over in another way, see AttemptStatus


class Waits(StrEnum):
    """How the wait of a queued start can end."""

    IN_QUEUE = "in_queue"  # by itself: somebody's job ends, a time comes, a node is back
    HELD = "held"  # when whoever holds it lets it go
    DOUBTFUL = "doubtful"  # perhaps by itself: a node or a partition is away, or the request is too large for ever
    NEVER = "never"  # not as it was asked for: a person must change the request, or a limit


UNKNOWN_REASON: Final = "a reason that is not known here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a queued start waits: `word` is the platform's own, `said` what it means. `is_short`: it waits for nodes, and
    for nothing else, so that fewer might do. `for_jobs`: it waits for other jobs to end.
    """

    word: str = ""
    waits: Waits = Waits.IN_QUEUE
    said: str = "it waits its turn"
    is_short: bool = False
    for_jobs: bool = False

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "word": self.word,
            "waits": self.waits.value,
            "said": self.said,
            "is_short": self.is_short,
            "for_jobs": self.for_jobs,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Wait:
        """Inverse of `to_wire`."""
        return cls(
            word=wire["word"],
            waits=Waits(wire["waits"]),
            said=wire["said"],
            is_short=bool(wire["is_short"]),
            for_jobs=bool(wire["for_jobs"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartView:
    """One start of one submission.

    `handle` is the platform's id of the submission, as its commands take it. `wait` says why it waits, while it is
    queued. `held`: it stays in the queue until it is released. `lost_node`: it was over because a node was, whether or
    not it was put back since. `is_known`: the platform still knows it, so that it can be requeued. `has_spec`: what is
    needed to submit it again is kept; `cannot_resubmit` says why that would not be faithful. `has_mailbox`: a new
    start can be told by a message where to resume. `has_auto_resume` is None where the script could not be read.
    `dependents` counts the jobs that wait for this one. `exclude` are the nodes that it must not get, whoever said so.
    `node_count` is how many nodes it has, or asks for at least; `min_nodes` how few its own comment says that it can
    do with.
    """

    handle: str
    restart: int = 0
    state: StartState = StartState.UNKNOWN
    lost_node: bool = False
    nodes: tuple[str, ...] = ()
    is_requeueable: bool = False
    is_known: bool = True
    held: bool = False
    has_auto_resume: bool | None = None
    cannot_resubmit: tuple[str, ...] = ()
    has_spec: bool = False
    has_mailbox: bool = False
    wait: Wait = Wait()
    ended_by: EndedBy = EndedBy.UNKNOWN
    requeued_by: EndedBy = EndedBy.UNKNOWN
    dependents: int = 0
    exclude: tuple[str, ...] = ()
    submitted_at: datetime | None = None
    node_count: int = 0
    min_nodes: int | None = None

    @property
    def is_queued(self) -> bool:
        """It waits in the platform's queue: nothing of it runs."""
        return self.state is StartState.QUEUED

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "handle": self.handle,
            "restart": self.restart,
            "state": self.state.value,
            "lost_node": self.lost_node,
            "nodes": list(self.nodes),
            "is_requeueable": self.is_requeueable,
            "is_known": self.is_known,
            "held": self.held,
            "has_auto_resume": self.has_auto_resume,
            "cannot_resubmit": list(self.cannot_resubmit),
            "has_spec": self.has_spec,
            "has_mailbox": self.has_mailbox,
            "wait": self.wait.to_wire(),
            "ended_by": self.ended_by.value,
            "requeued_by": self.requeued_by.value,
            "dependents": self.dependents,
            "exclude": list(self.exclude),
            "submitted_at": self.submitted_at.isoformat() if self.submitted_at else None,
            "node_count": self.node_count,
            "min_nodes": self.min_nodes,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> StartView:
        """Inverse of `to_wire`."""
        return cls(
            handle=wire["handle"],
            restart=int(wire["restart"]),
            state=StartState(wire["state"]),
            lost_node=bool(wire["lost_node"]),
            nodes=tuple(wire["nodes"]),
            is_requeueable=bool(wire["is_requeueable"]),
            is_known=bool(wire["is_known"]),
            held=bool(wire["held"]),
            has_auto_resume=wire["has_auto_resume"],
            cannot_resubmit=tuple(wire["cannot_resubmit"]),
            has_spec=bool(wire["has_spec"]),
            has_mailbox=bool(wire["has_mailbox"]),
            wait=Wait.from_wire(wire["wait"]),
            ended_by=EndedBy(wire["ended_by"]),
            requeued_by=EndedBy(wire["requeued_by"]),
            dependents=int(wire["dependents"]),
            exclude=tuple(wire.get("exclude", ())),
            submitted_at=datetime.fromisoformat(wire["submitted_at"]) if wire.get("submitted_at") else None,
            node_count=int(wire.get("node_count", 0)),
            min_nodes=wire.get("min_nodes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNode:
    """A node that a Job's Incident holds to be broken. `is_told`: it was reported; `is_cordoned`: a cordon was ordered.

    `instance_id` is the machine behind the name at that time: a repaired node may keep its name. `is_away`: all that is
    known against it is that the platform cannot reach it, which is over once it can.
    """

    node: str
    why: str
    instance_id: str | None = None
    is_away: bool = False
    is_told: bool = False
    is_cordoned: bool = False

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "node": self.node,
            "why": self.why,
            "instance_id": self.instance_id,
            "is_away": self.is_away,
            "is_told": self.is_told,
            "is_cordoned": self.is_cordoned,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> BadNode:
        """Inverse of `to_wire`."""
        return cls(
            node=wire["node"],
            why=wire["why"],
            instance_id=wire["instance_id"],
            is_away=bool(wire.get("is_away", False)),
            is_told=bool(wire["is_told"]),
            is_cordoned=bool(wire.get("is_cordoned", False)),
        )


def is_another_run(name: str, submitted_at: datetime | None, *, job_id: str, created_at: datetime) -> bool:
    """A cluster's numbers begin anew where it is made anew under its old name (Platform.names_recur): this start has
    the name of the Job's first one, and is somebody else's. Nothing of the old Job's is done to it, and it gets
    nothing of the old Job's.
    """
    return name == job_id and submitted_at is not None and submitted_at - created_at > ANOTHER_RUN
