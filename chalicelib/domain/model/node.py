"""A node in one observation: in Slurm and as an instance of HyperPod, two views that lag each other. Pure.

Sources: botocore sagemaker ClusterInstanceStatus; docs/facts-sagemaker.md#node-states. The views are 1 to 5 minutes
apart, so neither alone says that a node is well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.hardware_ledger import HardwareRecord
from chalicelib.domain.model.known import Known, Maybe, Unknown
from rekindle.protocol.cluster import node_states
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.node_states import ACTION, NodeStanding, StateMeaning, that_say


class InstanceState(StrEnum):
    """An instance's state. Source: botocore, ClusterInstanceStatus; `OTHER` is any word that we do not know."""

    RUNNING = "Running"
    FAILURE = "Failure"
    PENDING = "Pending"
    SHUTTING_DOWN = "ShuttingDown"
    SYSTEM_UPDATING = "SystemUpdating"
    CHECKING = "DeepHealthCheckInProgress"
    NOT_FOUND = "NotFound"
    OTHER = "other"


class GroupRole(StrEnum):
    """What an instance group is for. Source: botocore, ClusterSlurmNodeType; a legacy cluster does not say."""

    CONTROLLER = "Controller"
    LOGIN = "Login"
    COMPUTE = "Compute"
    UNKNOWN = "unknown"


class NodeRecovery(StrEnum):
    """Whether HyperPod repairs automatically. Unknown is never "none"."""

    AUTOMATIC = "Automatic"
    NONE = "None"
    UNKNOWN = "unknown"


class Machines(StrEnum):
    """What a cluster's nodes are."""

    HYPERPOD = "hyperpod"
    OWN = "own"  # ParallelCluster, or machines of one's own: only the cluster's own software can repair
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView(Record):
    """The instance that a node runs on now. `message` may tell of an earlier attempt."""

    instance_id: str
    state: InstanceState
    group: str = ""
    message: str = ""
    logical_id: str | None = None
    launched_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView(Record):
    """The HyperPod cluster. `roles` by group; a group that does not say its role is left out. `name`: its own."""

    status: str
    recovery: NodeRecovery = NodeRecovery.UNKNOWN
    roles: Mapping[str, GroupRole] | None = None
    name: str = ""

    def role(self, group: str) -> GroupRole:
        """What the group is for."""
        return (self.roles or {}).get(group, GroupRole.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Record):
    """How much of the cluster is in repair. `ahead`: nodes in repair, or in the queue for it before this one.

    `last_day`: repairs within the last 24 hours. `booked`: those ahead that have ordered none yet, and will be among
    the day's once they have. `group_ahead`, `group_last_day`, `group_booked`: the same among the nodes of its own
    instance group; None where that is not known. `weighed_by`, `outlived_by`: protected runs on the node to which it
    was reported lost: those whose own Incidents still weigh that against their heartbeats, and those whose steps have
    gone on since. `doubted_by`: both, of other nodes that its cluster called lost at once with it, or since its newest
    repair, and still does.
    """

    ahead: int
    last_day: int
    group_ahead: int | None = None
    group_last_day: int | None = None
    booked: int = 0
    group_booked: int = 0
    weighed_by: tuple[str, ...] = ()
    outlived_by: tuple[str, ...] = ()
    doubted_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRepair(Record):
    """One repair of an earlier Incident of the same node."""

    at: datetime
    rung: str
    instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSeen(Record):
    """What Slurm shows of a cluster's nodes in one observation of a run.

    facts   the nodes that matter to the run's Incident
    total   nodes that Slurm has
    down    how many of all of them Slurm cannot reach
    idle    how many of them are spares: in service, without a job, and none that the run's attempt had
    cleared when HyperPod's agents withdrew a report, by the nodes' own Incidents
    """

    facts: tuple[NodeFacts, ...]
    total: int = 0
    down: int = 0
    idle: int = 0
    cleared: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView(Record):
    """One observation of a node.

    listed     Known(None): the agent is alive, and Slurm has no node of this name
    cluster    Known(None): there is no HyperPod cluster of this name
    instance   Known(None): no list names an instance for it, as between two attempts of a replacement
    total      nodes that Slurm has
    down       how many of them Slurm cannot reach, as far as it shows now
    group_total   those of the node's own instance group; None where the group is not known
    records       what its hardware has had before; read at the Incident's begin, and once it was replaced
    load       read only while a repair is wanted and not begun
    past       repairs of this node in earlier Incidents, newest first; read at the Incident's begin
    """

    machines: Machines = Machines.UNKNOWN
    listed: Maybe[NodeFacts | None] = Unknown("not looked at")
    cluster: Maybe[ClusterView | None] = Unknown("not looked at")
    instance: Maybe[InstanceView | None] = Unknown("not looked at")
    total: int = 0
    down: int = 0
    load: Maybe[Load] = Unknown("not needed yet")
    past: tuple[EarlierRepair, ...] = ()
    group_total: int | None = None
    records: Maybe[tuple[HardwareRecord, ...]] = Unknown("not needed now")

    @property
    def recovery(self) -> NodeRecovery:
        """Whether HyperPod repairs this node automatically; on plain Slurm nothing does."""
        if self.machines is Machines.OWN:
            return NodeRecovery.NONE
        seen = self.cluster.value if isinstance(self.cluster, Known) else None
        return seen.recovery if seen is not None else NodeRecovery.UNKNOWN

    @property
    def role(self) -> GroupRole:
        """What the node's group is for."""
        if not isinstance(self.cluster, Known) or self.cluster.value is None:
            return GroupRole.UNKNOWN
        groups = [
            listing.value.group
            for listing in (self.instance, self.listed)
            if isinstance(listing, Known) and listing.value is not None and listing.value.group
        ]
        return self.cluster.value.role(groups[0]) if groups else GroupRole.UNKNOWN


