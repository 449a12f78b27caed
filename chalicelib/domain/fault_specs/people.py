"""What a person orders, and what nothing explains."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.fault_specs.spec import Deadline, Drill, Effect, FaultSpec, Response, Trait
from chalicelib.domain.model.signal import SignalKind, SignalSource
from rekindle.protocol.signals import FaultClass

PEOPLE: Final = (
    FaultSpec(
        fault=FaultClass.OPERATOR_ORDER,
        rank=110,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.FULL,
        tries=None,
        source="the operator asked",
        traits=frozenset({Trait.RUNS_ON}),
    ),
    FaultSpec(
        fault=FaultClass.UNCLEAR,
        rank=160,
        response=Response.TELL,
        deadline=Deadline.NONE,
        tries=None,
        source="a wrong action costs more than a missed one",
        traits=frozenset({Trait.NOT_MOVING, Trait.MAY_BE_THE_LOAD}),
        drill=Drill(
            kind=SignalKind.EXTERNAL_ALERT,
            by=SignalSource.WEBHOOK,
            effect=Effect.LIVES,
            text="an alert that names no fault",
            source="a wrong action costs more than a missed one",
        ),
    ),
)
