"""The decision table of a node's own Incident: a row per rule, with the world and the memory that call for it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from datetime import timedelta

import pytest

from chalicelib.domain.model.action import (
    Action,
    ActionResult,
    CordonNode,
    Done,
    Notify,
    read_action,
)
from chalicelib.domain.model.hardware_ledger import HardwareFault, HardwareRecord, SuspectRule
from chalicelib.domain.model.incident import NODE_PHASES, TRANSITIONS, Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.node import (
    EarlierRepair,
    GroupRole,
    InstanceState,
    Load,
    Machines,
    NodeRecovery,
    is_well_but_drained,
)
from chalicelib.domain.model.node_actions import CheckNode, MoveRuns, RebootNode, ReplaceNode, UncordonNode
from chalicelib.domain.model.node_findings import FindingKind, NodeOrder, finding_of
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.model.repair import (
    FAILURE_WORDS,
    FIRST_RUNGS,
    Allowed,
    AnotherRepair,
    OutsideRepair,
    Route,
    Rung,
    Step,
    StepState,
    first_rung,
    leading_finding,
    next_rung,
    route_of,
)
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.node.repair_budget import max_in_repair
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, UNSEEN, signal
from tests.domain.node_looks import (
    GONE,
    NEW,
    OLD,
    ROOM,
    drained,
    facts,
    finding,
    in_turn,
    instance,
    look_at,
    memory,
    node_incident,
    node_view,
    observed,
    step,
    told,
    with_policy,
)

XID = told(xid=79, first_response="reboot", instance_id=OLD)
HMA = told(recommended="replace", xid=79, instance_id=OLD)
CANCEL = signal(None, kind=SignalKind.ORDER_CANCEL, evidence={"who": "ada"})
AUTO = NodeRecovery.AUTOMATIC
P = Phase
HOUR = timedelta(hours=1)
FAILED = instance(InstanceState.FAILURE)
DIED = instance(InstanceState.FAILURE, NEW, message="We currently do not have sufficient capacity for ml.p5.48xlarge")
NO_EFA = instance(InstanceState.FAILURE, NEW, message="EFA health checks did not run successfully")


def queued(**more: object) -> object:
    return memory(**({"wanted_at": NOW - MINUTE} | more))  # type: ignore[arg-type]


def asked(phase: Phase, repair: object = None, **more: object) -> Incident:
    return node_incident(phase, repair, **more)  # type: ignore[arg-type]


def lost_while(**runs: tuple[str, ...]) -> object:
    """Slurm alone calls it lost; `runs`: of the Load."""
    load = Load(ahead=0, last_day=0, **runs)  # type: ignore[arg-type]
    return observed(node_view(facts("down", "not_responding"), load=Known(load)))


def ordered(*steps: Step, rung: Rung = Rung.REPLACE, ago: timedelta = MINUTE, **more: object) -> object:
    order = NodeOrder(rung=rung, who="ada", at=NOW - ago, why="fan")
    return memory(*steps, **({"order": order} | more))  # type: ignore[arg-type]


def record(faults: int, *, gpu: str = "GPU-5c89b0a6-2d1e-6a23-9a4b-0123456789ab") -> HardwareRecord:
    """What a GPU has had within the last days, on other nodes of another cluster."""
    kept = HardwareRecord(mark=f"gpu:{gpu}")
    for number in range(faults):
        fault = HardwareFault(
            at=NOW - timedelta(days=1 + number),
            incident_id=f"inc-{number}",
            cluster="other",
            node=f"n{number}",
            instance_id=f"i-{number:017x}",
            kind="xid_reboot",
            text="Xid 79",
        )
        kept = kept.with_fault(fault)
    return kept


def refused(action: str, done: Done = Done.REFUSED) -> tuple[ActionResult, ...]:
    return (ActionResult(action=action, done=done, detail="not this time"),)


REBOOTED, REPLACED = step(), step(Rung.REPLACE, ago=30 * MINUTE)
FRESH = node_view(drained(instance_id=NEW), instance(instance_id=NEW))
SICK = finding(ago=MINUTE, instance_id=OLD)
REBOOTING = memory(step(ago=2 * MINUTE))

Row = tuple[str, Incident, Observation, Policy, str, Phase, tuple[type[Action], ...]]


def row(
    rule: str,
    case: Incident,
    what: Observation,
    phase: Phase,
    *actions: type[Action],
    policy: Policy = DEFAULT_POLICY,
    name: str = "",
) -> Row:
    return (f"{rule} {name}".strip(), case, what, policy, rule, phase, actions)


ORDER = told(SignalKind.ORDER_NODE, fault=FaultClass.OPERATOR_ORDER, do="replace", who="ada", why="fan")
FORCED = told(SignalKind.ORDER_NODE, fault=FaultClass.OPERATOR_ORDER, do="replace", who="ada", force=True)
OFF = with_policy(nodes={"repair": Allowed.OFF})
GPU = "GPU-5c89b0a6-2d1e-6a23-9a4b-0123456789ab"
SUSPECT = Known((record(3),))


LOST = memory(findings=(finding(FindingKind.DOWN),))
NODE_TABLE: list[Row] = [
    row("node.untouched", asked(P.DRAINING, LOST), observed(node_view(drained())), P.RETURNING, UncordonNode),
    row(
        "node.just_repaired",
        asked(
            P.HOLDING,
            memory(
                findings=(finding(FindingKind.DOWN),),
                past=(EarlierRepair(at=NOW - 10 * MINUTE, rung="reboot", instance_id=OLD),),
            ),
        ),
        observed(node_view(facts("down"))),
        P.HOLDING,
    ),
    row("node.many_down", asked(P.HOLDING, LOST), observed(node_view(facts("down"), down=4)), P.HOLDING),
    row(
        "node.many_down_limit",
        asked(P.HOLDING, LOST, phase_entered_at=NOW - 2 * HOUR),
        observed(node_view(facts("down"), down=4)),
        P.HANDED_OVER,
        Notify,
    ),
    # ---- whose is it, and is anything to be done
    row("order.cancel", asked(P.DRAINING), observed(node_view(), CANCEL), P.STOPPED, Notify),
    row("guard.paused", asked(P.DRAINING), observed(node_view(), paused=True), P.DRAINING, Notify),
    row(
        "node.off",
        asked(P.OPEN),
        observed(node_view(), XID),
        P.STOPPED,
        Notify,
        policy=with_policy(nodes={"repair": Allowed.OFF}),
    ),
    row("node.unread", asked(P.OPEN), observed(UNSEEN, XID), P.OPEN),
    row(
        "node.unread", asked(P.OPEN), observed(node_view(Unknown("the agent is silent")), XID), P.OPEN, name="in Slurm"
    ),
    row(
        "node.unread_limit",
        asked(P.HOLDING, memory(changed_at=NOW - 2 * HOUR), phase_entered_at=NOW - 2 * HOUR),
        observed(node_view(Unknown("silent"), UNSEEN)),
        P.HANDED_OVER,
        Notify,
    ),
    row("node.not_in_slurm", asked(P.OPEN), observed(node_view(GONE), XID), P.STOPPED, Notify),
    row("node.controller", asked(P.OPEN), observed(node_view(role=GroupRole.CONTROLLER), XID), P.HANDED_OVER, Notify),
    row(
        "node.controller",
        asked(P.OPEN),
        observed(node_view(role=GroupRole.LOGIN), XID),
        P.HANDED_OVER,
        Notify,
        name="login",
    ),
    row(
        "node.theirs",
        asked(P.OPEN),
        observed(node_view(inst=instance(InstanceState.SHUTTING_DOWN)), XID),
        P.HOLDING,
        Notify,
    ),
    row("node.theirs", asked(P.OPEN), observed(node_view(inst=GONE), XID), P.HOLDING, Notify, name="in no list"),
    row(
        "node.theirs",
        asked(P.OPEN),
        observed(node_view(facts("idle", "fail", reason="Action:Replace"), recovery=AUTO), XID),
        P.HOLDING,
        Notify,
        name="marked",
    ),
    row(
        "node.theirs",
        asked(P.OPEN),
        observed(node_view(facts("idle", "reboot_issued")), XID),
        P.HOLDING,
        Notify,
        name="Slurm's reboot",
    ),
    row(
        "node.theirs",
        asked(P.DRAINING),
        observed(node_view(drained(), instance(InstanceState.PENDING))),
        P.HOLDING,
        Notify,
        name="meanwhile",
    ),
    row(
        "node.theirs_stuck",
        asked(
            P.HOLDING,
            memory(
                changed_at=NOW - 2 * HOUR,
                notified=("node.theirs",),
                instance_word=f"{OLD} ShuttingDown",
                listed_word="idle",
            ),
            phase_entered_at=NOW - 2 * HOUR,
        ),
        observed(node_view(inst=instance(InstanceState.SHUTTING_DOWN))),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.theirs_done",
        asked(P.OPEN),
        observed(node_view(facts(instance_id=NEW), instance(instance_id=NEW)), XID),
        P.RECOVERED,
        Notify,
    ),
    row("node.theirs_done", asked(P.OPEN), observed(FRESH, XID), P.RETURNING, UncordonNode, name="our drain"),
    row(
        "node.theirs_done",
        asked(P.HOLDING, memory(theirs=OutsideRepair(what="it rebooted", at=NOW))),
        observed(node_view(drained())),
        P.RETURNING,
        UncordonNode,
        name="rebooted",
    ),
    row(
        "node.theirs_done",
        asked(P.HOLDING, memory(theirs=OutsideRepair(what="it rebooted", at=NOW))),
        observed(node_view()),
        P.RECOVERED,
        Notify,
        name="in service",
    ),
    row(
        "node.theirs_done",
        asked(P.DRAINING),
        observed(node_view(drained(instance_id=NEW), instance(instance_id=NEW))),
        P.RETURNING,
        UncordonNode,
        name="while it drained",
    ),
    row(
        "node.theirs_done",
        asked(P.DRAINING),
        observed(node_view(facts(instance_id=NEW), instance(instance_id=NEW))),
        P.RECOVERED,
        Notify,
        name="while it drained, in service",
    ),
    row(
        "node.healed",
        asked(P.HOLDING, memory(findings=(finding(by_platform=True),))),
        observed(node_view(), told(SignalKind.NODE_HEALTH, fault=None, health_status="Healthy")),
        P.RECOVERED,
        Notify,
        name="all clear",
    ),
    row(
        "node.healed",
        asked(P.HOLDING, memory(findings=(), cleared_at=NOW - MINUTE)),
        observed(
            node_view(),
            told(SignalKind.NODE_HEALTH, health_status="Unhealthy", repair_action="Reboot", ago=2 * MINUTE),
        ),
        P.RECOVERED,
        Notify,
        name="all clear, and the report that it withdraws arrives later",
    ),
    row(
        "node.healed",
        asked(P.HOLDING, memory(findings=(finding(FindingKind.DOWN),))),
        observed(node_view()),
        P.RECOVERED,
        Notify,
        name="back",
    ),
    row(
        "node.held_before",
        asked(P.HOLDING, memory(findings=(finding(FindingKind.DOWN),))),
        observed(node_view(drained(reason="rekindle:inc-before"))),
        P.HANDED_OVER,
        Notify,
        name="it flapped, and an earlier Incident has left it to a person",
    ),
    row(
        "node.healed",
        asked(P.HOLDING, memory(findings=(finding(FindingKind.DOWN),))),
        observed(
            node_view(drained(reason="rekindle:inc-job")),
            told(SignalKind.NODE_SUSPECT, fault=FaultClass.NODE_LOST, ago=20 * MINUTE, incident_id="inc-job"),
        ),
        P.RETURNING,
        UncordonNode,
        name="cordoned by the run that reported it",
    ),
    row("node.blind", asked(P.OPEN), observed(node_view(inst=UNSEEN), XID), P.HOLDING),
    row("node.blind", asked(P.OPEN), observed(node_view(machines=Machines.UNKNOWN), XID), P.HOLDING, name="platform"),
    row(
        "node.blind_limit",
        asked(P.HOLDING, memory(changed_at=NOW - 2 * HOUR, listed_word="idle"), phase_entered_at=NOW - 2 * HOUR),
        observed(node_view(inst=UNSEEN)),
        P.HANDED_OVER,
        Notify,
    ),
    row("node.defer", asked(P.OPEN, opened_at=NOW - MINUTE), observed(node_view(recovery=AUTO), HMA), P.HOLDING),
    row(
        "node.defer",
        asked(P.OPEN, opened_at=NOW - MINUTE),
        observed(node_view(recovery=NodeRecovery.UNKNOWN), HMA),
        P.HOLDING,
        name="unknown",
    ),
    row(
        "node.defer",
        asked(P.OPEN, opened_at=NOW - MINUTE),
        observed(node_view(facts("idle", "drain", reason="bad cable"), recovery=AUTO), told(SignalKind.NODE_SUSPECT)),
        P.HOLDING,
        name="somebody's drain",
    ),
    row("node.unconfirmed", asked(P.OPEN), observed(node_view(recovery=AUTO), HMA), P.HANDED_OVER, Notify),
    row(
        "node.late",
        asked(P.OPEN, opened_at=NOW - MINUTE),
        observed(node_view(), told(recommended="replace", xid=79, instance_id=OLD, ago=4 * MINUTE)),
        P.HOLDING,
    ),
    row(
        "node.unconfirmed",
        asked(P.OPEN, opened_at=NOW - HOUR),
        observed(node_view(), told(recommended="replace", xid=79, instance_id=OLD, ago=HOUR + 4 * MINUTE)),
        P.HANDED_OVER,
        Notify,
        name="heard late",
    ),
    row(
        "node.queue",
        asked(P.OPEN, opened_at=NOW - MINUTE),
        observed(node_view(facts("down")), told(recommended="replace", xid=79, instance_id=OLD, ago=4 * MINUTE)),
        P.HOLDING,
        name="heard late, and Slurm sees it down",
    ),
    row(
        "node.queue",
        asked(P.OPEN),
        observed(node_view(recovery=AUTO), HMA, told(SignalKind.NODE_SUSPECT)),
        P.HOLDING,
        name="the grace is over, and a run has suffered from it",
    ),
    row(
        "node.queue",
        asked(P.OPEN),
        observed(node_view(inst=instance(InstanceState.FAILURE), recovery=AUTO), HMA),
        P.HOLDING,
        name="the grace is over, and HyperPod says that the instance has failed",
    ),
    row(
        "node.held_by_other",
        asked(P.OPEN),
        observed(node_view(facts("idle", "drain", reason="bad cable")), XID),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.held_by_other",
        asked(P.OPEN),
        observed(node_view(facts("down", reason="ada: dead fan")), XID),
        P.HANDED_OVER,
        Notify,
        name="down",
    ),
    row("node.omen", asked(P.OPEN), observed(node_view(), told(fault=FaultClass.UNCLEAR)), P.HOLDING, Notify),
    row(
        "node.omen",
        asked(
            P.HOLDING,
            memory(findings=(finding(FindingKind.OMEN),), notified=("node.omen",)),
            phase_entered_at=NOW - HOUR,
        ),
        observed(node_view()),
        P.STOPPED,
        Notify,
        name="told",
    ),
    row(
        "node.tell",
        asked(P.OPEN),
        observed(node_view(), XID),
        P.HOLDING,
        Notify,
        policy=with_policy(nodes={"repair": Allowed.TELL}),
    ),
    row(
        "guard.shadow",
        asked(P.OPEN),
        observed(node_view(), XID),
        P.HANDED_OVER,
        Notify,
        policy=with_policy(shadow=True),
    ),
    row("node.queue", asked(P.OPEN), observed(node_view(), XID), P.HOLDING),
    row(
        "node.queue",
        asked(P.HOLDING, queued(wanted_at=NOW)),
        observed(node_view(load=ROOM)),
        P.HOLDING,
        name="too fresh",
    ),
    row("node.queue", asked(P.HOLDING, queued()), observed(node_view(load=UNSEEN)), P.HOLDING, name="unread"),
    row(
        "node.queue_limit",
        asked(P.HOLDING, queued(wanted_at=NOW - 2 * HOUR)),
        observed(node_view(load=UNSEEN)),
        P.HANDED_OVER,
        Notify,
        name="unread",
    ),
    row(
        "node.full",
        asked(P.HOLDING, queued()),
        observed(node_view(load=Known(Load(ahead=2, last_day=2)))),
        P.HOLDING,
        Notify,
    ),
    row(
        "node.queue_limit",
        asked(P.HOLDING, queued(wanted_at=NOW - 25 * HOUR)),
        observed(node_view(load=Known(Load(ahead=2, last_day=2)))),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.day_limit",
        asked(P.HOLDING, queued()),
        observed(node_view(load=Known(Load(ahead=0, last_day=10)))),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.run_weighed",
        asked(P.HOLDING, queued(findings=(finding(FindingKind.DOWN),))),
        lost_while(weighed_by=("llm",)),
        P.HOLDING,
    ),
    row(
        "node.run_lives",
        asked(P.HOLDING, queued(findings=(finding(FindingKind.DOWN),))),
        lost_while(outlived_by=("llm",)),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.doubted",
        asked(P.HOLDING, queued(findings=(finding(FindingKind.DOWN),))),
        lost_while(doubted_by=("llm",)),
        P.HOLDING,
    ),
    row(
        "node.doubted_limit",
        asked(P.HOLDING, queued(findings=(finding(FindingKind.DOWN),)), phase_entered_at=NOW - timedelta(minutes=76)),
        lost_while(doubted_by=("llm",)),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.cordon",
        asked(P.HOLDING, queued()),
        observed(node_view(load=Known(Load(ahead=1, last_day=9)))),
        P.DRAINING,
        CordonNode,
    ),
    row(
        "node.cordon",
        asked(P.HOLDING, queued()),
        observed(node_view(drained(), load=ROOM)),
        P.DRAINING,
        name="cordoned before",
    ),
    row(
        "node.cordon",
        asked(P.OPEN, queued()),
        observed(node_view(load=ROOM), XID),
        P.DRAINING,
        CordonNode,
        name="at once",
    ),
    # ---- until no job is on it
    row("node.unread", asked(P.DRAINING), observed(node_view(UNSEEN)), P.DRAINING),
    row("node.not_in_slurm", asked(P.DRAINING), observed(node_view(GONE)), P.STOPPED, Notify),
    row(
        "node.unread_limit",
        asked(
            P.DRAINING,
            phase_entered_at=NOW - 2 * HOUR,
            repair=memory(changed_at=NOW - 2 * HOUR, instance_word=f"{OLD} Running"),
        ),
        observed(node_view(UNSEEN)),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.held_by_other",
        asked(P.DRAINING),
        observed(node_view(facts("idle", "drain", reason="ada"))),
        P.HANDED_OVER,
        Notify,
    ),
    row("drain.cordon", asked(P.DRAINING), observed(node_view()), P.DRAINING, CordonNode),
    row(
        "drain.cordon",
        asked(P.DRAINING),
        observed(node_view(), results=refused("CordonNode")),
        P.DRAINING,
        CordonNode,
        name="refused once",
    ),
    row(
        "drain.cordon_refused",
        asked(P.DRAINING, memory(refusals=1)),
        observed(node_view(), results=refused("CordonNode")),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "drain.cordon_limit",
        asked(P.DRAINING, phase_entered_at=NOW - 2 * HOUR),
        observed(node_view()),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "drain.settling",
        asked(P.DRAINING, memory(findings=(finding(FindingKind.DOWN, ago=MINUTE),))),
        observed(node_view(drained("down", "not_responding"))),
        P.DRAINING,
    ),
    row("drain.waiting", asked(P.DRAINING), observed(node_view(drained("mixed", jobs=(41, 42)))), P.DRAINING),
    row(
        "drain.waiting",
        asked(P.DRAINING),
        observed(node_view(drained("idle", "completing"))),
        P.DRAINING,
        name="completing",
    ),
    row(
        "drain.limit",
        asked(P.DRAINING, phase_entered_at=NOW - 25 * HOUR),
        observed(node_view(drained("mixed", jobs=(41,)))),
        P.HANDED_OVER,
        Notify,
    ),
    # ---- the ladder
    row("repair.reboot", asked(P.DRAINING), observed(node_view(drained())), P.REPAIRING, RebootNode, Notify),
    row(
        "repair.replace",
        asked(P.DRAINING, memory(findings=(finding(FindingKind.AGENT_REPLACE),))),
        observed(node_view(drained())),
        P.REPAIRING,
        ReplaceNode,
        Notify,
    ),
    row(
        "repair.replace",
        asked(P.DRAINING, memory(past=(EarlierRepair(at=NOW - HOUR, rung="reboot", instance_id=OLD),))),
        observed(node_view(drained())),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="rebooted lately",
    ),
    row(
        "repair.replace",
        asked(P.DRAINING, memory(findings=())),
        observed(node_view(facts("idle", "fail", reason="Action:Replace"))),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="marked, and nobody else acts",
    ),
    row(
        "repair.ladder_end",
        asked(
            P.DRAINING,
            memory(past=tuple(EarlierRepair(at=NOW - n * HOUR, rung="replace", instance_id=None) for n in range(3))),
        ),
        observed(node_view(drained())),
        P.HANDED_OVER,
        Notify,
        name="a pattern",
    ),
    row(
        "repair.not_allowed",
        asked(P.DRAINING, memory(findings=(finding(FindingKind.AGENT_REPLACE),))),
        observed(node_view(drained())),
        P.HANDED_OVER,
        Notify,
        policy=with_policy(nodes={"repair": Allowed.REBOOT}),
    ),
    row(
        "repair.no_way",
        asked(P.DRAINING, memory(findings=(finding(FindingKind.AGENT_REPLACE),))),
        observed(node_view(drained(), UNSEEN, machines=Machines.OWN)),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "repair.reboot",
        asked(P.DRAINING),
        observed(node_view(drained(instance_id=None), UNSEEN, machines=Machines.OWN)),
        P.REPAIRING,
        RebootNode,
        Notify,
        name="plain Slurm",
    ),
    row(
        "node.controller",
        asked(P.DRAINING),
        observed(node_view(drained(), role=GroupRole.CONTROLLER)),
        P.HANDED_OVER,
        Notify,
    ),
    row("repair.blocked", asked(P.DRAINING), observed(node_view(drained(), status="Updating")), P.DRAINING),
    row(
        "repair.blocked", asked(P.DRAINING), observed(node_view(drained(), UNSEEN)), P.DRAINING, name="instance unread"
    ),
    row(
        "repair.blocked",
        asked(P.DRAINING),
        observed(node_view(drained(), machines=Machines.UNKNOWN)),
        P.DRAINING,
        name="platform",
    ),
    row(
        "repair.blocked_limit",
        asked(P.DRAINING, phase_entered_at=NOW - 25 * HOUR),
        observed(node_view(drained(), status="Updating")),
        P.HANDED_OVER,
        Notify,
    ),
    # ---- until both views say well
    row(
        "repair.asked",
        asked(P.REPAIRING, memory(step(ago=MINUTE, state=StepState.ASKED))),
        observed(node_view(drained())),
        P.REPAIRING,
        RebootNode,
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, REBOOTING),
        observed(node_view(drained())),
        P.REPAIRING,
        name="not seen away yet",
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, REBOOTING),
        observed(node_view(drained("down", "not_responding"), instance(InstanceState.PENDING))),
        P.REPAIRING,
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, memory(step(ago=21 * MINUTE, disturbed=True))),
        observed(
            node_view(drained("down", "not_responding"), load=Known(Load(ahead=0, last_day=0, doubted_by=("llm",))))
        ),
        P.REPAIRING,
        name="its silence is in doubt",
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, memory(step(ago=21 * MINUTE, disturbed=True))),
        observed(node_view(drained("down", "not_responding"), load=Known(Load(ahead=0, last_day=0)), down=3)),
        P.REPAIRING,
        name="with it half of the nodes are lost",
    ),
    row(
        "repair.turn",
        asked(P.REPAIRING, memory(step(ago=21 * MINUTE, disturbed=True))),
        observed(node_view(drained("down", "not_responding"), load=Known(Load(ahead=0, last_day=0)), down=2)),
        P.REPAIRING,
        name="with it three of eight are lost: others may have died by themselves",
    ),
    row(
        "repair.turn",
        asked(P.REPAIRING, memory(step(ago=21 * MINUTE, disturbed=True))),
        observed(node_view(drained("down", "not_responding"), load=Known(Load(ahead=0, last_day=0)))),
        P.REPAIRING,
        name="its silence is not in doubt",
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(node_view(drained(), GONE)),
        P.REPAIRING,
        name="in no list",
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(node_view(drained(), instance(InstanceState.PENDING, NEW))),
        P.REPAIRING,
        name="Slurm is ahead",
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(node_view(drained("down", "not_responding"), instance(instance_id=NEW))),
        P.REPAIRING,
        name="the API is ahead",
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(node_view(UNSEEN, UNSEEN)),
        P.REPAIRING,
        name="nothing can be read",
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(node_view(drained(), instance())),
        P.REPAIRING,
        name="still the old one",
    ),
    row(
        "return.uncordon",
        asked(P.REPAIRING, memory(step(ago=2 * MINUTE, disturbed=True))),
        observed(node_view(drained())),
        P.RETURNING,
        UncordonNode,
        name="rebooted",
    ),
    row(
        "return.uncordon",
        asked(P.REPAIRING, memory(step(ago=6 * MINUTE))),
        observed(node_view(drained("down"))),
        P.RETURNING,
        UncordonNode,
        name="rebooted, kept down by Slurm",
    ),
    row(
        "return.uncordon",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(FRESH),
        P.RETURNING,
        UncordonNode,
        name="replaced",
    ),
    row(
        "return.done",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(node_view(facts(instance_id=NEW), instance(instance_id=NEW))),
        P.RECOVERED,
        Notify,
        name="nothing to lift",
    ),
    row(
        "check.begin",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(FRESH),
        P.CHECKING,
        CheckNode,
        policy=with_policy(nodes={"deep_health_check": timedelta(minutes=30)}),
    ),
    row(
        "repair.replace",
        asked(P.REPAIRING, in_turn(step(), findings=(SICK,))),
        observed(node_view(drained(), load=ROOM)),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="seen again",
    ),
    row(
        "repair.turn",
        asked(P.REPAIRING, memory(step(ago=25 * MINUTE))),
        observed(node_view(drained("down", "not_responding"), load=UNSEEN)),
        P.REPAIRING,
    ),
    row(
        "repair.turn",
        asked(P.REPAIRING, in_turn(step(ago=25 * MINUTE))),
        observed(node_view(drained("down", "not_responding"), load=UNSEEN)),
        P.REPAIRING,
        name="unread",
    ),
    row(
        "repair.turn_limit",
        asked(P.REPAIRING, in_turn(step(ago=25 * MINUTE), another=AnotherRepair(at=NOW - 2 * HOUR, why="no use"))),
        observed(node_view(drained("down", "not_responding"), load=UNSEEN)),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.day_limit",
        asked(P.REPAIRING, in_turn(step(ago=25 * MINUTE))),
        observed(node_view(drained("down", "not_responding"), load=Known(Load(ahead=1, last_day=8, booked=1)))),
        P.HANDED_OVER,
        Notify,
        name="its own first repair and one that is booked were the last two",
    ),
    row(
        "repair.replace",
        asked(P.REPAIRING, in_turn(step(ago=25 * MINUTE))),
        observed(node_view(drained("down", "not_responding"), load=ROOM)),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="reboot limit",
    ),
    row(
        "repair.replace",
        asked(P.REPAIRING, in_turn(step(ago=6 * MINUTE))),
        observed(node_view(drained("down"), FAILED, load=ROOM)),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="failed",
    ),
    row(
        "repair.replace",
        asked(P.REPAIRING, in_turn(step(ago=2 * MINUTE, state=StepState.ASKED))),
        observed(node_view(drained(), load=ROOM), results=refused("RebootNode")),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="refused",
    ),
    row(
        "repair.blocked",
        asked(P.REPAIRING, memory(step(ago=25 * MINUTE))),
        observed(node_view(UNSEEN)),
        P.REPAIRING,
        name="jobs may be on it",
    ),
    row(
        "repair.refused",
        asked(P.REPAIRING, memory(step(Rung.REPLACE, ago=MINUTE, state=StepState.ASKED))),
        observed(node_view(drained()), results=refused("ReplaceNode")),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "repair.again",
        asked(P.REPAIRING, in_turn(step(ago=6 * MINUTE, state=StepState.DOUBTFUL))),
        observed(node_view(drained(), load=ROOM)),
        P.REPAIRING,
        RebootNode,
    ),
    row(
        "return.uncordon",
        asked(P.REPAIRING, in_turn(step(ago=6 * MINUTE, state=StepState.DOUBTFUL))),
        observed(node_view(drained(booted_at=NOW - 4 * MINUTE), load=ROOM)),
        P.RETURNING,
        UncordonNode,
        name="it has booted since, while nothing could be read",
    ),
    row(
        "return.uncordon",
        asked(
            P.REPAIRING, memory(step(ago=6 * MINUTE, state=StepState.DOUBTFUL), findings=(finding(FindingKind.DOWN),))
        ),
        observed(node_view(drained())),
        P.RETURNING,
        UncordonNode,
        name="it was only not reached, and is",
    ),
    row(
        "repair.again",
        asked(P.REPAIRING, in_turn(step(ago=6 * MINUTE, state=StepState.DOUBTFUL), findings=())),
        observed(node_view(drained(), load=ROOM)),
        P.REPAIRING,
        RebootNode,
        name="a person ordered it",
    ),
    row(
        "repair.again",
        asked(P.REPAIRING, in_turn(REPLACED)),
        observed(node_view(drained("down"), NO_EFA, load=ROOM)),
        P.REPAIRING,
        ReplaceNode,
        name="EFA",
    ),
    row(
        "repair.failed",
        asked(P.REPAIRING, memory(REPLACED, dataclasses.replace(REPLACED, number=2))),
        observed(node_view(drained("down"), NO_EFA)),
        P.HANDED_OVER,
        Notify,
        name="EFA twice",
    ),
    row(
        "repair.failed",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(node_view(drained("down"), DIED)),
        P.HANDED_OVER,
        Notify,
        name="no capacity",
    ),
    row(
        "repair.waiting",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(node_view(drained("down"), dataclasses.replace(FAILED, instance_id=NEW))),
        P.REPAIRING,
        name="may be retried",
    ),
    row(
        "repair.no_effect",
        asked(P.REPAIRING, memory(*(step(ago=6 * MINUTE, number=n, state=StepState.DOUBTFUL) for n in (1, 2, 3)))),
        observed(node_view(drained())),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "repair.marked",
        asked(
            P.REPAIRING,
            memory(
                REPLACED,
                changed_at=NOW - HOUR,
                instance_word=f"{NEW} Running",
                listed_word="idle+fail (Action:Replace)",
            ),
            phase_entered_at=NOW - HOUR,
        ),
        observed(node_view(facts("idle", "fail", reason="Action:Replace", instance_id=NEW), instance(instance_id=NEW))),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "repair.ladder_end",
        asked(P.REPAIRING, memory(step(Rung.REPLACE), findings=(finding(ago=MINUTE, instance_id=NEW),))),
        observed(node_view(drained(), instance(instance_id=NEW))),
        P.HANDED_OVER,
        Notify,
        name="the new one is sick too",
    ),
    row(
        "repair.stuck",
        asked(
            P.REPAIRING,
            memory(
                step(Rung.REPLACE, ago=2 * HOUR),
                changed_at=NOW - 2 * HOUR,
                instance_word=f"{NEW} Pending",
                listed_word="down (rekindle:inc-node-1)",
            ),
            phase_entered_at=NOW - 2 * HOUR,
        ),
        observed(node_view(facts("down", reason="rekindle:inc-node-1"), instance(InstanceState.PENDING, NEW))),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "repair.stuck",
        asked(P.REPAIRING, memory(step(Rung.REPLACE, ago=5 * HOUR)), phase_entered_at=NOW - 5 * HOUR),
        observed(node_view(drained("down"), instance(InstanceState.PENDING, NEW))),
        P.HANDED_OVER,
        Notify,
        name="for ever changing",
    ),
    row(
        "node.held_by_other",
        asked(P.REPAIRING, memory(step(), findings=(SICK,))),
        observed(node_view(facts("idle", "drain", reason="ada"))),
        P.HANDED_OVER,
        Notify,
    ),
    row("node.misplaced", asked(P.REPAIRING, memory()), observed(node_view(drained())), P.HANDED_OVER, Notify),
    # ---- checked
    row(
        "check.waiting",
        asked(P.CHECKING, memory(step(back_at=NOW))),
        observed(node_view(drained(), instance(InstanceState.CHECKING))),
        P.CHECKING,
    ),
    row(
        "check.waiting",
        asked(P.CHECKING, memory(step(back_at=NOW))),
        observed(node_view(drained())),
        P.CHECKING,
        name="not begun yet",
    ),
    row(
        "check.begin",
        asked(P.CHECKING, memory(step(back_at=NOW))),
        observed(node_view(drained()), results=refused("CheckNode", Done.CAPACITY)),
        P.CHECKING,
        CheckNode,
        name="another runs",
    ),
    row(
        "return.uncordon",
        asked(P.CHECKING, memory(step(back_at=NOW), check_seen=True)),
        observed(node_view(drained())),
        P.RETURNING,
        UncordonNode,
        name="nothing found",
    ),
    row(
        "return.uncordon",
        asked(P.CHECKING, memory(step(back_at=NOW))),
        observed(node_view(drained()), results=refused("CheckNode")),
        P.RETURNING,
        UncordonNode,
        name="refused check",
    ),
    row(
        "return.done",
        asked(P.CHECKING, memory(step(back_at=NOW), check_seen=True)),
        observed(node_view()),
        P.RECOVERED,
        Notify,
        name="checked",
    ),
    row(
        "repair.replace",
        asked(P.CHECKING, in_turn(step(back_at=NOW))),
        observed(node_view(drained(), FAILED, load=ROOM)),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="check failed",
    ),
    row(
        "repair.blocked",
        asked(P.CHECKING, memory(step(back_at=NOW))),
        observed(node_view(UNSEEN, FAILED)),
        P.CHECKING,
        name="check failed, jobs unread",
    ),
    row(
        "check.limit",
        asked(P.CHECKING, memory(step(back_at=NOW)), phase_entered_at=NOW - 5 * HOUR),
        observed(node_view(drained(), instance(InstanceState.CHECKING))),
        P.HANDED_OVER,
        Notify,
    ),
    row("node.misplaced", asked(P.CHECKING, memory()), observed(node_view()), P.HANDED_OVER, Notify),
    # ---- given back
    row("return.done", asked(P.RETURNING, memory(REBOOTED)), observed(node_view()), P.RECOVERED, Notify),
    row(
        "return.uncordon",
        asked(P.RETURNING, memory(REBOOTED)),
        observed(node_view(drained())),
        P.RETURNING,
        UncordonNode,
        name="again",
    ),
    row(
        "return.uncordon_refused",
        asked(P.RETURNING, memory(REBOOTED, refusals=1)),
        observed(node_view(drained()), results=refused("UncordonNode")),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "return.uncordon_limit",
        asked(P.RETURNING, memory(REBOOTED), phase_entered_at=NOW - 2 * HOUR),
        observed(node_view(drained())),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "return.waiting",
        asked(P.RETURNING, memory(REBOOTED)),
        observed(node_view(facts("idle", "not_responding"))),
        P.RETURNING,
    ),
    row(
        "return.stuck",
        asked(
            P.RETURNING,
            memory(
                REBOOTED, changed_at=NOW - 2 * HOUR, instance_word=f"{OLD} Running", listed_word="idle+not_responding"
            ),
            phase_entered_at=NOW - 2 * HOUR,
        ),
        observed(node_view(facts("idle", "not_responding"))),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.held_by_other",
        asked(P.RETURNING, memory(REBOOTED)),
        observed(node_view(facts("idle", "drain", reason="ada"))),
        P.HANDED_OVER,
        Notify,
    ),
    row("node.unread", asked(P.RETURNING, memory(REBOOTED)), observed(node_view(UNSEEN)), P.RETURNING),
    row(
        "node.unread_limit",
        asked(
            P.RETURNING,
            memory(REBOOTED, changed_at=NOW - 2 * HOUR, instance_word=f"{OLD} Running"),
            phase_entered_at=NOW - 2 * HOUR,
        ),
        observed(node_view(UNSEEN)),
        P.HANDED_OVER,
        Notify,
    ),
    row("node.not_in_slurm", asked(P.RETURNING, memory(REBOOTED)), observed(node_view(GONE)), P.STOPPED, Notify),
    row(
        "return.seen_again",
        asked(P.RETURNING, memory(step(back_at=NOW - MINUTE), findings=(SICK,))),
        observed(node_view()),
        P.DRAINING,
        CordonNode,
    ),
    row("node.misplaced", asked(P.VERIFYING), observed(node_view()), P.HANDED_OVER, Notify),
    # ---- what a person orders
    row("node.queue", asked(P.OPEN), observed(node_view(), ORDER), P.HOLDING, name="ordered, and nothing is wrong"),
    row("node.queue", asked(P.OPEN), observed(node_view(), ORDER), P.HOLDING, policy=OFF, name="ordered, policy off"),
    row(
        "node.cordon",
        asked(P.OPEN),
        observed(node_view(), FORCED),
        P.DRAINING,
        CordonNode,
        name="forced past the budgets",
    ),
    row(
        "node.controller",
        asked(P.OPEN),
        observed(node_view(role=GroupRole.CONTROLLER), FORCED),
        P.HANDED_OVER,
        Notify,
        name="ordered and forced",
    ),
    row(
        "node.theirs",
        asked(P.OPEN),
        observed(node_view(inst=instance(InstanceState.SHUTTING_DOWN)), FORCED),
        P.HOLDING,
        Notify,
        name="ordered while HyperPod replaces it",
    ),
    row(
        "node.held_by_other",
        asked(P.OPEN),
        observed(node_view(facts("idle", "drain", reason="bob looks into it")), FORCED),
        P.HANDED_OVER,
        Notify,
        name="ordered, drained by somebody",
    ),
    row(
        "guard.shadow",
        asked(P.OPEN),
        observed(node_view(), ORDER),
        P.HANDED_OVER,
        Notify,
        policy=with_policy(shadow=True),
        name="ordered",
    ),
    row(
        "node.full",
        asked(P.HOLDING, ordered(wanted_at=NOW - MINUTE)),
        observed(node_view(load=Known(Load(ahead=2, last_day=2)))),
        P.HOLDING,
        Notify,
        name="ordered, not forced",
    ),
    row(
        "drain.move",
        asked(P.DRAINING, ordered()),
        observed(node_view(drained("mixed", jobs=(41,)))),
        P.DRAINING,
        MoveRuns,
    ),
    row(
        "drain.move",
        asked(P.DRAINING, ordered(notified=("drain.move",))),
        observed(node_view(drained("mixed", jobs=(41,))), results=refused("MoveRuns", Done.UNAVAILABLE)),
        P.DRAINING,
        MoveRuns,
        name="the order was lost",
    ),
    row(
        "drain.waiting",
        asked(P.DRAINING, ordered(notified=("drain.move",))),
        observed(node_view(drained("mixed", jobs=(41,)))),
        P.DRAINING,
        name="runs have been asked",
    ),
    row(
        "repair.replace",
        asked(P.DRAINING, ordered(findings=())),
        observed(node_view(drained())),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        policy=OFF,
        name="ordered",
    ),
    row(
        "repair.replace",
        asked(P.REPAIRING, ordered(step(ago=2 * MINUTE))),
        observed(node_view(drained())),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="ordered while it reboots",
    ),
    row(
        "repair.replace",
        asked(P.CHECKING, ordered(step(back_at=NOW - MINUTE))),
        observed(node_view(drained())),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="ordered while it is checked",
    ),
    row(
        "return.ordered",
        asked(P.RETURNING, ordered(step(back_at=NOW - MINUTE))),
        observed(node_view()),
        P.DRAINING,
        CordonNode,
    ),
    row(
        "repair.ladder_end",
        asked(P.REPAIRING, ordered(step(ago=21 * MINUTE), rung=Rung.REBOOT, ago=HOUR, findings=())),
        observed(node_view(drained("down", "not_responding"))),
        P.HANDED_OVER,
        Notify,
        name="an ordered reboot does not lead to a replacement",
    ),
    # ---- the share of the instance group
    row(
        "node.group_full",
        asked(P.HOLDING, queued()),
        observed(node_view(load=Known(Load(ahead=1, last_day=1, group_ahead=1, group_last_day=1)), group_total=4)),
        P.HOLDING,
        Notify,
    ),
    row(
        "node.day_limit",
        asked(P.HOLDING, queued()),
        observed(node_view(load=Known(Load(ahead=0, last_day=5, group_ahead=0, group_last_day=5)), group_total=4)),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "node.cordon",
        asked(P.HOLDING, queued()),
        observed(node_view(load=Known(Load(ahead=1, last_day=4, group_ahead=1, group_last_day=4)), group_total=8)),
        P.DRAINING,
        CordonNode,
        name="the group has room",
    ),
    # ---- suspect hardware
    row(
        "node.suspect_hardware",
        asked(P.OPEN),
        observed(node_view(records=SUSPECT), XID),
        P.HOLDING,
        Notify,
        policy=with_policy(nodes={"suspect_repair": SuspectRule.TELL}),
    ),
    row(
        "repair.replace",
        asked(P.DRAINING, memory(findings=(finding(), finding(FindingKind.SUSPECT_HARDWARE)))),
        observed(node_view(drained())),
        P.REPAIRING,
        ReplaceNode,
        Notify,
        name="suspect hardware is not rebooted",
    ),
    row(
        "repair.suspect_hardware",
        asked(P.REPAIRING, in_turn(REPLACED)),
        observed(dataclasses.replace(FRESH, records=SUSPECT, load=ROOM)),
        P.REPAIRING,
        ReplaceNode,
    ),
    row(
        "repair.suspect_hardware",
        asked(P.REPAIRING, in_turn(REPLACED, hardware=(f"gpu:{GPU}",))),
        observed(node_view(drained(instance_id=NEW, gpus=(GPU,)), instance(instance_id=NEW), load=ROOM)),
        P.REPAIRING,
        ReplaceNode,
        name="the very machine is back",
    ),
    row(
        "repair.suspect_hardware_limit",
        asked(P.REPAIRING, memory(REPLACED, dataclasses.replace(REPLACED, number=2))),
        observed(dataclasses.replace(FRESH, records=SUSPECT)),
        P.HANDED_OVER,
        Notify,
    ),
    row(
        "repair.suspect_hardware_limit",
        asked(P.REPAIRING, memory(REPLACED)),
        observed(dataclasses.replace(FRESH, records=SUSPECT)),
        P.HANDED_OVER,
        Notify,
        policy=with_policy(nodes={"suspect_repair": SuspectRule.TELL}),
        name="the policy only tells",
    ),
    row(
        "node.omen",
        asked(P.OPEN),
        observed(node_view(), told(SignalKind.NODE_SUSPECT, suspect_hardware=True)),
        P.HOLDING,
        Notify,
        name="suspect by another tool's measure",
    ),
]


@pytest.mark.parametrize("line", NODE_TABLE, ids=[row[0] for row in NODE_TABLE])
def test_each_row_of_a_nodes_decision_table(line: Row) -> None:
    _, case, what, policy, rule, phase, actions = line
    decision = look_at(case, what, policy)
    assert (decision.rule, decision.incident.phase) == (rule, phase), decision.reason
    assert tuple(type(action) for action in decision.actions) == actions
    assert (decision.look_again_in is None) == (not decision.incident.is_open)
    assert Incident.from_wire(decision.incident.to_wire()) == decision.incident
    assert [read_action(action.to_wire()) for action in decision.actions] == list(decision.actions)
    assert Observation.from_wire(what.to_wire()) == what


@pytest.mark.long
def test_every_phase_and_world_has_a_decision_and_none_of_them_is_rash() -> None:
    """Whatever is seen: never an order about a node with jobs on it, or that somebody else has, or that is unread."""
    slurms = [
        Known(drained()),
        Known(drained("mixed", jobs=(7,))),
        Known(facts()),
        Known(facts("idle", "drain", reason="ada")),
        Known(facts("down", "not_responding", reason="Not responding")),
        Known(facts("idle", "fail", reason="Action:Replace")),
        GONE,
        UNSEEN,
    ]
    instances = [*(Known(instance(state, which)) for state in InstanceState for which in (OLD, NEW)), GONE, UNSEEN]
    memories = [
        memory(),
        memory(wanted_at=NOW - MINUTE),
        memory(step()),
        memory(step(state=StepState.ASKED)),
        memory(step(Rung.REPLACE)),
    ]
    repairs = (RebootNode, ReplaceNode)
    seen_repairs = 0
    cases = [(kept, node_incident(phase, kept)) for phase, kept in itertools.product(Phase, memories)]
    worlds = [
        (slurm, inst, role, observed(node_view(slurm, inst, role=role, load=ROOM), XID))
        for slurm, inst, role in itertools.product(slurms, instances, (GroupRole.COMPUTE, GroupRole.CONTROLLER))
    ]
    # The same question again has the same answer: asked every 11th time, which meets each phase and each world.
    assert math.gcd(11, len(worlds)) == 1
    for number, ((kept, case), (slurm, inst, role, what)) in enumerate(itertools.product(cases, worlds)):
        decision = look_at(case, what)
        assert decision.rule
        assert number % 11 or decision == look_at(case, what)
        acts = [action for action in decision.actions if isinstance(action, repairs)]
        seen_repairs += len(acts)
        if isinstance(slurm, Known) and slurm.value is not None and slurm.value.reason == "ada":
            assert not any(isinstance(action, UncordonNode) for action in decision.actions)
        fresh = [act for act in acts if act.number > len(kept.steps)]
        if fresh:
            assert isinstance(slurm, Known)
            assert slurm.value is not None
            assert not slurm.value.jobs
            assert slurm.value.reason != "ada"
            assert role is GroupRole.COMPUTE
            assert isinstance(inst, Known)
            assert inst.value is not None
            assert inst.value.instance_id == fresh[0].instance_id
            assert inst.value.state in (InstanceState.RUNNING, InstanceState.FAILURE)
    assert seen_repairs > 20


def test_every_end_is_reached_in_a_world_that_stands_still() -> None:
    for phase, slurm, inst in itertools.product(
        [Phase.OPEN, Phase.HOLDING, *NODE_PHASES],
        [Known(drained()), Known(facts()), Known(drained("mixed", jobs=(7,))), UNSEEN],
        [
            Known(instance()),
            Known(instance(InstanceState.PENDING)),
            Known(FAILED),
            GONE,
            UNSEEN,
        ],
    ):
        case = node_incident(phase, memory(step()) if phase in NODE_PHASES - {Phase.DRAINING} else None)
        now = NOW
        for _ in range(2000):
            what = observed(node_view(slurm, inst, load=ROOM), *((XID,) if now == NOW else ()), observed_at=now)
            decision = look_at(case, what)
            case = decision.incident
            if decision.look_again_in is None:
                break
            now += max(decision.look_again_in, timedelta(seconds=1))
        assert not case.is_open, (phase, slurm, inst, decision.rule)
        assert now - NOW < timedelta(days=3)


def test_every_transition_of_a_node_is_walked_and_no_other() -> None:
    walked = {(row[1].phase, row[5]) for row in NODE_TABLE if row[1].phase is not row[5]}
    walked |= {
        (phase, look_at(node_incident(phase, memory(step())), observed(node_view(), CANCEL)).incident.phase)
        for phase in NODE_PHASES
    }
    table = {(a, b) for a, ends in TRANSITIONS.items() for b in ends if a in NODE_PHASES or b in NODE_PHASES}
    assert table <= walked
    assert all(b in TRANSITIONS[a] for a, b in walked)


# ---- the tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signal_", "kind"),
    [
        (HMA, FindingKind.AGENT_REPLACE),  # the agent's word wins over the Xid's own row, which is a reboot
        (told(recommended="reboot", xid=64), FindingKind.AGENT_REBOOT),  # and here over one that would replace
        (told(SignalKind.NODE_HEALTH, health_status="Unhealthy", repair_action="Replace"), FindingKind.AGENT_REPLACE),
        (
            told(SignalKind.NODE_HEALTH, repair_action="None", fault_type="NvidiaErrorTerminate"),
            FindingKind.AGENT_REPLACE,
        ),
        (told(SignalKind.NODE_HEALTH, repair_action="None", fault_type="NvidiaErrorReboot"), FindingKind.AGENT_REBOOT),
        (told(SignalKind.NODE_HEALTH, repair_action="None"), FindingKind.HARDWARE),
        (told(xid=64), FindingKind.XID_REPLACE),
        (told(xid=79), FindingKind.XID_REBOOT),
        (told(xid=95, first_response="reset_gpu"), FindingKind.XID_REBOOT),
        (told(xid=31, fault=FaultClass.SOFTWARE_CRASH), FindingKind.OMEN),
        (told(SignalKind.NODE_STATE, fault=FaultClass.NODE_LOST), FindingKind.DOWN),
        (told(SignalKind.CLUSTER_EVENT, fault=FaultClass.NODE_LOST), FindingKind.DOWN),
        (told(SignalKind.NODE_SUSPECT), FindingKind.SUSPECTED),
        (told(SignalKind.NODE_SUSPECT, fault=FaultClass.NODE_LOST), FindingKind.DOWN),
        (told(SignalKind.NODE_SUSPECT, xid=64), FindingKind.XID_REPLACE),
        (told(SignalKind.NODE_HEALTH, fault=None, health_status="Healthy"), None),
        (told(fault=None, is_over=True), None),
        (told(SignalKind.NODE_STATE, fault=None), None),
    ],
)
def test_what_a_signal_says_against_a_node(signal_: object, kind: FindingKind | None) -> None:
    found = finding_of(signal_)  # type: ignore[arg-type]
    assert (found.kind if found else None) == kind


def test_each_kind_of_finding_has_one_row_with_a_source() -> None:
    assert [rung.kind for rung in FIRST_RUNGS] == list(dict.fromkeys(rung.kind for rung in FIRST_RUNGS))
    assert {rung.kind for rung in FIRST_RUNGS} == set(FindingKind)
    assert all(len(one.source) > 20 for one in (*FIRST_RUNGS, *FAILURE_WORDS))


def test_the_agents_word_leads_whatever_else_is_known() -> None:
    others = tuple(finding(kind) for kind in FindingKind if not kind.is_agents)
    assert leading_finding((*others, finding(FindingKind.AGENT_REBOOT))).kind is FindingKind.AGENT_REBOOT  # type: ignore[union-attr]
    assert first_rung(FindingKind.AGENT_REBOOT) is Rung.REBOOT


def test_the_ladder_is_reboot_then_replace_then_a_person() -> None:
    findings = (finding(),)
    assert next_rung(memory(), findings, now=NOW)[0] is Rung.REBOOT
    assert next_rung(memory(step()), findings, now=NOW) == (Rung.REPLACE, "it was rebooted in this Incident")
    refused = memory(step(state=StepState.REFUSED))
    assert next_rung(refused, findings, now=NOW) == (Rung.REPLACE, "no reboot was possible in this Incident")
    assert next_rung(memory(step(), step(Rung.REPLACE)), findings, now=NOW)[0] is None
    old = EarlierRepair(at=NOW - timedelta(days=8), rung="reboot", instance_id=OLD)
    other = EarlierRepair(at=NOW - HOUR, rung="reboot", instance_id=NEW)  # an earlier instance under the same name
    assert next_rung(memory(past=(old, other)), findings, now=NOW)[0] is Rung.REBOOT


@pytest.mark.parametrize(
    ("wanted", "rung", "machines", "recovery", "route"),
    [
        (Route.AUTO, Rung.REPLACE, Machines.HYPERPOD, AUTO, Route.API),
        (Route.AUTO, Rung.REBOOT, Machines.OWN, NodeRecovery.NONE, Route.SLURM_REBOOT),
        (Route.AUTO, Rung.REPLACE, Machines.OWN, NodeRecovery.NONE, None),
        (Route.API, Rung.REBOOT, Machines.OWN, NodeRecovery.NONE, None),
        (Route.SLURM_REASON, Rung.REPLACE, Machines.HYPERPOD, AUTO, Route.SLURM_REASON),
        # nobody acts on a reason there, or it is not known whether anybody does
        (Route.SLURM_REASON, Rung.REPLACE, Machines.HYPERPOD, NodeRecovery.NONE, Route.API),
        (Route.SLURM_REASON, Rung.REPLACE, Machines.HYPERPOD, NodeRecovery.UNKNOWN, Route.API),
        (Route.SLURM_REBOOT, Rung.REBOOT, Machines.HYPERPOD, AUTO, Route.SLURM_REBOOT),
        (Route.SLURM_REBOOT, Rung.REPLACE, Machines.HYPERPOD, AUTO, Route.API),
    ],
)
def test_the_way_a_repair_is_asked_for(
    wanted: Route, rung: Rung, machines: Machines, recovery: NodeRecovery, route: Route | None
) -> None:
    assert route_of(wanted, rung, machines, recovery) is route


def test_a_flag_that_we_do_not_know_is_not_healthy() -> None:
    assert is_well_but_drained(drained(), after_reboot=False)
    assert is_well_but_drained(facts("idle", "planned", "cloud"), after_reboot=False)
    for bad in ("fail", "not_responding", "maintenance", "invalid_registration", "some_new_word", "powering_down"):
        assert not is_well_but_drained(drained("idle", bad), after_reboot=True), bad
    assert not is_well_but_drained(facts("idle", "drain", reason="ada"), after_reboot=False)
    assert not is_well_but_drained(drained("down"), after_reboot=False)


def test_one_node_may_always_be_in_repair_and_never_more_than_the_share() -> None:
    assert [max_in_repair(total, 25.0) for total in (0, 1, 3, 4, 7, 8, 1000)] == [1, 1, 1, 1, 1, 2, 250]
    assert max_in_repair(1000, 0) == 1


def test_an_instance_replaced_under_the_same_name_is_theirs_even_if_the_finding_is_about_the_new_one() -> None:
    """The finding of the new instance opens its own ladder only once the old Incident has closed."""
    view = node_view(facts(instance_id=NEW), instance(instance_id=NEW))
    decision = look_at(node_incident(Phase.OPEN), observed(view, told(xid=79, instance_id=NEW)))
    assert decision.rule == "node.queue"  # the Incident is about the new one from the start: nothing was replaced


def test_waiting_is_cheap_and_ends_with_the_next_news() -> None:
    waits = []
    for minutes in (0, 1, 4, 20, 60, 200):
        case = node_incident(Phase.DRAINING, phase_entered_at=NOW - minutes * MINUTE)
        waits.append(look_at(case, observed(node_view(drained("mixed", jobs=(7,))))).look_again_in)
    assert [wait.total_seconds() for wait in waits if wait] == [30, 30, 60, 180, 180, 900]
