"""Pictures of curves: what was trained twice is seen twice, what is not known is not drawn, and words say the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pytest

from rekindle.console.charts import Chart, Curve, draw
from rekindle.console.curves import by_step, of_incident, of_job, rate_of, starts_of, window_of
from rekindle.drawing.strokes import Axis

AT = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
EPOCH = AT.timestamp()


def _drawn(**given: Any) -> Chart:
    chart = draw(Curve(**{"name": "x", "title": "Loss", "y_title": "loss", "axis": Axis.STEP, **given}))
    assert chart is not None
    return chart


def _strokes(chart: Chart) -> list[tuple[bool, int]]:
    """Of each unbroken line, whether it is of the newest attempt, and how many points it has."""
    return [
        (line["newest"], len([*points]))
        for line in json.loads(chart.plot)["lines"]
        for is_gap, points in groupby(line["ys"], key=lambda y: y is None)
        if not is_gap
    ]


def _lengths(chart: Chart) -> list[int]:
    return [length for _, length in _strokes(chart)]


def _body(steps: list[float], losses: list[float], **more: Any) -> dict[str, Any]:
    """The API's answer: one point a second."""
    curves: dict[str, Any] = {
        "step": {"known": [[EPOCH + at, step] for at, step in enumerate(steps)]},
        "loss": {"known": [[EPOCH + at, loss] for at, loss in enumerate(losses)]},
    }
    return {"since": AT.isoformat(), "until": (AT + timedelta(minutes=5)).isoformat(), "curves": curves | more}


def _incident(*tries_s: float, resume_step: int = 160) -> dict[str, Any]:
    return {
        "loss": {"onset_step": {"known": 188}, "skips": [[188, 588]]},
        "target_step": {"known": 188},
        "resubmission": {
            "tries": [
                {"at": (AT + timedelta(seconds=at)).isoformat(), "resume_step": {"known": resume_step}}
                for at in tries_s
            ]
        },
    }


def test_a_step_that_goes_back_begins_a_new_stroke() -> None:
    chart = _drawn(points=[(0, 3.0), (50, 2.5), (100, 2.0), (60, 2.4), (110, 1.9)])
    assert _lengths(chart) == [3, 2]
    assert [is_newest for is_newest, _ in _strokes(chart)] == [False, True]


def test_a_new_attempt_that_is_already_further_when_first_seen_is_a_stroke_of_its_own() -> None:
    chart = of_incident(_body([100, 150, 250, 300, 669], [3.0, 2.5, 9.0, 2.3, 1.9]), _incident(2.5))
    assert chart is not None
    assert _lengths(chart) == [3, 2]
    assert "back from 250 to 160." in chart.text


def test_an_attempt_of_one_point_is_a_line_of_its_own() -> None:
    chart = of_incident(_body([100, 250, 669], [3.0, 9.0, 1.9]), _incident(1.5))
    assert chart is not None
    assert _lengths(chart) == [2, 1]


def test_a_start_without_points_around_it_is_no_stroke() -> None:
    times = [EPOCH, EPOCH + 1, EPOCH + 2]
    assert starts_of(_incident(9), times) == set()  # nothing of the new attempt has been measured
    assert starts_of(_incident(0.5, 0.7), times) == {1}  # the first never came to a step
    chart = of_incident(_body([100, 150], [3.0, 2.5]), _incident(-5))
    assert chart is not None
    assert _lengths(chart) == [2]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_start_is_found_where_the_first_losses_had_no_step(missing: int) -> None:
    body = _body([], [3.0, 2.5, 2.4, 2.3, 9.0, 2.1, 1.9])
    body["curves"]["step"]["known"] = [[EPOCH + at, 50 * at + 50] for at in range(missing, 7)]
    chart = of_incident(body, _incident(4.5))
    assert chart is not None
    assert _lengths(chart) == [5 - missing, 2]


def test_a_value_that_cannot_be_drawn_does_not_hide_a_start() -> None:
    assert _lengths(_drawn(points=[(0, 1.0), (1, 1.0), (2, 1e300), (3, 1.0), (4, 1.0)], starts={2})) == [2, 2]


