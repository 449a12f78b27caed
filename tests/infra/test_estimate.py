"""What a deployment costs: the command, docs/reference/costs.md, docs/deploy.md and the README say the same."""

from __future__ import annotations

import json
import re

import pytest

from infra.costs import AS_OF, PAGE, REGION, packaged
from infra.estimate import of
from infra.package import ROOT
from rekindle.cli.main import main

# A row of a table in docs/reference/costs.md: what, arithmetic, USD.
ROW = re.compile(r"^\| (?P<what>.+?) \| (?P<arithmetic>.+) \| (?:≤ )?(?P<usd>[0-9.]+) \|$", re.MULTILINE)


def test_every_row_and_every_sum_that_the_command_prints_stands_on_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["estimate", "--jobs", "1", "--incidents", "0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    page = (ROOT / PAGE).read_text(encoding="utf-8").partition("## Instances")[0]
    on_page = [float(row["usd"]) for row in ROW.finditer(page)]
    rows = [*said["rows"]["idle"], *said["rows"]["job"], *said["rows"]["incident"]]
    assert len(on_page) == len(rows)
    assert on_page == pytest.approx([row["usd"] for row in rows], abs=0.00501)
    assert f"Prices of {REGION} in USD, without the free tier, as known in {AS_OF}" in page
    assert f"leaves about {said['idle_usd_per_month_after_free_tier']:.2f}." in page
    assert f"## Idle: about {said['idle_usd_per_month']:.2f} a month" in page
    (job,) = re.findall(r"## A protected Job: about ([0-9.]+) a month", page)
    assert float(job) == pytest.approx(said["job_usd_per_month"], abs=0.0501)
    assert said["incident_usd"] < 0.01
    assert "## An Incident: less than 0.01" in page
    guide = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert f"| idle | about {said['idle_usd_per_month']:.2f} a month |" in guide
    assert f"| a Job that trains the whole month | about {job} a month |" in guide
    assert "| an Incident | less than 0.01 |" in guide
    assert said["total_usd_per_month"] == pytest.approx(said["idle_usd_per_month"] + said["job_usd_per_month"])


def test_the_readmes_line_on_costs_is_the_same() -> None:
    found = of(*packaged(), jobs=1, incidents=1)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (dashboard,) = (row for row in found.idle if row.what == "the dashboard")
    assert f"about {found.idle_usd:.2f} USD a month idle ({found.idle_usd - dashboard.usd:.2f} where one" in readme
    assert f"{found.job_usd:.1f} for a Job that runs all month" in readme


def test_the_free_tier_takes_no_more_than_it_has() -> None:
    """Ten of the alarms, the one dashboard, the metrics, logs and Lambda; DynamoDB on demand has none."""
    template, config = packaged()
    found = of(template, config, jobs=0, incidents=0)
    alarms = sum(resource["Type"] == "AWS::CloudWatch::Alarm" for resource in template["Resources"].values())
    table = sum(row.usd for row in found.idle if row.what in {"the sweep's reads", "the sweep's mark"})
    assert found.idle_usd_after_free_tier == pytest.approx((alarms - 10) * 0.10 + table, abs=0.01)


@pytest.mark.long
def test_each_dashboard_beyond_the_free_ones_costs_three() -> None:
    template, config = packaged()
    board = next(
        resource for resource in template["Resources"].values() if resource["Type"] == "AWS::CloudWatch::Dashboard"
    )
    more = {**template, "Resources": {**template["Resources"], **{f"More{n}": board for n in range(3)}}}
    before, after = (of(one, config, jobs=0, incidents=0) for one in (template, more))
    assert after.idle_usd == pytest.approx(before.idle_usd + 3 * 3.00)
    assert after.idle_usd_after_free_tier == pytest.approx(before.idle_usd_after_free_tier + 3.00)  # the fourth


@pytest.mark.parametrize(("jobs", "incidents"), [(0, 0), (1, 0), (7, 0), (0, 9), (40, 1_000_000)])
def test_the_sum_is_what_its_parts_make(jobs: int, incidents: int) -> None:
    found = of(*packaged(), jobs=jobs, incidents=incidents)
    assert found.total_usd == pytest.approx(found.idle_usd + jobs * found.job_usd + incidents * found.incident_usd)
    assert found.to_json()["total_usd_per_month"] == round(found.total_usd, 2)


def test_one_more_alarm_in_the_template_costs_what_an_alarm_costs() -> None:
    template, config = packaged()
    alarm = next(
        resource for resource in template["Resources"].values() if resource["Type"] == "AWS::CloudWatch::Alarm"
    )
    more = {**template, "Resources": {**template["Resources"], "OneMore": alarm}}
    before = of(template, config, jobs=0, incidents=0)
    assert of(more, config, jobs=0, incidents=0).total_usd == pytest.approx(before.total_usd + 0.10)


def test_a_person_reads_the_arithmetic_without_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--jobs", "3", "--incidents", "20"]) == 0
    said = capsys.readouterr().out
    assert "3 Jobs" in said
    assert "20 Incidents" in said
    assert "](" not in said
    assert "`" not in said


@pytest.mark.parametrize("argv", [("--jobs", "-1"), ("--jobs", "many"), ("--incidents", "1.5"), ("--jobs", "9999999")])
def test_a_count_that_is_none_is_2_and_named(argv: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["estimate", *argv])
    assert end.value.code == 2
    assert f"argument {argv[0]}: must be a whole number from 0 to 1000000" in capsys.readouterr().err
