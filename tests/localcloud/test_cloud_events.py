"""Event delivery: matched, at least once, and as unkind as the seed says."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from localcloud.aws.clock import SimClock
from localcloud.aws.events import Chaos, EventBridge, Rule, Schedule
from localcloud.cloud import Cloud

EVERY = {"source": [{"prefix": ""}]}


def bridge(seen: list[dict[str, Any]], chaos: Chaos | None = None) -> tuple[EventBridge, SimClock]:
    clock = SimClock()
    one = EventBridge(clock=clock, invoke=lambda _, event: seen.append(event), chaos=chaos)
    one.rules.append(Rule(function="note", bus="default", pattern=EVERY))
    return one, clock


def test_an_event_goes_to_the_rules_of_its_bus_that_match_it_and_to_no_other(cloud: Cloud) -> None:
    seen: list[str] = []

    def rule(name: str, bus: str, pattern: dict[str, Any]) -> Rule:
        cloud.deploy({name: lambda event, _: seen.append(name)})
        return Rule(function=name, bus=bus, pattern=pattern)

    cloud.deploy(
        {},
        rules=[
            rule("stall", "rekindle", {"source": ["rekindle.monitor"], "detail-type": ["Rekindle Stall"]}),
            rule("deep", "rekindle", {"detail": {"phase": [{"anything-but": "startup"}]}}),
            rule("other-bus", "default", {"source": ["rekindle.monitor"]}),
            rule("other-type", "rekindle", {"detail-type": ["Rekindle Monitor Started"]}),
        ],
    )
    answer = cloud.client("events").put_events(
        Entries=[
            {
                "Source": "rekindle.monitor",
                "DetailType": "Rekindle Stall",
                "Detail": json.dumps({"phase": "training"}),
                "EventBusName": "rekindle",
            }
        ]
    )
    assert answer["FailedEntryCount"] == 0
    cloud.clock.run_for(timedelta(seconds=1))
    assert sorted(seen) == ["deep", "stall"]


def test_entries_fail_one_by_one_and_nobody_speaks_for_aws(cloud: Cloud) -> None:
    good = {"Source": "rekindle.monitor", "DetailType": "t", "Detail": "{}", "EventBusName": "rekindle"}
    entries = [
        good,
        good | {"Source": "aws.sagemaker"},
        good | {"Detail": "not json"},
        good | {"EventBusName": "nowhere"},
    ]
    answer = cloud.client("events").put_events(Entries=entries)
    assert answer["FailedEntryCount"] == 3
    codes = [entry.get("ErrorCode") for entry in answer["Entries"]]
    assert codes == [None, "NotAuthorizedForSourceException", "MalformedDetail", "InvalidArgument"]


def test_a_failing_handler_is_tried_again_and_in_the_end_the_event_is_a_dead_letter(cloud: Cloud) -> None:
    tries: list[str] = []

    def handler(event: dict[str, Any], _: Any) -> None:
        tries.append(event["id"])
        if event["detail"].get("cures") != len(tries):
            raise ValueError("not yet")

    cloud.deploy({"fragile": handler}, rules=[Rule(function="fragile", bus="default", pattern=EVERY)])
    cloud.events.publish("aws.ec2", "t", {"cures": 3}, [])
    cloud.clock.run_for(timedelta(hours=1))
    assert len(tries) == 3
    assert cloud.events.dead_letters == []
    tries.clear()
    cloud.events.publish("aws.ec2", "t", {}, [])
    cloud.clock.run_for(timedelta(hours=1))
    assert len(tries) == 3  # Lambda's own: the call and two more
    assert len(set(tries)) == 1
    assert "not yet" in str(cloud.events.dead_letters[0].error)


@pytest.mark.parametrize("seed", range(5))
def test_chaos_duplicates_loses_and_reorders_and_the_same_seed_does_it_again(seed: int) -> None:
    def run() -> list[int]:
        seen: list[dict[str, Any]] = []
        chaos = Chaos(seed=seed, duplicate=0.3, drop=0.2, jitter=timedelta(seconds=30))
        one, clock = bridge(seen, chaos)
        for number in range(200):
            one.publish("aws.sagemaker", "t", {"number": number}, [])
            clock.run_for(timedelta(seconds=1))
        clock.run_for(timedelta(minutes=5))
        return [event["detail"]["number"] for event in seen]

    order = run()
    counts = Counter(order)
    assert order == run()
    assert 120 < len(counts) < 190
    assert 30 < sum(count == 2 for count in counts.values()) < 90
    assert max(counts.values()) == 2
    assert order != sorted(order)


def test_durable_sources_are_never_lost() -> None:
    seen: list[dict[str, Any]] = []
    one, clock = bridge(seen, Chaos(seed=1, drop=0.9))
    for _ in range(50):
        one.publish("aws.cloudwatch", "t", {}, [])
    clock.run_for(timedelta(seconds=1))
    assert len(seen) == 50


def test_a_schedule_calls_at_its_rate_until_it_is_stopped(cloud: Cloud) -> None:
    seen: list[str] = []
    cloud.deploy(
        {"sweep": lambda event, _: seen.append(event["detail-type"])},
        schedules=[Schedule(function="sweep", every=timedelta(minutes=1))],
    )
    cloud.clock.run_for(timedelta(minutes=5))
    cloud.events.stop_schedules()
    cloud.clock.run_for(timedelta(minutes=5))
    assert seen == ["Scheduled Event"] * 5


def test_a_handler_that_changes_its_event_does_not_change_the_copy() -> None:
    seen: list[dict[str, Any]] = []
    one, clock = bridge([], Chaos(duplicate=1.0))

    def spoil(_: str, event: dict[str, Any]) -> None:
        seen.append(dict(event["detail"]))
        event["detail"].clear()

    one._invoke = spoil
    one.publish("aws.ec2", "t", {"a": 1}, [])
    clock.run_for(timedelta(seconds=5))
    assert seen == [{"a": 1}, {"a": 1}]
