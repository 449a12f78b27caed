"""What is decided of any Incident, whatever its phase, before the rules of the phase are asked."""

from __future__ import annotations

import dataclasses
from typing import Final

from chalicelib.domain.decision.rule import Rule, rule
from chalicelib.domain.decision.verdict import (
    PAUSED,
    Decision,
    RuleContext,
    newest_signal,
    state_of_the_run,
    story,
    subject,
)
from chalicelib.domain.faults.diagnosis import note_state
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.rules.run.orders import stops_for_good


@rule("closed")
def closed(context: RuleContext) -> Decision | None:
    """The Incident is closed: it stays as it is."""
    if context.incident.is_open:
        return None
    return context.decided("closed", "the Incident is closed", context.incident, (), None)


@rule("incident.newer")
def incident_newer(context: RuleContext) -> Decision | None:
    """A newer version of the service has worked on the Incident: a person."""
    if not context.incident.newer:
        return None
    reason = (
        "a newer version of the service has worked on this Incident, and this one does not know "
        f"{context.incident.newer}. What it has begun is not continued."
    )
    # In what state the run is left tells its later death from what the person was told of.
    context = dataclasses.replace(context, incident=note_state(context.incident, context.seen))
    return context.hand_over("incident.newer", reason)


@rule("order.cancel")
def order_cancel(context: RuleContext) -> Decision | None:
    """A person ends the recovery: closed, the run stays as it is. A later order to stop applies instead."""
    cancel = newest_signal(context.seen.new_signals, SignalKind.ORDER_CANCEL)
    if cancel is None or _is_stopped_since(context, cancel):
        return None
    who = str(cancel.evidence.get("who", "an operator"))
    return context.close(
        "order.cancel",
        f"cancelled by {who} while {context.incident.phase}; {state_of_the_run(context)}",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


def _is_stopped_since(context: RuleContext, cancel: Signal) -> bool:
    """A stop order after a cancel order: the stop applies, and ends the recovery as well."""
    stop = newest_signal(context.seen.new_signals, SignalKind.ORDER_STOP)
    return stop is not None and stops_for_good(context.incident) and stop.occurred_at >= cancel.occurred_at


@rule("guard.paused")
def guard_paused(context: RuleContext) -> Decision | None:
    """A global pause is set: nothing is done, and no limit runs."""
    if not context.seen.paused:
        return None
    since = context.incident.paused_since or context.now
    reason = f"{PAUSED} {story(context)} {state_of_the_run(context)}."
    return context.stay("guard.paused", reason, paused_since=since)


@rule("cluster.tell")
def cluster_tell(context: RuleContext) -> Decision | None:
    """No protected Job is behind the signal, only a cluster: notified."""
    if context.seen.has_job or context.incident.phase is not Phase.OPEN:
        return None
    rest = (
        "Until its agent is back, runs there can be neither watched nor recovered."
        if _is_agent_silent(context)
        else "No protected Job is known there, so nothing is done."
    )
    notice = Notify(
        severity=Severity.WARNING,
        title=f"{subject(context)}: {context.incident.fault}",
        text=f"{story(context)} {rest}",
    )
    return context.move("cluster.tell", notice.text, Phase.HOLDING, notice)


@rule("cluster.collect")
def cluster_collect(context: RuleContext) -> Decision | None:
    """The same, notified less than `timing.tell_open_s` ago: wait for what else the cluster reports."""
    if context.seen.has_job or context.in_phase >= context.policy.timing.tell_open:
        return None
    return context.stay("cluster.collect", "collecting what else the cluster reports")


@rule("cluster.notified")
def cluster_notified(context: RuleContext) -> Decision | None:
    """The same, longer ago: closed."""
    if context.seen.has_job:
        return None
    return context.close(
        "cluster.notified",
        f"{context.incident.signals_seen} signals reported to people"
        + ("" if _is_agent_silent(context) else "; no protected Job was affected"),
        Phase.STOPPED,
        severity=Severity.INFO,
    )


def _is_agent_silent(context: RuleContext) -> bool:
    return any(signal.kind is SignalKind.AGENT_NEWS for signal in context.incident.signals)


@rule("node.misplaced")
def run_misplaced(context: RuleContext) -> Decision:
    """A phase of a node's Incident, which cannot happen: a person."""
    reason = f"an Incident that is about no node cannot be {context.incident.phase}"
    return context.hand_over("node.misplaced", reason)


UNTOUCHED: Final[tuple[Rule[[]], ...]] = (closed,)
UNKNOWN: Final[tuple[Rule[[]], ...]] = (incident_newer,)
COMMON: Final[tuple[Rule[[]], ...]] = (order_cancel, guard_paused, cluster_tell, cluster_collect, cluster_notified)
