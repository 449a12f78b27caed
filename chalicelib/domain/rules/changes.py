"""What changes a Decision after a rule has made it: guards, reports of nodes, answers to orders, the account.

Each is asked, in the order of its tuple, with the Decision as it is by then; None leaves that as it is.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from chalicelib.domain.decision.rule import Rule, decided_by, rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, newest_signal, subject
from chalicelib.domain.faults.loss import marked_bad
from chalicelib.domain.guards.guards import guarded, may_cordon
from chalicelib.domain.guards.holds import kept_holds, news_of_holds
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.reporting.bookkeeping import with_account
from chalicelib.domain.rules.run.orders import stops_for_good
from chalicelib.domain.rules.run.responses import rewind_told
from chalicelib.domain.rules.run.resubmitting import RESUBMITTING
from chalicelib.domain.rules.run.two_live import two_live_told
from chalicelib.domain.run.bad_nodes import ACTING, with_node_reports
from chalicelib.domain.run.down import with_down_told
from chalicelib.domain.run.news import with_news_told


@rule()
def guards(context: RuleContext, decision: Decision) -> Decision:
    """A step that a guard holds back is not done: [guards](#guards)."""
    return guarded(context, decision)


@rule()
def carried_on(context: RuleContext, decision: Decision) -> Decision | None:
    """A resubmission that was prepared is submitted at once, if the checkpoints have been read already."""
    if decision.rule != "resubmit.prepare" or not isinstance(context.seen.checkpoints, Known):
        return None
    prepared = dataclasses.replace(context, incident=decision.incident, base=decision.incident)
    sent = guarded(prepared, decided_by(RESUBMITTING, prepared))
    if not sent.incident.is_open and sent.rule.startswith("resume."):
        return None  # before it is given up, one more look tells whether it was started by hand meanwhile
    return dataclasses.replace(
        sent, reason=f"{decision.reason} {sent.reason}", actions=(*decision.actions, *sent.actions)
    )


@rule("nodes.first")
def nodes_first(context: RuleContext, decision: Decision) -> Decision | None:
    """The faulty node is reported before the Incident closes."""
    if decision.incident.phase not in (Phase.RECOVERED, Phase.HANDED_OVER) or context.policy.shadow:
        return None
    if context.incident.phase not in ACTING or all(
        item.is_reported for item in context.incident.resubmission.bad_nodes
    ):
        return None
    return context.stay("nodes.first", f"{decision.reason}; first the faulty node is reported.")


@rule()
def node_reports(context: RuleContext, decision: Decision) -> Decision:
    """The first step that does anything about the run also cordons its broken nodes and reports them."""
    return with_node_reports(
        decision,
        ran=context.incident.attempt,
        cluster=context.seen.cluster,
        policy=context.policy,
        may_cordon=may_cordon(context),
    )


@rule()
def news_told(context: RuleContext, decision: Decision) -> Decision:
    """A fault of which the playbook only tells is told, once per attempt, in every phase and beside any other fault."""
    return with_news_told(context, decision)


@rule()
def order_left(context: RuleContext, decision: Decision) -> Decision | None:
    """An order that is not carried out before the Incident ends, or that waits, is answered with a notice."""
    if context.incident.node is not None or (decision.incident.is_open and _is_taken(context)):
        return None
    return _order_answered(context, decision)


@rule()
def order_too_late(context: RuleContext, decision: Decision) -> Decision | None:
    """An order that comes too late to be carried out, or that the Incident's end leaves undone, is answered so."""
    return None if _is_taken(context) else _order_answered(context, decision)


def _is_taken(context: RuleContext) -> bool:
    """An order was taken at this observation."""
    return context.incident.order is not context.before.order


def _order_answered(context: RuleContext, decision: Decision) -> Decision | None:
    order = (
        newest_signal(context.seen.new_signals, SignalKind.ORDER_STOP)
        or newest_signal(context.seen.new_signals, SignalKind.ORDER_RESUBMIT)
        or newest_signal(context.seen.new_signals, SignalKind.ORDER_CHECKPOINT)
    )
    if order is not None:
        text = f"{order.summary}: {_why_not(context, decision)} ({decision.rule})."
    elif stops_for_good(context.incident) and decision.incident.phase is Phase.HANDED_OVER:
        who = (context.incident.order or {}).get("who")
        text = (
            f"{who} ordered {context.incident.attempt} to be stopped, and that was not carried out "
            f"({decision.rule}). Give the order again, if it is still wanted."
        )
    else:
        return None
    notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: an order was not taken", text=text)
    return dataclasses.replace(decision, actions=(*decision.actions, notice))


def _why_not(context: RuleContext, decision: Decision) -> str:
    if not decision.incident.is_open:
        return "the Incident has just ended; give it again, if it is still wanted"
    return f"a recovery from {context.incident.fault} is under way"


@rule()
def holds(context: RuleContext, decision: Decision) -> Decision:
    """The Incident notes what holds it back, and since when; people are notified of holds that may last."""
    held = kept_holds(decision.incident, decision.rule, decision.reason, context.seen, now=context.now)
    news = news_of_holds(context.before, held, decision.rule, decision.reason, now=context.now)
    if held is decision.incident and not news:
        return decision
    return dataclasses.replace(decision, incident=held, actions=(*decision.actions, *news))


@rule()
def down_told(context: RuleContext, decision: Decision) -> Decision:
    """A run that has not trained for 15 minutes is told once, whatever is waited for, unless people had a warning."""
    return with_down_told(context, decision)


@rule()
def bad_loss_kept(_: RuleContext, decision: Decision) -> Decision | None:
    """What was saved in a bad loss that is not known to be over as the Incident ends is never resumed from."""
    ended = decision.incident
    if ended.is_open:
        return None
    stretches = marked_bad(ended).loss.stretches
    return dataclasses.replace(decision, incident=ended.changed(stretches=stretches))


@rule()
def account(context: RuleContext, decision: Decision) -> Decision:
    """The Incident's account is brought up to date from what was really decided."""
    kept = with_account(
        context.before, decision.incident, decision.actions, context.seen, now=context.now, policy=context.policy
    )
    return decision if kept is decision.incident else dataclasses.replace(decision, incident=kept)


# After a rule that is common to all phases; after a phase's rule; after a rule for a node; and after all of them.
AFTER_COMMON: Final[tuple[Rule[[Decision]], ...]] = (order_left,)
AFTER_PHASE: Final[tuple[Rule[[Decision]], ...]] = (
    guards,
    carried_on,
    nodes_first,
    node_reports,
    news_told,
    two_live_told,
    rewind_told,
    order_too_late,
)
AFTER_NODE: Final[tuple[Rule[[Decision]], ...]] = (guards,)
AFTER_ALL: Final[tuple[Rule[[Decision]], ...]] = (holds, down_told, bad_loss_kept, account)
