"""Small makers for a node's decision table: a node as it is seen, its Incident, what it remembers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.action import ActionResult
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import (
    ClusterView,
    EarlierRepair,
    GroupRole,
    InstanceState,
    InstanceView,
    Load,
    Machines,
    NodeRecovery,
    NodeView,
)
from chalicelib.domain.model.node_findings import Finding, FindingKind
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.model.repair import AnotherRepair, NodeRepair, Route, Rung, Step, StepState
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, decide
from tests.domain.policies import changed

NODE = "ip-10-1-0-2"
OLD, NEW = "i-0aaaaaaaaaaaaaaa1", "i-0bbbbbbbbbbbbbbb2"
OURS = "rekindle:inc-node-1"
GONE: Known[None] = Known(None)


def facts(state: str = "idle", *flags: str, reason: str = "", jobs: tuple[int, ...] = (), **more: Any) -> NodeFacts:
    base = {"name": NODE, "state": state, "flags": flags, "reason": reason, "jobs": jobs, "instance_id": OLD}
    return NodeFacts(**(base | {"group": "gpu"} | more))


def drained(state: str = "idle", *flags: str, **more: Any) -> NodeFacts:
    """Cordoned by us."""
    return facts(state, "drain", *flags, **({"reason": OURS} | more))


def instance(state: InstanceState = InstanceState.RUNNING, instance_id: str = OLD, **more: Any) -> InstanceView:
    return InstanceView(instance_id=instance_id, state=state, **({"group": "gpu", "logical_id": "gpu-1"} | more))


def node_view(
    slurm: NodeFacts | Maybe[Any] | None = None,
    inst: InstanceView | Maybe[Any] | None = None,
    *,
    recovery: NodeRecovery = NodeRecovery.NONE,
    status: str = "InService",
    load: Maybe[Load] = Unknown("not needed yet"),
    machines: Machines = Machines.HYPERPOD,
    role: GroupRole = GroupRole.COMPUTE,
    past: tuple[EarlierRepair, ...] = (),
    **more: Any,
) -> NodeView:
    slurm = facts() if slurm is None else slurm
    inst = instance() if inst is None else inst
    on_pod = machines is not Machines.OWN
    return NodeView(
        machines=machines,
        listed=Known(slurm) if isinstance(slurm, NodeFacts) else slurm,
        cluster=Known(ClusterView(status=status, recovery=recovery, roles={"gpu": role}) if on_pod else None),
        instance=Known(inst) if isinstance(inst, InstanceView) else inst,
        total=8,
        load=load,
        past=past,
        **more,
    )


def observed(node: NodeView | Maybe[Any], *signals: Signal, results: tuple[ActionResult, ...] = (), **more: Any) -> Any:
    wrapped = Known(node) if isinstance(node, NodeView) else node
    base = {"observed_at": NOW, "has_job": False, "paused": False, "new_signals": signals, "results": results}
    return Observation(**(base | {"node": wrapped} | more))


def told(
    kind: SignalKind = SignalKind.NODE_HEALTH,
    *,
    fault: FaultClass | None = FaultClass.NODE_HARDWARE,
    ago: timedelta = MINUTE,
    **evidence: Any,
) -> Signal:
    return Signal(
        kind=kind,
        source=SignalSource.LOGS,
        occurred_at=NOW - ago,
        dedupe_key=f"{kind}:{evidence}:{ago}",
        summary=f"{kind} says {evidence}",
        cluster="pretrain",
        node=NODE,
        fault=fault,
        triggers=fault is not None,
        evidence=evidence,
    )


def finding(kind: FindingKind = FindingKind.XID_REBOOT, *, ago: timedelta = 20 * MINUTE, **more: Any) -> Finding:
    base: dict[str, Any] = {"kind": kind, "at": NOW - ago, "text": f"{kind} was seen", "key": kind.value}
    return Finding(**(base | more))


def step(rung: Rung = Rung.REBOOT, *, ago: timedelta = 10 * MINUTE, **more: Any) -> Step:
    base: dict[str, Any] = {
        "number": 1,
        "rung": rung,
        "route": Route.API,
        "at": NOW - ago,
        "instance_id": OLD,
        "state": StepState.TAKEN,
    }
    return Step(**(base | more))


def memory(*steps: Step, **more: Any) -> NodeRepair:
    base: dict[str, Any] = {
        "instance_id": OLD,
        "group": "gpu",
        "logical_id": "gpu-1",
        "findings": (finding(),),
        "steps": steps,
    }
    return NodeRepair(**(base | more))


ROOM = Known(Load(ahead=0, last_day=0))  # as a look counts what else is in repair


def in_turn(*steps: Step, **more: Any) -> NodeRepair:
    """One that wants another repair, and has waited its turn."""
    return memory(*steps, **({"another": AnotherRepair(at=NOW - MINUTE, why="the first did not help")} | more))


def node_incident(phase: Phase = Phase.OPEN, repair: NodeRepair | None = None, **more: Any) -> Incident:
    base: dict[str, Any] = {
        "incident_id": "inc-node-1",
        "job_id": None,
        "cluster": "pretrain",
        "node": NODE,
        "opened_at": NOW - 30 * MINUTE,
        "phase": phase,
        "phase_entered_at": NOW - 2 * MINUTE,
        "policy_document": DEFAULT_POLICY.to_wire(),
        "repair": repair if repair is not None or phase is Phase.OPEN else memory(),
    }
    return Incident(**base).changed(**more)


def look_at(case: Incident, what: Observation, policy: Policy = DEFAULT_POLICY) -> Decision:
    return decide(case, what, now=what.observed_at, policy=policy)


def with_policy(**fields: Any) -> Policy:
    return changed(**fields)
