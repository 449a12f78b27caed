"""Grafana's dashboard shows what the service and the monitor send, in the form that Grafana's own model reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.cloudwatch import CloudWatchMetricsQuery
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel

from chalicelib import observability
from infra.functions import FUNCTIONS
from infra.site.reference_metrics import sent_by_monitor
from rekindle.monitor.base import metrics

FILE = Path(__file__).parents[2] / "docs" / "reference" / "grafana.json"
DOCUMENT = json.loads(FILE.read_text(encoding="utf-8"))
CLOSED = {observability.INCIDENTS_CLOSED, *(name for name, _, _ in observability.CLOSED)}


def _queries() -> Iterator[dict[str, Any]]:
    for panel in DOCUMENT["panels"]:
        yield from panel.get("targets", ())


def _missing(written: Any, read: Any, at: str = "") -> Iterator[str]:
    """The fields of the document that the model does not know, or has other values for."""
    if isinstance(written, dict) and isinstance(read, dict):
        for name, value in written.items():
            if name not in read:
                yield f"{at}{name}"
            else:
                yield from _missing(value, read[name], f"{at}{name}.")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for index, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from _missing(one, other, f"{at}{index}.")
    elif written != read:
        yield at.rstrip(".")


def _read(document: dict[str, Any]) -> Dashboard:
    register_default_plugins()
    return Dashboard.from_json(document)


def test_grafanas_own_model_reads_every_field() -> None:
    read = _read(DOCUMENT)
    assert list(_missing(DOCUMENT, json.loads(JSONEncoder().encode(read)))) == []
    assert all(isinstance(panel, Panel | RowPanel) for panel in read.panels or ())
    queries = [query for panel in read.panels or () if isinstance(panel, Panel) for query in panel.targets or ()]
    assert queries
    assert all(isinstance(query, CloudWatchMetricsQuery) for query in queries)


@pytest.mark.parametrize(
    ("path", "name"), [((), "titel"), (("panels", 1), "grid"), (("panels", 1, "targets", 0), "metric")]
)
def test_a_field_that_the_model_does_not_know_is_found(path: tuple[str | int, ...], name: str) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    place: Any = document
    for step in path:
        place = place[step]
    place[name] = "x"
    assert any(path.endswith(name) for path in _missing(document, json.loads(JSONEncoder().encode(_read(document)))))


def test_every_query_names_a_metric_that_is_sent_with_the_dimensions_that_it_is_sent_with() -> None:
    service, monitor = set(observability.MEANINGS), {name for name, _ in sent_by_monitor()}
    for query in _queries():
        namespace, metric, names = query["namespace"], query["metricName"], set(query["dimensions"])
        if namespace == observability.NAMESPACE:
            assert metric in service
            assert names == {"service", *(observability.CLOSED_DIMENSIONS if metric in CLOSED else ())}, metric
        elif namespace == metrics.NAMESPACE:
            assert metric in monitor
            assert names == {"JobId"}, metric
        else:
            assert (namespace, metric, names) == ("AWS/Lambda", "Errors", {"FunctionName"})
        assert query["matchExact"] is True  # else a search adds up other stacks' metrics, too


def test_every_metric_is_on_a_panel_once() -> None:
    shown = [(query["namespace"], query["metricName"]) for query in _queries() if query["namespace"] != "AWS/Lambda"]
    sent = [(observability.NAMESPACE, name) for name in observability.MEANINGS]
    sent += [(metrics.NAMESPACE, name) for name, _ in sent_by_monitor()]
    assert sorted(shown) == sorted(sent)
    functions = [query["dimensions"]["FunctionName"] for query in _queries() if query["namespace"] == "AWS/Lambda"]
    assert functions == [[f"$stack-{function.name}"] for function in FUNCTIONS]


def test_each_variable_that_a_query_uses_is_there_and_reads_a_metric_that_is_sent() -> None:
    variables = {variable["name"]: variable for variable in DOCUMENT["templating"]["list"]}
    assert list(variables) == ["datasource", "region", "stack", "job"]  # each may use those before it
    text = json.dumps([panel.get("targets", []) for panel in DOCUMENT["panels"]])
    assert [name for name in variables if f"${name}" not in text and f"${{{name}}}" not in text] == []
    sent = {*observability.MEANINGS, *(name for name, _ in sent_by_monitor())}
    for name in ("stack", "job"):
        assert variables[name]["query"]["metricName"] in sent


def test_no_panel_lies_upon_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DOCUMENT["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        taken |= cells
    numbers = [panel["id"] for panel in DOCUMENT["panels"]]
    assert len(set(numbers)) == len(numbers)
