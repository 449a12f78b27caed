"""What a step would cost if it were done: the nodes it takes, the training it throws away. Unknown is never small."""

from __future__ import annotations

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.faults.poison import died_at_most
from chalicelib.domain.model.action import Action, ResubmitJob, StopJob
from chalicelib.domain.model.known import Known, Maybe, Unknown

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


def _resumes_at(context: RuleContext, action: StopJob | ResubmitJob) -> Maybe[int]:
    """A stopped run resumes from what it has just saved; without that, the resume point is not known yet."""
    if isinstance(action, ResubmitJob):
        return action.resume_step
    ask = context.incident.halt.ask
    if ask is not None and ask.attempt == action.attempt and ask.outcome == "saved" and ask.step is not None:
        return Known(ask.step)
    return Unknown("it has not answered with a checkpoint")
