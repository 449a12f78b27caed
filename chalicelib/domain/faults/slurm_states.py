"""Slurm's job states as ours: one table for the cluster state and the bus. Pure.

Source of the states: squeue, JOB STATE CODES; what each means was tried on Slurm 22.05.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from chalicelib.domain.faults.failure_reasons import classify_failure_reason, failure_found
from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.observation import AttemptStatus, FailureVerdict
from rekindle.protocol.cluster.documents import AttemptDoc, CauseDoc, EndedBy, NodeFacts, SlurmState
from rekindle.protocol.cluster.node_states import NodeStanding, standing_of
from rekindle.protocol.signals import FaultClass

STATUSES: Final[Mapping[SlurmState, AttemptStatus]] = {
    SlurmState.PENDING: AttemptStatus.STARTING,
    SlurmState.CONFIGURING: AttemptStatus.STARTING,
    SlurmState.RUNNING: AttemptStatus.RUNNING,
    SlurmState.SUSPENDED: AttemptStatus.RUNNING,  # its processes are stopped, not gone; a stall tells of it
    SlurmState.COMPLETING: AttemptStatus.STOPPING,
    SlurmState.STOPPED: AttemptStatus.STOPPING,
    SlurmState.COMPLETED: AttemptStatus.COMPLETED,
    SlurmState.CANCELLED: AttemptStatus.STOPPED,
    SlurmState.REQUEUED: AttemptStatus.STOPPED,  # this start is over; `successor` names the next one
    SlurmState.FAILED: AttemptStatus.FAILED,
    SlurmState.BOOT_FAIL: AttemptStatus.FAILED,
    SlurmState.NODE_FAIL: AttemptStatus.FAILED,
    SlurmState.OUT_OF_MEMORY: AttemptStatus.FAILED,
    SlurmState.REVOKED: AttemptStatus.FAILED,
    SlurmState.TIMEOUT: AttemptStatus.EXPIRED,
    SlurmState.DEADLINE: AttemptStatus.EXPIRED,
    SlurmState.PREEMPTED: AttemptStatus.EXPIRED,
    SlurmState.GONE: AttemptStatus.GONE,
}
"""UNKNOWN has no row: a state that cannot be read is no state."""

NODE_ENDS: Final = frozenset({SlurmState.NODE_FAIL, SlurmState.BOOT_FAIL})

# The words of SageMaker's states that Signals carry, so that one rule reads the ends of all platforms.
WORDS: Final[Mapping[AttemptStatus, str]] = {
    AttemptStatus.COMPLETED: "Completed",
    AttemptStatus.FAILED: "Failed",
    AttemptStatus.STOPPED: "Stopped",
    AttemptStatus.EXPIRED: "Stopped",
    AttemptStatus.GONE: "Gone",
}

_FAULTS: Final[Mapping[NodeStanding, FaultClass]] = {
    NodeStanding.LOST: FaultClass.NODE_LOST,
    NodeStanding.BROKEN: FaultClass.NODE_HARDWARE,
}


def status_of(state: SlurmState) -> AttemptStatus:
    """Raises: DependencyUnavailable for a state that cannot be read."""
    if state not in STATUSES:
        raise DependencyUnavailable("Slurm shows a state that is not known here")
    return STATUSES[state]


def failure_reason(
    state: SlurmState,
    *,
    reason: str = "",
    detail: str = "",
    exit_code: int | None = None,
    exit_signal: int | None = None,
) -> str:
    """Why a start failed, for people; empty for a state that is no failure.

    `detail` is what the agent found in the job's own output.
    """
    if STATUSES.get(state) is not AttemptStatus.FAILED:
        return ""
    parts = [f"Slurm {state.value.upper()}"]
    if reason and reason != "None":
        parts.append(reason)
    if exit_signal:
        parts.append(f"signal {exit_signal}")
    if exit_code:
        parts.append(f"exit code: {exit_code}")
    if detail:
        parts.append(detail)
    return ": ".join(parts)


def failure_in(doc: AttemptDoc) -> FailureVerdict | None:
    """`failure_of_end` of a whole document."""
    return failure_of_end(
        doc.state, cause=doc.cause, reason=doc.reason, exit_code=doc.exit_code, exit_signal=doc.exit_signal
    )


def reason_of(doc: AttemptDoc) -> str:
    """`failure_reason` of a whole document."""
    return failure_reason(
        doc.state, reason=doc.reason, detail=doc.detail, exit_code=doc.exit_code, exit_signal=doc.exit_signal
    )


_BY_STATE: Final[Mapping[SlurmState, FailureVerdict]] = {
    SlurmState.NODE_FAIL: FailureVerdict(fault=FaultClass.NODE_LOST, rule="slurm_node_fail"),
    SlurmState.BOOT_FAIL: FailureVerdict(fault=FaultClass.NODE_LOST, rule="slurm_node_fail"),
    SlurmState.OUT_OF_MEMORY: FailureVerdict(fault=FaultClass.OUT_OF_MEMORY, rule="slurm_out_of_memory"),
}
"""What Slurm itself says of an end, whatever the output says. Source: squeue, JOB STATE CODES."""

_CRASH: Final = FailureVerdict(fault=FaultClass.SOFTWARE_CRASH, rule="exit_code")


def failure_of_end(
    state: SlurmState,
    *,
    cause: CauseDoc | None = None,
    reason: str = "",
    exit_code: int | None = None,
    exit_signal: int | None = None,
) -> FailureVerdict | None:
    """What a failed start failed of; None for a state that is no failure. Slurm's state first, then what the agent
    found in the output, then Slurm's own reason; a code alone is a crash.
    """
    if STATUSES.get(state) is not AttemptStatus.FAILED:
        return None
    if state in _BY_STATE:
        return _BY_STATE[state]
    if cause is not None:
        return failure_found(cause)
    stated = classify_failure_reason(reason)
    if stated.fault is FaultClass.UNCLEAR and (exit_code or exit_signal):
        return _CRASH
    return stated


def fault_of_end(
    state: SlurmState,
    failure: FailureVerdict | None,
    *,
    has_successor: bool = False,
    requeued_by: EndedBy = EndedBy.UNKNOWN,
    lost_nodes: Collection[str] = (),
    ended_by: EndedBy = EndedBy.UNKNOWN,
) -> FaultClass | None:
    """What the end of a start suggests; None where nothing is wrong: it runs, it is done, its user cancelled it, or it
    was put back into the queue, unless a node was lost: the next start must be watched, and the node repaired.
    """
    if has_successor and lost_a_node(state, requeued_by, lost_nodes):
        return FaultClass.NODE_LOST
    if state not in STATUSES or has_successor:
        return None
    match STATUSES[state]:
        case AttemptStatus.FAILED:
            return FaultClass.UNCLEAR if failure is None else failure.fault
        case AttemptStatus.EXPIRED:
            return FaultClass.PLANNED_END
        case AttemptStatus.GONE:
            return FaultClass.JOB_MISSING
        case AttemptStatus.STOPPED if ended_by is EndedBy.ADMIN:
            # Not its owner's wish: what the run showed before decides (rules/run/cancelled.py).
            return FaultClass.UNCLEAR
        case _:
            return None


def lost_a_node(state: SlurmState, requeued_by: EndedBy, lost_nodes: Collection[str]) -> bool:
    """The start was over because a node was. The agent names the nodes, where Slurm has put the job back since."""
    return state in NODE_ENDS or (requeued_by is EndedBy.SLURM and bool(lost_nodes))


def fault_of_node(state: str, flags: tuple[str, ...], reason: str = "") -> FaultClass | None:
    """None for a node that works, is in maintenance, or was drained or set down by an administrator."""
    return _FAULTS.get(standing_of(state, flags, reason))


def is_lost(node: NodeFacts) -> bool:
    """Slurm has lost it. One that an administrator took out is not."""
    return fault_of_node(node.state, node.flags, node.reason) is FaultClass.NODE_LOST


def count_lost(nodes: Iterable[NodeFacts]) -> int:
    return sum(map(is_lost, nodes))
