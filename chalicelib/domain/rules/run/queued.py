"""A run that the platform does not list yet, keeps in its queue, or has suspended: it does not move, and nothing is
wrong."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, span_word, subject
from chalicelib.domain.model.action import ExcludeNodes, Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.incident_parts import Try
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import StartState, StartView, Waits
from chalicelib.domain.run.down import no_capacity_key
from chalicelib.domain.run.movement import new_watch

# Short enough to change an instance type or a quota the same hour; most launches are served within minutes.
NO_CAPACITY_TOLD: Final = timedelta(minutes=15)


def wait_for_spot(context: RuleContext, attempt: AttemptView) -> Decision:
    """It waits for Spot capacity for as long as its user allows."""
    reason = f"{attempt.name} was interrupted and waits for Spot capacity, as long as its MaxWaitTimeInSeconds allows"
    since = attempt.interrupted_since
    waited = max(context.in_state, context.now - since) if since is not None else context.in_state
    context, notices = capacity_told(context, waited, reason)
    waiting = context.stay("wait.spot", reason, *notices)
    return dataclasses.replace(waiting, look_again_in=context.policy.timing.look_max)


def capacity_told(context: RuleContext, waited: timedelta, reason: str) -> tuple[RuleContext, tuple[Notify, ...]]:
    """People hear once that capacity does not come, after NO_CAPACITY_TOLD."""
    key = no_capacity_key(context.incident)
    if waited < NO_CAPACITY_TOLD or context.is_told(key):
        return context, ()
    text = f"{reason}; for {span_word(waited)} now. Nothing is given up."
    return context.with_told(key), (
        Notify(severity=Severity.WARNING, title=f"{subject(context)}: no capacity", text=text),
    )


@rule("attempt.not_listed")
def not_listed(context: RuleContext) -> Decision | None:
    """The platform does not list it: asked once more."""
    attempt = context.attempt_seen
    if attempt.status is not AttemptStatus.GONE or context.has_ended(attempt):
        return None
    return context.stay("attempt.not_listed", f"the platform does not list {attempt.name}; asking once more")


def waiting_in_queue(context: RuleContext, attempt: AttemptView, *, group: str) -> Decision | None:
    """What a pending job waits for: its turn, a person, or nothing that will ever come. None: it is not pending.

    `group` is the phase's own: `verify` for a new attempt, `open` for the one that the Incident is about.
    """
    if attempt.start is None or not attempt.start.is_queued:
        return None
    wait = attempt.start.wait
    waits = Waits.HELD if attempt.start.held else wait.waits
    text = f"{attempt.name} waits in {context.platform.title}'s queue ({wait.word or 'no reason given'}): {wait.text}"
    is_sure = context.in_state >= 2 * context.policy.timing.look_max
    if waits is Waits.HELD and is_sure:
        release = f"`{context.platform.release_command.format(id=attempt.start.handle)}` lets it go"
        return context.hand_over(
            f"{group}.held", f"{text}; the person who holds it decides, {release}", severity=Severity.WARNING
        )
    if waits is Waits.NEVER and is_sure:
        return context.hand_over(f"{group}.pending_for_ever", f"{text}; waiting cannot help")
    limit = context.policy.timing.start_limit if waits is Waits.DOUBTFUL else context.policy.resubmission.capacity_limit
    if context.in_state >= limit:
        return context.hand_over(f"{group}.queue_limit", f"{text}; for {span_word(context.in_state)} now")
    if group == "open" and context.incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.move("open.queued", f"{text}; nothing of it runs that could be repaired", Phase.HOLDING)
    queued = context.stay(f"{group}.queued", text)
    return dataclasses.replace(queued, look_again_in=context.policy.timing.look_max)  # its start is news that wakes us


def superfluous_exclusion(context: RuleContext, attempt: AttemptView, still_bad: tuple[str, ...]) -> Decision | None:
    """A pending job that excludes a node longer than needed might never start on a full cluster."""
    last = context.incident.resubmission.tries[-1] if context.incident.resubmission.tries else None
    if last is None or last.name != attempt.name or attempt.start is None or not attempt.start.is_queued:
        return None
    lifted = _needlessly_excluded(context, attempt.start, last, still_bad)
    if not lifted or not isinstance(context.seen.nodes, Known):
        return None
    nodes = tuple(node for node in attempt.start.exclude if node not in lifted)
    action = ExcludeNodes(attempt=attempt.name, handle=attempt.start.handle, nodes=nodes, why="need not stay away")
    tries = tuple(
        dataclasses.replace(
            item,
            exclude=tuple(node for node in item.exclude if node not in lifted),
            left_out=tuple(node for node in item.left_out if node not in lifted),
        )
        for item in context.incident.resubmission.tries
    )
    reason = f"{attempt.name} need not stay away from {', '.join(lifted)} any more"
    return context.stay("verify.exclusion_lifted", reason, action, tries=tries)


def _needlessly_excluded(context: RuleContext, start: StartView, last: Try, still_bad: tuple[str, ...]) -> list[str]:
    if context.in_state < NO_CAPACITY_TOLD:  # the spares may be about to come
        still_bad = (*still_bad, *last.left_out)
    earlier = {node for item in context.incident.resubmission.tries[:-1] for node in item.exclude}
    # A job that was requeued still excludes what an earlier start was kept away from.
    over = [node for node in start.exclude if node in earlier and node not in last.exclude]
    return [node for node in (*over, *last.exclude) if node not in still_bad]


@rule("start.suspended", "start.suspended_limit")
def start_suspended(context: RuleContext) -> Decision | None:
    """It is suspended, by a person or for another job: left alone; notified after `resubmission.capacity_limit_s`."""
    attempt = context.attempt_seen
    if attempt.start is None or attempt.start.state is not StartState.SUSPENDED or context.ordered is not None:
        return None
    by = f"{context.platform.title} (by a person, or for another job)"
    reason = f"{attempt.name} is suspended by {by}: it is not stuck, and is left so"
    if context.in_state >= context.policy.resubmission.capacity_limit:
        return context.hand_over(
            "start.suspended_limit", f"{reason}; for {span_word(context.in_state)} now", severity=Severity.WARNING
        )
    if context.incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.move("start.suspended", reason, Phase.HOLDING)
    # It stood still for a reason: once it continues, that is counted from then.
    return context.changed(**new_watch()).stay("start.suspended", reason)
