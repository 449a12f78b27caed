"""Which steps of a decision a guard may hold back, and what an approval of one is about. Pure.

A step is new until it is on record. What is on record was let through once, and may have been carried out already: the
same order sent again is the same step, and is never asked about twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from chalicelib.domain.decision.verdict import Decision, step_word
from chalicelib.domain.model.action import (
    Action,
    CordonNode,
    QuarantineCheckpoint,
    ResizeJob,
    ResubmitJob,
    StopJob,
    action_name,
)
from chalicelib.domain.model.approvals import stop_key
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.node_actions import CheckNode, RebootNode, ReplaceNode
from chalicelib.domain.policy.guard_rules import Harm


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that would be done. `key` is equal exactly for what one approval covers; `what` is for people."""

    key: str
    kind: Harm
    action: Action
    what: str


def ends_what_is_left(incident: Incident, action: Action) -> bool:
    """A held start beside a new submission must not run as well: its end belongs to the step that made the new one."""
    return isinstance(action, StopJob) and any(
        attempt.leaves == action.attempt for attempt in incident.resubmission.tries
    )


def new_steps(kept: Incident, decision: Decision) -> tuple[Step, ...]:
    """What `decision` would do that is not on record of `kept`, the Incident as it was before."""
    found = (_step(kept, decision.incident, action) for action in decision.actions)
    return tuple(step for step in found if step is not None)


def _step(kept: Incident, proposed: Incident, action: Action) -> Step | None:
    key = _key(kept, proposed, action)
    if key is None:
        return None
    return Step(key=key, kind=Harm(action_name(action)), action=action, what=_what(action))


def _key(kept: Incident, proposed: Incident, action: Action) -> str | None:
    """None: it is harmless, or on record."""
    match action:
        case StopJob():
            is_asked = kept.phase is Phase.STOPPING and action.attempt in kept.halt.stopped_attempts
            is_settled = is_asked or ends_what_is_left(kept, action)
            return None if is_settled else stop_key(action.attempt, proposed.fault)
        case ResubmitJob():
            return _start_key(kept, action)
        case QuarantineCheckpoint():
            return None if kept.phase is Phase.RESUBMITTING else f"quarantine:{action.root}"
        case ResizeJob():
            is_asked = bool(kept.resubmission.tries) and kept.resubmission.tries[-1].nodes_min is not None
            return None if is_asked else f"resize:{action.attempt}:{action.nodes_min}"
        case _:
            return _node_key(kept, action)


def _start_key(kept: Incident, action: ResubmitJob) -> str | None:
    if kept.resubmission.pending is not None and kept.resubmission.pending.number == action.number:
        return None
    windows = ",".join(f"{window.from_step}-{window.to_step}" for window in action.skips)
    return f"start:{action.number}:{action.clone_of}:{'back' if action.goes_back else ''}:{windows}"


def _node_key(kept: Incident, action: Action) -> str | None:
    steps = kept.repair.steps if kept.repair is not None else ()
    match action:
        case CordonNode() if kept.node is None:
            return f"cordon:{action.node}"
        case CordonNode():
            return None if kept.phase is Phase.DRAINING else f"cordon:{action.node}:{len(steps)}"
        case RebootNode() | ReplaceNode():
            is_on_record = any(step.number == action.number for step in steps)
            return None if is_on_record else f"{action_name(action)}:{action.number}:{action.instance_id}"
        case CheckNode():
            return None if kept.phase is Phase.CHECKING else f"check:{action.number}:{action.instance_id}"
        case _:
            return None


def _what(action: Action) -> str:
    match action:
        case StopJob():
            return f"stop {action.attempt}"
        case ResubmitJob():
            skips = "".join(
                f", without the data of steps {window.from_step}-{window.to_step - 1}" for window in action.skips
            )
            where = "" if action.resume_manifest is None else f" from step {step_word(action.resume_step)}"
            return f"start {action.name} in place of {action.clone_of}{where}{skips}"
        case CordonNode():
            return f"take {action.node} of {action.cluster} out of service"
        case RebootNode():
            return f"reboot {action.node} of {action.cluster} ({action.instance_id or 'its instance is not known'})"
        case ReplaceNode():
            text = action.instance_id or "its instance is not known"
            return f"replace {action.node} of {action.cluster} ({text}); what is on its volumes is lost"
        case CheckNode():
            return f"check {action.node} of {action.cluster} for one to two hours"
        case QuarantineCheckpoint():
            return f"let no run resume from {action.root} any more"
        case ResizeJob():
            return f"let {action.attempt} run on {action.nodes_min} nodes"
        case _:
            return action_name(action)
