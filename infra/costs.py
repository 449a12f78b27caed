"""What Rekindle costs: docs/reference/costs.md.

Counts come from where they are decided: the template, `.chalice/config.json`, the monitor's settings. Prices are list
prices of us-east-1 in USD as known in November 2026. Durations and sizes are assumptions, marked ~.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from chalicelib.domain.reporting.prices import DEFAULT_PRICES
from infra.package import ROOT, TEMPLATE, PackagingError, build
from infra.tables import cell, table
from infra.tables import page as whole
from rekindle.monitor.base.settings import Config

PAGE: Final = "docs/reference/costs.md"
MONTH_S: Final = 730 * 3600
AS_OF: Final = "November 2026"
REGION: Final = "us-east-1"

# Source: AWS's price pages of each service, us-east-1, on demand; Lambda on arm64.
ALARM: Final = 0.10  # a month
METRIC: Final = 0.30  # a month
DASHBOARD: Final = 3.00  # a month
LOGS_GB: Final = 0.50
GB_S: Final = 0.0000133334
INVOCATIONS_M: Final = 0.20  # a million, as all that end in _M
READ_UNITS_M: Final = 0.125
WRITE_UNITS_M: Final = 0.625
GETS_M: Final = 0.40
PUTS_M: Final = 5.00  # listings too
EVENTS_M: Final = 1.00
TB_HOUR: Final = 0.023 * 1000 / 730  # S3 Standard, by the GB and month
METRIC_CALLS_K: Final = 0.01  # a thousand metrics read, or calls of PutMetricData
OPERATIONS_M: Final = 8.00  # of durable functions [about]

# What an account has free each month, for as long as it exists. Source: aws.amazon.com/cloudwatch/pricing, "Free tier"
# (dashboards of up to 50 metrics, 5 GB of logs). Lambda's (1 million requests, 400,000 GB-seconds) and those logs are
# far more than an idle stack uses; DynamoDB's does not cover tables on demand.
FREE_ALARMS: Final = 10
FREE_METRICS: Final = 10
FREE_DASHBOARDS: Final = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what, its arithmetic in words, dollars. `at_most`: the highest of what sources say.

    `free`: how much of it the free tier takes in an account that uses nothing else.
    """

    what: str
    arithmetic: str
    usd: float
    at_most: bool = False
    free: float = 0.0

    def line(self, digits: int = 2) -> str:
        return f"| {self.what} | {self.arithmetic} | {'≤ ' if self.at_most else ''}{self.usd:.{digits}f} |"


def idle(template: dict[str, Any], config: dict[str, Any]) -> list[Row]:
    """A month of a stack that protects nothing."""
    kinds = Counter(resource["Type"] for resource in template["Resources"].values())
    alarms, dashboards = kinds["AWS::CloudWatch::Alarm"], kinds["AWS::CloudWatch::Dashboard"]
    (schedule,) = (
        event["Properties"]["Schedule"]
        for event in template["Resources"]["Sweep"]["Properties"]["Events"].values()
        if event["Type"] == "Schedule"
    )
    if schedule != "rate(1 minute)":
        raise PackagingError(f"the sweep's schedule is {schedule}: these tables count minutes")
    sweeps, memory_gb = MONTH_S // 60, config["lambda_functions"]["sweep"]["lambda_memory_size"] / 1024
    gb_s, gb = sweeps * 0.1 * memory_gb, sweeps * 2.5 / 1e6
    logs, computing, invocations = gb * (LOGS_GB + 0.03), gb_s * GB_S, sweeps * INVOCATIONS_M / 1e6
    return [
        Row("alarms", f"{alarms}, at {ALARM:.2f}", alarms * ALARM, free=min(alarms, FREE_ALARMS) * ALARM),
        Row(
            "the dashboard",
            f"{dashboards}, at {DASHBOARD:.2f}; none where one of the account's {FREE_DASHBOARDS} free ones is left",
            dashboards * DASHBOARD,
            free=min(dashboards, FREE_DASHBOARDS) * DASHBOARD,
        ),
        Row("the sweep's metrics", f"3, at {METRIC:.2f}", 3 * METRIC, free=min(3, FREE_METRICS) * METRIC),
        Row("the sweep's logs", f"{sweeps:,} × ~2.5 KB = {gb:.2f} GB, at {LOGS_GB:.2f} + storage", logs, free=logs),
        Row(
            "the sweep's computing",
            f"{sweeps:,} × ~0.1 s × {memory_gb:g} GB, at {GB_S:.10f} (arm64)",
            computing,
            free=computing,
        ),
        Row("the sweep's invocations", f"{sweeps:,}, at {INVOCATIONS_M:.2f} a million", invocations, free=invocations),
        Row(
            "the sweep's reads",
            f"{sweeps:,} × (2 queries × 0.5 + 1) read units, at {READ_UNITS_M} a million",
            2 * sweeps * READ_UNITS_M / 1e6,
        ),
        Row("the sweep's mark", f"{sweeps:,} writes, at {WRITE_UNITS_M} a million", sweeps * WRITE_UNITS_M / 1e6),
        Row(
            "table, bucket, queues, buses, topic, rules for AWS's events, API",
            "nothing stored, nothing asked; encrypted with AWS-owned keys",
            0.0,
        ),
    ]


