"""The dashboard shows what the service sends, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from chalicelib import observability
from infra import dashboard
from infra.functions import FUNCTIONS
from infra.merge import merge_template
from tests.infra.stack_reading import Template, of_type


def _metrics() -> Iterator[list[Any]]:
    for widget in dashboard.body()["widgets"]:
        yield from widget["properties"]["metrics"]


def _sent() -> set[str]:
    """Every metric of the service is a constant of observability.py; words of dimensions are none."""
    words = {value for name, value in vars(observability).items() if name.isupper() and isinstance(value, str)}
    return words - {observability.NAMESPACE}


def _searched() -> list[str]:
    return [metric[0]["expression"] for metric in _metrics() if isinstance(metric[0], dict)]


def test_every_metric_of_ours_on_the_dashboard_is_one_that_the_service_sends() -> None:
    plain = {metric[1] for metric in _metrics() if metric[0] == dashboard.OURS}
    closed = {expression.split('MetricName="')[1].split('"')[0] for expression in _searched()}
    assert plain | closed <= _sent()
    assert closed == {
        observability.INCIDENTS_CLOSED,
        observability.MTTD,
        observability.MTTR,
        observability.GPU_HOURS_LOST,
        observability.GPU_HOURS_SAVED,
    }


def test_every_metric_that_the_service_sends_is_on_the_dashboard() -> None:
    shown = json.dumps(dashboard.body())
    assert [name for name in _sent() if name not in shown] == []


def test_the_search_names_the_dimensions_that_a_closed_incident_has() -> None:
    metrics = EphemeralMetrics(namespace=observability.NAMESPACE, service="rekindle")
    for name in observability.CLOSED_DIMENSIONS:
        metrics.add_dimension(name=name, value="x")
    metrics.add_metric(name=observability.MTTR, unit=MetricUnit.Seconds, value=1)
    told = metrics.serialize_metric_set()["_aws"]["CloudWatchMetrics"][0]
    (dimensions,) = told["Dimensions"]
    for expression in _searched():
        names = expression.split("{")[1].split("}")[0].split(",")
        assert names[0] == told["Namespace"]
        assert set(names[1:]) == set(dimensions)


def test_it_is_in_the_template_and_refers_to_what_is_there(template: Template) -> None:
    (board,) = of_type(template, "AWS::CloudWatch::Dashboard").values()
    body = json.loads(board["DashboardBody"]["Fn::Sub"])
    assert body == dashboard.body()
    for queue in dashboard.QUEUES:
        assert template["Resources"][queue]["Type"] == "AWS::SQS::Queue"
    errors = [metric[3] for metric in _metrics() if metric[0] == "AWS/Lambda"]
    assert errors == [f"${{AWS::StackName}}-{function.name}" for function in FUNCTIONS]
    assert "Dashboard" in merge_template()["Resources"]


def test_no_widget_lies_upon_another_or_beyond_the_edge() -> None:
    places = {(widget["x"], widget["y"]) for widget in dashboard.body()["widgets"]}
    assert len(places) == len(dashboard.body()["widgets"])
    assert all(x + 12 <= 24 for x, _ in places)
    assert len(json.dumps(dashboard.body())) < 40_000
