"""docs/reference/grafana.json: the metrics of a stack and of its Jobs as a Grafana dashboard on CloudWatch.

Panels come from the tables of infra/dashboard.py, chalicelib/observability.py and rekindle/monitor/base/metrics.py.
Sources of the format: Grafana, "Dashboard JSON model"; grafana-foundation-sdk, models `dashboard` and `cloudwatch`, by
which a test reads the document; Grafana, "CloudWatch template variables".

The template has no metric stream: an account that wants one usually streams all namespaces already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from chalicelib import observability
from infra import dashboard
from infra.functions import FUNCTIONS
from rekindle.monitor.base import metrics

PAGE: Final = "docs/reference/grafana.json"
TYPE: Final = "cloudwatch"
SOURCE: Final = {"type": TYPE, "uid": "${datasource}"}
REGION: Final = "$region"
STACK: Final = "$stack"
JOB: Final = "$job"
# (title, statistic, Grafana's unit, the monitor's metrics) of each panel of the row "Training"
TRAINING: Final = (
    ("Loss", "Average", "none", ("Loss",)),
    ("Step", "Maximum", "none", ("Step",)),
    ("Seconds per step", "Average", "s", ("StepSeconds",)),
    ("Tokens per second", "Average", "none", ("TokensPerSecond",)),
    ("Gradient norm and loss scale", "Average", "none", ("GradNorm", "LossScale")),
    ("Values that were not finite", "Sum", "none", ("NonFinite",)),
)
_UNITS: Final[Mapping[str, str]] = {"Seconds": "s", "None": "none"}  # CloudWatch's -> Grafana's
_HEIGHT: Final = 8
_WIDTH: Final = 12  # of 24
_ROW_HEIGHT: Final = 1


def page_text() -> str:
    """The file's text: JSON that Grafana imports."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def document() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    return {
        "uid": "rekindle",
        "title": "Rekindle",
        "description": "Incidents, recoveries and Jobs of one Rekindle stack, from CloudWatch",
        "tags": ["rekindle"],
        "style": "dark",
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 36,
        "fiscalYearStartMonth": 0,
        "time": {"from": "now-7d", "to": "now"},
        "refresh": "5m",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": list(_laid_out(_rows())),
    }


def _rows() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(title, panels without positions) of each row."""
    units = {name: _UNITS[str(unit.value)] for name, _, unit in observability.CLOSED}
    closed = {name: ["*"] for name in observability.CLOSED_DIMENSIONS} | {dashboard.SERVICE[0]: [STACK]}
    service = {dashboard.SERVICE[0]: [STACK]}
    yield (
        "Closed Incidents",
        [
            _panel(title, [_query(observability.NAMESPACE, metric, closed, statistic)], unit=units.get(metric, "none"))
            for title, statistic, metric in dashboard.MEASURES
        ],
    )
    yield (
        "The service",
        [
            _panel(title, [_query(observability.NAMESPACE, metric, service, statistic) for metric in group])
            for title, statistic, group in dashboard.COUNTS
        ]
        + [
            _panel(
                "Errors of the functions",
                [
                    _query(
                        "AWS/Lambda",
                        "Errors",
                        {"FunctionName": [f"{STACK}-{function.name}"]},
                        "Sum",
                        label=function.name,
                    )
                    for function in FUNCTIONS
                ],
            )
        ],
    )
    yield (
        "Training",
        [
            _panel(
                title, [_query(metrics.NAMESPACE, metric, {"JobId": [JOB]}, statistic) for metric in group], unit=unit
            )
            for title, statistic, unit, group in TRAINING
        ],
    )


def _laid_out(rows: Iterator[tuple[str, list[dict[str, Any]]]]) -> Iterator[dict[str, Any]]:
    """Rows and panels with ids and grid positions: two panels side by side."""
    number = y = 0
    for title, panels in rows:
        number += 1
        place = {"h": _ROW_HEIGHT, "w": 2 * _WIDTH, "x": 0, "y": y}
        yield {"type": "row", "id": number, "title": title, "collapsed": False, "gridPos": place, "panels": []}
        y += _ROW_HEIGHT
        for index, panel in enumerate(panels):
            number += 1
            place = {"h": _HEIGHT, "w": _WIDTH, "x": _WIDTH * (index % 2), "y": y + _HEIGHT * (index // 2)}
            yield {"id": number, "gridPos": place, **panel}
        y += _HEIGHT * -(-len(panels) // 2)


def _panel(title: str, queries: Sequence[dict[str, Any]], *, unit: str = "none") -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "transparent": False,
        "datasource": SOURCE,
        "targets": [{**query, "refId": chr(ord("A") + index)} for index, query in enumerate(queries)],
        "transformations": [],
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "none"},
        },
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
    }


def _query(
    namespace: str, metric: str, dimensions: Mapping[str, list[str]], statistic: str, *, label: str = ""
) -> dict[str, Any]:
    """A CloudWatch search over exactly these dimensions. Labels name the metric and the dimensions that vary."""
    return {
        "queryMode": "Metrics",
        "metricQueryType": 0,  # a search, not Metrics Insights
        "metricEditorMode": 0,  # as the query builder has it
        "id": "",
        "region": REGION,
        "namespace": namespace,
        "metricName": metric,
        "dimensions": {name: list(values) for name, values in dimensions.items()},
        "matchExact": True,
        "statistic": statistic,
        "period": "auto",
        "expression": "",
        "label": label or _label(metric, dimensions),
        "hide": False,
        "datasource": SOURCE,
    }


def _label(metric: str, dimensions: Mapping[str, list[str]]) -> str:
    """Source: CloudWatch user guide, "Using dynamic labels": PROP('Dim.NAME')."""
    varying = [name for name, values in dimensions.items() if values != [STACK]]
    return " ".join([metric, *(f"${{PROP('Dim.{name}')}}" for name in varying)])


def _variables() -> list[dict[str, Any]]:
    stacks = _values_of(observability.NAMESPACE, observability.SWEEPS, dashboard.SERVICE[0])
    jobs = _values_of(metrics.NAMESPACE, "Step", "JobId")
    return [
        {**_variable("datasource", "Data source"), "type": "datasource", "query": TYPE},
        {**_variable("region", "Region"), "datasource": SOURCE, "query": {"queryType": "regions", "refId": "regions"}},
        {**_variable("stack", "Stack"), "datasource": SOURCE, "query": stacks},
        {**_variable("job", "Job"), "datasource": SOURCE, "query": jobs, "multi": True, "includeAll": True},
    ]


def _variable(name: str, label: str) -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        "label": label,
        "type": "query",
        "hide": 0,
        "skipUrlSync": False,
        "refresh": 2,  # whenever the time range changes
        "multi": False,
        "includeAll": False,
    }


def _values_of(namespace: str, metric: str, dimension: str) -> dict[str, Any]:
    return {
        "queryType": "dimensionValues",
        "region": REGION,
        "namespace": namespace,
        "metricName": metric,
        "dimensionKey": dimension,
        "dimensionFilters": {},
        "refId": dimension,
    }
