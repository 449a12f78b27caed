"""The rules as data against EventBridge's own matching, as moto implements it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from moto.events.models import EventPattern

from chalicelib.ingest import agent, detail_types, ec2, monitor
from chalicelib.ingest.detail_types import PATTERNS
from rekindle.protocol.signals import MONITOR_SOURCE, EventType
from rekindle.slurm_agent.base.ports import NewsType
from rekindle.slurm_agent.publishing import publisher
from tests.ingest import golden


def _matches(pattern: dict[str, Any], event: dict[str, Any]) -> bool:
    return bool(EventPattern(json.dumps(pattern), pattern).matches_event(event))


def _enveloped() -> list[str]:
    """All but batches of logs."""
    return [name for name in golden.names() if "source" in golden.load(name)]


@pytest.mark.parametrize("name", _enveloped())
def test_a_golden_event_matches_exactly_one_rule(name: str) -> None:
    event = golden.load(name)
    found = [function for function, pattern in PATTERNS.items() if _matches(pattern, event)]
    assert len(found) == 1


def test_the_monitor_says_nothing_that_no_parser_knows() -> None:
    assert {event_type.value for event_type in EventType} == set(monitor.PARSERS)


def test_the_agent_says_nothing_that_no_parser_knows() -> None:
    assert {news_type.value for news_type in NewsType} == set(agent.PARSERS)
    assert publisher.SOURCE == agent.SOURCE


def test_every_rule_has_a_golden_event() -> None:
    events = [golden.load(name) for name in _enveloped()]
    assert [function for function, pattern in PATTERNS.items() if not any(_matches(pattern, e) for e in events)] == []


def test_every_dispatched_type_is_let_in_by_one_rule() -> None:
    dispatched = {
        "aws.sagemaker": (
            detail_types.CLUSTER_STATE,
            detail_types.NODE_HEALTH,
            detail_types.CLUSTER_EVENT,
            detail_types.TRAINING_JOB,
        ),
        "aws.cloudwatch": (detail_types.ALARM, detail_types.ALARM_CONTRIBUTOR),
        "aws.health": (detail_types.HEALTH,),
        "aws.ec2": tuple(ec2.PARSERS),
        MONITOR_SOURCE: tuple(monitor.PARSERS),
        agent.SOURCE: tuple(agent.PARSERS),
    }
    for source, types in dispatched.items():
        for detail_type in types:
            event = {"source": source, "detail-type": detail_type, "detail": {}}
            assert sum(_matches(pattern, event) for pattern in PATTERNS.values()) == 1


def test_the_list_of_types_is_what_the_parsers_read() -> None:
    assert tuple(ec2.PARSERS) == detail_types.EC2
    assert sorted(monitor.PARSERS) == sorted(detail_types.MONITOR)
    assert tuple(agent.PARSERS) == detail_types.AGENT
    assert detail_types.AGENT_SOURCE == agent.SOURCE
