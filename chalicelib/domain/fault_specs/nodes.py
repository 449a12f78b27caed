"""Faults of nodes and of the capacity that they are."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.fault_specs.spec import Cause, Claim, Deadline, Drill, Effect, FaultSpec, Meanwhile, Response
from chalicelib.domain.model.signal import SignalKind, SignalSource
from chalicelib.domain.model.start_view import StartState
from rekindle.protocol.signals import FaultClass

NODES: Final = (
    FaultSpec(
        fault=FaultClass.NODE_HARDWARE,
        rank=30,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.FULL,
        tries=None,
        source="soft node faults leave the run alive long enough to save, which is worth half an interval on average",
        meanwhile=Meanwhile.RUNS_ON,
        cause=Cause.NODE,
        claims=frozenset({Claim.ALERT, Claim.LOG}),
        explains_an_end=True,
        renames_a_retry=True,
        is_waited_out=True,
        afterwards="Check that the node was replaced or repaired before it is used again.",
        drill=Drill(
            kind=SignalKind.NODE_HEALTH,
            by=SignalSource.SAGEMAKER,
            effect=Effect.LIVES,
            text="a GPU reports an uncorrectable error (Xid 48); the run still trains",
            source="SageMaker HyperPod Cluster Node Health Event: a soft fault leaves the run alive for a while",
            names_node=True,
        ),
    ),
    FaultSpec(
        fault=FaultClass.NODE_LOST,
        rank=40,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="a run that lost a node cannot save",
        meanwhile=Meanwhile.DEAD,
        cause=Cause.NODE,
        claims=frozenset({Claim.ALERT}),
        explains_an_end=True,
        renames_a_retry=True,
        is_waited_out=True,
        afterwards="Check that the node came back or was replaced.",
        drill=Drill(
            kind=SignalKind.INSTANCE_STATE,
            by=SignalSource.EC2,
            effect=Effect.DIES,
            text="an instance is gone, and the run with it",
            source="EC2 Instance State-change Notification; a training job then fails with InternalServerError",
            names_node=True,
            failure_reason="InternalServerError: We encountered an internal error. Please try again.",
            start_state=StartState.LOST_NODE,
            by_platform=True,
            reason_there="Slurm NODE_FAIL: NodeDown",
        ),
    ),
    FaultSpec(
        fault=FaultClass.PLANNED_END,
        rank=50,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.FULL,
        tries=None,
        source="a Spot warning leaves about two minutes (EC2 user guide), and the deadline ends before them",
        meanwhile=Meanwhile.RUNS_ON,
        cause=Cause.CAPACITY,
        claims=frozenset(),
        explains_an_end=True,
        renames_a_retry=True,
        is_waited_out=True,
        afterwards="Check that capacity lasts for the rest of the run.",
        drill=Drill(
            kind=SignalKind.SPOT_INTERRUPTION,
            by=SignalSource.EC2,
            effect=Effect.LIVES,
            text="an instance will be taken back in about two minutes",
            source="EC2 user guide, Spot Instance interruption notices",
            names_node=True,
        ),
    ),
)
