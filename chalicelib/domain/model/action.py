"""Actions: imperative data. `decide` makes them, recovery carries them out, each with an idempotency token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final, cast, get_args

from chalicelib.domain.model.codec import Record, read
from chalicelib.domain.model.incident import SkipWindow
from chalicelib.domain.model.known import Maybe
from chalicelib.domain.model.node_actions import ActionBase, NodeAction
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.model.urgency import Severity as Severity
from rekindle.protocol.cluster.queue_place import QueueLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCheckpoint(ActionBase):
    """Ask the attempt for an emergency checkpoint. The request id is the token: a second write is refused by S3."""

    request_id: str
    attempt: str
    deadline_at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob(ActionBase):
    """Stop the attempt (SIGTERM, a grace, SIGKILL). Naturally idempotent: an ended attempt is left alone.

    `hold`: it stays in its platform's queue and is not started from there before we say so.
    """

    harmful: ClassVar[bool] = True

    attempt: str
    why: str
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResubmitJob(ActionBase):
    """Start attempt `number` under `name`, in place of `clone_of`; fences every older attempt first.

    `name` is deterministic, so the platform's own refusal of a taken name is the idempotency signal.
    `goes_back`: it resumes where it does on purpose (an order, a poisoned run), not for lack of a newer checkpoint.
    `how` it is started; `exclude` are nodes that it must not get, `left_out` those of them that nothing names, and
    `left_nodes` those of `clone_of` where one that nothing names may have ended it: the Job's record keeps both.
    `checks_hardware`: the platform is to test what the attempt gets before it begins, where it can.
    """

    harmful: ClassVar[bool] = True

    clone_of: str
    number: int
    name: str
    resume_step: Maybe[int]
    resume_root: str | None
    resume_manifest: str | None
    skips: tuple[SkipWindow, ...]
    why: str
    goes_back: bool = False
    how: Submission = Submission.CLONE
    exclude: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    left_nodes: tuple[str, ...] = ()
    checks_hardware: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptAttempt(ActionBase):
    """Take the platform's own new start `name` as attempt `number`, in place of `clone_of`; nothing is started.

    Fences every older attempt, as a start of ours would.
    """

    name: str
    number: int
    clone_of: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonNode(ActionBase):
    """Give `node` no more jobs, with our reason on it; what runs there continues."""

    harmful: ClassVar[bool] = True

    cluster: str
    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludeNodes(ActionBase):
    """Set the whole list of nodes that a queued start must not get; what is left out of it is lifted."""

    attempt: str
    handle: str
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeJob(ActionBase):
    """Let a queued start take `nodes_min` to `nodes_max` nodes."""

    harmful: ClassVar[bool] = True

    attempt: str
    handle: str
    nodes_min: int
    nodes_max: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNode(ActionBase):
    """Hand a suspected node on: it opens the node's own Incident or joins it, so that there is one repair."""

    cluster: str
    node: str
    instance_id: str | None
    why: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineCheckpoint(ActionBase):
    """Mark the checkpoint at `root` as one that no run may resume from. Marked, never deleted; only a person lifts it.

    The mark's name is made of `root`, so that a second one changes nothing.
    """

    harmful: ClassVar[bool] = True

    root: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify(ActionBase):
    """Tell people. `alike`: pages with equal words here, of several Incidents within an hour, are one page."""

    severity: Severity
    title: str
    text: str
    alike: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskApproval(ActionBase):
    """Put the Approval `approval_id` of the Incident to people. Asking again asks nothing new."""

    approval_id: str
    title: str
    text: str
    deadline_at: datetime


Action = (
    RequestCheckpoint
    | StopJob
    | ResubmitJob
    | AdoptAttempt
    | CordonNode
    | ExcludeNodes
    | ResizeJob
    | ReportNode
    | QuarantineCheckpoint
    | Notify
    | AskApproval
    | NodeAction
)
# Every other list of Actions comes from the one above.
ACTIONS: Final[tuple[type[ActionBase], ...]] = get_args(Action)


def read_action(wire: Mapping[str, Any]) -> Action:
    """Inverse of an Action's `to_wire`. Raises: MalformedRecord."""
    return cast("Action", read(Action, wire))


class Done(StrEnum):
    """How carrying out an Action ended."""

    DONE = "done"
    ALREADY = "already"  # the wanted state was there before us
    REFUSED = "refused"  # a reason that trying again cannot change
    CAPACITY = "capacity"  # no room now
    CHECKING = "checking"  # the hardware is being checked: nothing was started
    NAME_TAKEN = "name_taken"  # the new attempt's name belongs to another job
    SIBLING = "sibling"  # another attempt of the Job lives, or will run by itself: nothing was started
    HELD = "held"  # a person holds the run: nothing was started
    PENDING = "pending"  # ordered, and not answered yet: the same order sent again is the same order
    UNAVAILABLE = "unavailable"  # could not be reached; whether it took effect is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult(Record):
    """What one Action answered; read by the next observation. `attempt` names the sibling that lives (SIBLING).
    `queue_losses`: of a new start, in the platform's queue."""

    action: str
    done: Done
    detail: str = ""
    attempt: str = ""
    queue_losses: tuple[QueueLoss, ...] = ()


def action_name(action: Action) -> str:
    """The Action's name in policies and on the timeline."""
    return type(action).__name__
