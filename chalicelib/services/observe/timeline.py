"""The line that an observation leaves in the timeline of its Incident, and whether it leaves one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.action import action_name
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.known import Known, maybe_to_wire
from chalicelib.domain.model.observation import AttemptStatus, Observation
from chalicelib.domain.model.signal import Signal
from chalicelib.services.observe.nodes import node_facts


def needs_record(before: Incident, decision: Decision, seen: Observation, *, quiet_limit: timedelta) -> bool:
    """False for a look that changed nothing: no write, no line in the timeline.

    A wait longer than `quiet_limit` is always recorded, because the sweep must know not to expect a look before.
    """
    if not before.is_open:
        return False  # a closed Incident never moves, whatever still arrives for it
    is_long = decision.look_again_in is not None and decision.look_again_in > quiet_limit
    return bool(is_long or decision.actions or seen.new_signals or seen.results or decision.incident != before)


def entry_of(decision: Decision, seen: Observation) -> TimelineEntry:
    facts: dict[str, Any] = {"policy_version": decision.policy_version}
    if isinstance(seen.attempt, Known):
        view = seen.attempt.value
        facts["attempt"] = {
            "name": view.name,
            "status": view.status.value,
            "last_step": maybe_to_wire(view.last_step),
            "loss_state": view.loss_state,
        }
        if view.loss_health not in ("unknown", "ok"):
            facts["attempt"] |= {"loss_health": view.loss_health, "judged_step": maybe_to_wire(view.judged_at)}
        if view.status is AttemptStatus.FAILED:
            facts["failure_reason"] = view.failure_reason[:500]
    elif seen.has_job:
        facts["attempt"] = {"unknown": seen.attempt.why}
    if isinstance(seen.node, Known):
        facts["node"] = node_facts(seen.node.value)
    if seen.new_signals:
        facts["signals"] = [_signal_fact(signal) for signal in seen.new_signals[:10]]
        facts["signals_count"] = len(seen.new_signals)
    if isinstance(seen.suspicion, Known):
        facts["suspicion"] = seen.suspicion.value.to_wire(defaults=True)
    if seen.results:
        facts["results"] = [result.to_wire(defaults=True) for result in seen.results]
    if decision.look_again_in is not None:
        facts["look_again_in_s"] = decision.look_again_in.total_seconds()
    return TimelineEntry(
        at=seen.observed_at,
        phase=decision.incident.phase,
        rule=decision.rule,
        text=decision.reason,
        actions=tuple(action_name(action) for action in decision.actions),
        facts=facts,
    )


def _signal_fact(signal: Signal) -> dict[str, Any]:
    answered = {name: signal.evidence[name] for name in ("barred", "queue_losses") if signal.evidence.get(name)}
    return answered | {
        "kind": signal.kind.value,
        "source": signal.source.value,
        "at": signal.occurred_at.isoformat(),
        "summary": signal.summary,
        "fault": signal.fault.value if signal.fault else None,
    }
