"""`rekindle plan`: what it prints, its JSON, its picture, and each bad input."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from chalicelib.domain.reporting.counterfactual import HUMAN_S, NCCL_TIMEOUT_S, NODE_REPAIR_S, RESTART_S
from chalicelib.domain.reporting.prices import DEFAULT_PRICES
from infra.sources import SERVICE_FILES
from tests.cli.conftest import Run

pytestmark = pytest.mark.long


BASELINES = ("time-out and a person", "automatic requeue", "HyperPod auto-resume alone")

PLANS: dict[tuple[str, ...], dict[str, Any]] = {}  # each takes a second


def _json(run: Run, *argv: str) -> dict[str, Any]:
    if argv not in PLANS:
        ended = run("plan", *argv, "--json")
        assert (ended.code, ended.err) == (0, "")
        made = json.loads(ended.out)
        assert isinstance(made, dict)
        PLANS[argv] = made
    return PLANS[argv]


def test_the_command_is_an_entry_point_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["rekindle.commands"]["plan"] == "fleets.command:register"
    assert "fleets" in SERVICE_FILES


def test_it_prints_what_failures_cost_the_interval_the_spares_and_every_assumption(run: Run) -> None:
    ended = run("plan", "--gpus", "1024", "--instance", "ml.p5.48xlarge")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "1,024 GPUs: 128 x ml.p5.48xlarge, 30 days. A failure every 28.8 h: 25.0 in all."
    starts = [line.split("  ")[0].strip() for line in lines]
    for text in ("POLICY", *BASELINES, "Rekindle, no spares", "Young", "Daly", "simulated", "Assumed"):
        assert text in starts
    for name in BASELINES:
        assert re.search(rf"^  {name}: [\d,]+ GPU-hours and [\d,]+ USD less lost$", ended.out, re.MULTILINE)
        assert sum(line.startswith(f"{name}: ") for line in lines) == 1, "its assumptions are one line"
    for text in (
        "failures per 1000 node-days: 6.5 (arXiv 2410.21680 (Meta), nodes of 8 GPUs)",
        f"NCCL's time-out ends a hang after: {NCCL_TIMEOUT_S:g} s (PyTorch's default for NCCL",
        f"a person notices and acts within: {HUMAN_S:g} s",
        f"a person has a node repaired in: {NODE_REPAIR_S:g} s",
        f"a new start until it trains: {RESTART_S:g} s",
        "decide()",
    ):
        assert text in ended.out


def test_every_assumption_names_its_source(run: Run) -> None:
    made = _json(run, "--gpus", "64")
    assert len(made["assumptions"]) >= 10
    assert all(assumption["source"] and assumption["name"] for assumption in made["assumptions"])


def test_the_json_is_the_same_plan_and_the_same_seed_the_same_json(run: Run) -> None:
    made = _json(run, "--gpus", "1024")
    assert made == _json(run, "--gpus", "1024", "--seed", "0")
    assert made != _json(run, "--gpus", "1024", "--seed", "1")
    assert (made["gpus"], made["nodes"], made["instance"]) == (1024, 128, "ml.p5.48xlarge")
    assert made["mtbf_s"] == pytest.approx(86_400 / (128 * 0.0065))
    assert tuple(baseline["policy"] for baseline in made["baselines"]) == BASELINES
    for one in made["baselines"]:
        assert 0 <= one["ettr"] < made["rekindle"]["ettr"] <= 1
        assert made["rekindle"]["gpu_hours_lost"] < one["gpu_hours_lost"]
        assert any("(" in text for text in one["assumptions"]), "a source"
    interval = made["interval"]
    assert interval["used_s"] == interval["young_s"]
    assert interval["young_s"] == pytest.approx((2 * 30 * made["mtbf_s"]) ** 0.5, abs=0.1)
    assert interval["simulated_ettr"] == max(point["ettr"] for point in interval["curve"])
    assert interval["simulated_ettr"] - interval["young_ettr"] < 0.003


def test_dollars_are_by_the_ledgers_table_and_by_the_users_own_price(run: Run) -> None:
    row = next(price for price in DEFAULT_PRICES if price.instance == "p5.48xlarge")
    made = _json(run, "--gpus", "64")
    lost = made["baselines"][0]
    assert made["usd_per_node_hour"] == row.usd_per_hour
    assert lost["dollars_lost"] == pytest.approx(lost["gpu_hours_lost"] / 8 * row.usd_per_hour, rel=0.01)
    own = _json(run, "--gpus", "64", "--usd-per-hour", "16")["baselines"][0]
    assert own["dollars_lost"] == pytest.approx(own["gpu_hours_lost"] * 2, rel=0.01)


def test_an_instance_without_a_price_has_unknown_dollars_and_says_how_to_set_one(run: Run) -> None:
    made = _json(run, "--gpus", "64", "--instance", "ml.p5.4xlarge")
    assert "unknown" in made["baselines"][0]["dollars_lost"]
    ended = run("plan", "--gpus", "64", "--instance", "ml.p5.4xlarge")
    assert "--usd-per-hour sets one" in ended.out
    assert " USD " not in ended.out.split(", against\n")[1].split("Checkpoint interval")[0]


def test_more_failures_longer_saves_longer_starts_and_more_days_never_cost_less(run: Run) -> None:
    for option, values in (
        ("--mtbf", ("400", "25", "6")),
        ("--checkpoint-s", ("1", "600")),
        ("--restart-s", ("0", "1800")),
        ("--days", ("1", "60")),
    ):
        made = [_json(run, "--gpus", "512", option, value) for value in values]
        for rows in zip(*([*one["baselines"], one["rekindle"]] for one in made), strict=True):
            costs = [row["gpu_hours_lost"] for row in rows]
            assert costs == sorted(costs), (option, rows[0]["policy"])


def test_options_that_are_given_stand_in_the_assumptions_with_that_as_their_source(run: Run) -> None:
    ended = run("plan", "--gpus", "64", "--mtbf", "12.5", "--checkpoint-s", "7", "--restart-s", "99")
    assert "mean time between failures: 12.5 h (given on the command line)" in ended.out
    assert "a save stops the run for: 7 s (given on the command line)" in ended.out
    assert "a new start until it trains: 99 s (given on the command line)" in ended.out
    assert "6.5 (arXiv" not in ended.out


def test_spares_that_pay_are_those_that_lose_least_with_their_own_hours_in_it(run: Run) -> None:
    made = _json(run, "--gpus", "16384")
    tried = {trial["spares"]: trial["gpu_hours_lost"] for trial in made["spares"]["tried"]}
    assert made["spares"]["pay"] == min(tried, key=lambda count: (tried[count], count))
    assert made["spares"]["pay"] > 0
    assert made["rekindle_with_spares"]["spares"] == made["spares"]["pay"]
    assert made["rekindle_with_spares"]["ettr"] > made["rekindle"]["ettr"]
    for one in made["spares"]["tried"]:
        assert one["own_gpu_hours"] == one["spares"] * 8 * 30 * 24


def test_spares_that_cost_more_than_they_save_are_called_so(run: Run) -> None:
    ended = run("plan", "--gpus", "64", "--spares", "50")
    assert ended.code == 0
    assert "Rekindle, 50 spares" in ended.out
    assert "USD more lost" in ended.out


BAD: list[tuple[str, tuple[str, ...]]] = [
    ("--gpus", ()),
    ("--gpus", ("--gpus", "0")),
    ("--gpus", ("--gpus", "-8")),
    ("--gpus", ("--gpus", "eight")),
    ("--gpus", ("--gpus", "1e3")),
    ("--gpus", ("--gpus", "٨")),
    ("--gpus", ("--gpus", "12")),
    ("--gpus", ("--gpus", "99999999")),
    ("--instance", ("--gpus", "8", "--instance", "ml.made-up.48xlarge")),
    ("--instance", ("--gpus", "8", "--instance", "ml.trn1.32xlarge")),
    ("--instance", ("--gpus", "8", "--instance", "")),
    ("--instance", ("--gpus", "8", "--instance", "p5\x1b[31m")),
    ("--mtbf", ("--gpus", "8", "--mtbf", "0")),
    ("--mtbf", ("--gpus", "8", "--mtbf", "nan")),
    ("--mtbf", ("--gpus", "8", "--mtbf", "inf")),
    ("--mtbf", ("--gpus", "8", "--mtbf", "-3")),
    ("--mtbf", ("--gpus", "8", "--mtbf", "1e400")),
    ("--mtbf", ("--gpus", "8", "--mtbf", "1_0")),
    ("--checkpoint-s", ("--gpus", "8", "--checkpoint-s", "0")),
    ("--checkpoint-s", ("--gpus", "8", "--checkpoint-s", "soon")),
    ("--checkpoint-s", ("--gpus", "8", "--mtbf", "1", "--checkpoint-s", "3600")),
    ("--restart-s", ("--gpus", "8", "--restart-s", "-1")),
    ("--restart-s", ("--gpus", "8", "--mtbf", "0.5", "--restart-s", "1800")),
    ("--restart-s", ("--gpus", "1000000")),
    ("--mtbf", ("--gpus", "1024", "--mtbf", "0.01")),
    ("--spares", ("--gpus", "8", "--spares", "-1")),
    ("--spares", ("--gpus", "8", "--spares", "1.5")),
    ("--spares", ("--gpus", "8", "--spares", "100000")),
    ("--days", ("--gpus", "8", "--days", "0")),
    ("--usd-per-hour", ("--gpus", "8", "--usd-per-hour", "free")),
    ("--seed", ("--gpus", "8", "--seed", "x")),
]


@pytest.mark.parametrize(("option", "argv"), BAD, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_a_bad_input_is_one_error_that_names_the_option(run: Run, option: str, argv: tuple[str, ...]) -> None:
    ended = run("plan", *argv)
    assert (ended.code, ended.out) == (2, "")
    errors = [line for line in ended.err.splitlines() if line.startswith("rekindle")]
    assert len(errors) == 1, ended.err
    assert option in errors[0]
    assert "\x1b" not in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("gpus", ["8", "512", "131072"])
def test_every_size_has_a_plan_with_shares_within_bounds(run: Run, gpus: str) -> None:
    made = _json(run, "--gpus", gpus)
    rows = [*made["baselines"], made["rekindle"], made["rekindle_with_spares"], *made["spares"]["tried"]]
    assert all(0 <= row["ettr"] <= 1 for row in rows)
    assert all(0 <= point["ettr"] <= 1 for point in made["interval"]["curve"])
    assert all(row["gpu_hours_lost"] >= 0 for row in rows)
