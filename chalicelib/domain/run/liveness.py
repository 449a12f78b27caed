"""Weighs a claim that a running run is dead against its heartbeats, before any action. Pure.

Called by the rules of the phases in which nothing has been done yet: opening, refuted, responses, checkpointing.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.decision.verdict import Decision, RuleContext, has_passed, is_poisoned, step_word, story
from chalicelib.domain.fault_specs.faults import HEALED_BY_REPAIR, NODE_FAULTS
from chalicelib.domain.faults.heartbeat_claims import has_fresh_heartbeat, is_denied
from chalicelib.domain.faults.signal_facts import ORDER_KINDS, concerns
from chalicelib.domain.faults.stalls import is_past_stall, moves_again_since, stalled_at, stalls_of
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Incident, Phase, best_step
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.node_findings import PLATFORM_KINDS
from chalicelib.domain.model.observation import STALLED, TRAINING, AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.node.repair_budget import is_mass_outage
from chalicelib.domain.run.bad_nodes import is_claim_over
from chalicelib.domain.run.movement import rests
from rekindle.protocol.signals import FaultClass

# A monitor writes its heartbeat every 15 s (rekindle/monitor/base/settings.py). Each is dated by the store.
TWO_HEARTBEATS: Final = timedelta(seconds=30)
NEXT_HEARTBEAT: Final = timedelta(seconds=10)  # most of the time between two heartbeats
STILL_STEPS: Final = 5  # the monitor's own factor between a slow step and a stall (rekindle/detectors/hang.py)
LATE: Final = timedelta(minutes=2)  # an event and its function take seconds; more is trouble on the way
BEFORE_NOTICE: Final = (Phase.OPEN, Phase.WATCHING)  # no notice has been sent yet
_UNTOUCHED: Final = (*BEFORE_NOTICE, Phase.HOLDING, Phase.CHECKPOINTING)  # nothing has been done about the run yet
# What `weigh_claim` decides by.
WEIGHING_RULES: Final = (
    "defer.confirm",
    "defer.platform_says_both",
    "defer.platform_says_both_limit",
)


def weigh_claim(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """A Decision while the claim is weighed; None once the run has stood still for so long that the claim holds."""
    incident = context.incident
    reason = f"{story(context)} {attempt.name} is {attempt.status}: watching whether it moves past "
    reason += step_word(incident.target_step)
    if incident.phase in BEFORE_NOTICE:
        return context.move("defer.confirm", reason, Phase.HOLDING, watch_at=context.now, watch_step=attempt.last_step)
    reported_at = max(
        (signal.occurred_at for signal in incident.signals if signal.fault is incident.fault), default=None
    )
    mark = _new_mark(context, attempt, reported_at)
    if mark is not None:
        return context.stay(
            "defer.confirm",
            reason,
            until=context.now + TWO_HEARTBEATS,
            watch_at=context.now,
            watch_step=mark,
            target_step=mark,
        )
    if rests(attempt, now=context.now):
        # Its own heartbeat contradicts the claim. Where it has truly died, the platform ends it, or its monitor reports
        # it stalled.
        reason = f"{reason}. It is in {attempt.work}, says its heartbeat, so that no step is due"
        return context.stay("defer.confirm", reason, watch_at=context.now, watch_step=attempt.last_step)
    since = max(incident.phase_entered_at, incident.tracking.watch_at or incident.phase_entered_at)
    since = max(since, min(reported_at, context.now)) if reported_at else since
    if context.now - since >= _confirm_limit(context) or _stands_still(context, attempt, since):
        return _platform_says_both(context, attempt)
    if incident.tracking.watch_at is None:  # it was asked to save for something else when this was heard
        context = context.changed(watch_at=context.now, watch_step=attempt.last_step)
    return context.stay("defer.confirm", reason, until=_next_heartbeats(context, since))


def _new_mark(context: RuleContext, attempt: AttemptView, reported_at: datetime | None) -> Maybe[int] | None:
    """The step from which the attempt is to be watched anew; None where the watch goes on as it began.

    Its heartbeats are seen for the first time since the claim, or come from behind the step that it was at before it
    was started again: only what it does from here says whether it trains.
    """
    tracking = context.incident.tracking
    if not isinstance(attempt.last_step, Known) or not has_fresh_heartbeat(attempt, now=context.now):
        return None
    if _is_about_a_later_life(context, attempt, reported_at):
        return attempt.last_step
    if tracking.watch_at is not None and not isinstance(tracking.watch_step, Known):
        return best_step(context.incident.target_step, attempt.last_step)
    return None


def _next_heartbeats(context: RuleContext, since: datetime) -> datetime:
    """When to look again: once two heartbeats can have come since `since`, then at each next one, up to the limit."""
    soonest = since + TWO_HEARTBEATS
    if context.now >= soonest:
        soonest = context.now + max(NEXT_HEARTBEAT, context.policy.timing.look_min)
    return min(soonest, since + _confirm_limit(context))


def _is_about_a_later_life(context: RuleContext, attempt: AttemptView, reported_at: datetime | None) -> bool:
    """Whether the claim was made while the life was watched that had been started in place of the one before."""
    tracking = context.incident.tracking
    if attempt.life == 0 or tracking.repaired_at is None or tracking.watch_at is None or reported_at is None:
        return False
    return tracking.repaired_at <= reported_at and tracking.watch_at < reported_at


def claims_are_over(context: RuleContext) -> bool:
    """Whether every claim against the run's nodes is over, by what was heard or seen since. Never True of an order."""
    return _are_nodes_mended(context) and not is_stall_open(context)


