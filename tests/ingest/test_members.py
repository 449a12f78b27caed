"""What decides nothing cannot make an event malformed: each member of AWS's golden events is removed, is null, and has
each other type.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from chalicelib.domain.model.errors import MalformedEvent, Noise, NotOurs
from chalicelib.domain.model.signal import MAX_EVIDENCE_BYTES
from chalicelib.ingest.dispatch import parse
from tests.ingest import golden

OF_AWS: Final = [name for name in golden.names() if name.startswith(("sagemaker_", "ec2_", "health_", "cloudwatch_"))]
_REMOVED: Final = object()
# Also of the wrong form: no id, no name, no time, no word of a list, and above every limit.
OTHER_VALUES: Final = (None, -1, 1e300, "?" * 70_000, "", {}, {"": [None]}, [], [None, [], 0, "", {}], True)
# Without one of these nothing is known of what happened, to what, or by whom: by the end of its path.
NEEDED: Final = frozenset(
    (
        *("version", "id", "detail-type", "source", "account", "time", "region", "detail"),  # the envelope
        *("alarmName", "state", "value", "timestamp", "alarmContributor"),
        *("capacity-reservation-id", "end-date", "instance-id", "instance-action", "instance-termination-time"),
        *("service", "eventTypeCode", "eventTypeCategory"),
        *("EventDetails", "EventId", "ClusterArn", "ClusterName", "ClusterStatus", "InstanceId"),
        *("HealthSummary", "HealthStatus", "TrainingJobName", "TrainingJobStatus"),
        "rekindle:job",  # the owner's own word, who hears of its wrong form
    )
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from _paths(inner, (*at, key))


def _changes(event: dict[str, Any], path: tuple[Any, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The event without this member, and with each of the other values in its place."""
    for value in (_REMOVED, *OTHER_VALUES):
        changed = copy.deepcopy(event)
        holder: Any = changed
        for key in path[:-1]:
            holder = holder[key]
        if value is _REMOVED:
            del holder[path[-1]]
        else:
            holder[path[-1]] = value
        yield "removed" if value is _REMOVED else repr(value)[:20], changed


@pytest.mark.parametrize("name", OF_AWS)
def test_only_a_listed_few_members_are_needed(name: str) -> None:
    event = golden.load(name)
    needed = set()
    for path in _paths(event):
        for how, changed in _changes(event, path):
            try:
                signals = parse(changed)
            except MalformedEvent:
                needed.add((".".join(map(str, path)), how))
            except (Noise, NotOurs):
                continue
            else:
                assert all(len(json.dumps(signal.evidence)) <= MAX_EVIDENCE_BYTES for signal in signals)
    assert not [(path, how) for path, how in needed if path.rpartition(".")[2] not in NEEDED]


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
