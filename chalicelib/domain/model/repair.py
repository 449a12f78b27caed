"""What a node's Incident knows, what each finding asks for, and what is done next. Data with sources, and pure.

The health agent's own recommendation wins over the table: AWS's map from Xid to action is internal and may change
(docs/facts-sagemaker.md#health-agent). The ladder is reboot, replace, person.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from chalicelib.domain.model.clocks import Fact, Since
from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.node import EarlierRepair, Machines, NodeRecovery
from chalicelib.domain.model.node_findings import Finding, FindingKind, NodeOrder
from chalicelib.domain.model.node_findings import Rung as Rung

MAX_FINDINGS: Final = 24
# The same signature three times in seven days is a pattern. Source: docs/facts-sagemaker.md#health-agent.
HISTORY: Final = timedelta(days=7)
PATTERN: Final = 3
DAY: Final = timedelta(hours=24)  # of the budgets of repairs
MAX_ORDERS: Final = 3  # of one rung, where nothing tells whether the one before took effect
# A node that goes down for its repair still writes lines; what it says later it says of the hardware it came back with.
REPEAT_AFTER: Final = timedelta(minutes=2)
# How long a repair that is no longer watched is taken to be under way. A reboot takes 1 to
# 3 minutes, a replacement 20 to 30. Source: docs/facts-sagemaker.md#durations.
REPAIR_TAKES: Final = timedelta(minutes=40)
RUN_LIVES: Final = "node.run_lives"  # the outcome of an Incident of a node on which a run has gone on


class Allowed(StrEnum):
    """How far a policy lets node repair go (policy field `nodes.repair`)."""

    OFF = "off"  # closed at once, with a line
    TELL = "tell"
    REBOOT = "reboot"
    REPLACE = "replace"


class Route(StrEnum):
    """The way by which a repair is asked for (policy field `nodes.route`; `AUTO` is none of its own)."""

    AUTO = "auto"
    API = "api"  # BatchRebootClusterNodes, BatchReplaceClusterNodes
    SLURM_REASON = "slurm_reason"  # state=fail reason="Action:…": HyperPod's own repair carries it out
    SLURM_REBOOT = "slurm_reboot"  # scontrol reboot


class StepState(StrEnum):
    """What is known of one order to repair."""

    ASKED = "asked"  # decided; whether it went out is not known yet
    TAKEN = "taken"  # accepted, or found under way
    DOUBTFUL = "doubtful"  # it may have been taken, or not
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Record):
    """One order to repair. `instance_id` is what stood there when it was decided.

    `disturbed`: the node has been seen away from service since. `back_at`: when it was seen well again.
    """

    number: int
    rung: Rung
    route: Route
    at: datetime
    instance_id: str | None = None
    state: StepState = StepState.ASKED
    disturbed: bool = False
    back_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideRepair(Record):
    """What HyperPod or a person does, or has done, about a node; `at`: when that was seen last, or ended."""

    what: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AnotherRepair(Record):
    """One more repair, wanted since `at` because of `why`: it waits its turn, as the first one did."""

    at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRepair(Record):
    """What a node's Incident remembers between two observations: the one part that only such an Incident has.

    instance_id   the hardware that the Incident is about: what stood there when it was reported
    group, logical_id   of its instance, which outlive the instance
    theirs        what HyperPod or a person was seen doing about the node, and when last
    wanted_at     since when a repair is wanted: the place in the queue for it
    another       one more repair that is wanted; None while none is
    notified      the rules of which people were notified, each once
    serial        of orders to the agent: a new one is a new order, the same one the same order
    refusals      orders to the agent that were refused in this phase
    instance_word, listed_word   the two states last seen, since `changed_at`
    cleared_at    when the health agent withdrew its report; None where it has not
    health_check  number of the deep health check asked for last; `check_seen`: it was seen under way
    order         the newest that a person gave about the node
    hardware      marks of the hardware that the Incident is about, as far as they are known (hardware_ledger.py)
    named         those of them that a log line named directly
    """

    instance_id: str | None = None
    group: str = ""
    logical_id: str | None = None
    findings: tuple[Finding, ...] = ()
    steps: tuple[Step, ...] = ()
    past: tuple[EarlierRepair, ...] = ()
    theirs: OutsideRepair | None = None
    wanted_at: Fact | None = None
    another: AnotherRepair | None = None
    notified: tuple[str, ...] = ()
    serial: int = 1
    refusals: int = 0
    instance_word: str = ""
    listed_word: str = ""
    changed_at: Since | None = None
    cleared_at: Fact | None = None
    health_check: int = 0
    check_seen: bool = False
    order: NodeOrder | None = None
    hardware: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    @property
    def waiting_order(self) -> NodeOrder | None:
        """What a person ordered and no step has done, or is doing, yet."""
        order = self.order
        if order is None:
            return None
        is_met = any(
            step.rung.covers(order.rung) and (step.at >= order.at or step.back_at is None or step.back_at >= order.at)
            for step in self.steps
        )
        return None if is_met else order

    @property
    def step(self) -> Step | None:
        """The newest order to repair."""
        return self.steps[-1] if self.steps else None

    def with_step(self, **changes: Any) -> NodeRepair:
        """The newest order changed."""
        return dataclasses.replace(self, steps=(*self.steps[:-1], dataclasses.replace(self.steps[-1], **changes)))


# ---- what each finding asks for --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRung:
    """One row: where the ladder begins for a kind of finding; None asks for nothing but a line."""

    kind: FindingKind
    rung: Rung | None
    source: str


FIRST_RUNGS: Final = (
    FirstRung(
        kind=FindingKind.AGENT_REPLACE,
        rung=Rung.REPLACE,
        source="the health agent's recommendation wins: AWS's map of Xids is internal",
    ),
    FirstRung(
        kind=FindingKind.AGENT_REBOOT,
        rung=Rung.REBOOT,
        source="the health agent's recommendation wins: AWS's map of Xids is internal",
    ),
    FirstRung(
        kind=FindingKind.SUSPECT_HARDWARE,
        rung=Rung.REPLACE,
        source="a reboot has not cured it so far; such hardware is taken out (arXiv 2410.21680, docs/hardware.md)",
    ),
    FirstRung(
        kind=FindingKind.INSTANCE_FAILED,
        rung=Rung.REPLACE,
        source="InstanceStatus Failure: the platform itself has given the instance up (botocore)",
    ),
    FirstRung(
        kind=FindingKind.XID_REPLACE,
        rung=Rung.REPLACE,
        source="rekindle.signatures.xids: every authority that acts replaces (54, 64, 142)",
    ),
    FirstRung(
        kind=FindingKind.XID_REBOOT,
        rung=Rung.REBOOT,
        source="rekindle.signatures.xids: reset or reboot; on a managed node a GPU reset is a reboot",
    ),
    FirstRung(
        kind=FindingKind.HARDWARE,
        rung=Rung.REBOOT,
        source="a hardware fault without a recommendation: the milder answer first: 1 to 3 minutes against 20 to 30",
    ),
    FirstRung(
        kind=FindingKind.DOWN,
        rung=Rung.REBOOT,
        source="slurmd does not answer and the instance runs: a reboot takes 1-3 min, replacing 20-30",
    ),
    FirstRung(
        kind=FindingKind.SUSPECTED,
        rung=Rung.REBOOT,
        source="the minority rank's node: nothing but the run's own evidence speaks against it",
    ),
    FirstRung(
        kind=FindingKind.CLUSTER_TROUBLE,
        rung=Rung.REBOOT,
        source="slurm.conf(5), UnkillableStepTimeout: such a process ends with the node; only as the policy says",
    ),
    FirstRung(
        kind=FindingKind.OMEN,
        rung=None,
        source="rekindle.signatures.xids: leave alone, monitor or restart the application; no node action",
    ),
)
_FIRST: Final = {row.kind: row for row in FIRST_RUNGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureWord:
    """One row: what an instance's failure message says, and whether one more replacement may help."""

    word: str
    text: str
    once_more: bool
    source: str


