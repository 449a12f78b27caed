"""What docs/monitor.md promises that can be checked: its regular expressions, its sums."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rekindle.monitor.base.settings import Config

TEXT = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text()
METRICS = [
    [cell.replace("\\|", "|") for cell in cells]
    for cells in re.findall(r"^  \| [^|`]+ \| `(.+?)` \| `(.+?)` \| (?:`(.+?)`)? ?\|$", TEXT, re.MULTILINE)
]


def test_the_table_of_metric_definitions_is_read() -> None:
    assert len(METRICS) >= 5


@pytest.mark.parametrize(("line", "loss", "step"), METRICS)
def test_a_documented_regex_takes_one_number_from_its_line(line: str, loss: str, step: str) -> None:
    for regex, is_number in ((loss, float), (step, int)):
        if regex:
            [found] = re.findall(regex, line)
            assert is_number(found) >= 0
            assert len(regex) <= 500  # Source: botocore sagemaker MetricRegex, max 500


def test_the_cost_of_a_job_day_is_what_its_formulas_give() -> None:
    day = 86_400
    config = Config()
    put, get, metric, call = 0.005 / 1000, 0.0004 / 1000, 0.30 / 30, 0.01 / 1000
    heartbeats = day / config.heartbeat_s * put
    polls = 2 * day / config.poll_s * get
    holding = (day / config.poll_s + day / config.heartbeat_s) * get
    telling = 6 * metric + day / config.metrics_s * call
    listing_seldom, listing_always = day / config.list_s * put, day / config.poll_s * put
    assert (
        f"So about ${heartbeats + polls + holding + listing_seldom + telling:.2f} a job-day with the doorbell" in TEXT
    )
    assert f"${heartbeats + polls + holding + listing_always + telling:.2f} without" in TEXT
    assert f"| {heartbeats:.3f} |" in TEXT
    assert f"| {listing_always:.3f} |" in TEXT
    assert f"| {64 * 288 * (put + get):.2f} for 64 ranks, at most {day * (put + get):.2f} |" in TEXT
