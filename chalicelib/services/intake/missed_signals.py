"""What the sweep has read, as the Signals that the events would have been. Pure: no ports, no clock.

A Job with a monitor is judged by its own heartbeat, which says what the monitor saw; its metrics only tell whom to ask.
A Job that cannot be changed is judged by its platform job's own metrics. CloudWatch holds no NaN, so a loss that is not
a number shows there as silence, or as nothing at all.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.model.job import Attempt, Job, is_far_below
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ports.sweep import Series
from rekindle.detectors.hang import HangLimit
from rekindle.detectors.health import Health
from rekindle.detectors.points import Point, Severity, Verdict
from rekindle.protocol.signals import FaultClass

if TYPE_CHECKING:
    from rekindle.detectors.watch import LossWatch

# Forty heartbeats of 15 s (rekindle/monitor): a network that is away for a while is no news, silence that long is.
SILENT_AFTER = timedelta(minutes=10)
BEGAN_BELOW: Final = "began_below"  # in a Signal's evidence: the first step of an attempt that ignored its plan
QUEUED_AFTER: Final = timedelta(minutes=15)  # its Incident tells people when it has waited as long again
QUIET_AFTER = timedelta(minutes=6)  # without a heartbeat and without a metric: six of the latter
# A run whose log metrics stop: parsing and delivery take minutes, evaluations log nothing, and a wrong word costs a
# healthy run. Twice the silence that ordinary pauses of an hour-long history show, and never less than the floor.
METRIC_SILENCE_FLOOR: Final = timedelta(minutes=30)
METRIC_SILENCE_FACTOR: Final = 3.0
MIN_GAPS: Final = 8  # fewer points than this say nothing about a rhythm
# A loss that is NaN is counted at every step, hence in every minute.
BAD_MINUTES: Final = 3
BAD_WITHIN: Final = timedelta(minutes=5)
# Overdue: three times the usual gap, and beyond the longest one seen of late by half.
OVERDUE_FACTOR: Final = 3.0
OVERDUE_SLOWEST: Final = 1.5
OVERDUE_FLOOR: Final = timedelta(minutes=30)
MIN_SAVES: Final = 4


def signals_from_heartbeat(job: Job, view: AttemptView, *, now: datetime) -> tuple[Signal, ...]:
    """What the monitor's own events would have reported, read from its heartbeat, the worst first; none while the run
    is well.

    Monitor events are best effort: a stall or a non-finite loss whose event got lost must not go unseen, nor one behind
    the other. A heartbeat that has stopped altogether while the platform says "running" is notified, not acted on: the
    mailbox may be what fails. While its platform is about to start it again, no step and no heartbeat is due.
    """
    found: list[tuple[str, FaultClass, SignalKind]] = []
    is_due = view.status is AttemptStatus.RUNNING
    if view.loss_state in ("nan", "inf"):
        found.append((f"loss is {view.loss_state}", FaultClass.NON_FINITE, SignalKind.STATE_REREAD))
    if is_due and view.work == STALLED:
        found.append(("no step is being made", FaultClass.HANG, SignalKind.STALL))
    elif (
        is_due and view.heartbeat_at is not None and view.work != "finished" and now - view.heartbeat_at >= SILENT_AFTER
    ):
        silent = f"no heartbeat since {view.heartbeat_at:%H:%M:%S}"
        found.append((silent, FaultClass.UNCLEAR, SignalKind.SILENT))
    if not found and view.loss_health == Health.DIVERGING:
        found.append(("the loss diverges", FaultClass.DIVERGENCE, SignalKind.DIVERGENCE))
    elif not found and view.loss_health == Health.SPIKING:
        found.append(("the loss spikes", FaultClass.LOSS_SPIKE, SignalKind.LOSS_SPIKE))
    return tuple(_from_heartbeat(job, view, *each, now=now) for each in found)


def _from_heartbeat(
    job: Job, view: AttemptView, what: str, fault: FaultClass, kind: SignalKind, *, now: datetime
) -> Signal:
    step = view.last_step.value if isinstance(view.last_step, Known) else None
    evidence: dict[str, object] = {"found_by": "sweep", "status": view.status.value, "life": view.life}
    # For a hang the step is where it is stuck. For a non-finite loss it would be no onset: the look finds that.
    if step is not None and fault not in (FaultClass.NON_FINITE, FaultClass.UNCLEAR):
        evidence["step"] = step
    mark = f"{view.loss_state}:{step}"
    if fault in LOSS_FAULTS:
        evidence |= {"onset_step": view.onset_step, "baseline": view.loss_baseline}
        mark = f"onset:{view.onset_step}"  # the same spike at a later step is the same fact
    return Signal(
        kind=kind,
        source=SignalSource.SWEEP,
        occurred_at=view.heartbeat_at or now,
        dedupe_key=f"heartbeat:{view.name}:{kind}:{mark}"[:200],
        summary=f"{view.name}: {what}, says its heartbeat at step {step}",
        job_id=job.job_id,
        attempt=view.name,
        fault=fault,
        evidence={name: value for name, value in evidence.items() if value is not None},
    )


def signal_from_queue(job: Job, view: AttemptView, before: Attempt | None, *, now: datetime) -> Signal | None:
    """It waits in its platform's queue long after `before`, whose place it takes, has ended. What a person holds there
    is theirs.
    """
    start, since = view.start, before.ended_at if before is not None else None
    if start is None or not start.is_queued or start.held or since is None or now - since < QUEUED_AFTER:
        return None
    summary = f"{view.name} waits in the queue; what it takes the place of ended at {since:%H:%M} UTC"
    return _waits(job, view, summary, dedupe_key=f"queued-again:{view.name}", since=since)


def signal_from_spot(job: Job, view: AttemptView, *, now: datetime) -> Signal | None:
    """It was interrupted, and has waited for Spot capacity for long."""
    since = view.interrupted_since
    if not view.waits_for_spot or since is None or now - since < QUEUED_AFTER:
        return None
    summary = f"{view.name} was interrupted at {since:%H:%M} UTC, and waits for Spot capacity"
    return _waits(job, view, summary, dedupe_key=f"spot:{view.name}:{since:%Y%m%dT%H%M%S}", since=since)


def _waits(job: Job, view: AttemptView, summary: str, *, dedupe_key: str, since: datetime) -> Signal:
    return Signal(
        kind=SignalKind.ATTEMPT_STATE,
        source=SignalSource.SWEEP,
        occurred_at=since,
        dedupe_key=dedupe_key[:200],
        summary=summary,
        job_id=job.job_id,
        attempt=view.name,
        fault=FaultClass.UNCLEAR,
        evidence={"found_by": "sweep", "status": view.status.value},
    )


def signal_from_life(job: Job, view: AttemptView, steps: Series, came_to: Maybe[int]) -> Signal | None:
    """Its processes have all been started again in the attempt; `steps` tell how far those before them came, and
    `came_to` how far the attempt had come when its newest Incident closed.
    """
    if view.life == 0 or view.heartbeat_at is None:
        return None
    made = [int(step) for at, step in steps if job.attempt_started_at is None or at >= job.attempt_started_at]
    reached = max([*made, came_to.value] if isinstance(came_to, Known) else made, default=None)
    return Signal(
        kind=SignalKind.MONITOR_STARTED,
        source=SignalSource.SWEEP,
        occurred_at=view.heartbeat_at,
        dedupe_key=f"heartbeat:{view.name}:life:{view.life}"[:200],
        summary=f"{view.name} was started again in its place, says its heartbeat: it is its life {view.life}",
        job_id=job.job_id,
        attempt=view.name,
        fault=FaultClass.SOFTWARE_CRASH,
        evidence={"found_by": "sweep", "life": view.life} | ({} if reached is None else {"step": reached}),
    )


def signal_from_start(job: Job, view: AttemptView, own: Attempt) -> Signal | None:
    """The attempt began far below its resume step: what was trained since is trained again."""
    if not isinstance(own.resume_step, Known) or not isinstance(view.first_step, Known):
        return None
    if not is_far_below(view.first_step, own.resume_step):
        return None
    resume, first = own.resume_step.value, view.first_step.value
    return Signal(
        kind=SignalKind.SILENT,
        source=SignalSource.SWEEP,
        occurred_at=view.heartbeat_at or own.submitted_at,
        dedupe_key=f"heartbeat:{view.name}:began:{first}"[:200],
        summary=f"{view.name} was to resume at step {resume}, and began at step {first}, says its heartbeat",
        job_id=job.job_id,
        attempt=view.name,
        fault=FaultClass.UNCLEAR,
        evidence={"found_by": "sweep", BEGAN_BELOW: first, "resume_step": resume},
    )


def signal_from_metrics(job: Job, readings: Mapping[str, Maybe[Series]], *, now: datetime) -> Signal | None:
    """What the platform job's own metrics say; `readings` by "loss", "step", "grad_norm".

    None while all is well, or while too little is known: with one metric Unknown, nothing is called silent. The caller
    makes sure that the run is training.
    """
    series = {name: value.value for name, value in readings.items() if isinstance(value, Known)}
    trouble = _loss_trouble(job, series)
    if trouble is not None or len(series) < len(readings):
        return trouble
    return silence(job, list(series.values()), now=now)


def _loss_trouble(job: Job, series: Mapping[str, Series]) -> Signal | None:
    losses, steps = series.get("loss", ()), dict(series.get("step", ()))
    has_steps = bool(steps) and all(at in steps for at, _ in losses)
    from rekindle.detectors.watch import LossWatch  # a sweep reads metrics every few minutes, and most Jobs have none

    watch, worst, seen_at = LossWatch(), None, None
    for index, (at, loss) in enumerate(losses):
        step = int(steps[at]) if has_steps else index
        for verdict in watch.update(Point(step=step, loss=loss)):
            if verdict.severity is Severity.ACT:
                worst, seen_at = verdict, at
    if worst is None or seen_at is None or watch.health not in (Health.SPIKING, Health.DIVERGING):
        return None
    return _loss_signal(job, watch, worst, seen_at, losses=losses, has_steps=has_steps)


def _loss_signal(
    job: Job, watch: LossWatch, worst: Verdict, seen_at: datetime, *, losses: Series, has_steps: bool
) -> Signal:
    diverges = watch.health is Health.DIVERGING
    onset = watch.onset_step
    evidence: dict[str, object] = {"found_by": "sweep", "rule": worst.rule, "metric": job.watch.loss}
    evidence |= {name: worst.evidence[name] for name in ("loss", "baseline", "score") if name in worst.evidence}
    if has_steps:
        evidence |= {"step": worst.step, "onset_step": onset}
    # Without steps the onset is a place in the window, which moves; its time does not.
    onset_mark = onset if has_steps or onset is None or onset >= len(losses) else f"{losses[onset][0]:%Y%m%dT%H%M}"
    fault = FaultClass.DIVERGENCE if diverges else FaultClass.LOSS_SPIKE
    return Signal(
        kind=SignalKind.DIVERGENCE if diverges else SignalKind.LOSS_SPIKE,
        source=SignalSource.SWEEP,
        occurred_at=seen_at,
        dedupe_key=f"metric:{job.current_attempt}:{fault}:{onset_mark}"[:200],
        summary=f"{job.current_attempt}: {fault} in its metric {job.watch.loss}, baseline {watch.baseline:.4g}"[:400],
        job_id=job.job_id,
        attempt=job.current_attempt,
        fault=fault,
        evidence={name: value for name, value in evidence.items() if value is not None},
    )


def _of_current(
    job: Job, *, kind: SignalKind, at: datetime, key: str, text: str, fault: FaultClass, evidence: Mapping[str, Any]
) -> Signal:
    """What the sweep has found about the Job's current attempt. `key` is cut to 200 characters."""
    return Signal(
        kind=kind,
        source=SignalSource.SWEEP,
        occurred_at=at,
        dedupe_key=key[:200],
        summary=f"{job.current_attempt}: {text}",
        job_id=job.job_id,
        attempt=job.current_attempt,
        fault=fault,
        evidence={"found_by": "sweep", **evidence},
    )