def turned_to_stall(context: RuleContext) -> Incident:
    """The Incident; where every claim against the run's nodes is over and a stall stays reported, it is about that."""
    incident, attempt = context.incident, context.attempt
    stalls = [stall for stall in stalls_of(incident) if not is_denied(stall, attempt, now=context.now)]
    if incident.phase not in _UNTOUCHED or not stalls or not is_stall_open(context) or not _are_nodes_mended(context):
        return incident
    stuck = stalled_at(incident)
    target = stuck if isinstance(stuck, Known) and not incident.resubmission.tries else incident.target_step
    rule = f"signal.{SignalKind.STALL}"
    return dataclasses.replace(incident, fault=FaultClass.HANG, fault_rule=rule, target_step=target)


def _are_nodes_mended(context: RuleContext) -> bool:
    incident = context.incident
    if incident.fault not in NODE_FAULTS or incident.is_ordered:
        return False
    claims = _claims(context)
    return bool(claims) and all(is_claim_over(claim, incident, context.seen) for claim in claims)


def is_stall_open(context: RuleContext) -> bool:
    """Whether a stall of the attempt was reported, and no step since shows that it moves. No news of its nodes ends
    a stall.
    """
    attempt, incident = context.attempt, context.incident
    return bool(stalls_of(incident)) and (attempt is None or not is_past_stall(incident, attempt.last_step))


