"""Two attempts of one run live: ours makes way for the one that a person or the owner's pipeline has started.

Two write over each other's checkpoints, and the fence lets only one of them save. The rules are asked in every phase;
what names the other one is a Signal of the kind `two_live`, which an event or the sweep gives (services/intake).
"""

from __future__ import annotations

import dataclasses
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, subject, why_unknown
from chalicelib.domain.fault_specs.faults import POISONS
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import NO_SIBLING, AttemptStatus
from chalicelib.domain.policy.playbooks import MAKES_WAY, Response
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop
from chalicelib.domain.run.movement import new_watch
from chalicelib.domain.run.news import told_once
from rekindle.protocol.signals import FaultClass

_BEFORE_A_STEP: Final = frozenset({Phase.OPEN, Phase.HOLDING, Phase.WATCHING})


@rule("two_live.over")
def two_live_over(context: RuleContext) -> Decision | None:
    """The Incident is about a second attempt that lived, and it no longer does: closed, the run goes on."""
    if not _is_about_it(context) or context.seen.sibling != NO_SIBLING:
        return None
    reason = f"the other attempt has ended, and {context.attempt_seen.name} goes on alone"
    return context.close("two_live.over", reason, Phase.STOPPED, severity=Severity.INFO)


@rule("two_live.unseen", "two_live.unseen_limit")
def two_live_unseen(context: RuleContext) -> Decision | None:
    """Whether the second attempt lives cannot be read: wait; paged at `timing.stop_limit_s`."""
    if not _is_about_it(context) or isinstance(context.seen.sibling, Known):
        return None
    reason = f"whether another attempt lives is not known: {why_unknown(context.seen.sibling)}"
    return context.unread("two_live.unseen", "two_live.unseen_limit", reason, context.in_phase)


@rule("two_live.make_way")
def two_live_make_way(context: RuleContext) -> Decision | None:
    """Ours lives beside one that others have started: it is asked to save, then stopped, and theirs is watched.

    One whose loss is bad, or that does not train yet, has nothing to save.
    """
    beside = _beside_ours(context)
    if beside is None:
        return None
    attempt, incident = context.attempt_seen, context.incident
    reason = f"{beside}, which others have started, lives beside {attempt.name}, which makes way for it."
    response = context.policy.playbook(FaultClass.TWO_LIVE).response
    is_worthless = incident.fault in POISONS or incident.is_poisoned or attempt.status is not AttemptStatus.RUNNING
    if is_worthless or response is Response.RESTART:
        return begin_stop(context, "two_live.make_way", reason, for_sibling=beside)
    asked = begin_checkpoint(
        context.changed(for_sibling=beside), attempt, "two_live.make_way", because=FaultClass.TWO_LIVE
    )
    return dataclasses.replace(asked, reason=f"{reason} {asked.reason}")


@rule("two_live.left", "two_live.hand_over")
def two_live_left(context: RuleContext) -> Decision | None:
    """Neither is ours to stop, or the playbook of `two_live` leaves both: told, and a person where it says so."""
    if not _is_about_it(context) or not isinstance(context.seen.sibling, Known):
        return None
    reason = both_word(context, context.seen.sibling.value)
    if context.policy.playbook(FaultClass.TWO_LIVE).response in (
        Response.HAND_OVER,
        Response.CHECKPOINT_THEN_HAND_OVER,
    ):
        return context.hand_over("two_live.hand_over", reason)
    return context.close("two_live.left", reason, Phase.STOPPED, severity=None)


@rule("two_live.saved")
def two_live_saved(context: RuleContext) -> Decision | None:
    """Ours was asked to save before it makes way, and has answered or no longer can: stopped."""
    beside, ask, attempt = context.incident.halt.for_sibling, context.incident.halt.ask, context.attempt
    if beside is None or ask is None or attempt is None or context.has_ended(attempt):
        return None
    return begin_stop(context, "two_live.saved", f"checkpoint {ask.outcome}; {beside} continues.", for_sibling=beside)


@rule("two_live.over")
def two_live_over_meanwhile(context: RuleContext) -> Decision | None:
    """Ours was asked to save before it makes way, and the other one has ended since: ours goes on."""
    if context.incident.halt.for_sibling is None or context.seen.sibling != NO_SIBLING:
        return None
    reason = f"{context.incident.halt.for_sibling} has ended, and {context.attempt_seen.name} goes on alone"
    to = Phase.VERIFYING if context.incident.resubmission.tries else Phase.HOLDING
    return context.changed(for_sibling=None, **new_watch()).move("two_live.over", reason, to)


@rule()
def two_live_told(context: RuleContext, decision: Decision) -> Decision | None:
    """Two attempts that live are told at once, once, with both names."""
    attempt, beside = context.attempt, context.seen.sibling
    if attempt is None or attempt.status.has_ended or not isinstance(beside, Known) or context.policy.shadow:
        return None
    if beside.value == attempt.name:
        return None
    notice = Notify(
        severity=Severity.WARNING,
        title=f"{subject(context)}: two attempts live",
        text=f"{both_word(context, beside.value)} {_what_follows(context, beside.value, decision)}",
    )
    return told_once(decision, f"two_live:{beside.value}", notice)


TWO_LIVE: Final = (two_live_over, two_live_unseen, two_live_make_way, two_live_left)


def both_word(context: RuleContext, beside: str) -> str:
    """Both names, for people."""
    whose = "Rekindle has started" if context.seen.is_ours else "is the Job's own"
    return f"{context.attempt_seen.name}, which {whose}, and {beside}, which others have started, live at once."


def _what_follows(context: RuleContext, beside: str, decision: Decision) -> str:
    name, halt = context.attempt_seen.name, decision.incident.halt
    if halt.for_sibling is not None:
        return f"{name} {'saves and ' if decision.incident.phase is Phase.CHECKPOINTING else ''}makes way."
    return (
        f"Both are left running, and what {beside} saves is not resumed from while the other one lives. Stop one of "
        "them."
    )


def _is_about_it(context: RuleContext) -> bool:
    attempt = context.attempt
    if attempt is None or attempt.status.has_ended or context.ordered is not None:
        return False
    # Asked to save for what is over by now: what is left is that two live, and that is no reason for a stop.
    is_asked = context.incident.phase is Phase.CHECKPOINTING and context.incident.halt.for_sibling is None
    return context.incident.fault is FaultClass.TWO_LIVE and (is_asked or context.incident.phase in _BEFORE_A_STEP)


def _beside_ours(context: RuleContext) -> str | None:
    """The attempt for which ours makes way; None where nothing of ours runs beside it, or the playbook leaves both."""
    attempt, incident, beside = context.attempt, context.incident, context.seen.sibling
    if attempt is None or attempt.status not in (AttemptStatus.RUNNING, AttemptStatus.STARTING):
        return None
    if not isinstance(beside, Known) or not context.seen.is_ours or context.ordered is not None:
        return None
    if incident.phase not in (*_BEFORE_A_STEP, Phase.VERIFYING):
        return None
    if attempt.start is not None and attempt.start.is_queued:
        return None  # it has not begun: `verify.sibling`
    is_wanted = context.policy.playbook(FaultClass.TWO_LIVE).response in MAKES_WAY
    return beside.value if is_wanted else None
