"""Runs whose loss goes wrong."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.fault_specs.spec import Deadline, Drill, Effect, FaultSpec, Response, Trait
from chalicelib.domain.model.signal import SignalKind, SignalSource
from rekindle.protocol.signals import FaultClass

LOSS: Final = (
    FaultSpec(
        fault=FaultClass.NON_FINITE,
        rank=10,
        response=Response.ROLL_BACK,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5; Megatron rerun machine: the same data once more tells hardware from data",
        traits=frozenset({Trait.STANDS_UNTIL_HELPED, Trait.POISONS}),
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
        traits=frozenset({Trait.BENDS_THE_LOSS, Trait.POISONS}),
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
        source="DESIGN §5; BLOOM 104B: two data skips did not cure a divergence",
        traits=frozenset({Trait.BENDS_THE_LOSS, Trait.POISONS}),
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
