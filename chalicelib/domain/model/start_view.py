"""What a platform with an agent or a queue of its own tells of one start of an attempt, and bad nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from chalicelib.domain.model.clocks import Fact
from chalicelib.domain.model.codec import Record
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

    IN_QUEUE = "in_queue"  # by itself: another job ends, a time comes, a node is back
    HELD = "held"  # when its holder releases it
    DOUBTFUL = "doubtful"  # perhaps by itself: a node or a partition is away, or the request is too large for ever
    NEVER = "never"  # not as it was asked for: a person must change the request, or a limit


UNKNOWN_REASON: Final = "a reason that is not known here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a queued start waits: `word` is the platform's own, `text` what it means. `is_short`: it waits for nodes, and
    for nothing else, so that fewer might do. `for_jobs`: it waits for other jobs to end.
    """

    word: str = ""
    waits: Waits = Waits.IN_QUEUE
    text: str = "it waits its turn"
    is_short: bool = False
    for_jobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartView(Record):
    """One start of one submission.

    `handle` is the platform's id of the submission, as its commands take it. `wait` says why it waits, while it is
    queued. `held`: it stays in the queue until it is released. `lost_node`: it was over because a node was, whether or
    not it was put back since. `is_known`: the platform still knows it, so that it can be requeued. `has_spec`: what is
    needed to submit it again is kept; `cannot_resubmit` says why that would not be faithful. `has_mailbox`: a new
    start can be given a resume plan by a message. `has_auto_resume` is None where the script could not be read.
    `dependents` counts the jobs that wait for this one. `exclude` are the nodes that it must not get, by any source.
    `node_count` is how many nodes it has, or asks for at least; `min_nodes` how few its own comment declares to be
    enough. `step_end` is how one of its steps failed, whatever its script made of that; empty where none did.
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
    cancelled_by: int | None = None
    requeued_by: EndedBy = EndedBy.UNKNOWN
    dependents: int = 0
    exclude: tuple[str, ...] = ()
    submitted_at: datetime | None = None
    node_count: int = 0
    min_nodes: int | None = None
    step_end: str = ""

    @property
    def is_queued(self) -> bool:
        """It waits in the platform's queue: nothing of it runs."""
        return self.state is StartState.QUEUED


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNode(Record):
    """A node that a Job's Incident holds to be broken. `is_reported`: to the node's own Incident; `is_cordoned`:
    a cordon was ordered.

    `instance_id` is the machine behind the name at that time: a repaired node may keep its name. `is_away`: all that is
    known against it is that the platform cannot reach it, which is over once it can. `reported_at` is when the newest
    of what it rests on was reported or seen; None where the ranks' own reports, as they are now, accuse it.
    """

    node: str
    why: str
    instance_id: str | None = None
    is_away: bool = False
    is_reported: bool = False
    is_cordoned: bool = False
    reported_at: Fact | None = None


def is_another_run(name: str, submitted_at: datetime | None, *, job_id: str, created_at: datetime) -> bool:
    """A cluster that is created again under its old name restarts its numbers (Platform.names_recur): this start has
    the name of the Job's first one, and is another user's. Nothing of the old Job's is done to it, and it gets
    nothing of the old Job's.
    """
    return name == job_id and submitted_at is not None and submitted_at - created_at > ANOTHER_RUN