def late_claim(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """A Decision where only HyperPod's agents reported a node, and that report arrived long after it was made.

    Its withdrawal may be as late. It is waited for as long as HyperPod gets for its own recovery (`hma_grace`); then
    the run's own steps decide.
    """
    incident, claims = context.incident, _claims(context)
    if incident.fault not in NODE_FAULTS or incident.order is not None or incident.resubmission.tries or not claims:
        return None
    if any(claim.kind not in PLATFORM_KINDS for claim in claims):
        return None
    if incident.opened_at - max(claim.occurred_at for claim in claims) <= LATE:
        return None
    reason = (
        f"{story(context)} But that was reported long before it was received here, and may have been withdrawn since"
    )
    if incident.phase in BEFORE_NOTICE:
        moved = context.move("claim.late", reason, Phase.HOLDING, watch_at=context.now, watch_step=attempt.last_step)
        return dataclasses.replace(moved, look_again_in=context.policy.timing.look_max)
    watch_at = incident.tracking.watch_at
    if watch_at is None:  # the Incident was held for another claim when this one was heard
        until = context.now + context.policy.nodes.hma_grace
        return context.stay("claim.late", reason, until=until, watch_at=context.now, watch_step=attempt.last_step)
    if context.now - watch_at < context.policy.nodes.hma_grace:
        return context.stay("claim.late", reason, until=watch_at + context.policy.nodes.hma_grace)
    if attempt.work == STALLED:
        return None
    is_unheard = attempt.heartbeat_at is not None and attempt.heartbeat_at < watch_at
    if has_passed(attempt.last_step, incident.tracking.watch_step):
        steps = f"{attempt.name} has moved on to step {step_word(attempt.last_step)} meanwhile"
    elif is_unheard:  # its heartbeats are late as well, or lost: what is not seen is not taken for standing still
        steps = f"{attempt.name} runs, and no heartbeat since shows that it has stopped"
    else:
        return None
    return context.close(
        "claim.late_limit", f"{reason}; {steps}, and is left training", Phase.STOPPED, severity=Severity.WARNING
    )


def _claims(context: RuleContext) -> list[Signal]:
    incident = context.incident
    return [signal for signal in incident.signals if signal.fault is incident.fault and concerns(signal, incident)]


def _platform_says_both(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """A Decision where the platform alone says that a node of the run is away, and also that the run continues, and no
    heartbeat since tells which is true.

    A platform that ends a job whose node is lost (Platform.ends_lost_runs) is given the time to do so.
    """
    claims = [signal for signal in context.incident.signals if signal.fault is context.incident.fault]
    if context.incident.fault is not FaultClass.NODE_LOST or not context.platform.ends_lost_runs or not claims:
        return None
    if any(claim.kind is not SignalKind.NODE_STATE for claim in claims):
        return None
    watch_at = context.incident.tracking.watch_at
    # A heartbeat from before the watch of an old claim shows no standstill: the run trained on after the claim.
    outlives_claim = has_outlived_claim(context, attempt, since=watch_at)
    has_moved = has_passed(attempt.last_step, context.incident.tracking.watch_step)
    is_stuck = attempt.work == STALLED and moves_again_since(context.incident, attempt) is None
    if outlives_claim and (is_stuck or not (has_moved or _are_many_down(context))):
        return None
    doubt = "no heartbeat tells more"
    if outlives_claim and has_moved:
        doubt = "its heartbeats show steps since"
    elif outlives_claim and isinstance(context.seen.nodes, Known):
        seen = context.seen.nodes.value
        doubt = f"{seen.down} of {seen.total} nodes are down for it at once: the network or the controller is suspected"
    reason = (
        f"{story(context)} But {context.platform.title} also says that {attempt.name} is {attempt.status}, and {doubt}"
    )
    if context.in_phase >= context.policy.nodes.stuck_limit:
        return context.hand_over("defer.platform_says_both_limit", reason)
    return context.stay("defer.platform_says_both", reason)


def _are_many_down(context: RuleContext) -> bool:
    """While the controller cannot reach many nodes, its report about one is weak, even if steps stand still."""
    seen = context.seen.nodes
    return isinstance(seen, Known) and is_mass_outage(seen.value.down, seen.value.total, context.policy)


def _confirm_limit(context: RuleContext) -> timedelta:
    """How long a claim is weighed at most: two observations at the longest interval."""
    return 2 * context.policy.timing.look_max


def _stands_still(context: RuleContext, attempt: AttemptView, since: datetime) -> bool:
    """Whether its own heartbeats confirm the claim, so that the limit need not pass: two sources say the same.

    They do where a monitor wrote them after the claim and reports the run stalled, or where, 30 s on and in training,
    the step has not moved for five times as long as a step takes. Heartbeats that are missing, old or unreadable say
    nothing here: what carries them may be away.
    """
    if attempt.heartbeat_at is None or attempt.heartbeat_at < since:
        return False
    if attempt.work == STALLED:
        return True
    mark, watched_since = context.incident.tracking.watch_step, context.incident.tracking.watch_at
    if watched_since is None or not attempt.step_s or attempt.work != TRAINING:
        return False
    if not isinstance(mark, Known) or attempt.last_step != mark:
        return False
    stood = attempt.heartbeat_at - watched_since
    return stood >= max(TWO_HEARTBEATS, STILL_STEPS * timedelta(seconds=attempt.step_s))


def has_outlived_claim(context: RuleContext, attempt: AttemptView, *, since: datetime | None = None) -> bool:
    """Whether a heartbeat was written at least 30 s after the newest claim against the run, and not before `since`."""
    claim_at, heartbeat_at = claimed_at(context), attempt.heartbeat_at
    if claim_at is None or heartbeat_at is None or (since is not None and heartbeat_at < since):
        return False
    return heartbeat_at >= claim_at + TWO_HEARTBEATS


def claimed_at(context: RuleContext) -> datetime | None:
    """When the newest claim against the run was made, or when it came back from a repair, if that is later."""
    claims = [signal.occurred_at for signal in context.incident.signals if signal.fault is context.incident.fault]
    since = [*claims, *([context.incident.tracking.repaired_at] if context.incident.tracking.repaired_at else [])]
    return min(max(since), context.now) if since else None


def came_back_from_repair(context: RuleContext) -> bool:
    """Whether others have restarted it in place, and nothing was reported since: earlier reports are about the past."""
    incident = context.incident
    back_at = incident.tracking.repaired_at
    if back_at is None or incident.fault not in HEALED_BY_REPAIR or is_poisoned(context, context.attempt_seen):
        return False
    return not any(
        signal.triggers
        and signal.fault is not None
        and signal.kind not in ORDER_KINDS
        and concerns(signal, incident)
        and signal.occurred_at >= back_at
        for signal in incident.signals
    )


def began_anew(context: RuleContext) -> bool:
    """Whether a newer life of the attempt is at work than the reported one, and nothing was reported of it."""
    attempt = context.attempt_seen
    is_at_work = attempt.life > 0 and attempt.status is AttemptStatus.RUNNING and attempt.work != STALLED
    return is_at_work and not context.incident.is_ordered and came_back_from_repair(context)
