"""What people are told and nothing is done about: each fault once per attempt, in every phase, whatever fault leads.

A fault is such news where its playbook row says `tell`, and an announced end while it is over an hour away. What was
told is on record of the Incident (`AttemptTracking.told`), so that neither another look nor another Signal of the same
fault tells it again. Pure.
"""

from __future__ import annotations

import dataclasses

from chalicelib.domain.decision.verdict import Decision, RuleContext, story, subject
from chalicelib.domain.faults.heartbeat_claims import is_denied
from chalicelib.domain.faults.signal_facts import ORDER_KINDS, STATE_KINDS, is_current
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.playbooks import Response
from chalicelib.domain.run.first_response import ends_far_off
from chalicelib.domain.run.standing import is_standing
from rekindle.protocol.signals import FaultClass

_WEIGHED = (Phase.OPEN, Phase.HOLDING, Phase.WATCHING)  # the rules may still find there that the leading fault is over


def tell(context: RuleContext) -> Decision:
    """The fault that leads is told, and the Incident stays open for a while: what follows may change the picture."""
    reported = [signal for signal in context.incident.signals if signal.fault is context.incident.fault]
    key = _key(context, context.incident.fault, reported[-1].kind if reported else None)
    if context.is_told(key):
        if context.in_phase < context.policy.timing.tell_open:
            return context.stay(
                "playbook.collect", "people were notified; watching for anything that would change the picture"
            )
        return context.close(
            "playbook.notified", "people were notified; nothing else followed", Phase.STOPPED, severity=None
        )
    notice = _notice(context, context.incident.fault, story(context))
    reason = f"{story(context)} The playbook says: tell, do nothing."
    return context.with_told(key).move("playbook.tell", reason, Phase.HOLDING, notice)


def told_once(decision: Decision, key: str, notice: Notify) -> Decision | None:
    """`decision` with the notice, which is on record under the key from now on; None where it is already."""
    told = decision.incident.tracking.told
    if key in told:
        return None
    incident = decision.incident.changed(told=(*told, key))
    return dataclasses.replace(decision, incident=incident, actions=(*decision.actions, notice))


def with_news_told(context: RuleContext, decision: Decision) -> Decision:
    """`decision` with a notice for each such fault that a Signal reports and that is not on record as told."""
    told = decision.incident.tracking.told
    notices: list[Notify] = []
    for signal in context.incident.signals:
        if signal.fault is None or not _is_news(signal, context, told):
            continue
        key = _key(context, signal.fault, signal.kind)
        if key not in told:
            told = (*told, key)
            text = f"{signal.fault} (signal.{signal.kind}): {signal.summary.rstrip('.')}."
            notices.append(_notice(context, signal.fault, text))
    if not notices:
        return decision
    return dataclasses.replace(
        decision, incident=decision.incident.changed(told=told), actions=(*decision.actions, *notices)
    )


def _is_news(signal: Signal, context: RuleContext, told: tuple[str, ...]) -> bool:
    """It is about the attempt under care, only told, and nothing that was seen refutes it."""
    fault, attempt = signal.fault, context.attempt
    if fault is None or not signal.triggers or signal.kind in (*ORDER_KINDS, *STATE_KINDS):
        return False
    is_told_only = context.policy.playbook(fault).response is Response.TELL or ends_far_off(signal, now=context.now)
    if not is_told_only or not is_current(signal, context.incident):
        return False
    if is_denied(signal, attempt, now=context.now):
        return False
    if attempt is not None and attempt.name == signal.attempt and not is_standing(signal, context, attempt):
        return False
    leads = fault is context.incident.fault and context.incident.phase in _WEIGHED
    return not leads or any(key.startswith(_key(context, fault, None)) for key in told)


def _key(context: RuleContext, fault: FaultClass, kind: SignalKind | None) -> str:
    """What is told once. The kind of a Signal that names no fault is all that it says."""
    key = f"tell:{context.incident.attempt}:{fault}"
    return f"{key}:{kind}" if fault is FaultClass.UNCLEAR and kind is not None else key


def _notice(context: RuleContext, fault: FaultClass, text: str) -> Notify:
    return Notify(severity=Severity.WARNING, title=f"{subject(context)}: {fault}", text=text)
