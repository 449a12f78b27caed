"""Two deliveries of one fact have one dedupe key; two facts have two."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

from chalicelib.domain.model.errors import Skip
from chalicelib.domain.model.signal import ended_job_key
from chalicelib.ingest.dispatch import parse
from tests.ingest import golden


def _keys(event: dict[str, Any]) -> list[str]:
    return [signal.dedupe_key for signal in parse(event)]


def _signalling() -> list[str]:
    found = []
    for name in golden.names():
        try:
            parse(golden.load(name))
        except Skip:
            continue
        found.append(name)
    return found


# Golden events that tell one and the same fact: a pair, and one end of one job, for whatever reason.
_SAME_FACT = (
    {
        "sagemaker_cluster_event_pair_first",
        "sagemaker_cluster_event_pair_second",
        "sagemaker_cluster_event_null_metadata",
    },
    {name for name in golden.names() if name.startswith("sagemaker_training_job_failed_")}
    | {"sagemaker_training_job_clone_tags"},
    {f"sagemaker_training_job_{case}" for case in ("stopped", "max_runtime", "max_wait")},
)


@pytest.mark.parametrize("name", _signalling())
def test_a_second_delivery_has_the_same_key(name: str) -> None:
    event = golden.load(name)
    assert _keys(event) == _keys(golden.redelivered(event))


def test_different_facts_have_different_keys() -> None:
    keys = {name: set(_keys(golden.load(name))) for name in _signalling()}
    for left, right in itertools.combinations(keys, 2):
        if any({left, right} <= same for same in _SAME_FACT):
            continue
        assert not keys[left] & keys[right], (left, right)


def test_the_two_events_of_one_provisioning_fault_are_one_fact() -> None:
    first = golden.load("sagemaker_cluster_event_pair_first")
    second = golden.load("sagemaker_cluster_event_pair_second")
    assert _keys(first) == _keys(second)
    for field, other in (("InstanceId", "i-0ffffffffffffff01"), ("InstanceGroupName", "cpu")):
        elsewhere = copy.deepcopy(second)
        elsewhere["detail"]["EventDetails"][field] = other
        assert _keys(first) != _keys(elsewhere)
    later = copy.deepcopy(second)
    later["detail"]["EventDetails"]["EventTime"] += 60_000
    assert _keys(first) != _keys(later)


def test_the_terminal_state_of_a_job_is_one_fact_whatever_else_the_event_says() -> None:
    event = golden.load("sagemaker_training_job_failed_crash")
    again = golden.redelivered(event)
    again["detail"]["LastModifiedTime"] += 5000
    again["time"] = "2026-11-20T12:01:00Z"
    assert _keys(event) == _keys(again)
    namesake = copy.deepcopy(event)
    namesake["detail"]["TrainingJobName"] = "lm-7b-a4"
    assert _keys(event) != _keys(namesake)
    assert _keys(event) == [ended_job_key("lm-7b-a3", "Failed")], "the sweep names the same fact by the same key"


def test_a_state_that_may_come_again_is_told_apart_by_its_beginning() -> None:
    event = golden.load("sagemaker_training_job_repairing")
    again = copy.deepcopy(event)
    again["detail"]["SecondaryStatusTransitions"][-1]["StartTime"] += 600_000
    assert _keys(event) != _keys(again)


def test_the_pages_of_a_health_event_lose_no_entity() -> None:
    first, second = (golden.load(f"health_event_page_{page}_of_2") for page in (1, 2))
    assert len(set(_keys(first) + _keys(second))) == 3


def test_an_alarm_that_fires_again_is_another_fact() -> None:
    event = golden.load("cloudwatch_alarm_plain")
    again = copy.deepcopy(event)
    again["detail"]["state"]["timestamp"] = "2026-11-20T10:05:00.000+0000"
    assert _keys(event) != _keys(again)


def test_two_contributors_of_one_alarm_are_two_facts() -> None:
    event = golden.load("cloudwatch_alarm_contributor")
    other = copy.deepcopy(event)
    other["detail"]["alarmContributor"] = {"id": "aaaa", "attributes": {"TrainingJobName": "lm-13b"}}
    assert _keys(event) != _keys(other)


def test_a_loss_that_is_bad_on_two_ranks_is_two_facts() -> None:
    event = golden.load("monitor_non_finite_nan")
    other = copy.deepcopy(event)
    other["detail"]["rank"] = 1
    assert _keys(event) != _keys(other)
