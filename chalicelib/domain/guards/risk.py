"""What a step would cost if it were done: the nodes it takes, the training it throws away. Unknown is never small.

Unprotected jobs that share a node with a protected run: cordoning such a node needs an approval. A drain ends none of
them, but the node gets no new work until they end, and is repaired then. Once they have ended, no approval is needed.
"""

from __future__ import annotations

from typing import Final

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.faults.poison import died_at_most
from chalicelib.domain.model.action import Action, CordonNode, ResubmitJob, StopJob
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.node.memory import facts_of
from chalicelib.domain.resume.passed_over import passed_over
from chalicelib.domain.run import bad_nodes
from rekindle.protocol.cluster.documents import NodeFacts

MAX_NAMED: Final = 8
_HOUR_S = 3600.0


def nodes_taken(context: RuleContext, action: Action) -> Maybe[int]:
    """How many nodes the step takes out of their work: the run's, for what is done to a run."""
    if isinstance(action, StopJob | ResubmitJob):
        return context.seen.node_count
    return Known(1)


def gpu_hours_lost(context: RuleContext, action: Action) -> Maybe[float]:
    """GPU-hours of training between the checkpoint that is resumed from and where the run has come to."""
    if not isinstance(action, StopJob | ResubmitJob):
        return Known(0.0)
    attempt = context.attempt
    if attempt is None or attempt.step_s is None:
        return Unknown("how long a step takes is not known")
    if not isinstance(context.seen.gpus, Known):
        return context.seen.gpus
    reached = died_at_most(context.incident, attempt)
    resumes = _resumes_at(context, action)
    if not isinstance(reached, Known):
        return reached
    if not isinstance(resumes, Known):
        return resumes
    steps = max(reached.value - resumes.value, 0)
    return Known(steps * attempt.step_s * context.seen.gpus.value / _HOUR_S)


def loss_word(context: RuleContext, action: Action) -> str:
    """What a start throws away, where that is more than `approvals.max_loss`; else empty, also where it is not known.

    An earlier start of the same Incident from there, or from before, has been let through: nothing more is lost.
    """
    if not isinstance(action, ResubmitJob) or not context.policy.approvals.max_loss:
        return ""
    lost = passed_over(context.incident, context.seen, action.resume_step)
    if not isinstance(lost, Known) or not isinstance(lost.value.time, Known):
        return ""
    from_there = (item.resume_step for item in context.incident.resubmission.tries)
    is_let_through = any(isinstance(step, Known) and step.value <= _step(action) for step in from_there)
    if is_let_through or lost.value.time.value <= context.policy.approvals.max_loss:
        return ""
    return f"more training is lost than may be without a person: {lost.value.text}"


def _step(action: ResubmitJob) -> int:
    return action.resume_step.value if isinstance(action.resume_step, Known) else -1


def _resumes_at(context: RuleContext, action: StopJob | ResubmitJob) -> Maybe[int]:
    """A stopped run resumes from what it has just saved; without that, the resume point is not known yet."""
    if isinstance(action, ResubmitJob):
        return action.resume_step
    ask = context.incident.halt.ask_of(action.attempt)
    if ask is not None and ask.outcome == "saved" and ask.step is not None:
        return Known(ask.step)
    return Unknown("it has not answered with a checkpoint")


def others_on(context: RuleContext, action: Action) -> tuple[int, ...]:
    """Those that a cordon is about; none where it is not known what is on the node, or for any other step."""
    if not isinstance(action, CordonNode):
        return ()
    facts = facts_of(context) if context.incident.node is not None else bad_nodes.facts_of(action.node, context.seen)
    return _others(facts)


def are_on_a_bad_node(context: RuleContext) -> bool:
    """A node that this run's Incident has not reported yet has some."""
    fresh = (bad_node.node for bad_node in context.incident.resubmission.bad_nodes if not bad_node.is_reported)
    return any(_others(bad_nodes.facts_of(node, context.seen)) for node in fresh)


def others_word(jobs: tuple[int, ...]) -> str:
    """What the question to a person says of them."""
    more = f" and {len(jobs) - MAX_NAMED} more" if len(jobs) > MAX_NAMED else ""
    listed = ", ".join(map(str, jobs[:MAX_NAMED]))
    return f"Jobs on it that Rekindle does not protect ({listed}{more}) keep running, but it gets no new ones"


def _others(facts: NodeFacts | None) -> tuple[int, ...]:
    return facts.others if facts is not None else ()