def test_the_band_is_drawn_line_by_line() -> None:
    body = _body([100, 150, 250, 300, 669], [3.0, 2.5, 9.0, 2.3, 1.9])
    loss = body["curves"]["loss"]["known"]
    body["curves"]["loss_low"] = {"known": [[at, value - 0.1] for at, value in loss]}
    body["curves"]["loss_high"] = {"known": [[at, value + 0.1] for at, value in loss]}
    chart = of_incident(body, _incident(2.5))
    assert chart is not None
    lines = json.loads(chart.plot)["lines"]
    assert [line["low"] for line in lines] == [[2.9, 2.4, 8.9], [pytest.approx(2.2), pytest.approx(1.8)]]
    assert [line["high"] for line in lines] == [[3.1, 2.6, 9.1], [pytest.approx(2.4), 2.0]]


def test_marks_stand_where_there_is_no_curve_and_say_why() -> None:
    chart = of_incident({"curves": {"loss": {"unknown": "AccessDenied"}}}, _incident(2.5))
    assert chart is not None
    assert chart.plot == ""
    assert len(chart.marks) == 3
    assert chart.why == "AccessDenied"
    assert "no curve; AccessDenied" in chart.text
    assert "data of 188-587 skipped" in chart.text


def test_nothing_at_all_is_no_picture() -> None:
    assert of_incident(None, {}) is None
    assert draw(Curve(name="x", title="Loss", y_title="loss", axis=Axis.TIME)) is None


def test_a_gap_in_time_is_not_drawn_over() -> None:
    body = _body([], [])
    body["curves"] = {"loss": {"known": [[EPOCH + at, 2.0] for at in (0, 1, 2, 3, 200, 201)]}}
    (chart,) = of_job(body, {})
    assert _lengths(chart) == [4, 2]


def test_a_gap_in_an_incidents_curve_is_not_drawn_over_and_stays_one_attempt() -> None:
    body = _body([], [])
    seen = (0, 1, 2, 60, 61, 62)
    body["curves"]["step"] = {"known": [[EPOCH + at, 100 + at] for at in seen]}
    body["curves"]["loss"] = {"known": [[EPOCH + at, 2.0] for at in seen]}
    chart = of_incident(body, _incident())
    assert chart is not None
    assert _lengths(chart) == [3, 3]
    assert [is_newest for is_newest, _ in _strokes(chart)] == [True, True]
    assert not chart.has_earlier


def test_no_line_is_drawn_over_data_that_were_left_out() -> None:
    chart = of_incident(_body([100, 150, 250, 170, 187, 588, 600], [3.0, 2.5, 9.0, 2.3, 2.2, 2.1, 1.9]), _incident(2.5))
    assert chart is not None
    assert _lengths(chart) == [3, 2, 2]  # the old attempt went through the data; the new one left 188-587 out
    assert [is_newest for is_newest, _ in _strokes(chart)] == [False, True, True]


def test_which_line_is_which_attempts_is_told() -> None:
    chart = of_incident(_body([100, 150, 250, 300, 669], [3.0, 2.5, 9.0, 2.3, 1.9]), _incident(2.5))
    assert chart is not None
    assert chart.has_earlier
    assert "It holds 2 attempts, a line each; the last one is the newest." in chart.text


def test_a_logarithmic_scale_is_told_in_words() -> None:
    assert "scale of the values is logarithmic" in _drawn(points=[(0, 1.0), (1, 900.0)]).text
    assert "logarithmic" not in _drawn(points=[(0, 1.0), (1, 9.0)]).text


def test_the_values_of_a_week_are_told_with_their_day() -> None:
    body = _body([], [])
    body["curves"] = {"loss": {"known": [[EPOCH + 3600 * at, 2.0] for at in range(30)]}}
    (chart,) = of_job(body, {})
    assert chart.rows[0][0] == "11-20 10:00:00"
    body["curves"] = {"loss": {"known": [[EPOCH + at, 2.0] for at in range(30)]}}
    (chart,) = of_job(body, {})
    assert chart.rows[0][0] == "10:00:00"


def test_a_step_that_went_back_says_nothing_about_speed() -> None:
    assert rate_of(_body([100, 150, 120, 170], [])) == [(EPOCH + 1, 50.0), (EPOCH + 3, 50.0)]


def test_a_loss_before_any_step_is_at_no_step() -> None:
    assert by_step([(1, 9.0), (2, 3.0), (4, 2.0)], [(2, 100), (3, 150)]) == [(100, 3.0), (150, 2.0)]


def test_the_window_reaches_around_the_incident() -> None:
    minutes, until = window_of(AT, AT + timedelta(minutes=10), AT + timedelta(hours=5))
    assert until == (AT + timedelta(minutes=15)).isoformat()
    assert minutes == 35  # twice its length before it, half of it after
    assert window_of(AT, None, AT + timedelta(minutes=10)) == (30, None)
