"""How faults come and go over days: Incidents opened in each period, and how long they were open. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any, Final

from rekindle.client.shapes import moment
from rekindle.console.charts import Chart, draw
from rekindle.console.curve import Curve
from rekindle.drawing.strokes import Axis, Point

PERIODS: Final = 24  # of one day; longer times have a period per day
DAY_S: Final = 86_400.0


def trend(incidents: Sequence[Mapping[str, Any]], *, since: datetime, until: datetime) -> list[Chart]:
    """Two charts over time; none where no Incident was opened. An Incident that is open has no length yet."""
    begin, end = since.timestamp(), until.timestamp()
    length = DAY_S if end - begin > 2 * DAY_S else (end - begin) / PERIODS
    counts: dict[int, int] = dict.fromkeys(range(max(1, round((end - begin) / length))), 0)
    lengths: dict[int, list[float]] = {}
    for incident in incidents:
        opened, closed = moment(incident, "opened_at"), moment(incident, "closed_at")
        if opened is None or not begin <= opened.timestamp() < end:
            continue
        period = min(len(counts) - 1, int((opened.timestamp() - begin) / length))
        counts[period] += 1
        if closed is not None:
            lengths.setdefault(period, []).append((closed - opened).total_seconds() / 60)
    if not any(counts.values()):
        return []

    def placed(values: Mapping[int, float]) -> list[Point]:
        return [(begin + (period + 1) * length, value) for period, value in sorted(values.items())]

    each = "day" if length == DAY_S else "hour"
    curves = (
        Curve(
            name="opened",
            title=f"Incidents opened per {each}",
            y_title="Incidents",
            axis=Axis.TIME,
            points=placed(counts),
        ),
        Curve(
            name="open-for",
            title=f"Open for, minutes: median of those opened in each {each}",
            y_title="minutes",
            axis=Axis.TIME,
            points=placed({period: median(values) for period, values in lengths.items()}),
        ),
    )
    # One point is no trend.
    return [chart for curve in curves if len(curve.points) > 1 and (chart := draw(curve)) is not None]