def signal_from_count(job: Job, bad: Series, *, now: datetime) -> Signal | None:
    """Values that were not finite in each of the last minutes; single ones come with fp16 loss scaling and say nothing.

    For a Job that sends metrics and has no heartbeat that can be read. A metric is the Job's: what was counted before
    the current attempt was submitted is an earlier one's.
    """
    began_at = job.attempt_started_at
    times = [at for at, count in bad if count > 0 and (began_at is None or at >= began_at)]
    if len(times) < BAD_MINUTES or now - times[-1] > BAD_WITHIN or times[-1] - times[-BAD_MINUTES] > BAD_WITHIN:
        return None
    return _of_current(
        job,
        kind=SignalKind.STATE_REREAD,
        at=times[-1],
        key=f"metric:{job.current_attempt}:non_finite:{times[0]:%Y%m%dT%H}",
        text=f"its metrics count values that are not finite since {times[0]:%H:%M}",
        fault=FaultClass.NON_FINITE,
        evidence={"since": times[0].isoformat()},
    )


def silence(job: Job, series: Sequence[Series], *, now: datetime) -> Signal | None:
    """No data point for longer than the run's own rhythm explains. Nothing read is no silence."""
    times = sorted({at for points in series for at, _ in points})
    limit = HangLimit(floor_s=METRIC_SILENCE_FLOOR.total_seconds(), factor=METRIC_SILENCE_FACTOR, warmup=0)
    for before, after in pairwise(times):
        limit.update((after - before).total_seconds())
    if len(times) <= MIN_GAPS:
        return None
    silent_s = (now - times[-1]).total_seconds()
    if silent_s <= limit.limit():
        return None
    return _of_current(
        job,
        kind=SignalKind.STALL,
        at=now,
        key=f"metric:{job.current_attempt}:silent:{times[-1]:%Y%m%dT%H%M}",
        text=f"no metric for {silent_s / 60:.0f} min; the limit is {limit.limit() / 60:.0f}",
        fault=FaultClass.HANG,
        evidence={"silent_s": round(silent_s), "silent_limit_s": round(limit.limit())},
    )