FAILURE_WORDS: Final = (
    FailureWord(
        word="capacity",
        text="sufficient capacity",
        once_more=False,
        source="HyperPod field notes: capacity failures are not cured by retrying; suspect zone, subnet, or plan",
    ),
    FailureWord(
        word="capacity",
        text="insufficientinstancecapacity",
        once_more=False,
        source="EC2 API Reference, Error codes: InsufficientInstanceCapacity",
    ),
    FailureWord(
        word="efa",
        text="efa health check",
        once_more=True,
        source="HyperPod field notes: EFA failures are often transient and a second replacement works",
    ),
)


def failure_word(message: str) -> FailureWord | None:
    """What the message of an instance in Failure says; None where we have no row for it."""
    text = message.lower()
    return next((row for row in FAILURE_WORDS if row.text in text), None)


def leading_finding(findings: tuple[Finding, ...]) -> Finding | None:
    """The finding that the repair is about: the strongest by FIRST_RUNGS, the newest among equals."""
    rank = {row.kind: index for index, row in enumerate(FIRST_RUNGS)}
    return min(reversed(findings), key=lambda finding: rank[finding.kind], default=None)


def first_rung(kind: FindingKind) -> Rung | None:
    """Where the ladder begins."""
    return _FIRST[kind].rung


def next_rung(repair: NodeRepair, findings: tuple[Finding, ...], *, now: datetime) -> tuple[Rung | None, str]:
    """The next rung and why; None: a person, or nothing at all."""
    if repair.waiting_order is not None:
        return repair.waiting_order.rung, repair.waiting_order.text
    lead = leading_finding(findings)
    first = first_rung(lead.kind) if lead is not None else None
    if repair.step is not None:
        return _rung_after(repair.step, is_done=repair.order is not None and first is None)
    if lead is None or first is None:
        return None, "nothing that was found asks for a repair"
    recent = [earlier for earlier in repair.past if now - earlier.at < HISTORY]
    if len(recent) >= PATTERN:
        return None, f"it was repaired {len(recent)} times in {HISTORY.days} days: a pattern that repairs do not cure"
    if first is not Rung.REBOOT:
        return first, lead.text
    suspect = next((finding for finding in findings if finding.kind is FindingKind.SUSPECT_HARDWARE), None)
    if suspect is not None:
        return Rung.REPLACE, suspect.text
    if any(step.rung == Rung.REBOOT and step.instance_id in (None, repair.instance_id) for step in recent):
        return Rung.REPLACE, "it was rebooted for a fault in the last days, and has one again"
    return first, lead.text


