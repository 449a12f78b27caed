"""Claims that only external monitoring or a log line makes, and the evidence that confirms them. Pure.

Such an alert may be wrong in every way that its rule may be: a threshold, a label that names another run, a metric that
went missing. The health agent writes its log under the role of the node that it runs on, under which a job on that node
may write as well. So before a step that ends or takes something away, the run's or the node's own word is wanted, or a
person's (ADR 0037).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.fault_specs.faults import HEALABLE, LOSS_FAULTS
from chalicelib.domain.faults.heartbeat_claims import CLAIMS, has_fresh_heartbeat, is_beyond_heartbeats
from chalicelib.domain.faults.signal_facts import ORDER_KINDS
from chalicelib.domain.model.approvals import STOP
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import InstanceState, is_marked, is_silent
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.node.memory import facts_of, instance_seen
from rekindle.protocol.signals import FaultClass

PASSED_ON: Final = "alert_only"  # in the evidence of a run's report of a node: it knows no more than the alert did


def is_alert(signal: Signal) -> bool:
    """Other monitoring or a log line says so, or a run that passes its word on."""
    if signal.kind in (SignalKind.EXTERNAL_ALERT, SignalKind.AGENT_LOG_FAULT):
        return True
    return signal.evidence.get(PASSED_ON) is True


def only_alerts(signals: Iterable[Signal], fault: FaultClass | None = None) -> bool:
    """True if only alerts report the fault. `fault` restricts this to Signals of that class."""
    claims = [
        signal
        for signal in signals
        if signal.triggers
        and signal.fault is not None
        and signal.kind not in ORDER_KINDS
        and fault in (None, signal.fault)
    ]
    return bool(claims) and all(is_alert(claim) for claim in claims)


def left_by_alerts_alone(incident: Incident) -> bool:
    """A person's answer covered an alert only: evidence from the run or the node itself is news."""
    return only_alerts(incident.signals, None if incident.node is not None else incident.fault)


def is_unproven(signal: Signal) -> bool:
    """A claim that others than the run's monitor can send: an event of the bus, or a metric beside the monitor's."""
    if signal.source is SignalSource.MONITOR and signal.kind in CLAIMS:
        return True
    return signal.kind is SignalKind.STATE_REREAD and signal.fault is FaultClass.NON_FINITE


def _only_unproven(context: RuleContext) -> bool:
    """A stall or a bad value of a run whose mailbox has no heartbeat that could confirm or deny it (ADR 0037)."""
    claims = [
        signal for signal in context.incident.signals if signal.triggers and signal.fault is context.incident.fault
    ]
    attempt = context.attempt
    if attempt is None or not claims or not all(is_alert(claim) or is_unproven(claim) for claim in claims):
        return False
    if attempt.heartbeat_at is None and not attempt.is_heartbeat_unread and not isinstance(attempt.last_step, Known):
        return True
    unproven = [claim for claim in claims if is_unproven(claim)]
    if unproven and _is_asked(context.incident):  # heartbeats that are found meanwhile, and are late, do not answer
        return not has_fresh_heartbeat(attempt, now=context.now)
    return bool(unproven) and all(
        is_beyond_heartbeats(claim, attempt) for claim in unproven
    )  # one that is unread is there


def _is_asked(incident: Incident) -> bool:
    """Whether the run may be stopped has been asked, and the question stands."""
    return any(approval.lapsed_at is None and approval.key.startswith(f"{STOP}:") for approval in incident.approvals)


def rests_on_alerts(context: RuleContext) -> bool:
    """Nothing but alerts stands behind what is being done about the run, or the node, now."""
    incident = context.incident
    if incident.node is not None:
        return only_alerts(incident.signals) and not _node_bears_out(context)
    attempt = context.attempt
    if attempt is not None and attempt.start is not None and attempt.start.is_queued:
        return False  # nothing of it runs yet: it is withdrawn for another reason
    # For these the rules check the run's steps first (rules/run/opening.py): no further step confirms the claim.
    is_unproven_word = _only_unproven(context)
    if not is_unproven_word and (incident.fault in HEALABLE or not only_alerts(incident.signals, incident.fault)):
        return False
    if attempt is None:
        return True
    if attempt.status.has_ended:
        return False
    if incident.fault is FaultClass.NON_FINITE:
        return attempt.loss_state not in ("nan", "inf")
    return not (incident.fault in LOSS_FAULTS and attempt.loss_health not in ("unknown", "ok"))


def _node_bears_out(context: RuleContext) -> bool:
    """HyperPod's own word, or the cluster's, which cannot reach it; or a log line and an alert, from two sources."""
    facts, instance = facts_of(context), instance_seen(context)
    if instance is not None and instance.state is InstanceState.FAILURE:
        return True
    if facts is not None and (is_silent(facts) or is_marked(facts)):
        return True
    kinds = {signal.kind for signal in context.incident.signals if signal.triggers}
    return {SignalKind.EXTERNAL_ALERT, SignalKind.AGENT_LOG_FAULT} <= kinds


def alerts_word(context: RuleContext) -> str:
    """Text of an approval: the only sources of the claim."""
    if any(signal.kind is SignalKind.EXTERNAL_ALERT for signal in context.incident.signals):
        return "only an alert of other monitoring says so"
    if _only_unproven(context):
        return "only events or metrics say so, which others may send as well, and no heartbeat since confirms it"
    return "only a line in the health agent's log says so, where a job on the node may write as well"


def own_word(context: RuleContext) -> str:
    """Text of an approval: what the run's own heartbeat reports."""
    attempt = context.attempt
    if context.incident.node is not None or attempt is None:
        return "nothing else is known"
    step = f" at step {attempt.last_step.value}" if isinstance(attempt.last_step, Known) else ""
    return f"the run's own monitor reads a loss that is {attempt.loss_state}{step}"
