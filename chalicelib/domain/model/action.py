"""Actions: imperative data. `decide` makes them, recovery carries them out, each with an idempotency token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, assert_never

from chalicelib.domain.model.incident import SkipWindow
from chalicelib.domain.model.known import Maybe, maybe_from_wire, maybe_to_wire
from chalicelib.domain.model.node_actions import (
    CheckNode,
    MoveRuns,
    NodeAction,
    RebootNode,
    ReplaceNode,
    UncordonNode,
    node_action_from_wire,
    node_action_to_wire,
)
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.model.urgency import Severity as Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCheckpoint:
    """Ask the attempt for an emergency checkpoint. The request id is the token: a second write is refused by S3."""

    request_id: str
    attempt: str
    deadline_at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob:
    """Stop the attempt (SIGTERM, a grace, SIGKILL). Naturally idempotent: an ended attempt is left alone.

    `hold`: it stays in its platform's queue and is not started from there before we say so.
    """

    attempt: str
    why: str
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResubmitJob:
    """Start attempt `number` under `name`, in place of `clone_of`; fences every older attempt first.

    `name` is deterministic, so the platform's own refusal of a taken name is the idempotency signal.
    `goes_back`: it resumes where it does on purpose (an order, a poisoned run), not for want of a newer checkpoint.
    `how` it is started; `exclude` are nodes that it must not get.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptAttempt:
    """Take the platform's own new start `name` as attempt `number`, in place of `clone_of`; nothing is started.

    Fences every older attempt, as a start of ours would.
    """

    name: str
    number: int
    clone_of: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonNode:
    """Give `node` no more jobs, with our reason on it; what runs there goes on."""

    cluster: str
    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludeNodes:
    """Set the whole list of nodes that a queued start must not get; what is left out of it is lifted."""

    attempt: str
    handle: str
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStacks:
    """Have all ranks of an attempt write their stacks, by the signal that its own heartbeat says it hears."""

    attempt: str
    handle: str
    signal: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeJob:
    """Let a queued start take `nodes_min` to `nodes_max` nodes."""

    attempt: str
    handle: str
    nodes_min: int
    nodes_max: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNode:
    """Hand a suspected node on: it opens the node's own Incident or joins it. Whoever repairs it, it is only one."""

    cluster: str
    node: str
    instance_id: str | None
    why: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineCheckpoint:
    """Mark the checkpoint at `root` as one that nobody may resume from. Marked, never deleted; only a person lifts it.

    The mark's name is made of `root`, so that a second one changes nothing.
    """

    root: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Tell people."""

    severity: Severity
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskApproval:
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
    | CaptureStacks
    | ReportNode
    | QuarantineCheckpoint
    | Notify
    | AskApproval
    | NodeAction
)


class Done(StrEnum):
    """How carrying out an Action ended."""

    DONE = "done"
    ALREADY = "already"  # the wanted state was there before us
    REFUSED = "refused"  # a reason that trying again cannot change
    CAPACITY = "capacity"  # no room now
    NAME_TAKEN = "name_taken"  # the new attempt's name belongs to somebody else
    SIBLING = "sibling"  # another attempt of the Job lives: nothing was started
    PENDING = "pending"  # ordered, and not answered yet: the same order sent again is the same order
    UNAVAILABLE = "unavailable"  # could not be reached; whether it took effect is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """What one Action answered; read by the next look. `attempt` names the sibling that lives (SIBLING)."""

    action: str
    done: Done
    detail: str = ""
    attempt: str = ""

    def to_wire(self) -> dict[str, Any]:
        """JSON form, the step's result."""
        return {"action": self.action, "done": self.done.value, "detail": self.detail, "attempt": self.attempt}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> ActionResult:
        """Inverse of `to_wire`."""
        return cls(
            action=wire["action"],
            done=Done(wire["done"]),
            detail=wire["detail"],
            attempt=wire.get("attempt", ""),
        )


def action_name(action: Action) -> str:
    """The word of DESIGN §1 for it."""
    return type(action).__name__


