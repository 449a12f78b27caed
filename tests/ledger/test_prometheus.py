"""The Prometheus page: valid text whatever it is given, and no sample for what is not known."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.domain.reporting.sums import sums_of
from rekindle.prometheus import RANGES, SUMS, render
from tests.ledger.books import incident, ledger
from tests.sizes import examples

# prometheus.io/docs/instrumenting/exposition_formats: name, labels with escapes, a float.
_SAMPLE = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-z_]+="(\\[\\"n]|[^\\"\n])*"(,[a-z_]+="(\\[\\"n]|[^\\"\n])*")*\})? '
    r"-?[0-9.]+(e[+-]?[0-9]+)?\Z"
)

FLEET: dict[str, Any] = {
    "days": 7,
    "ettr": 0.981,
    "truncated": False,
    "incidents": {"all": 3, "open": 1, "recovered": 2, "stopped": 0, "handed_over": 0},
    "mttd_s": {"median": 4.0, "p90": 9.0, "counted": 2, "not_counted": 1},
    "mttr_s": {"median": {"unknown": "no Incident has one"}, "p90": {"unknown": "x"}, "counted": 0, "not_counted": 3},
    "gpu_hours_lost": {"sum": 5.5, "counted": 2, "not_counted": 1},
    "dollars_lost": {"sum": 0.0, "counted": 0, "not_counted": 3},
    "spared_dollars": {"sum": {"low": -3.5, "high": 40.0}, "counted": 2, "not_counted": 1},
    "lost_by_fault_s": {"hang": 30.0},
}


def _samples(text: str) -> dict[str, float]:
    samples = {}
    for line in text.removesuffix("\n").split("\n") if text else ():
        if not line.startswith("# "):
            assert _SAMPLE.match(line), line
            name, _, value = line.rpartition(" ")
            assert name not in samples
            samples[name] = float(value)
    return samples


def test_what_is_known_has_a_sample_with_its_window() -> None:
    samples = _samples(render({"paused": True, "jobs_active": 12, "incidents_open": 1}, FLEET))
    assert samples["rekindle_paused"] == 1
    assert samples["rekindle_jobs_active"] == 12
    assert samples['rekindle_ettr_ratio{days="7"}'] == 0.981
    assert samples['rekindle_incidents{days="7",outcome="recovered"}'] == 2
    assert samples['rekindle_mttd_seconds{days="7",quantile="0.9"}'] == 9
    assert samples['rekindle_gpu_hours_lost{days="7"}'] == 5.5
    assert samples['rekindle_dollars_spared{against="requeue",days="7"}'] == -3.5
    assert samples['rekindle_dollars_spared{against="person",days="7"}'] == 40.0
    assert samples['rekindle_lost_by_fault_seconds{days="7",fault="hang"}'] == 30
    assert samples['rekindle_not_counted{days="7",figure="dollars_lost"}'] == 3


def test_what_is_not_known_has_none() -> None:
    text = render({}, FLEET)
    assert "rekindle_mttr_seconds" not in text
    assert "rekindle_dollars_lost" not in text
    assert "rekindle_paused" not in text
    assert render({}, {}) == ""


def test_a_ledger_that_could_not_be_read_is_told_from_one_without_figures() -> None:
    assert _samples(render({}, None)) == {"rekindle_ledger_read": 0}
    assert _samples(render({}, FLEET))["rekindle_ledger_read"] == 1


def test_every_sum_of_the_fleets_ledger_has_a_metric() -> None:
    """A figure that is new in the ledger is not forgotten here."""
    sums = {name for name, value in sums_of([ledger(incident())]).items() if isinstance(value, dict) and "sum" in value}
    assert {key for _, _, key in (*SUMS, *RANGES)} == sums


def test_names_carry_their_unit_and_no_gauge_looks_like_a_counter() -> None:
    """prometheus.io/docs/practices/naming; `_total` and `_bucket`, `_sum`, `_count` belong to other types."""
    for line in render({"paused": False, "jobs_active": 1, "incidents_open": 0}, FLEET).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert kind == "gauge"
            assert re.fullmatch(r"rekindle_[a-z_]+", name)
            assert not name.endswith(("_total", "_bucket", "_sum", "_count", "_s"))


def test_each_metric_says_once_what_it_is_before_its_samples() -> None:
    seen: list[str] = []
    for line in render({"paused": False}, FLEET).splitlines():
        name = line.split()[2] if line.startswith("# ") else re.split(r"[{ ]", line)[0]
        if not seen or seen[-1] != name:
            assert name not in seen, f"{name} is in two places"
            assert line.startswith(f"# HELP {name} ")
            seen.append(name)


@settings(max_examples=examples(50))
@given(st.dictionaries(st.text(max_size=8), st.floats(), max_size=4))
def test_no_word_from_outside_breaks_a_line(words: dict[str, float]) -> None:
    _samples(render({}, {"days": 7, "incidents": words, "lost_by_fault_s": words, "lost_by_stage_s": words}))