def job(settings: Config) -> list[Row]:
    """A month of one Job that trains all the time and has no fault."""
    polls, heartbeats = round(MONTH_S / settings.poll_s), round(MONTH_S / settings.heartbeat_s)
    sends = round(MONTH_S / settings.metrics_s)
    read = 2 * MONTH_S // 60
    every = f"every {settings.poll_s:g} s"
    return [
        Row(
            f"the monitor lists requests (rank 0, {every} until the first one)",
            _at(polls, PUTS_M),
            polls * PUTS_M / 1e6,
        ),
        Row(f"… reads its fence and its doorbell ({every})", _at(2 * polls, GETS_M), 2 * polls * GETS_M / 1e6),
        Row(
            f"… writes its heartbeat (every {settings.heartbeat_s:g} s)",
            _at(heartbeats, PUTS_M),
            heartbeats * PUTS_M / 1e6,
        ),
        Row(
            "those writes as events of a bucket",
            f"{_at(heartbeats, EVENTS_M)} if billed as custom events (sources differ), else free",
            heartbeats * EVENTS_M / 1e6,
            at_most=True,
        ),
        Row("the monitor's metrics (loss, step time, step, gradient norm, tokens)", f"5, at {METRIC:.2f}", 5 * METRIC),
        Row(
            f"… sent every {settings.metrics_s:g} s",
            f"{sends:,} calls, at {METRIC_CALLS_K} a thousand",
            sends * METRIC_CALLS_K / 1e3,
        ),
        Row(
            "the sweep reads 2 metrics of it ([sweep.md](../sweep.md))",
            f"{read:,}, at {METRIC_CALLS_K} a thousand; a fifth with `SweepMetricsMinutes` 5",
            read * METRIC_CALLS_K / 1e3,
        ),
        Row("… and the rest: computing, registry, heartbeat and manifests in turn", "see there", 0.02),
    ]


def incident() -> list[Row]:
    """One recovery."""
    return [
        Row("durable operations", f"60, at ~{OPERATIONS_M:g} a million", 60 * OPERATIONS_M / 1e6),
        Row("computing", "20 invocations × ~0.5 s × 0.5 GB", 20 * 0.5 * 0.5 * GB_S),
        Row(
            "table", f"~100 writes at {WRITE_UNITS_M} a million, ~100 reads", 100 * (WRITE_UNITS_M + READ_UNITS_M) / 1e6
        ),
        Row(
            "its page",
            f"~6 published changes, each a write to S3 at {PUTS_M:.2f} a million and ~5 reads of the table",
            6 * PUTS_M / 1e6 + 30 * READ_UNITS_M / 1e6 + 6 * GETS_M / 1e6,
        ),
        Row("logs, notices", "~50 KB, 3 notices", 50e3 / 1e9 * LOGS_GB + 0.0001),
    ]


