"""What decides nothing cannot make an event malformed: each member of AWS's golden events is removed, and is null."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import pytest

from chalicelib.domain.model.errors import MalformedEvent, Noise, NotOurs
from chalicelib.ingest.dispatch import parse
from tests.ingest import golden

OF_AWS: Final = [name for name in golden.names() if name.startswith(("sagemaker_", "ec2_", "health_", "cloudwatch_"))]
# Without one of these nothing is known of what happened, to what, or by whom: by the end of its path.
NEEDED: Final = frozenset(
    (
        *("version", "id", "detail-type", "source", "account", "time", "region", "detail"),  # the envelope
        *("alarmName", "state", "value", "timestamp", "metric", "name", "alarmContributor"),
        *("capacity-reservation-id", "end-date", "instance-id", "instance-action", "instance-termination-time"),
        *("service", "eventTypeCode", "eventTypeCategory", "entityValue"),
        *("EventDetails", "EventId", "ClusterArn", "ClusterName", "ClusterStatus", "InstanceGroupName", "InstanceId"),
        *("HealthSummary", "HealthStatus", "TrainingJobName", "TrainingJobStatus"),
    )
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from _paths(inner, (*at, key))


def _changed(event: dict[str, Any], path: tuple[Any, ...], *, is_null: bool) -> dict[str, Any]:
    changed = copy.deepcopy(event)
    holder: Any = changed
    for key in path[:-1]:
        holder = holder[key]
    if is_null:
        holder[path[-1]] = None
    else:
        del holder[path[-1]]
    return changed


@pytest.mark.parametrize("name", OF_AWS)
def test_only_a_listed_few_members_are_needed(name: str) -> None:
    event = golden.load(name)
    needed = set()
    for path in _paths(event):
        if isinstance(path[-1], int):
            continue
        for is_null in (False, True):
            try:
                parse(_changed(event, path, is_null=is_null))
            except MalformedEvent:
                needed.add(str(path[-1]))
            except (Noise, NotOurs):
                continue
    assert needed <= NEEDED


@pytest.mark.parametrize("as_text", [True, False], ids=["text", "number"])
@pytest.mark.parametrize("unit", [1, 1000], ids=["milliseconds", "seconds"])
def test_times_as_text_and_in_seconds_are_times(as_text: bool, unit: int) -> None:
    """As in the SageMaker developer guide's own example of a training job's event."""
    event = golden.load("sagemaker_training_job_failed_crash")
    known = parse(event)[0]
    for key, value in event["detail"].items():
        if key.endswith("Time") and isinstance(value, int):
            seconds = value / unit if unit > 1 else value
            event["detail"][key] = str(seconds) if as_text else seconds
    assert parse(event)[0].occurred_at == known.occurred_at


def test_a_cluster_event_without_its_level_is_read_from_its_description() -> None:
    event = golden.load("sagemaker_cluster_event_lifecycle_failed")
    known = parse(copy.deepcopy(event))[0]
    del event["detail"]["EventDetails"]["EventLevel"]
    assert parse(event)[0].fault == known.fault
