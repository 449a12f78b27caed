"""Every face shows the ledger's figures of an Incident, under the ledger's names; an unknown one has no digits."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chalicelib.channels.slack.figures import figures as slack_figures
from chalicelib.channels.slack.figures import in_words
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.reporting.incident_page import page_of
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.domain.reporting.postmortem import postmortem_of
from rekindle.cli.views.ledger import incident_lines
from rekindle.client.table import Style
from rekindle.console.figures import Fact, facts
from rekindle.protocol.quantities import NAMES, amount, between, duration, heading, range_of
from rekindle.protocol.signals import FaultClass
from tests.ledger.books import POD, at, incident, ledger
from tests.ledger.test_ledger_invariants import incidents
from tests.sizes import examples

SIZES = st.sampled_from([POD, JobSize(gpus=Unknown("its size was not read"))])
Face = Callable[[IncidentLedger], Mapping[str, str]]


def _on_the_page(book: IncidentLedger) -> dict[str, str]:
    page = page_of(book.incident, (), book, now=at(100_000), region="us-west-2")
    shown = {
        html.unescape(name): html.unescape(text) for name, text in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)
    }
    folded = re.search(r"<summary>Not known: (.*?)</summary>", page)
    unknown = html.unescape(folded[1]).split(", ") if folded else []
    return {name: shown[heading(name)] for name in NAMES if heading(name) in shown} | {
        name: "unknown" for name in NAMES if NAMES[name] in unknown
    }


def _in_slack(book: IncidentLedger) -> dict[str, str]:
    fields = slack_figures(book)[0]["fields"]
    shown = dict(str(field["text"]).split("\n") for field in fields)
    return {
        name: shown[f"*{heading(name)}*"].replace("not known", "unknown")
        for name in NAMES
        if f"*{heading(name)}*" in shown
    }


def _in_the_post_mortem(book: IncidentLedger) -> dict[str, str]:
    lines = postmortem_of(book.incident, (), book, job_name="").splitlines()
    return {
        name: line.partition(": ")[2]
        for name in NAMES
        for line in lines
        if line.startswith(f"- {heading(name)}: ") and ";" not in line
    }


def _on_the_command_line(book: IncidentLedger) -> dict[str, str]:
    text = incident_lines(book.to_wire(), Style.of(io.StringIO()))
    found = {name: re.search(rf"^  {re.escape(NAMES[name])}  +(.+)$", text, re.MULTILINE) for name in NAMES}
    return {name: line[1] for name, line in found.items() if line is not None}


def _in_the_console(book: IncidentLedger) -> dict[str, str]:
    def all_of(rows: tuple[Fact, ...]) -> dict[str, str]:
        own = {row.name: "unknown" if row.why else row.text for row in rows if not row.inner}
        inner = [all_of(row.inner) for row in rows if row.inner and not row.name.startswith("Without")]
        return own | {name: text for one in inner for name, text in one.items()}

    shown = all_of(facts(book.to_wire()))
    return {name: shown[heading(name)] for name in NAMES if heading(name) in shown}


FACES: Final[Mapping[str, tuple[Face, frozenset[str]]]] = {
    "report": (
        _on_the_page,
        frozenset({"mttd_s", "steps_lost", "steps_saved", "lost_s", "gpu_hours_lost", "dollars_lost"}),
    ),
    "slack": (_in_slack, frozenset({"steps_lost", "gpu_hours_lost", "dollars_lost"})),
    "post-mortem": (
        _in_the_post_mortem,
        frozenset({"mttd_s", "mttr_s", "steps_lost", "steps_saved", "lost_s", "gpu_hours_lost", "dollars_lost"}),
    ),
    "command line": (
        _on_the_command_line,
        frozenset({"mttd_s", "mttr_s", "steps_lost", "steps_saved", "lost_s", "gpu_hours_lost", "dollars_lost"}),
    ),
    "console": (
        _in_the_console,
        frozenset({"mttd_s", "mttr_s", "elapsed_s", "steps_lost", "steps_saved", "lost_s", "gpu_hours_lost"}),
    ),
}


@pytest.mark.parametrize("face", FACES)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(one=incidents(), size=SIZES)
def test_a_face_shows_the_ledgers_figures_and_of_an_unknown_one_no_digit(
    face: str, one: Incident, size: JobSize
) -> None:
    book = ledger(one, size=size, now=100_000)
    wire = book.to_wire()
    wire |= {name: wire["counterfactual"][name] for name in book.spared}
    shows, at_least = FACES[face]
    shown = shows(book)
    assert at_least <= shown.keys()
    for name, text in shown.items():
        value = wire[name]
        ends = range_of(value)
        if isinstance(value, dict) and ends is None:
            assert text.startswith("unknown"), name
        else:
            assert text == (amount(name, value) if ends is None else between(name, *ends)), name


@pytest.mark.parametrize("fault", [FaultClass.HANG, FaultClass.NODE_LOST, FaultClass.SOFTWARE_CRASH])
def test_what_is_spared_is_a_range_with_its_assumptions_on_the_line_below(fault: FaultClass) -> None:
    book = ledger(incident(fault=fault))
    assumes, wire = book.otherwise.assumes, book.to_wire()["counterfactual"]
    ends = range_of(wire["spared_dollars"])
    assert ends is not None
    shown = between("spared_dollars", *ends)
    assert " to " in shown
    for text in (
        postmortem_of(book.incident, (), book, job_name=""),
        incident_lines(book.to_wire(), Style.of(io.StringIO())),
    ):
        lines = text.splitlines()
        (row,) = (number for number, line in enumerate(lines) if shown in line)
        assert "US dollars spared (estimate)" in lines[row]
        assert lines[row + 1].endswith(assumes)
    (without,) = (row for row in facts(book.to_wire()) if row.name == "Without Rekindle")
    told = [(row.name, row.text) for row in without.inner]
    assert told[told.index(("US dollars spared (estimate)", shown)) + 1] == ("Assumed", assumes)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(one=incidents(), size=SIZES)
def test_one_line_for_a_phone_names_only_what_is_known(one: Incident, size: JobSize) -> None:
    book = ledger(one, size=size, now=100_000)
    said = in_words(book)
    for name, value in book.named("mttr_s", "steps_lost", "dollars_lost"):
        word = {"mttr_s": "recovered in", "steps_lost": "steps lost", "dollars_lost": "US dollars lost"}[name]
        assert (word in said) is isinstance(value, Known)
        if isinstance(value, Known):
            assert amount(name, value.value) in said


@given(st.floats(-1e9, 1e9))
def test_a_duration_is_never_further_from_the_truth_than_its_smallest_unit(seconds: float) -> None:
    sizes = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
    text = duration(seconds)
    parts = re.findall(r"([0-9.]+) (s|min|h|d)", text)
    told = sum(float(number) * sizes[unit] for number, unit in parts) * (-1 if text.startswith("-") else 1)
    assert parts
    assert abs(told - seconds) <= max(sizes[parts[-1][1]], 1.0) * 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.04, "0 s"),
        (0.6, "0.6 s"),
        (9.96, "10 s"),
        (59, "59 s"),
        (59.7, "1 min"),
        (245, "4 min 5 s"),
        (7800, "2 h 10 min"),
        (273_600, "3 d 4 h"),
        (-245, "-4 min 5 s"),
    ],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gpu_hours_lost", 0.0, "0"),
        ("gpu_hours_lost", 0.003, "under 0.01"),
        ("dollars_lost", 1234.5, "1,234.50"),
        ("steps_lost", 1234, "1,234"),
        ("ettr", 0.1825, "18.2%"),
    ],
)
def test_amounts_in_words(name: str, value: float, text: str) -> None:
    assert amount(name, value) == text