def page(template: dict[str, Any], config: dict[str, Any], settings: Config) -> str:
    """The whole page."""
    resting, protected, recovery = idle(template, config), job(settings), incident()
    s3 = sum(row.usd for row in protected[:3]) + protected[3].usd
    slower = s3 - sum(row.usd for row in protected[:2]) * (1 - settings.poll_s / 15)
    slower -= sum(row.usd for row in protected[2:4]) * (1 - settings.heartbeat_s / 60)
    return whole(
        "Costs and prices",
        [
            f"Prices of {REGION} in USD, without the free tier, as known in {AS_OF}. 730 hours or {MONTH_S // 60:,} "
            "minutes a month. Durations marked ~ are assumptions; nothing has been measured on Lambda yet. "
            "`rekindle stack estimate --jobs N --incidents N` prints the same figures and their sum.",
            "",
            f"## Idle: about {total(resting):.2f} a month",
            "",
            *_table("a month", resting, 2),
            "",
            "No server, no NAT gateway, no VPC endpoint, no provisioned capacity. In an account that uses nothing "
            f"else, the free tier ({FREE_ALARMS} alarms, {FREE_METRICS} metrics, {FREE_DASHBOARDS} dashboards of up to "
            "50 metrics, 5 GB of logs, Lambda's million requests) leaves about "
            f"{after_free_tier(resting):.2f}. Not counted: Lambda's polls of the empty deliveries queue, about 0.26 "
            "(unconfirmed; within SQS's free million requests).",
            "",
            f"## A protected Job: about {total(protected):.1f} a month, running the whole month without a fault",
            "",
            *_table("a month", protected, 2),
            "",
            "Most of it is S3 requests and metrics of the monitor, and is set there: `REKINDLE_POLL_S=15` and "
            f"`REKINDLE_HEARTBEAT_S=60` bring S3's part from {s3:.2f} down to {slower:.2f}, for checkpoint requests "
            "that are seen up to 15 s later. A Job that runs a tenth of the month costs a tenth.",
            "",
            f"## An Incident: less than {max(0.01, round(total(recovery) + 0.005, 2)):.2f}",
            "",
            *_table("each", recovery, 4),
            "",
            f"Not included: the checkpoints. An emergency checkpoint of 1 TB costs {TB_HOUR:.2f} an hour in S3 "
            "Standard until you delete it.",
            "",
            "## Instances",
            "",
            "The ledger's built-in prices, for orders of magnitude. Set your own: [prices](../ledger.md#prices).",
            "",
        ],
        table(
            ("type", "USD per hour", "as of", "source"),
            ((row.instance, str(row.usd_per_hour), row.as_of, cell(row.source)) for row in DEFAULT_PRICES),
        ),
    )


def page_text() -> str:
    """The page, from the packaged template and the monitor's settings."""
    return page(*packaged(), Config())


def total(rows: list[Row]) -> float:
    """Of the figures as they are printed, so that a reader's sum agrees."""
    return sum(round(row.usd, 2) for row in rows)


def after_free_tier(rows: list[Row]) -> float:
    """What is left of them in an account that uses nothing else."""
    return sum(round(row.usd - row.free, 2) for row in rows)


def _table(per: str, rows: list[Row], digits: int) -> list[str]:
    return [f"| what | arithmetic | {per} |", "|---|---|---|", *(row.line(digits) for row in rows)]


def _at(count: int, price_m: float) -> str:
    return f"{count:,}, at {price_m:.2f} a million"


@cache
def packaged() -> tuple[dict[str, Any], dict[str, Any]]:
    """The template, packaged for this question, and `.chalice/config.json`; both to be read only.

    Raises: PackagingError.
    """
    with tempfile.TemporaryDirectory() as scratch:
        build(Path(scratch), offline=True)
        template = json.loads(Path(scratch, TEMPLATE).read_text(encoding="utf-8"))
    return template, json.loads((ROOT / ".chalice" / "config.json").read_text(encoding="utf-8"))
