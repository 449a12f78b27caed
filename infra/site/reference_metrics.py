"""docs/reference/metrics.md: the service's metrics, the monitor's, and those of the Prometheus page, from the code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from chalicelib import observability
from infra.tables import cell, code, page, table
from rekindle import prometheus
from rekindle.monitor.base import metrics

PAGE: Final = "docs/reference/metrics.md"
# The meaning of each metric of the monitor. Those that a script adds keep their own names.
MEANINGS = {
    "GradNorm": "norm of the gradient",
    "Loss": "training loss",
    "LossScale": "of the gradient scaler",
    "NonFinite": "values that were NaN, infinite or beyond what CloudWatch takes; they are counted and never sent",
    "Step": "newest step; of one rank",
    "StepSeconds": "duration of a step",
    "TokensPerSecond": "tokens by the time of their steps",
}

_SAMPLE: Final = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? ")
_LABEL: Final = re.compile(r'(\w+)="')


def page_text() -> str:
    units = {name: str(unit.value) for name, _, unit in observability.CLOSED}
    closed = {observability.INCIDENTS_CLOSED, *units}
    service = [
        f"Namespace `{observability.NAMESPACE}`, dimension `service`, the stack's name; those of closed Incidents have "
        f"{' and '.join(code(name) for name in observability.CLOSED_DIMENSIONS)} as well.",
        "All are on the stack's dashboard and on [Grafana's](../metrics.md). A quantity that is not known is not sent.",
        "",
        *table(
            ("metric", "unit", "meaning"),
            (
                (
                    code(name) + (" (closed Incidents)" if name in closed else ""),
                    units.get(name, "Count"),
                    cell(meaning),
                )
                for name, meaning in observability.MEANINGS.items()
            ),
        ),
    ]
    training = [
        f"Namespace `{metrics.NAMESPACE}`, dimension `JobId`; what is sent when: [monitor.md](../monitor.md).",
        "",
        *table(("metric", "unit", "meaning"), ((code(n), unit, cell(MEANINGS[n])) for n, unit in sent_by_monitor())),
    ]
    text = prometheus.render(_STATUS, _FLEET)
    labels: dict[str, list[str]] = {}
    for line in text.splitlines():
        if sample := _SAMPLE.match(line):
            labels.setdefault(sample["name"], _LABEL.findall(sample["labels"] or ""))
    exposed = [
        "All are gauges over the window in the label `days`; where the page is: [metrics](../metrics.md#prometheus).",
        "",
        *table(
            ("metric", "labels", "meaning"),
            (
                (code(name), ", ".join(code(label) for label in labels[name]), cell(meaning))
                for name, meaning in re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE)
            ),
        ),
    ]
    return page(
        "Metrics",
        ["## Of the service, in CloudWatch", "", *service],
        ["## Of the training, in CloudWatch", "", *training],
        ["## For Prometheus", "", *exposed],
    )


def sent_by_monitor() -> list[tuple[str, str]]:
    """(metric, unit) of everything that the monitor sends without configuration, from what it makes of two full
    samples.
    """
    whole = metrics.Sample(step=1, step_s=1.0, loss=1.0, grad_norm=1.0, tokens=1.0, scale=1.0)
    bad = metrics.Sample(step=2, step_s=1.0, loss=float("nan"))
    data = metrics.aggregate([whole, bad], at=datetime(2026, 1, 1, tzinfo=UTC), dimensions={})
    return [(datum["MetricName"], datum["Unit"]) for datum in data]


_STATUS: Final[Mapping[str, Any]] = {"paused": False, "jobs_active": 1, "incidents_open": 1}
# An answer of GET /ledger in which every figure is known, so that each has a sample.
_FLEET: Final[Mapping[str, Any]] = {
    "days": 30,
    "ettr": 1.0,
    "truncated": False,
    "incidents": {"all": 1, "recovered": 1},
    "lost_by_stage_s": {"stage": 1.0},
    "lost_by_fault_s": {"fault": 1.0},
    **{key: {"sum": 1.0, "counted": 1, "not_counted": 0} for _, _, key in prometheus.SUMS},
    **{key: {"sum": {"low": 1.0, "high": 2.0}, "counted": 1, "not_counted": 0} for _, _, key in prometheus.RANGES},
    **{key: {"median": 1.0, "p90": 1.0, "counted": 1, "not_counted": 0} for _, _, key in prometheus.SPREADS},
}
