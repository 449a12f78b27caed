"""From the API's answers to pictures: a Job's curves over time, an Incident's loss by step with what was done. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from rekindle.client.shapes import bad_steps, member, moment, objects, word
from rekindle.compat import UTC
from rekindle.console.charts import Chart, Curve, Mark, MarkKind, draw
from rekindle.drawing.strokes import Axis, Point, gaps_of

WINDOWS: Final[Mapping[int, str]] = {
    15: "15 minutes",
    60: "1 hour",
    360: "6 hours",
    1440: "1 day",
    10_080: "7 days",
}
# How much of the time before and after it an Incident's picture shows: as many times its own length, within bounds.
BEFORE: Final = (2.0, timedelta(minutes=3), timedelta(hours=1))
AFTER: Final = (0.5, timedelta(minutes=2), timedelta(minutes=30))
PERIODS_AFTER: Final = 15  # at least so many points of an Incident's way on are shown
MAX_MARKS: Final = 12  # newest attempts and Incidents that are written beside a Job's curve
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


def window_of(opened: datetime | None, closed: datetime | None, now: datetime) -> tuple[int, str | None]:
    """Minutes, and until when (None: now), in which an Incident's curve is to be read."""
    took = (closed or now) - (opened or now)
    end = min(now, closed + _within(took, AFTER)) if closed is not None else now
    begin = (opened or now) - _within(took, BEFORE)
    minutes = max(1, math.ceil((end - begin).total_seconds() / 60))
    return minutes, end.isoformat() if end < now else None


def _within(took: timedelta, bounds: tuple[float, timedelta, timedelta]) -> timedelta:
    share, least, most = bounds
    return max(least, min(most, took * share))


def of_job(body: Mapping[str, Any], job: Mapping[str, Any]) -> list[Chart]:
    """The loss by step, a line per attempt from its resume step; step rate and gradient norm over time."""
    loss = _loss_of_job(body, job)
    rate = Curve(
        name="rate",
        title="Steps per second",
        y_title="steps/s",
        axis=Axis.TIME,
        points=rate_of(body),
        why=why_not(body, "step_s"),
    )
    norm = Curve(
        name="grad-norm",
        title="Gradient norm (highest of each period)",
        y_title="norm",
        axis=Axis.TIME,
        points=points_of(body, "grad_norm"),
        why=why_not(body, "grad_norm"),
    )
    return [
        chart for curve in (loss, rate, norm) if (chart := draw(curve)) is not None and (chart.plot or chart.broken)
    ]


def _loss_of_job(body: Mapping[str, Any], job: Mapping[str, Any]) -> Curve:
    steps = points_of(body, "step")
    return _loss_by_step(body, job, steps) if steps else _loss_over_time(body)


def _loss_over_time(body: Mapping[str, Any]) -> Curve:
    """Of a run that reports no step."""
    return Curve(
        name="loss",
        title="Loss",
        y_title="loss",
        axis=Axis.TIME,
        points=points_of(body, "loss"),
        low=points_of(body, "loss_low"),
        high=points_of(body, "loss_high"),
        broken=[at for at, count in points_of(body, "non_finite") if count > 0],
        why=why_not(body, "loss"),
    )


