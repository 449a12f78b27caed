"""decide(): the pure verdict on one observation of an Incident.

Total: every phase x observation gives a Decision, and the Decision names the rule that spoke. Nothing here reads a
clock, the environment or the network; the same inputs give the same verdict, so an operator can re-derive it.

A run's rules lie in rules/run, one module per phase or subject; a node's in rules/node. Rules common to all phases
(cancel, pause, no Job) are here and come first. A rule's name is stable: the timeline, `rekindle replay` and the tests
use it.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime

from chalicelib.domain.claims.bad_nodes import ACTING, with_bad_nodes, with_node_reports
from chalicelib.domain.claims.news import with_news_told
from chalicelib.domain.decision.verdict import (
    PAUSED,
    Decision,
    RuleContext,
    newest_signal,
    state_of_the_run,
    story,
    subject,
)
from chalicelib.domain.faults.diagnosis import diagnose, note_state
from chalicelib.domain.guards.guards import guarded, may_cordon
from chalicelib.domain.guards.holds import kept_holds, news_of_holds, with_answers
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.node.memory import remember
from chalicelib.domain.policy.document import Policy, readable
from chalicelib.domain.reporting.bookkeeping import with_account
from chalicelib.domain.rules.node.node import decide_node
from chalicelib.domain.rules.run.checkpointing import decide_checkpointing
from chalicelib.domain.rules.run.opening import decide_open
from chalicelib.domain.rules.run.orders import decide_order, stops_for_good
from chalicelib.domain.rules.run.platform_restart import platform_restarted
from chalicelib.domain.rules.run.resubmitting import decide_resubmitting
from chalicelib.domain.rules.run.stopping import decide_stopping
from chalicelib.domain.rules.run.verifying import decide_verifying

__all__ = ["Decision", "decide"]


def decide(incident: Incident, seen: Observation, *, now: datetime, policy: Policy) -> Decision:
    """What to do about `incident`, given what was seen at `now`, as far as `policy` allows.

    Pure and total. A closed Incident stays closed, as it is. The Incident's account is kept last, from what was really
    decided.
    """
    decision = _decided(incident, seen, now=now, policy=policy)
    if not incident.is_open:
        return decision
    held = kept_holds(decision.incident, decision.rule, decision.reason, seen, now=now)
    news = news_of_holds(incident, held, decision.rule, decision.reason, now=now)
    actions = (*decision.actions, *news)
    kept = with_account(incident, held, actions, seen, now=now, policy=policy)
    if kept is decision.incident and not news:
        return decision
    return dataclasses.replace(decision, incident=kept, actions=actions)


def _decided(incident: Incident, seen: Observation, *, now: datetime, policy: Policy) -> Decision:
    if not incident.is_open:
        closed = RuleContext(incident=incident, seen=seen, now=now, policy=policy)
        return closed.decided("closed", "the Incident is closed", incident, (), None)
    incident = incident.absorb(seen.new_signals)
    if readable(incident.policy_document) is None:
        incident = dataclasses.replace(
            incident, policy_name=policy.name, policy_version=policy.version, policy_document=policy.to_wire()
        )
    incident = with_answers(incident, seen)
    if not seen.paused:
        incident = incident.unpaused(now=now)
    if seen.shadow and not policy.shadow:
        policy = dataclasses.replace(policy, shadow=True)
    context = RuleContext(incident=incident, seen=seen, now=now, policy=policy)
    if incident.newer:
        reason = (
            f"a newer version of the service has worked on this Incident, and this one does not know {incident.newer}"
        )
        # In what state the run is left tells its later death from what the person was told of.
        context = dataclasses.replace(context, incident=note_state(incident, seen))
        handed_over = context.hand_over("incident.newer", f"{reason}. What it has begun is not continued.")
        return handed_over if incident.node is not None else _with_orders_answered(context, handed_over)
    return _of_a_node(context) if incident.node is not None else _of_a_run(context)


def _of_a_node(context: RuleContext) -> Decision:
    """Note the observation here and again in the rules (idempotent): the guards need the Incident as it is now."""
    base = remember(context).incident
    context = dataclasses.replace(context, incident=base.unheld(now=context.now))
    return guarded(context, decide_node(context), base=base)


def _of_a_run(context: RuleContext) -> Decision:
    ordered_before = context.incident.order
    base = with_bad_nodes(diagnose(context.incident, context.seen), context.seen)
    context = dataclasses.replace(context, incident=base.unheld(now=context.now))
    common = _common(context)
    if common is not None:
        is_kept = common.incident.is_open and context.incident.order is not ordered_before
        return common if is_kept else _with_orders_answered(context, common)
    decision = decide_order(context) or platform_restarted(context) or _by_phase(context)
    decision = _carried_on(context, guarded(context, decision, base=base))
    decision = with_node_reports(
        _nodes_first(context, decision),
        ran=context.incident.attempt,
        cluster=context.seen.cluster,
        policy=context.policy,
        may_cordon=may_cordon(context),
    )
    decision = with_news_told(context, decision)
    return decision if context.incident.order is not ordered_before else _with_orders_answered(context, decision)


def _nodes_first(context: RuleContext, decision: Decision) -> Decision:
    """Keep an Incident open for one more observation where a broken node is not reported yet."""
    if decision.incident.phase not in (Phase.RECOVERED, Phase.HANDED_OVER) or context.policy.shadow:
        return decision
    if context.incident.phase not in ACTING or all(
        item.is_reported for item in context.incident.resubmission.bad_nodes
    ):
        return decision
    return context.stay("nodes.first", f"{decision.reason}; first what it ran on is handed on.")


def _by_phase(context: RuleContext) -> Decision:
    match context.incident.phase:
        case Phase.OPEN | Phase.HOLDING | Phase.WATCHING:
            return decide_open(context)
        case Phase.CHECKPOINTING:
            return decide_checkpointing(context)
        case Phase.STOPPING:
            return decide_stopping(context)
        case Phase.RESUBMITTING:
            return decide_resubmitting(context)
        case Phase.DRAINING | Phase.REPAIRING | Phase.CHECKING | Phase.RETURNING:
            return context.hand_over(
                "node.misplaced", f"an Incident that is about no node cannot be {context.incident.phase}"
            )
        case _:
            return decide_verifying(context)


def _carried_on(context: RuleContext, decision: Decision) -> Decision:
    """Submit a prepared resubmission in the same observation if that has read the checkpoints already."""
    if decision.rule != "resubmit.prepare" or not isinstance(context.seen.checkpoints, Known):
        return decision
    prepared = dataclasses.replace(context, incident=decision.incident)
    sent = guarded(prepared, decide_resubmitting(prepared), base=decision.incident)
    if not sent.incident.is_open and sent.rule.startswith("resume."):
        return decision  # before it is given up, one more look tells whether it was started by hand meanwhile
    return dataclasses.replace(
        sent, reason=f"{decision.reason} {sent.reason}", actions=(*decision.actions, *sent.actions)
    )


def _common(context: RuleContext) -> Decision | None:
    cancel = newest_signal(context.seen.new_signals, SignalKind.ORDER_CANCEL)
    if cancel is not None and not _stopped_since(context, cancel):
        who = str(cancel.evidence.get("who", "an operator"))
        return context.close(
            "order.cancel",
            f"cancelled by {who} while {context.incident.phase}; {state_of_the_run(context)}",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    if context.seen.paused:
        since = context.incident.paused_since or context.now
        reason = f"{PAUSED} {story(context)} {state_of_the_run(context)}."
        return context.stay("guard.paused", reason, paused_since=since)
    if not context.seen.has_job:
        return _no_job(context)
    return None


def _stopped_since(context: RuleContext, cancel: Signal) -> bool:
    """A stop order after a cancel order: the stop applies, and ends the recovery as well."""
    stop = newest_signal(context.seen.new_signals, SignalKind.ORDER_STOP)
    return stop is not None and stops_for_good(context.incident) and stop.occurred_at >= cancel.occurred_at


def _no_job(context: RuleContext) -> Decision:
    is_silent = any(signal.kind is SignalKind.AGENT_NEWS for signal in context.incident.signals)
    rest = (
        "Until its agent is back, runs there can be neither watched nor recovered."
        if is_silent
        else "No protected Job is known there, so nothing is done."
    )
    if context.incident.phase is Phase.OPEN:
        notice = Notify(
            severity=Severity.WARNING,
            title=f"{subject(context)}: {context.incident.fault}",
            text=f"{story(context)} {rest}",
        )
        return context.move("cluster.tell", notice.text, Phase.HOLDING, notice)
    if context.in_phase < context.policy.timing.tell_open:
        return context.stay("cluster.collect", "collecting what else the cluster reports")
    return context.close(
        "cluster.notified",
        f"{context.incident.signals_seen} signals reported to people"
        + ("" if is_silent else "; no protected Job was affected"),
        Phase.STOPPED,
        severity=Severity.INFO,
    )


def _with_orders_answered(context: RuleContext, decision: Decision) -> Decision:
    """Notify about an order that came too late to be carried out, or that the Incident's end leaves undone."""
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
        return decision
    notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: an order was not taken", text=text)
    return dataclasses.replace(decision, actions=(*decision.actions, notice))


def _why_not(context: RuleContext, decision: Decision) -> str:
    if not decision.incident.is_open:
        return "the Incident has just ended; give it again, if it is still wanted"
    return f"a recovery from {context.incident.fault} is under way"
