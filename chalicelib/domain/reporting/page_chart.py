"""The chart of an Incident's page: the run's loss over time, with what happened to it, as inline SVG. Pure.

Its colours are the page's CSS variables, so that one chart serves light and dark pages, and its text is large enough
for a phone. It holds no text from outside the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.reporting.ledger import onset_of
from rekindle.drawing.scales import Scale, time_ticks, value_ticks, values_scale
from rekindle.drawing.strokes import Axis, Point, can_be_drawn, unbroken_parts
from rekindle.drawing.svg import Svg

# How much time before and after an Incident is shown: a multiple of its own length, with a least and a most.
BEFORE: Final = (2.0, timedelta(minutes=3), timedelta(hours=1))
AFTER: Final = (0.5, timedelta(minutes=2), timedelta(minutes=30))
WIDTH: Final = 520
HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 62, 40
FONT_SIZE: Final = 14  # a phone shows the chart at two thirds of its size
_LABEL_ROWS: Final = 2
_CHAR_WIDTH: Final = 7.6
INK, SOFT, LINE, BAD, GOOD = "var(--fg)", "var(--soft)", "var(--line)", "var(--bad)", "var(--good)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The loss over time, oldest first, and when it was no finite number."""

    points: tuple[tuple[datetime, float], ...]
    non_finite: tuple[datetime, ...] = ()


def window_of(incident: Incident, *, now: datetime) -> tuple[datetime, datetime]:
    """The time that an Incident's chart shows, from and to."""
    begin, end = incident.opened_at, incident.closed_at or now
    took = max(end - begin, timedelta(0))
    last = min(now, end + _within(took, AFTER)) if incident.closed_at else now
    return begin - _within(took, BEFORE), last


def chart_of(incident: Incident, curve: LossCurve) -> str:
    """The chart as an SVG element; empty where no value can be drawn."""
    points = [point for point in ((at.timestamp(), loss) for at, loss in curve.points) if can_be_drawn(point)]
    if not points:
        return ""
    moments = list(_moments(incident))
    edges = [at for at, _ in points] + [at.timestamp() for at in curve.non_finite] + [at for at, _, _ in moments]
    x = Scale(min(edges), max(max(edges), min(edges) + 1), LEFT, WIDTH - RIGHT)
    values = [value for _, value in points]
    floor = HEIGHT - BOTTOM
    y = values_scale(min(values), max(values), start=floor, end=TOP)
    svg = Svg(WIDTH, HEIGHT, title=_description(points, moments))
    for tick in value_ticks(y, 4):
        svg.line(LEFT, tick.at, WIDTH - RIGHT, tick.at, LINE)
        svg.text(LEFT - 6, tick.at + 5, tick.label, SOFT, size=FONT_SIZE, anchor="end")
    for tick in time_ticks(x, 5):
        svg.line(tick.at, floor, tick.at, floor + 5, SOFT)
        if LEFT + 20 <= tick.at <= WIDTH - RIGHT - 26:
            svg.text(tick.at, floor + 20, tick.label, SOFT, size=FONT_SIZE, anchor="middle")
    svg.text(4, 16, "loss (log scale)" if y.is_log else "loss", SOFT, size=FONT_SIZE)
    svg.text(WIDTH - RIGHT, HEIGHT - 4, "time (UTC)", SOFT, size=FONT_SIZE, anchor="end")
    _marks(svg, moments, x, floor)
    for part in unbroken_parts(points, Axis.TIME, _starts(incident, points)):
        placed = [(x(at), y(loss)) for at, loss in part.points]
        if len(placed) == 1:
            placed.append((placed[0][0] + 2, placed[0][1]))
        svg.polyline(placed, INK, width=2)
    for at in curve.non_finite:
        svg.text(x(at.timestamp()), TOP + 12, "×", BAD, size=18, anchor="middle", bold=True)
    return str(svg)


def _moments(incident: Incident) -> Iterator[tuple[float, str, str]]:
    """What is marked on the chart: its time, its label and its colour."""
    onset = onset_of(incident.account)
    if isinstance(onset, Known):
        yield onset.value.timestamp(), "fault", BAD
    for number, attempt in enumerate(incident.resubmission.tries, start=1):
        yield attempt.at.timestamp(), "new start" if len(incident.resubmission.tries) == 1 else f"start {number}", SOFT
    if incident.closed_at is not None:
        is_recovered = incident.phase is Phase.RECOVERED
        yield incident.closed_at.timestamp(), "recovered" if is_recovered else "closed", GOOD if is_recovered else SOFT


def _marks(svg: Svg, moments: Sequence[tuple[float, str, str]], x: Scale, floor: float) -> None:
    """Lines with labels in two rows; a label without room is left out, its line stays."""
    ends = [0.0] * _LABEL_ROWS
    for at, label, colour in moments:
        place, width = x(at), len(label) * _CHAR_WIDTH
        svg.line(place, TOP - 8, place, floor, colour, dash="" if colour == GOOD else "4 3")
        begin = min(place, WIDTH - RIGHT - width)
        row = next((index for index, end in enumerate(ends) if begin >= end + 6), None)
        if row is not None:
            ends[row] = begin + width
            svg.text(begin, TOP - 12 - 17 * row, label, colour, size=FONT_SIZE, bold=True)


def _starts(incident: Incident, points: Sequence[Point]) -> set[int]:
    """Indexes of the points that were measured first after each new start."""
    began = [attempt.at.timestamp() for attempt in incident.resubmission.tries]
    first = (next((index for index, (at, _) in enumerate(points) if at >= moment), None) for moment in began)
    return {index for index in first if index is not None}


def _description(points: Sequence[Point], moments: Sequence[tuple[float, str, str]]) -> str:
    low, high = min(value for _, value in points), max(value for _, value in points)
    marked = ", ".join(label for _, label, _ in moments) or "nothing"
    return f"Loss over time, from {low:.4g} to {high:.4g}; marked: {marked}"


def _within(took: timedelta, bounds: tuple[float, timedelta, timedelta]) -> timedelta:
    share, least, most = bounds
    return max(least, min(most, took * share))
