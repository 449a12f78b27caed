"""Protected runs that are asked to leave a node which a person has ordered to be repaired."""

from __future__ import annotations

from chalicelib.domain.model.action import ActionResult, Done, action_name
from chalicelib.domain.model.errors import Skip
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.node_actions import MoveRuns
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import HeadNodes
from chalicelib.services.intake.intake import Intake
from chalicelib.services.intake.node_map import NodeMap
from rekindle.protocol.signals import FaultClass


def move_runs(
    action: MoveRuns,
    incident: Incident,
    *,
    registry: JobRegistry,
    head_nodes: HeadNodes | None,
    intake: Intake | None,
    clock: Clock,
) -> ActionResult:
    """Give each protected run on the node the order to save and go on elsewhere. The same order twice is one order.

    Raises:
        Retryable: some may have been notified; the report is idempotent.
    """
    if head_nodes is None or intake is None:
        return ActionResult(action=action_name(action), done=Done.REFUSED, detail="nothing reaches runs from here")
    order = Signal(
        kind=SignalKind.ORDER_RESUBMIT,
        source=SignalSource.OPERATOR,
        occurred_at=clock.now(),
        dedupe_key=f"move:{incident.incident_id}:{action.number}",
        summary=f"{action.who} ordered {action.node} to be repaired: save, and continue elsewhere"[:400],
        cluster=action.cluster,
        node=action.node,
        fault=FaultClass.OPERATOR_ORDER,
        evidence={"who": action.who, "move": action.node, "incident_id": incident.incident_id},
    )
    outcomes: list[str] = []
    for job, signal in NodeMap(head_nodes=head_nodes, registry=registry).for_runs(order, now=clock.now()):
        try:
            outcomes.append(f"{job.job_id}: {intake.receive(signal).what}")
        except Skip as skipped:
            outcomes.append(f"{job.job_id}: {skipped}")
    text = "; ".join(outcomes) or "no protected run is on it"
    return ActionResult(action=action_name(action), done=Done.DONE, detail=text[:400])
