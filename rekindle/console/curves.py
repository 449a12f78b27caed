"""From the API's answers to pictures: a Job's curves over time, an Incident's loss by step with what was done. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from rekindle.client.shapes import member, moment, objects, word
from rekindle.console.charts import Chart, Curve, Mark, MarkKind, draw
from rekindle.console.strokes import Axis, Point, gaps_of

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
MAX_MARKS: Final = 12  # newest attempts and Incidents that are written beside a Job's curve


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
    """Loss, step rate and gradient norm over time."""
    since, until = _epoch(body, "since"), _epoch(body, "until")
    marks = [mark for mark in _marks_of_job(job) if since <= mark.low <= until]
    loss = Curve(
        name="loss",
        title="Loss",
        y_title="loss",
        axis=Axis.TIME,
        points=points_of(body, "loss"),
        low=points_of(body, "loss_low"),
        high=points_of(body, "loss_high"),
        broken=[at for at, count in points_of(body, "non_finite") if count > 0],
        marks=marks,
        why=why_not(body, "loss"),
    )
    rate = Curve(
        name="rate",
        title="Steps per second",
        y_title="steps/s",
        axis=Axis.TIME,
        points=rate_of(body),
        why=why_not(body, "step_s"),
        height=190,
    )
    norm = Curve(
        name="grad-norm",
        title="Gradient norm (highest of each period)",
        y_title="norm",
        axis=Axis.TIME,
        points=points_of(body, "grad_norm"),
        why=why_not(body, "grad_norm"),
        height=190,
    )
    return [
        chart for curve in (loss, rate, norm) if (chart := draw(curve)) is not None and (chart.strokes or chart.broken)
    ]


def of_incident(body: Mapping[str, Any] | None, incident: Mapping[str, Any], why: str = "") -> Chart | None:
    """The loss by step, with the spike, the way back and what was left out. Marks alone where there is no curve."""
    read = body or {}
    step_at, loss = points_of(read, "step"), points_of(read, "loss")
    times = [at for at, _ in loss if step_at and at >= step_at[0][0]]
    points = by_step(loss, step_at)
    curve = Curve(
        name="loss-by-step",
        title="Loss by step",
        y_title="loss",
        axis=Axis.STEP,
        points=points,
        starts=starts_of(incident, times),
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
    said = member(body, "curves", name, "unknown")
    return str(said) if said is not None else ""


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
    began = [moment(one, "at") for one in objects(incident, "tries")]
    found = {bisect_right(times, at.timestamp()) for at in began if at is not None}
    return {index for index in found if index < len(times)}


def skipped_before(incident: Mapping[str, Any], points: Sequence[Point]) -> set[int]:
    """Indexes of the points between which and the one before a whole window of data was left out."""
    skips = list(_pairs(member(incident, "skips")))
    return {
        index
        for index, ((before, _), (after, _)) in enumerate(pairwise(points), start=1)
        if any(before < low and high <= after for low, high in skips)
    }


def marks_of_incident(incident: Mapping[str, Any], step_at: Sequence[Point] = ()) -> Iterator[Mark]:
    """What an Incident knows by step; `step_at` says how far an attempt really came before the next one began."""
    onset = _step(incident, "onset_step")
    if onset is not None:
        yield Mark(kind=MarkKind.FAULT, low=onset, label=f"bad since step {onset:.0f}")
    target = _step(incident, "target_step")
    if onset is None and target is not None:
        yield Mark(kind=MarkKind.FAULT, low=target, label=f"reached step {target:.0f}")
    saved = member(incident, "ask", "step")
    if _is_number(saved):
        yield Mark(kind=MarkKind.SAVE, low=float(saved), label=f"saved at {saved}")
    reached = target
    for one in objects(incident, "tries"):
        resumed = _step(one, "resume_step")
        if resumed is None:
            continue
        began = moment(one, "at")
        before = [value for at, value in step_at if began is not None and at <= began.timestamp()]
        if before:
            reached = before[-1]
        if reached is not None and reached > resumed:
            label = f"back from {reached:.0f} to {resumed:.0f}"
            yield Mark(kind=MarkKind.REDO, low=resumed, high=reached, label=label)
        else:
            yield Mark(kind=MarkKind.RESUME, low=resumed, label=f"resumed at {resumed:.0f}")
        reached = _step(one, "last_step") or reached
    for low, high in _pairs(member(incident, "skips")):
        yield Mark(kind=MarkKind.SKIP, low=low, high=high, label=f"data of {low:.0f}-{high - 1:.0f} skipped")
    stretches = member(incident, "stretches")
    for stretch in stretches if isinstance(stretches, list) else []:
        if isinstance(stretch, list) and len(stretch) == 3 and _is_number(stretch[1]) and _is_number(stretch[2]):
            yield Mark(kind=MarkKind.BAD, low=float(stretch[1]), high=float(stretch[2]), label="not resumed from")


def _marks_of_job(job: Mapping[str, Any]) -> Iterator[Mark]:
    for attempt in objects(job, "attempts")[-MAX_MARKS:]:
        at = moment(attempt, "submitted_at")
        if at is not None and member(attempt, "number") != 1:
            yield Mark(kind=MarkKind.ATTEMPT, low=at.timestamp(), label=f"attempt {word(attempt, 'number')}")
    for incident in objects(job, "incidents")[:MAX_MARKS]:
        at = moment(incident, "opened_at")
        if at is not None:
            label = word(incident, "fault").replace("_", " ")
            yield Mark(kind=MarkKind.INCIDENT, low=at.timestamp(), label=label)


def _pairs(value: Any) -> Iterator[tuple[float, float]]:
    for pair in value if isinstance(value, list) else []:
        if isinstance(pair, list) and len(pair) == 2 and all(_is_number(one) for one in pair):
            yield float(pair[0]), float(pair[1])


def _step(body: Mapping[str, Any], name: str) -> float | None:
    value = member(body, name, "known")
    return float(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _epoch(body: Mapping[str, Any], name: str) -> float:
    at = moment(body, name)
    return at.timestamp() if at is not None else 0.0
