"""What is waited for, or stands in the way, before a run is stopped: BEFORE_STOP."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, span_word, step_word, story, why_unknown
from chalicelib.domain.fault_specs.faults import NODE_FAULTS, OF_ITS_PROCESSES
from chalicelib.domain.faults.heartbeat_claims import has_fresh_heartbeat
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.run.hanging import OLD_CLAIM, hang_moves_again, hang_unread, stacks_waiting
from chalicelib.domain.run.submission import Case, choose, needs_plan

HEARTBEAT_FRESH: Final = timedelta(minutes=2)  # several heartbeats: processes that wrote one so lately live
# torchrun lets processes end for 30 s and waits a minute and a half for all nodes at its rendezvous; then they import.
RELAUNCH: Final = timedelta(minutes=5)


@rule("stop.blind", "stop.blind_limit")
def stop_blind(context: RuleContext) -> Decision | None:
    """The run cannot be seen: not stopped; paged at `timing.stop_limit_s`, a person at the capacity limit.

    It may be well again, or be stopped by its owner already. An order to a cluster whose agent is silent would also
    wait there, and be carried out whatever runs by then.
    """
    incident = context.incident
    if incident.attempt is None or context.attempt is not None:
        return None
    if not context.platform.orders_wait and incident.order is not None:
        return None
    reason = f"{incident.attempt} cannot be read: {why_unknown(context.seen.attempt)}; it is not stopped blindly"
    return context.unread("stop.blind", "stop.blind_limit", reason, context.unseen_for)


@rule("defer.auto_resume")
def defer_auto_resume(context: RuleContext) -> Decision | None:
    """Its own `srun --auto-resume` may be at work: it gets `timing.auto_resume_grace_s` first.

    A step that ended by a hardware cause is run again after the node was replaced; what it did is recorded as its own.
    Source: SageMaker developer guide, sagemaker-hyperpod-resiliency-slurm-auto-resume.
    """
    incident, attempt = context.incident, context.attempt
    if attempt is None or not _may_resume_itself(context, attempt):
        return None
    is_alive = attempt.heartbeat_at is not None and context.now - attempt.heartbeat_at < HEARTBEAT_FRESH
    since = incident.resubmission.deferred_since
    if since is None and is_alive:
        return None  # its step runs: what auto-resume waits for, the end of a process, has not come
    since = since or context.now
    limit = context.policy.timing.auto_resume_grace
    if is_alive and context.now - since < limit + context.policy.timing.silent_limit:
        reason = (
            f"the step of {attempt.name} runs again, at step {step_word(attempt.last_step)}: its own auto-resume did it"
        )
    elif context.now - since < limit:
        reason = (
            f"the step of {attempt.name} is gone, and its srun has --auto-resume: it gets {span_word(limit)} to fix it"
        )
    else:
        return None
    text = f"{story(context)} {reason}"
    if incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.changed(deferred_since=since).move("defer.auto_resume", text, Phase.HOLDING)
    until = max(since + limit, context.now + context.policy.timing.look_min)
    return context.stay("defer.auto_resume", text, until=until, deferred_since=since)


def _may_resume_itself(context: RuleContext, attempt: AttemptView) -> bool:
    incident, platform = context.incident, context.platform
    if incident.attempt is None or not platform.orders_wait or not platform.job_restarts_itself:
        return False
    if attempt.start is None or attempt.start.has_auto_resume is not True or attempt.start.is_queued:
        return False
    return incident.fault in NODE_FAULTS and not incident.is_ordered


@rule("submission.no_way", "submission.cannot_be_told")
def stop_no_way_back(context: RuleContext) -> Decision | None:
    """Only a person could start it again: not stopped, unless `loss.stop_without_resume_point` says so; a person."""
    attempt, platform = context.attempt, context.platform
    if context.incident.attempt is None or attempt is None or attempt.start is None:
        return None
    if not platform.orders_wait or not platform.can_requeue or context.policy.loss.stop_without_resume_point:
        return None
    choice = choose(Case(start=attempt.start, needs_plan=needs_plan(context.incident, None)))
    if choice.how is not None:
        return None
    # A person who has just ordered it reads the answer, and the run continues as before.
    is_answer = context.incident.order is not None and not context.incident.resubmission.tries
    severity = Severity.WARNING if is_answer else Severity.PAGE
    reason = f"{story(context)} {attempt.name} is not stopped: {choice.why}"
    return context.hand_over(choice.rule, reason, severity=severity)


@rule("stop.gone")
def stop_gone(context: RuleContext) -> Decision | None:
    """What hung, or went bad, is gone, and its platform shows it running: what may start it again in its place gets 5
    minutes.

    The thread that writes heartbeats outlives a stuck run, and ends with its process: a launcher (torchrun, a loop in
    the job's script, NVRx) has ended that, or it has died, which its platform will say. Its next life begins from a
    checkpoint, and what was wrong with the last one may be no more.
    """
    incident, attempt = context.incident, context.attempt
    if attempt is None or attempt.status is not AttemptStatus.RUNNING or attempt.heartbeat_at is None:
        return None
    if incident.fault not in OF_ITS_PROCESSES or incident.is_ordered:
        return None
    gone_for = context.now - attempt.heartbeat_at
    if _shows_itself(context, attempt) or gone_for >= RELAUNCH:
        return None
    wanted = (incident.evidence.needs_since, incident.evidence.evidence_since)
    wanted_at = max((incident.phase_entered_at, *(at for at in wanted if at is not None)))
    if context.now - wanted_at >= OLD_CLAIM:  # each of its heartbeats comes late
        return None
    reason = (
        f"{story(context)} No heartbeat of {attempt.name} for {span_word(gone_for)}: the processes of which that was "
        "reported are gone, and what may start them again in their place is waited for"
    )
    if incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.move("stop.gone", reason, Phase.HOLDING)
    return context.stay("stop.gone", reason, until=attempt.heartbeat_at + RELAUNCH)


def _shows_itself(context: RuleContext, attempt: AttemptView) -> bool:
    """Its newest heartbeat is of now and, where it was asked to save and has not answered, newer than the request."""
    if attempt.heartbeat_at is None or not has_fresh_heartbeat(attempt, now=context.now):
        return False
    ask = context.incident.halt.ask_of(attempt.name)
    return ask is None or ask.outcome != "late" or attempt.heartbeat_at > ask.asked_at


BEFORE_STOP: Final = (
    stop_blind,
    defer_auto_resume,
    stop_no_way_back,
    hang_moves_again,
    hang_unread,
    stacks_waiting,
    stop_gone,
)
