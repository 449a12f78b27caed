"""A loss that has gone bad: watched first, rolled back only where there is a place to go, told with all that is known.

The run is left training until it is certain that it is to be replaced: a spike that heals costs nothing, and a run for
which no verified checkpoint lies far enough back is a person's to judge while it still lives.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from chalicelib.domain.claims.movement import unwatched, watch
from chalicelib.domain.decision.verdict import Decision, Look, span_word, step_word, story, whole_story, why
from chalicelib.domain.faults.loss import Turn, marked_healed, noted_bad, turn_of
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.evidence import Need, is_forensic
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.policy.playbooks import Deadline
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop, shadow, with_need
from chalicelib.domain.run.resume_point import choose_resume_point
from chalicelib.domain.run.rollback import account_rollback, first_onset, has_skipped_enough, rewind_steps
from rekindle.signatures.faults import FaultClass

# --- watching -------------------------------------------------------------------------------------------------------


def watch_loss(look: Look, attempt: AttemptView) -> Decision:
    """Give a bad loss the steps in which it may heal by itself, in whatever phase the Incident is."""
    bout = look.incident.bout
    if bout is None:  # a Signal of another kind of source: nothing was judged yet
        return _unseen(look, attempt, look.in_phase if look.incident.phase is Phase.WATCHING else timedelta(0))
    match turn_of(bout, attempt, look.policy):
        case Turn.HEALED:
            return healed(look, attempt)
        case Turn.LASTS:
            reason = f"{story(look)} {_where(look, attempt)}, more than {look.policy.loss.spike_heal_steps} steps on."
            return roll_back(look, attempt, "spike.lasts", reason)
        case Turn.YOUNG:
            return _young(look, attempt)
        case Turn.UNSEEN:
            return _unseen(look, attempt, look.now - (bout.unseen_since or look.now))


def healed(look: Look, attempt: AttemptView) -> Decision:
    """It is over. Nothing was spent; only what was saved meanwhile is never resumed from."""
    bout = look.incident.bout
    look = replace(look, incident=marked_healed(look.incident))
    assert bout is not None  # noqa: S101  only a bout can have healed
    onset = step_word(bout.first_bad)
    kept = ""
    if isinstance(bout.first_bad, Known) and bout.healed_step is not None and bout.healed_step > bout.first_bad.value:
        kept = f" What was saved at steps {onset} to {bout.healed_step - 1} is not resumed from."
    spent = (
        "Nothing was stopped or resubmitted." if look.incident.asks else "Nothing was stopped, saved or resubmitted."
    )
    return look.close(
        "spike.healed",
        f"{attempt.name} healed by itself: bad from step {onset}, well again at step {bout.healed_step}. {spent}{kept}",
        Phase.RECOVERED,
        severity=Severity.INFO,
    )


def _where(look: Look, attempt: AttemptView) -> str:
    bout = look.incident.bout
    since = step_word(bout.first_bad) if bout is not None else "an unknown step"
    return f"{attempt.name} is at step {step_word(attempt.judged_at)}, bad since step {since}"


def _young(look: Look, attempt: AttemptView) -> Decision:
    reason = (
        f"{story(look)} {_where(look, attempt)}: it may heal by itself within {look.policy.loss.spike_heal_steps} "
        "steps, and the next verdict after them decides"
    )
    if look.incident.phase in (Phase.OPEN, Phase.HOLDING):
        return look.changed(**unwatched()).move("spike.watching", reason, Phase.WATCHING)
    look, still = watch(look, attempt)
    if still >= look.policy.timing.silent_limit:
        return look.close(
            "spike.undecided",
            f"{reason}. But it has not moved for {span_word(still)}, so nothing is decided: a person should look",
            Phase.HANDED_OVER,
            severity=Severity.WARNING,
        )
    return look.stay("spike.watching", reason)


def _unseen(look: Look, attempt: AttemptView, unseen_for: timedelta) -> Decision:
    """Neither healed nor still bad, but unknown: waited for, then told."""
    reason = (
        f"{story(look)} Whether the loss of {attempt.name} is still bad cannot be told "
        f"(its own judgement reads {attempt.loss_health!r})"
    )
    if look.incident.phase in (Phase.OPEN, Phase.HOLDING):
        return look.changed(**unwatched()).move("spike.unseen", reason, Phase.WATCHING)
    if unseen_for < look.policy.timing.tell_open:
        return look.stay("spike.unseen", reason)
    return look.close("spike.unseen_limit", f"{reason}: nothing was done", Phase.STOPPED, severity=Severity.WARNING)


# --- rolling back ---------------------------------------------------------------------------------------------------


def roll_back(look: Look, attempt: AttemptView, rule: str, reason: str) -> Decision:
    """Stop a living run that has gone bad, once there is a verified checkpoint to resume it from.

    In this order: is there a place to go; what the row's deadline says is saved for forensics; the stop.
    """
    if look.policy.shadow:
        return shadow(look, f"roll {attempt.name} back")
    bad = noted_bad(look.incident)
    checkpoints = look.seen.checkpoints
    if not isinstance(checkpoints, Known):
        return _look_for_a_place(look, reason)
    planned = account_rollback(bad, look.policy)
    look = replace(look, incident=bad)
    if planned.rollbacks > look.policy.budgets.max_rollbacks:
        spent = f"{bad.rollbacks} roll-backs did not cure it. {whole_story(replace(planned, skips=bad.skips))}"
        return _nowhere_to_go(look, "budget.rollbacks", f"{reason} {spent}")
    if planned.skips != bad.skips and has_skipped_enough(bad, look.policy):
        spent = f"So much data are left out already that more is a person's choice. {whole_story(bad)}"
        return _nowhere_to_go(look, "budget.skips", f"{reason} {spent}")
    point = choose_resume_point(checkpoints.value, planned, look.policy)
    if point is None:
        return _nowhere_to_go(look, "rollback.no_place", f"{reason} {_no_place(look, planned)}")
    if _wants_forensics(look, attempt):
        return begin_checkpoint(look, attempt, "rollback.forensics")
    return begin_stop(look, rule, f"{reason} It can resume {point.said}.")


def _look_for_a_place(look: Look, reason: str) -> Decision:
    incident = look.incident
    if Need.CHECKPOINTS not in incident.needs:
        needs = with_need(incident.needs, Need.CHECKPOINTS, *_reports_of(incident))
        looking = look.stay(
            "rollback.looking",
            f"{reason} Looking for a verified checkpoint from before it, before anything is stopped.",
            needs=needs,
            needs_since=look.now,
        )
        return replace(looking, look_again_in=timedelta(0))
    since = incident.needs_since or look.now
    unread = f"{reason} But the checkpoints cannot be read: {why(look.seen.checkpoints)}"
    reason = f"{unread}; nothing is stopped before there is a place to go"
    return look.unread("rollback.unseen", "rollback.unseen_limit", reason, look.now - since, **_since(look))


def _since(look: Look) -> dict[str, Any]:
    return {} if look.incident.needs_since is not None else {"needs_since": look.now}


def _reports_of(incident: Incident) -> tuple[Need, ...]:
    """The rank that went non-finite first tells hardware from data; a spike is no single rank's."""
    return (Need.REPORTS,) if incident.fault is FaultClass.NON_FINITE else ()


