"""Runs whose loss goes wrong."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.fault_specs.spec import Cause, Claim, Deadline, Drill, Effect, FaultSpec, Meanwhile, Response
from chalicelib.domain.model.signal import SignalKind, SignalSource
from rekindle.protocol.signals import FaultClass

LOSS: Final = (
    FaultSpec(
        fault=FaultClass.NON_FINITE,
        rank=10,
        response=Response.ROLL_BACK,
        deadline=Deadline.NONE,
        tries=None,
        source="Megatron rerun machine: the same data once more tells hardware from data",
        meanwhile=Meanwhile.NOT_FINITE,
        cause=Cause.UNSAID,
        claims=frozenset({Claim.ALERT, Claim.LOG}),
        explains_an_end=True,
        renames_a_retry=True,
        is_waited_out=False,
        afterwards="Look into the data that was skipped, and into the rank that was bad first.",
        drill=Drill(
            kind=SignalKind.NON_FINITE,
            by=SignalSource.MONITOR,
            effect=Effect.NAN,
            text="the loss is not finite",
            source="the monitor's non-finite report (docs/monitor.md)",
        ),
    ),
    FaultSpec(
        fault=FaultClass.LOSS_SPIKE,
        rank=120,
        response=Response.WATCH_THEN_ROLL_BACK,
        deadline=Deadline.FULL,
        tries=None,
        source="BLOOM: a spike healed alone in about 30 iterations; PaLM: resume about 100 steps before, skip 200-500",
        meanwhile=Meanwhile.BAD_LOSS,
        cause=Cause.UNSAID,
        claims=frozenset({Claim.ALERT}),
        explains_an_end=False,
        renames_a_retry=True,
        is_waited_out=False,
        afterwards="Look into the data that was skipped; a spike at other data points to the learning rate.",
        drill=Drill(
            kind=SignalKind.LOSS_SPIKE,
            by=SignalSource.MONITOR,
            effect=Effect.SPIKES,
            text="the loss has jumped, and it does not heal",
            source="the monitor's loss judgement (docs/detection.md)",
        ),
    ),
    FaultSpec(
        fault=FaultClass.DIVERGENCE,
        rank=20,
        response=Response.CHECKPOINT_THEN_HAND_OVER,
        deadline=Deadline.FULL,
        tries=None,
        source="BLOOM 104B: two data skips did not cure a divergence",
        meanwhile=Meanwhile.BAD_LOSS,
        cause=Cause.UNSAID,
        claims=frozenset({Claim.ALERT}),
        explains_an_end=True,
        renames_a_retry=True,
        is_waited_out=False,
        afterwards="Decide whether to change hyperparameters: skipping data does not cure a divergence.",
        drill=Drill(
            kind=SignalKind.DIVERGENCE,
            by=SignalSource.MONITOR,
            effect=Effect.DIVERGES,
            text="the loss climbs and keeps climbing",
            source="the monitor's loss judgement (docs/detection.md)",
        ),
    ),
)