# ---- what Slurm's words mean -----------------------------------------------------------------------------------------

_IN_SERVICE: Final = that_say(StateMeaning.WORKS)
_HARMLESS: Final = that_say(StateMeaning.NOTHING)
_DRAIN: Final = that_say(StateMeaning.DRAINED)
_SILENT: Final = that_say(StateMeaning.SILENT)
_REBOOTS: Final = that_say(StateMeaning.REBOOT)


def is_drained(facts: NodeFacts) -> bool:
    """It is given no new jobs because it was drained."""
    return bool(_DRAIN & set(facts.flags))


def is_ours(facts: NodeFacts) -> bool:
    """The drain is one of ours: only such a one is ever undone."""
    return is_drained(facts) and node_states.is_ours(facts.reason)


def is_marked(facts: NodeFacts) -> bool:
    """HyperPod's own word for a repair stands on it."""
    return facts.reason.startswith(ACTION)


def held_by(facts: NodeFacts) -> str | None:
    """Whose hand is on it, where it is neither ours, nor Slurm's own, nor HyperPod's."""
    return node_states.held_by(facts.state, facts.flags, facts.reason)


def trouble_of(facts: NodeFacts) -> str:
    """What its cluster is in trouble about with it; empty for nothing."""
    return node_states.trouble_of(facts.state, facts.flags, facts.reason, facts.ending_since)


def is_empty(facts: NodeFacts) -> bool:
    """No job is on it, and none is going; or those on it have ended, and will not go."""
    if facts.ending_since is not None:
        return True
    return not facts.jobs and facts.state not in ("allocated", "mixed") and "completing" not in facts.flags


def is_rebooting(facts: NodeFacts) -> bool:
    """Slurm is asked to reboot it, or waits for that."""
    return bool(_REBOOTS & set(facts.flags))


def is_away(facts: NodeFacts) -> bool:
    """On purpose: in maintenance, down in a reservation, powered down, or not part of the cluster yet."""
    return node_states.standing_of(facts.state, facts.flags, facts.reason) is NodeStanding.AWAY


def is_silent(facts: NodeFacts) -> bool:
    """Its slurmd does not answer."""
    return bool(_SILENT & set(facts.flags))


def is_in_service(facts: NodeFacts) -> bool:
    """Slurm gives it jobs. A flag that we do not know is not healthy."""
    return facts.state in _IN_SERVICE and set(facts.flags) <= _HARMLESS


def is_well_but_drained(facts: NodeFacts, *, after_reboot: bool) -> bool:
    """Slurm would give it jobs but for our own drain.

    Slurm keeps a node that rebooted without its doing DOWN until it is resumed (slurm.conf, ReturnToService 0 and 1).
    """
    rest = set(facts.flags) - _HARMLESS
    if is_ours(facts):
        rest -= _DRAIN
    is_up = facts.state in _IN_SERVICE or (after_reboot and facts.state == "down" and is_ours(facts))
    return is_up and not rest