def action_to_wire(action: Action) -> dict[str, Any]:  # noqa: C901  one case for each action
    """JSON form, `{"action": name, …}`."""
    match action:
        case RequestCheckpoint():
            body: dict[str, Any] = {
                "request_id": action.request_id,
                "attempt": action.attempt,
                "deadline_at": action.deadline_at.isoformat(),
                "why": action.why,
            }
        case StopJob():
            body = {"attempt": action.attempt, "why": action.why, "hold": action.hold}
        case ResubmitJob():
            body = {
                "clone_of": action.clone_of,
                "number": action.number,
                "name": action.name,
                "resume_step": maybe_to_wire(action.resume_step),
                "resume_root": action.resume_root,
                "resume_manifest": action.resume_manifest,
                "skips": [[window.from_step, window.to_step] for window in action.skips],
                "why": action.why,
                "goes_back": action.goes_back,
                "how": action.how.value,
                "exclude": list(action.exclude),
            }
        case AdoptAttempt():
            body = {
                "name": action.name,
                "number": action.number,
                "clone_of": action.clone_of,
                "why": action.why,
            }
        case CordonNode():
            body = {"cluster": action.cluster, "node": action.node, "why": action.why}
        case ExcludeNodes():
            body = {
                "attempt": action.attempt,
                "handle": action.handle,
                "nodes": list(action.nodes),
                "why": action.why,
            }
        case CaptureStacks():
            body = {
                "attempt": action.attempt,
                "handle": action.handle,
                "signal": action.signal,
                "why": action.why,
            }
        case ResizeJob():
            body = {
                "attempt": action.attempt,
                "handle": action.handle,
                "nodes_min": action.nodes_min,
                "nodes_max": action.nodes_max,
                "why": action.why,
            }
        case ReportNode():
            body = {
                "cluster": action.cluster,
                "node": action.node,
                "instance_id": action.instance_id,
                "why": action.why,
                "evidence": dict(action.evidence),
            }
        case QuarantineCheckpoint():
            body = {"root": action.root, "why": action.why}
        case Notify():
            body = {"severity": action.severity.value, "title": action.title, "text": action.text}
        case AskApproval():
            body = {
                "approval_id": action.approval_id,
                "title": action.title,
                "text": action.text,
                "deadline_at": action.deadline_at.isoformat(),
            }
        case RebootNode() | ReplaceNode() | CheckNode() | UncordonNode() | MoveRuns():
            body = node_action_to_wire(action)
        case _:
            assert_never(action)
    return {"action": action_name(action), **body}


def action_from_wire(wire: Mapping[str, Any]) -> Action:  # noqa: C901  one case for each action
    """Inverse of `action_to_wire`. Only for data that we wrote ourselves."""
    match wire["action"]:
        case "RequestCheckpoint":
            return RequestCheckpoint(
                request_id=wire["request_id"],
                attempt=wire["attempt"],
                deadline_at=datetime.fromisoformat(wire["deadline_at"]),
                why=wire["why"],
            )
        case "StopJob":
            return StopJob(attempt=wire["attempt"], why=wire["why"], hold=bool(wire.get("hold", False)))
        case "ResubmitJob":
            return ResubmitJob(
                clone_of=wire["clone_of"],
                number=int(wire["number"]),
                name=wire["name"],
                resume_step=maybe_from_wire(wire["resume_step"]),
                resume_root=wire["resume_root"],
                resume_manifest=wire["resume_manifest"],
                skips=tuple(SkipWindow(from_step=int(low), to_step=int(high)) for low, high in wire["skips"]),
                why=wire["why"],
                goes_back=bool(wire["goes_back"]),
                how=Submission(wire.get("how", Submission.CLONE)),
                exclude=tuple(wire.get("exclude", ())),
            )
        case "AdoptAttempt":
            return AdoptAttempt(
                name=wire["name"], number=int(wire["number"]), clone_of=wire["clone_of"], why=wire["why"]
            )
        case "CordonNode":
            return CordonNode(cluster=wire["cluster"], node=wire["node"], why=wire["why"])
        case "ExcludeNodes":
            return ExcludeNodes(
                attempt=wire["attempt"],
                handle=wire["handle"],
                nodes=tuple(wire["nodes"]),
                why=wire["why"],
            )
        case "CaptureStacks":
            return CaptureStacks(attempt=wire["attempt"], handle=wire["handle"], signal=wire["signal"], why=wire["why"])
        case "ResizeJob":
            return ResizeJob(
                attempt=wire["attempt"],
                handle=wire["handle"],
                nodes_min=int(wire["nodes_min"]),
                nodes_max=int(wire["nodes_max"]),
                why=wire["why"],
            )
        case "ReportNode":
            return ReportNode(
                cluster=wire["cluster"],
                node=wire["node"],
                instance_id=wire["instance_id"],
                why=wire["why"],
                evidence=dict(wire["evidence"]),
            )
        case "QuarantineCheckpoint":
            return QuarantineCheckpoint(root=wire["root"], why=wire["why"])
        case "Notify":
            return Notify(severity=Severity(wire["severity"]), title=wire["title"], text=wire["text"])
        case "AskApproval":
            return AskApproval(
                approval_id=wire["approval_id"],
                title=wire["title"],
                text=wire["text"],
                deadline_at=datetime.fromisoformat(wire["deadline_at"]),
            )
        case _:
            return node_action_from_wire(wire)
