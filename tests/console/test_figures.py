"""Figures of the service as people read them: words, units, headings, and nothing unknown that looks like a number."""

from __future__ import annotations

from typing import Any

import pytest

from rekindle.console.figures import (
    HEADINGS,
    TITLES,
    Fact,
    facts,
    has_rows,
    measures,
    shares,
    table_of,
    texts,
    title,
    unknown_figures,
)
from rekindle.console.words import clock, stretches

WHY = "the table of GPUs does not hold 'ml.c7i.large'"
LEDGER: dict[str, Any] = {
    "onset_at": "2026-11-20T10:00:00+00:00",
    "step_s": 0.0321,
    "elapsed_s": 46.2,
    "gpus": {"unknown": WHY},
    "gpu_hours_lost": {"unknown": WHY},
    "counterfactual": {
        "person": {"lost_s": 3901.0, "gpu_hours_lost": {"unknown": WHY}},
        "spared_s": {"low": 240.0, "high": 3840.0},
        "spared_dollars": {"unknown": "no price"},
        "assumes": "Spared is an estimate.",
    },
    "prices": {"source": "our contract", "as_of": "2026-11-01"},
    "brand_new_figure_s": 120,
}


def _all(rows: tuple[Fact, ...]) -> dict[str, Fact]:
    return {row.name: row for row in rows} | {inner.name: inner for row in rows for inner in _all(row.inner).values()}


def test_figures_stand_under_headings_in_words_with_units() -> None:
    rows = facts(LEDGER)
    assert [row.name for row in rows if row.inner] == [
        "Times",
        "The run",
        "Lost and saved",
        "Without Rekindle",
    ]
    told = {name: row.text for name, row in _all(rows).items()}
    assert told["Began"] == "2026-11-20 10:00:00Z"
    assert told["Time of one step"] == "0.0321 s"
    assert told["From its onset to its end"] == "46 s"
    assert told["Training time lost"] == "1 h 5 min"
    assert told["Training time spared (estimate)"] == "4 min to 1 h 4 min"
    assert told["Brand new figure"] == "2 min"  # what the console does not know yet is there all the same


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00321, "0.00321 s"), (1.7, "1.7 s"), (12.34, "12.3 s"), (90.0, "90 s")]
)
def test_the_time_of_a_step_is_not_rounded_away(seconds: float, text: str) -> None:
    (run,) = facts({"step_s": seconds})
    assert run.inner[0].text == text


def test_nothing_stands_under_no_heading() -> None:
    rows = facts({"onset_from": "", "lost_by_stage_s": {}, "stages": [], "mttr_s": {"unknown": WHY}, "gpus": 8})
    assert [(row.name, has_rows(row)) for row in rows] == [("Times", False), ("The run", True)]


def test_what_is_not_known_is_told_once_for_each_reason() -> None:
    assert unknown_figures(facts(LEDGER)) == (
        ("GPUs, GPU-hours lost", WHY),
        ("US dollars spared (estimate)", "no price"),
    )


def test_a_sum_of_nothing_known_is_no_zero() -> None:
    (lost, saved) = measures(
        {
            "gpu_hours_lost": {"sum": 0.0, "counted": 0, "not_counted": 3},
            "gpu_hours_saved": {"sum": 0.0, "counted": 3, "not_counted": 0},
        }
    )
    assert (lost.text, lost.not_counted) == ("–", "3")
    assert saved.text == "0"


def test_a_table_reads_its_times_and_sets_its_numbers_right() -> None:
    table = table_of([{"phase": "detect", "at": "2026-11-20T10:00:00+00:00", "after_s": 0, "seconds": 0.7}])
    assert table.columns == ("Stage", "At", "After its onset", "Lasted")
    assert table.rows == (("detect", "2026-11-20 10:00:00Z", "0 s", "0.7 s"),)
    assert table.is_number == (False, False, True, True)


def test_faults_are_told_in_words() -> None:
    (lost,) = shares({"lost_by_fault_s": {"non_finite": 30.0, "loss_spike": 5.0}})
    assert lost.parts == (("non-finite loss (NaN or Inf)", "30 s"), ("loss spike", "5 s"))


def test_a_time_of_another_day_says_so_and_every_time_its_zone() -> None:
    opened = "2026-11-20T23:59:00+00:00"
    assert clock("2026-11-20T23:59:30+00:00", opened) == "23:59:30Z"
    assert clock("2026-11-21T00:00:30+00:00", opened) == "11-21 00:00:30Z"
    assert clock(None, opened) == "–"


def test_windows_are_told_with_their_last_step() -> None:
    assert stretches([[100, 120], [300, 310]]) == "100-119, 300-309"
    assert stretches([["a"], [1, None], 3]) == stretches(None) == ""


def test_prices_are_a_sentence() -> None:
    assert texts(LEDGER) == ("Prices: our contract, as of 2026-11-01.",)


@pytest.mark.parametrize("name", sorted(HEADINGS))
def test_what_has_a_heading_has_a_title(name: str) -> None:
    assert name in TITLES
    assert title(name) == TITLES[name]
