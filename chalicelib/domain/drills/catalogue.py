"""Rehearsals: which faults can be played on a living run, what each is assumed to do to it, and how long this Job's
own recoveries took. Data and pure functions; the assumed world is in drill_world, the play itself in services/drills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from statistics import median
from typing import Any

from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.model.incident import Phase, TimelineEntry
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.model.start_view import StartState
from rekindle.signatures.faults import FaultClass


class Effect(StrEnum):
    """What the fault is assumed to do to the run."""

    LIVES = "lives"  # it trains on until it is stopped
    FREEZES = "freezes"  # it runs, and makes no step
    DIES = "dies"
    DIES_AGAIN = "dies_again"  # so does every attempt after it, before it has gained a step
    VANISHES = "vanishes"  # the platform no longer knows it
    NAN = "nan"
    SPIKES = "spikes"
    DIVERGES = "diverges"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRow:
    """One fault that can be rehearsed: the Signal that would tell of it, and its effect.

    `told_by` is the fault that the Signal itself names; `start_state`, `by_platform` and `reason_there` are how a
    cluster's queue tells the end of a run that dies.
    """

    fault: FaultClass
    kind: SignalKind
    by: SignalSource
    effect: Effect
    said: str
    source: str
    told_by: FaultClass | None = None
    failure_reason: str = ""
    start_state: StartState = StartState.ENDED
    by_platform: bool = False
    reason_there: str = ""

    @property
    def signal_fault(self) -> FaultClass:
        """What the Signal suggests."""
        return self.told_by or self.fault


DRILLS: tuple[DrillRow, ...] = (
    DrillRow(
        fault=FaultClass.NODE_HARDWARE,
        kind=SignalKind.NODE_HEALTH,
        by=SignalSource.SAGEMAKER,
        effect=Effect.LIVES,
        said="a GPU reports an uncorrectable error (Xid 48); the run still trains",
        source="SageMaker HyperPod Cluster Node Health Event; aws-facts: a soft fault leaves the run alive for a while",
    ),
    DrillRow(
        fault=FaultClass.NODE_LOST,
        kind=SignalKind.INSTANCE_STATE,
        by=SignalSource.EC2,
        effect=Effect.DIES,
        said="an instance is gone, and the run with it",
        source="EC2 Instance State-change Notification; a training job then fails with InternalServerError",
        failure_reason="InternalServerError: We encountered an internal error. Please try again.",
        start_state=StartState.LOST_NODE,
        by_platform=True,
        reason_there="Slurm NODE_FAIL: NodeDown",
    ),
    DrillRow(
        fault=FaultClass.PLATFORM_ERROR,
        kind=SignalKind.ATTEMPT_STATE,
        by=SignalSource.SAGEMAKER,
        effect=Effect.DIES,
        said="the platform ended the run with an internal error",
        source="failure_reasons, row internal_server_error",
        failure_reason="InternalServerError: We encountered an internal error. Please try again.",
        start_state=StartState.LOST_NODE,
        by_platform=True,
        reason_there="Slurm BOOT_FAIL: a node failed to boot",
    ),
    DrillRow(
        fault=FaultClass.SOFTWARE_CRASH,
        kind=SignalKind.ATTEMPT_STATE,
        by=SignalSource.SAGEMAKER,
        effect=Effect.DIES,
        said="the training script has crashed",
        source="failure_reasons, row algorithm_error",
        failure_reason="AlgorithmError: ExecuteUserScriptError: ExitCode 1 ErrorMessage \"KeyError: 'labels'\"",
        reason_there="Slurm FAILED: exit code: 1",
    ),
    DrillRow(
        fault=FaultClass.OUT_OF_MEMORY,
        kind=SignalKind.ATTEMPT_STATE,
        by=SignalSource.SAGEMAKER,
        effect=Effect.DIES,
        said="a rank has run out of GPU memory",
        source="failure_reasons, row cuda_out_of_memory",
        failure_reason="AlgorithmError: torch.OutOfMemoryError: CUDA out of memory., exit code: 1",
        by_platform=True,
        reason_there="Slurm OUT_OF_MEMORY: exit code: 125",
    ),
    DrillRow(
        fault=FaultClass.HANG,
        kind=SignalKind.STALL,
        by=SignalSource.MONITOR,
        effect=Effect.FREEZES,
        said="no step for longer than usual: the run is stuck",
        source="the monitor's stall report (docs/monitor.md)",
    ),
    DrillRow(
        fault=FaultClass.NON_FINITE,
        kind=SignalKind.NON_FINITE,
        by=SignalSource.MONITOR,
        effect=Effect.NAN,
        said="the loss is not finite",
        source="the monitor's non-finite report (docs/monitor.md)",
    ),
    DrillRow(
        fault=FaultClass.LOSS_SPIKE,
        kind=SignalKind.LOSS_SPIKE,
        by=SignalSource.MONITOR,
        effect=Effect.SPIKES,
        said="the loss has jumped, and it does not heal",
        source="the monitor's loss judgement (docs/detection.md)",
    ),
    DrillRow(
        fault=FaultClass.DIVERGENCE,
        kind=SignalKind.DIVERGENCE,
        by=SignalSource.MONITOR,
        effect=Effect.DIVERGES,
        said="the loss climbs and keeps climbing",
        source="the monitor's loss judgement (docs/detection.md)",
    ),
    DrillRow(
        fault=FaultClass.THROUGHPUT_DROP,
        kind=SignalKind.THROUGHPUT,
        by=SignalSource.MONITOR,
        effect=Effect.LIVES,
        said="steps take twice as long as usual",
        source="the monitor's throughput report (docs/monitor.md)",
    ),
    DrillRow(
        fault=FaultClass.PLANNED_END,
        kind=SignalKind.SPOT_INTERRUPTION,
        by=SignalSource.EC2,
        effect=Effect.LIVES,
        said="an instance will be taken back in about two minutes",
        source="EC2 user guide, Spot Instance interruption notices",
    ),
    DrillRow(
        fault=FaultClass.BAD_CHECKPOINT,
        kind=SignalKind.ATTEMPT_STATE,
        by=SignalSource.SAGEMAKER,
        effect=Effect.DIES,
        said="the run died reading a damaged checkpoint",
        source="failure_reasons, row bad_checkpoint",
        failure_reason="AlgorithmError: RuntimeError: PytorchStreamReader failed reading zip archive: failed finding "
        "central directory, exit code: 1",
        reason_there="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
    DrillRow(
        fault=FaultClass.NO_PROGRESS,
        kind=SignalKind.ATTEMPT_STATE,
        by=SignalSource.SAGEMAKER,
        effect=Effect.DIES_AGAIN,
        said="the run dies, and so does every attempt after it before it has gained a step",
        source="DESIGN §5: three attempts that gained no step end with a person",
        told_by=FaultClass.PLATFORM_ERROR,
        failure_reason="InternalServerError: We encountered an internal error. Please try again.",
        start_state=StartState.LOST_NODE,
        by_platform=True,
        reason_there="Slurm BOOT_FAIL: a node failed to boot",
    ),
    DrillRow(
        fault=FaultClass.JOB_MISSING,
        kind=SignalKind.JOB_MISSING,
        by=SignalSource.SWEEP,
        effect=Effect.VANISHES,
        said="the platform neither runs nor queues the Job",
        source="DESIGN §5; BLOOM's watchdog alerts when no job is running or queued",
    ),
    DrillRow(
        fault=FaultClass.UNCLEAR,
        kind=SignalKind.EXTERNAL_ALERT,
        by=SignalSource.WEBHOOK,
        effect=Effect.LIVES,
        said="an alert that names no fault",
        source="a wrong action costs more than a missed one",
    ),
)

_DRILLABLE = {row.fault.value: row for row in DRILLS}


def drill_for(fault: str) -> DrillRow:
    """The row of `fault`.

    Raises:
        InvalidRequest: no such fault, or none that befalls a run (an operator's order is given, not rehearsed).
    """
    row = _DRILLABLE.get(fault)
    if row is None:
        raise InvalidRequest("fault", f"must be one of {', '.join(sorted(_DRILLABLE))}")
    return row


def signal_of(row: DrillRow, job: Job, view: AttemptView | None, *, drill_id: str, now: datetime) -> Signal:
    """The Signal that would tell of the fault. It is shown to decide() and goes nowhere else."""
    kind, source = row.kind, row.by
    if job.cluster and kind is SignalKind.ATTEMPT_STATE:
        source = SignalSource.AGENT
    evidence: dict[str, Any] = {"drill_id": drill_id}
    step = view.last_step if view is not None else Unknown("not read")
    if isinstance(step, Known) and row.effect in (Effect.FREEZES, Effect.NAN, Effect.SPIKES, Effect.DIVERGES):
        evidence |= {"step": step.value, "onset_step": step.value}
    start = view.start if view is not None else None
    is_node = row.fault in (FaultClass.NODE_HARDWARE, FaultClass.NODE_LOST, FaultClass.PLANNED_END)
    return Signal(
        kind=kind,
        source=source,
        occurred_at=now,
        dedupe_key=f"drill:{drill_id}"[:200],
        summary=f"drill: {row.said}",
        job_id=job.job_id,
        attempt=job.current_attempt,
        cluster=job.cluster if start is not None else None,
        node=start.nodes[0] if start is not None and start.nodes and is_node else None,
        fault=row.signal_fault,
        evidence=evidence,
    )


# --- how long it took before ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How long this Job's own recoveries took, in seconds; Unknown where none has gone through that stage."""

    save_s: Maybe[float]
    stop_s: Maybe[float]
    start_s: Maybe[float]
    recoveries: int = 0


def measured(timelines: Sequence[Sequence[TimelineEntry]]) -> Figures:
    """The median of each stage over earlier Incidents of the Job."""
    saves, stops, starts = [], [], []
    for entries in timelines:
        saves += _spans(entries, Phase.CHECKPOINTING, ended_by="checkpoint.saved")
        stops += _spans(entries, Phase.STOPPING)
        starts += _starts(entries)
    return Figures(
        save_s=_middle(saves, "no earlier recovery of this Job has saved a checkpoint"),
        stop_s=_middle(stops, "no earlier recovery has stopped this Job"),
        start_s=_middle(starts, "no earlier recovery has started this Job"),
        recoveries=sum(1 for entries in timelines if entries),
    )


def _spans(entries: Sequence[TimelineEntry], phase: Phase, *, ended_by: str | None = None) -> list[float]:
    """How long each stay in `phase` took; with `ended_by` only those that this rule ended."""
    spans: list[float] = []
    began: datetime | None = None
    for entry in entries:
        if entry.phase is phase:
            began = began or entry.at
        elif began is not None:
            if ended_by in (None, entry.rule):
                spans.append((entry.at - began).total_seconds())
            began = None
    return spans


def _starts(entries: Sequence[TimelineEntry]) -> list[float]:
    """From the order that started an attempt to the first observation that saw it train."""
    spans: list[float] = []
    ordered_at: datetime | None = None
    for entry in entries:
        if "ResubmitJob" in entry.actions:
            ordered_at = ordered_at or entry.at
            continue
        seen = entry.facts.get("attempt")
        trains = isinstance(seen, dict) and seen.get("status") == "running"
        if ordered_at is not None and trains and entry.phase in (Phase.VERIFYING, Phase.RECOVERED):
            spans.append((entry.at - ordered_at).total_seconds())
            ordered_at = None
    return spans


def _middle(values: Sequence[float], why: str) -> Maybe[float]:
    return Known(float(median(values))) if values else Unknown(why)
