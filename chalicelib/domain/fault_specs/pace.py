"""Runs that stand still or slow down."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.fault_specs.spec import Cause, Claim, Deadline, Drill, Effect, FaultSpec, Meanwhile, Response
from chalicelib.domain.model.signal import SignalKind, SignalSource
from rekindle.protocol.signals import FaultClass

PACE: Final = (
    FaultSpec(
        fault=FaultClass.HANG,
        rank=80,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.SHORT,
        tries=None,
        source="a stuck main thread answers 'cannot' with its stack",
        meanwhile=Meanwhile.STANDS,
        cause=Cause.UNSAID,
        claims=frozenset({Claim.ALERT, Claim.LOG}),
        explains_an_end=True,
        renames_a_retry=True,
        is_waited_out=True,
        afterwards="Read the ranks' stacks, which the mailbox keeps, and watch the host that was suspected.",
        drill=Drill(
            kind=SignalKind.STALL,
            by=SignalSource.MONITOR,
            effect=Effect.FREEZES,
            text="no step for longer than usual: the run is stuck",
            source="the monitor's stall report (docs/monitor.md)",
        ),
    ),
    FaultSpec(
        fault=FaultClass.THROUGHPUT_DROP,
        rank=130,
        response=Response.TELL,
        deadline=Deadline.NONE,
        tries=None,
        source="notify only by default: a slow run still trains",
        meanwhile=Meanwhile.SLOW,
        cause=Cause.UNSAID,
        claims=frozenset({Claim.ALERT}),
        explains_an_end=False,
        renames_a_retry=False,
        is_waited_out=True,
        afterwards="Find the slow rank's host; nothing was done about it.",
        drill=Drill(
            kind=SignalKind.THROUGHPUT,
            by=SignalSource.MONITOR,
            effect=Effect.LIVES,
            text="steps take twice as long as usual",
            source="the monitor's throughput report (docs/monitor.md)",
        ),
    ),
)
