"""What people order or start beside Rekindle, and what nothing explains."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.fault_specs.spec import Cause, Claim, Deadline, Drill, Effect, FaultSpec, Meanwhile, Response
from chalicelib.domain.model.signal import SignalKind, SignalSource
from rekindle.protocol.signals import FaultClass

PEOPLE: Final = (
    FaultSpec(
        fault=FaultClass.TWO_LIVE,
        rank=115,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.FULL,
        tries=None,
        source="ours makes way for what a person or the owner's pipeline has started",
        meanwhile=Meanwhile.RUNS_ON,
        cause=Cause.UNSAID,
        claims=frozenset(),
        explains_an_end=False,
        renames_a_retry=False,
        is_waited_out=True,
        afterwards="",
        drill=None,
    ),
    FaultSpec(
        fault=FaultClass.OPERATOR_ORDER,
        rank=110,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.FULL,
        tries=None,
        source="the operator asked",
        meanwhile=Meanwhile.RUNS_ON,
        cause=Cause.UNSAID,
        claims=frozenset(),
        explains_an_end=True,
        renames_a_retry=True,
        is_waited_out=False,
        afterwards="",
        drill=None,
    ),
    FaultSpec(
        fault=FaultClass.UNCLEAR,
        rank=160,
        response=Response.TELL,
        deadline=Deadline.NONE,
        tries=None,
        source="a wrong action costs more than a missed one",
        meanwhile=Meanwhile.UNKNOWN,
        cause=Cause.MAY_BE_THE_CHECKPOINT,
        claims=frozenset({Claim.ALERT}),
        explains_an_end=False,
        renames_a_retry=True,
        is_waited_out=True,
        afterwards="",
        drill=Drill(
            kind=SignalKind.EXTERNAL_ALERT,
            by=SignalSource.WEBHOOK,
            effect=Effect.LIVES,
            text="an alert that names no fault",
            source="a wrong action costs more than a missed one",
        ),
    ),
)