def _loss_by_step(body: Mapping[str, Any], job: Mapping[str, Any], steps: Sequence[Point]) -> Curve:
    attempts = _attempts_in_order(job)
    kept: list[_Placed] = []
    for value in _placed(body, "loss", attempts, steps):
        # Within an attempt a step never goes back.
        if not kept or kept[-1].attempt != value.attempt or value.point[0] > kept[-1].point[0]:
            kept.append(value)
    numbers = [value.attempt for value in kept]
    low, high = (by_step(points_of(body, name), steps) for name in ("loss_low", "loss_high"))
    has_band = len(low) == len(high) == len(by_step(points_of(body, "loss"), steps))
    return Curve(
        name="loss",
        title="Loss by step, a line per attempt",
        y_title="loss",
        axis=Axis.STEP,
        points=[value.point for value in kept],
        low=[low[value.index] for value in kept] if has_band else (),
        high=[high[value.index] for value in kept] if has_band else (),
        starts={index for index in range(1, len(kept)) if numbers[index] != numbers[index - 1]},
        names=[_attempt_name(attempts, number) for number in dict.fromkeys(numbers)],
        broken=[x for x, count in (value.point for value in _placed(body, "non_finite", attempts, steps)) if count > 0],
        marks=list(_marks_of_job(job, {*numbers})),
        why=why_not(body, "loss") or why_not(body, "step"),
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """A measured value by its step: `index` among the measured ones, and the number of its attempt, -1 before all."""

    index: int
    attempt: int
    point: Point


def _placed(
    body: Mapping[str, Any], name: str, attempts: Sequence[Mapping[str, Any]], steps: Sequence[Point]
) -> Iterator[_Placed]:
    """The values of a metric. What an attempt measured before its resume step is left out: it is a period that holds
    the end of the attempt before.
    """
    began = [(moment(attempt, "submitted_at") or _BEGINNING).timestamp() for attempt in attempts]
    values = points_of(body, name)
    for index, (at, point) in enumerate(zip(_times(values, steps), by_step(values, steps), strict=True)):
        number = bisect_right(began, at) - 1
        resumed = _step(attempts[number], "resume_step") if number >= 0 else None
        if resumed is None or point[0] >= resumed:
            yield _Placed(index, number, point)


def _attempts_in_order(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sorted(objects(job, "attempts"), key=lambda attempt: moment(attempt, "submitted_at") or _BEGINNING)


def _attempt_name(attempts: Sequence[Mapping[str, Any]], number: int) -> str:
    return f"attempt {word(attempts[number], 'number')}" if number >= 0 else "before the first attempt"


def _times(values: Sequence[Point], steps: Sequence[Point]) -> list[float]:
    """The times of the values that `by_step` keeps."""
    return [at for at, _ in values if steps and at >= steps[0][0]]


def its_own(body: Mapping[str, Any], incident: Mapping[str, Any]) -> Mapping[str, Any]:
    """The curves without what came after the Incident: a while of the run that was brought back, and of the time after
    its end no value that was no number, which belongs to another Incident."""
    opened, closed = moment(incident, "opened_at"), moment(incident, "closed_at")
    if opened is None or closed is None:
        return body
    period = member(body, "period_s")
    least = PERIODS_AFTER * (float(period) if _is_number(period) else 60.0)
    end = closed.timestamp() + max((closed - opened).total_seconds() * AFTER[0], least)
    curves = member(body, "curves")
    cut: dict[str, Any] = dict(curves) if isinstance(curves, Mapping) else {}
    for name in list(cut):
        until = closed.timestamp() if name == "non_finite" else end
        if member(cut[name], "known") is not None:
            cut[name] = {"known": [list(point) for point in points_of(body, name) if point[0] <= until]}
    return {**body, "curves": cut}


def of_incident(body: Mapping[str, Any] | None, incident: Mapping[str, Any], why: str = "") -> Chart | None:
    """The loss by step, with the spike, the way back and what was left out. Marks alone where there is no curve."""
    read = its_own(body or {}, incident)
    step_at, loss = points_of(read, "step"), points_of(read, "loss")
    times = [at for at, _ in loss if step_at and at >= step_at[0][0]]
    points = by_step(loss, step_at)
    starts = starts_of(incident, times)
    curve = Curve(
        name="loss-by-step",
        title="Loss by step",
        y_title="loss",
        axis=Axis.STEP,
        points=points,
        starts=starts,
        names=_names(incident, len(points), starts),
        gaps=gaps_of(times) | skipped_before(incident, points),
        low=by_step(points_of(read, "loss_low"), step_at),
        high=by_step(points_of(read, "loss_high"), step_at),
        broken=[x for x, count in by_step(points_of(read, "non_finite"), step_at) if count > 0],
        marks=list(marks_of_incident(incident, step_at)),
        why=why or why_not(read, "loss") or why_not(read, "step"),
    )
    return draw(curve)


def points_of(body: Mapping[str, Any], name: str) -> list[Point]:
    """One curve's points, oldest first; none where it is unknown. What is no pair of numbers is left out."""
    found = member(body, "curves", name, "known")
    return [
        (float(pair[0]), float(pair[1]))
        for pair in (found if isinstance(found, list) else [])
        if isinstance(pair, list) and len(pair) == 2 and all(_is_number(value) for value in pair)
    ]


def why_not(body: Mapping[str, Any], name: str) -> str:
    """Why a curve is unknown; empty where it is there."""
    stated = member(body, "curves", name, "unknown")
    return str(stated) if stated is not None else ""


def rate_of(body: Mapping[str, Any]) -> list[Point]:
    """Steps per second: out of the time that steps took; else out of how far the step moved from period to period."""
    took = [(at, 1.0 / seconds) for at, seconds in points_of(body, "step_s") if seconds > 0]
    if took:
        return took
    steps = points_of(body, "step")
    return [
        (later, (high - low) / (later - at))
        for (at, low), (later, high) in pairwise(steps)
        if later > at and high >= low  # a step that went back says nothing about speed
    ]


def by_step(values: Sequence[Point], steps: Sequence[Point]) -> list[Point]:
    """Values over time onto the step that was reached then, in the order of time; those before any step fall out."""
    times = [at for at, _ in steps]
    found = []
    for at, value in values:
        index = bisect_right(times, at) - 1
        if index >= 0:
            found.append((steps[index][1], value))
    return found


def starts_of(incident: Mapping[str, Any], times: Sequence[float]) -> set[int]:
    """Indexes of the first points that were measured after each new start of the run."""
    began = [moment(attempt, "at") for attempt in objects(incident, "resubmission", "tries")]
    found = {bisect_right(times, at.timestamp()) for at in began if at is not None}
    return {index for index in found if index < len(times)}


def _names(incident: Mapping[str, Any], points: int, starts: Collection[int]) -> Sequence[str]:
    """The attempts' own names, where each of them has a line; else none, for a line must not have another's name."""
    tries = objects(incident, "resubmission", "tries")
    if not points or 0 in starts or len(starts) != len(tries):
        return ()
    before = str(member(tries[0], "clone_of") or "before") if tries else word(incident, "attempt")
    names = [before, *(word(attempt, "name") for attempt in tries)]
    return names if len({*names}) == len(names) else ()


def skipped_before(incident: Mapping[str, Any], points: Sequence[Point]) -> set[int]:
    """Indexes of the points between which and the one before a whole window of data was left out."""
    skips = list(_pairs(member(incident, "loss", "skips")))
    return {
        index
        for index, ((before, _), (after, _)) in enumerate(pairwise(points), start=1)
        if any(before < low and high <= after for low, high in skips)
    }


def marks_of_incident(incident: Mapping[str, Any], step_at: Sequence[Point] = ()) -> Iterator[Mark]:
    """What an Incident knows by step; `step_at` says how far an attempt really came before the next one began."""
    onset = _step(incident, "loss", "onset_step")
    if onset is not None:
        yield Mark(kind=MarkKind.FAULT, low=onset, label=f"bad since step {onset:.0f}")
    target = _step(incident, "target_step")
    if onset is None and target is not None:
        yield Mark(kind=MarkKind.FAULT, low=target, label=f"reached step {target:.0f}")
    saved = member(incident, "halt", "ask", "step")
    if _is_number(saved):
        yield Mark(kind=MarkKind.SAVE, low=float(saved), label=f"saved at {saved}")
    yield from _ways_back(incident, step_at, target)
    for low, high in _pairs(member(incident, "loss", "skips")):
        yield Mark(kind=MarkKind.SKIP, low=low, high=high, label=f"data of {low:.0f}-{high - 1:.0f} skipped")
    for _, first, end in bad_steps(incident):
        if end is not None:
            yield Mark(kind=MarkKind.BAD, low=float(first), high=float(end), label="not resumed from")


def _ways_back(incident: Mapping[str, Any], step_at: Sequence[Point], reached: float | None) -> Iterator[Mark]:
    """Where each new attempt resumed; `reached`: how far the first one came."""
    for attempt in objects(incident, "resubmission", "tries"):
        resumed = _step(attempt, "resume_step")
        if resumed is None:
            continue
        began = moment(attempt, "at")
        before = [value for at, value in step_at if began is not None and at <= began.timestamp()]
        if before:
            reached = before[-1]
        if reached is not None and reached > resumed:
            label = f"back from {reached:.0f} to {resumed:.0f}"
            yield Mark(kind=MarkKind.REDO, low=resumed, high=reached, label=label)
        else:
            yield Mark(kind=MarkKind.RESUME, low=resumed, label=f"resumed at {resumed:.0f}")
        reached = _step(attempt, "last_step") or reached


def _marks_of_job(job: Mapping[str, Any], seen: Collection[int]) -> Iterator[Mark]:
    """Where attempts resumed, and what their data were left out; `seen`: the attempts, oldest first from 0, that the
    picture holds. Attempts before them have no place in it."""
    attempts = _attempts_in_order(job)
    for number, attempt in list(enumerate(attempts))[-MAX_MARKS:]:
        resumed = _step(attempt, "resume_step")
        if number not in seen or resumed is None or member(attempt, "number") == 1:
            continue
        yield Mark(kind=MarkKind.ATTEMPT, low=resumed, label=f"attempt {word(attempt, 'number')} from {resumed:.0f}")
        for low, high in _pairs(member(attempt, "skips")):
            yield Mark(kind=MarkKind.SKIP, low=low, high=high, label=f"data of {low:.0f}-{high - 1:.0f} skipped")


def _pairs(value: Any) -> Iterator[tuple[float, float]]:
    for pair in value if isinstance(value, list) else []:
        if isinstance(pair, list) and len(pair) == 2 and all(_is_number(item) for item in pair):
            yield float(pair[0]), float(pair[1])


def _step(body: Mapping[str, Any], *path: str) -> float | None:
    value = member(body, *path, "known")
    return float(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _epoch(body: Mapping[str, Any], name: str) -> float:
    at = moment(body, name)
    return at.timestamp() if at is not None else 0.0
