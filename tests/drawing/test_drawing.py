"""One kit for pictures: axes, and shapes as SVG."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest

from rekindle.drawing.scales import Scale, round_values, value_ticks, values_scale
from rekindle.drawing.svg import Svg

SVG = "{http://www.w3.org/2000/svg}"
BEGAN = datetime(2026, 11, 24, tzinfo=UTC)


def read(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314  ours


def test_texts_and_titles_are_no_markup() -> None:
    svg = Svg(200, 100, title='a "<b>" & c', background="#ffffff")
    svg.text(10, 20, "<script>\x1b&", "#000000", anchor="end", bold=True)
    svg.polyline([(0, 0), (1.005, 2.5)], "#000000")
    root = read(str(svg))
    assert root.get("aria-label") == 'a "<b>" & c'
    assert [text.text for text in root.iter(f"{SVG}text")] == ["<script>?&"]
    assert [title.text for title in root.iter(f"{SVG}title")] == ['a "<b>" & c']


def test_a_rectangle_without_extent_has_none() -> None:
    svg = Svg(10, 10)
    svg.rect(5, 5, -3, 2, "#000000")
    (one,) = read(str(svg)).iter(f"{SVG}rect")
    assert (one.get("width"), one.get("height")) == ("0", "2")


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 0.0), (1.0, 1.0), (-5.0, 3.0), (1e-9, 1e9), (5e-324, 1e-323), (-1e300, 1e300), (1e299, 1e300)],
)
def test_ticks_lie_on_their_axis_whatever_the_values_are(low: float, high: float) -> None:
    scale = values_scale(low, high, start=400, end=20)
    ticks = value_ticks(scale)
    assert len(ticks) < 60
    assert all(20 <= tick.at <= 400 for tick in ticks)
    assert all(math.isfinite(scale(value)) for value in (low, high))


def test_round_values_are_round() -> None:
    assert round_values(0, 899, 6) == [0, 200, 400, 600, 800]
    assert Scale(0, 10, 100, 0)(2.5) == 75.0