def _no_place(look: Look, planned: Incident) -> str:
    back = rewind_steps(planned, look.policy)
    onset = first_onset(planned)
    limit = f"at least {back} steps before step {step_word(onset)}" if back else f"before step {step_word(onset)}"
    count = len(look.seen.checkpoints.value) if isinstance(look.seen.checkpoints, Known) else 0
    planned = replace(planned, skips=look.incident.skips)  # what was left out, not what would have been
    return (
        f"No verified checkpoint lies {limit} ({count} checkpoint(s) seen). A younger one is not resumed from: it may "
        f"hold what went wrong. {whole_story(planned)}"
    )


def _nowhere_to_go(look: Look, rule: str, reason: str) -> Decision:
    """A person decides; whether a run goes on that cannot be rolled back is the policy's to say."""
    if look.policy.loss.stop_without_resume_point:
        return begin_stop(look, rule, f"{reason} The policy says to stop it.")
    return look.hand_over(rule, f"{reason} {look.incident.attempt} is left running")


def _wants_forensics(look: Look, attempt: AttemptView) -> bool:
    row = look.policy.playbook(look.incident.fault)
    ask = look.incident.ask
    was_asked = ask is not None and ask.attempt == attempt.name and is_forensic(ask.request_id)
    return row.deadline is not Deadline.NONE and not was_asked