def never_in_rhythm(
    job: Job, readings: Mapping[str, Maybe[Series]], *, training_since: datetime | None, now: datetime
) -> Signal | None:
    """A run that has only its own metrics, and has sent too few to have a rhythm: notified once nothing has come for
    the floor's time since it began to train. It may have hung in its first minutes, or its metrics cannot be read from
    its log; either way nothing watches it.
    """
    if training_since is None or any(isinstance(value, Unknown) for value in readings.values()):
        return None
    times = {at for value in readings.values() if isinstance(value, Known) for at, _ in value.value}
    heard_at = max((*times, training_since))
    if len(times) > MIN_GAPS or now - heard_at <= METRIC_SILENCE_FLOOR:
        return None
    minutes = (now - heard_at).total_seconds() / 60
    many = f"{len(times)} data point(s) of its metrics came at all" if times else "none of its metrics ever came"
    return _of_current(
        job,
        kind=SignalKind.SILENT,
        at=now,
        key=f"metric:{job.current_attempt}:unheard:{heard_at:%Y%m%dT%H%M}",
        text=f"nothing heard for {minutes:.0f} min, and {many}: it is not watched",
        fault=FaultClass.UNCLEAR,
        evidence={"silent_s": round(minutes * 60)},
    )


def gone_quiet(job: Job, steps: Series, *, now: datetime, heartbeat_at: datetime | None = None) -> Signal | None:
    """The heartbeat of a run that has a monitor cannot be found, or is old, and its metrics have stopped: notified.

    Each alone may be its channel; neither shows whether the run moves. heartbeat_at: the newest one's time.
    """
    if not steps or now - steps[-1][0] <= QUIET_AFTER:
        return None
    heard_at = steps[-1][0]
    heartbeat = "no heartbeat is to be found" if heartbeat_at is None else f"no heartbeat since {heartbeat_at:%H:%M}"
    return _of_current(
        job,
        kind=SignalKind.SILENT,
        at=now,
        key=f"metric:{job.current_attempt}:quiet:{heard_at:%Y%m%dT%H%M}",
        text=f"{heartbeat}, and no metric since {heard_at:%H:%M}",
        fault=FaultClass.UNCLEAR,
        evidence={"silent_s": round((now - heard_at).total_seconds())},
    )


def signal_from_saves(job: Job, saved_at: Sequence[datetime], *, now: datetime) -> Signal | None:
    """The newest checkpoint is older than the run's own rhythm of saving explains. Notified, without any action."""
    if len(saved_at) < MIN_SAVES:
        return None
    gaps = [(after - before).total_seconds() for before, after in pairwise(saved_at)]
    limit_s = max(OVERDUE_FACTOR * statistics.median(gaps), OVERDUE_SLOWEST * max(gaps), OVERDUE_FLOOR.total_seconds())
    age_s = (now - saved_at[-1]).total_seconds()
    if age_s <= limit_s:
        return None
    return _of_current(
        job,
        kind=SignalKind.SAVE_FAILED,
        at=now,
        key=f"overdue:{job.current_attempt}:{saved_at[-1]:%Y%m%dT%H%M%S}",
        text=f"its newest checkpoint is {age_s / 60:.0f} min old, it used to save every "
        f"{statistics.median(gaps) / 60:.0f} min",
        fault=FaultClass.UNCLEAR,
        evidence={"age_s": round(age_s), "limit_s": round(limit_s)},
    )