def _rung_after(step: Step, *, is_done: bool) -> tuple[Rung | None, str]:
    """The rung after a step of this Incident. `is_done`: a person ordered that step, and no finding asks for one."""
    if is_done:
        return None, "what was ordered is done, and nothing that was found asks for more"
    if step.rung is not Rung.REBOOT:
        return None, "it was replaced in this Incident"
    was = "no reboot was possible" if step.state is StepState.REFUSED else "it was rebooted"
    return Rung.REPLACE, f"{was} in this Incident"


def is_allowed(rung: Rung, allowed: Allowed) -> bool:
    """The policy lets repair go so far."""
    return allowed is Allowed.REPLACE or (allowed is Allowed.REBOOT and rung is Rung.REBOOT)


def route_of(wanted: Route, rung: Rung, machines: Machines, recovery: NodeRecovery) -> Route | None:
    """How to ask for `rung`; None: that is not possible there.

    Source: docs/facts-sagemaker.md#health-agent. With NodeRecovery None nothing acts on a reason, so only the APIs
    repair; without HyperPod there are no such APIs, and Slurm itself can only reboot.
    """
    if machines is Machines.HYPERPOD:
        if wanted is Route.SLURM_REBOOT and rung is Rung.REBOOT:
            return Route.SLURM_REBOOT
        if wanted is Route.SLURM_REASON and recovery is NodeRecovery.AUTOMATIC:
            return Route.SLURM_REASON
        return Route.API
    if rung is Rung.REBOOT and wanted is not Route.API:
        return Route.SLURM_REBOOT
    return None
