"""The chart of an Incident's page: what is drawn of which curve, within its picture, and what is said without one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.incident_page import page_of
from chalicelib.domain.reporting.page_chart import HEIGHT, WIDTH, LossCurve, chart_of, window_of
from chalicelib.domain.reporting.sentence import sentence_of
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from chalicelib.ports.sweep import MetricQuery, Series
from chalicelib.services.reporting.curves import Curves
from chalicelib.services.reporting.pages import Losses
from localcloud.memory_tables import MemoryJobs
from tests.ledger import books
from tests.sizes import examples

NOW = books.at(5000)
LOSSES = st.one_of(st.floats(), st.floats(0.1, 20), st.just(math.nan), st.just(math.inf))


def curve(*values: float, since: float = -300, bad: Sequence[float] = ()) -> LossCurve:
    points = tuple((books.at(since + 60 * index), value) for index, value in enumerate(values))
    return LossCurve(points=points, non_finite=tuple(books.at(seconds) for seconds in bad))


def shapes(picture: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(picture).iter())  # noqa: S314  our own picture


def texts(picture: str) -> list[str]:
    return [shape.text or "" for shape in shapes(picture) if shape.tag.endswith("}text")]


def test_the_fault_and_the_recovery_are_marked_and_said_in_words() -> None:
    picture = chart_of(books.incident(), curve(2.0, 1.9, 1.8, 1.7))
    assert {"fault", "recovered", "loss", "time (UTC)"} <= set(texts(picture))
    assert "Loss over time, from 1.7 to 2; marked: fault, recovered" in picture


def test_an_incident_that_was_not_recovered_is_not_marked_as_recovered() -> None:
    one = books.incident(phases=((Phase.RESUBMITTING, 60), (Phase.HANDED_OVER, 90)))
    assert "closed" in texts(chart_of(one, curve(2.0, 1.9)))
    assert "recovered" not in texts(chart_of(one, curve(2.0, 1.9)))


def test_a_loss_that_was_no_number_is_a_cross_and_no_point_of_the_line() -> None:
    picture = chart_of(books.incident(), curve(2.0, math.nan, 1.8, bad=(-240,)))
    assert texts(picture).count("×") == 1
    line = next(shape for shape in shapes(picture) if shape.tag.endswith("polyline"))
    assert len(line.attrib["points"].split()) == 2


@pytest.mark.parametrize("values", [(), (math.nan, math.inf)])
def test_where_nothing_can_be_drawn_there_is_no_picture(values: tuple[float, ...]) -> None:
    assert chart_of(books.incident(), curve(*values)) == ""


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(LOSSES, max_size=30),
    st.floats(-1e6, 1e6),
    st.lists(st.floats(-1e6, 1e6), max_size=4),
    st.sampled_from([None, -1e6, 0.0, 1e6]),
)
def test_whatever_was_measured_is_drawn_within_the_picture(
    values: list[float], since: float, bad: list[float], onset: float | None
) -> None:
    one = books.incident(onset=Unknown("not reported") if onset is None else Known(onset))
    picture = chart_of(one, curve(*values, since=since, bad=bad))
    for shape in shapes(picture) if picture else ():
        for name, limit in (("x", WIDTH), ("x1", WIDTH), ("x2", WIDTH), ("y", HEIGHT), ("y1", HEIGHT), ("y2", HEIGHT)):
            if name in shape.attrib:
                assert 0 <= float(shape.attrib[name]) <= limit
        for pair in shape.attrib.get("points", "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT
        for name in (
            "fill",
            "stroke",
        ):  # the colours of the page, light or dark
            assert shape.attrib.get(name, "none") == "none" or shape.attrib[name].startswith("var(--")


def test_the_window_is_around_the_incident_and_never_after_now() -> None:
    one = books.incident()
    assert one.closed_at is not None
    begin, end = window_of(one, now=NOW)
    assert begin < one.opened_at
    assert one.closed_at < end <= NOW
    assert window_of(one, now=one.closed_at)[1] == one.closed_at


class Measured:
    """ports.Metrics: the loss falls by the minute, once it is NaN; or CloudWatch does not answer."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def series_of(
        self, queries: Sequence[MetricQuery], *, since: datetime, until: datetime
    ) -> Mapping[str, Maybe[Series]]:
        if not self.answers:
            raise DependencyUnavailable("CloudWatch does not answer")
        self.asked += [query.name for query in queries]
        count = int((until - since) / timedelta(minutes=1))
        fall = tuple((since + timedelta(minutes=index), 5.0 / (index + 1)) for index in range(count))
        return {query.key: Known(fall if query.name == "Loss" else ((since, 1.0),)) for query in queries}


JOB = Job(
    job_id="lm",
    name="lm",
    platform=TRAINING_JOB.name,
    policy_name="default",
    created_at=books.at(-1000),
    current_attempt="lm",
    attempt_number=1,
    attempt_started_at=books.at(-1000),
)


def losses(metrics: Any) -> Losses:
    registry = MemoryJobs()
    registry.register(JOB, Attempt(job_id="lm", number=1, name="lm", submitted_at=JOB.created_at))

    class Clock:
        def now(self) -> datetime:
            return NOW

    return Losses(curves=Curves(registry=registry, metrics=metrics, clock=Clock()))


def page(one: Incident, found: Maybe[LossCurve]) -> str:
    return page_of(one, (), books.ledger(one), now=NOW, region="us-west-2", curve=found)


def test_the_page_asks_for_the_loss_alone_and_draws_it() -> None:
    metrics = Measured()
    one = books.incident()
    found = losses(metrics).of(one, Known(JOB), now=NOW)
    assert set(metrics.asked) == {"Loss", "NonFinite"}
    assert isinstance(found, Known)
    drawn = page(one, found)
    assert drawn.count("<svg ") == 1
    assert "<h2>Loss</h2>" in drawn
    assert re.search(r"<h1>[^<]*</h1>", drawn)
    assert sentence_of(one).split(":")[0] in drawn


def test_a_page_without_metrics_says_why_and_shows_all_the_rest() -> None:
    one = books.incident()
    drawn = page(one, losses(Measured(answers=False)).of(one, Known(JOB), now=NOW))
    assert "Not known: the run" in drawn
    assert "<svg" not in drawn
    assert "<h2>Timeline</h2>" in drawn or "<h2>What you may do</h2>" in drawn


def test_an_incident_of_no_run_has_no_section_about_its_loss() -> None:
    one = books.incident(job_id=None)
    assert isinstance(losses(Measured()).of(one, Unknown(""), now=NOW), Unknown)
    assert "<h2>Loss</h2>" not in page_of(one, (), books.ledger(one), now=NOW, region="")
