"""Answers, switches and the breaker as people reach them: over the fake registry, and over DynamoDB."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from moto import mock_aws

from chalicelib.aws.dynamodb.jobs import DynamoJobRegistry
from chalicelib.domain.model.switches import ShadowScope
from chalicelib.ports.jobs import JobRegistry
from localcloud.aws.template import create_table
from localcloud.memory_tables import MemoryJobs
from tests.adapters.conftest import make_client
from tests.domain.looks import MINUTE, NOW


@pytest.fixture(params=["memory", "dynamodb"])
def registry(request: pytest.FixtureRequest) -> Iterator[JobRegistry]:
    if request.param == "memory":
        yield MemoryJobs()
        return
    with mock_aws():
        client = make_client("dynamodb")
        create_table(client, "rekindle")
        yield DynamoJobRegistry(client, table="rekindle")


def test_the_switches_begin_off_and_say_who_set_them(registry: JobRegistry) -> None:
    assert registry.switches().to_wire() == MemoryJobs().switches().to_wire()
    registry.set_paused(True, who="ada", now=NOW, why="a new driver")
    registry.set_shadow(ShadowScope.JOB, "lm", True, who="ben", now=NOW + MINUTE)
    registry.set_shadow(ShadowScope.JOB, "other", True, who="ben", now=NOW + MINUTE)
    registry.set_shadow(ShadowScope.CLUSTER, "pretrain", True, who="cyd", now=NOW + 2 * MINUTE)
    now = registry.switches()
    assert (now.paused, now.paused_by, now.paused_at, now.paused_why) == (True, "ada", NOW, "a new driver")
    assert (now.jobs, now.clusters, now.everywhere) == (("lm", "other"), ("pretrain",), False)
    assert (now.shadow_by, now.shadow_at) == ("cyd", NOW + 2 * MINUTE)
    assert now.shadow_of(job_id="lm", cluster=None) == "for job lm"
    assert now.shadow_of(job_id="x", cluster="pretrain") == "for cluster pretrain"
    assert now.shadow_of(job_id="x", cluster=None) == ""
    registry.set_shadow(ShadowScope.JOB, "lm", False, who="ben", now=NOW)
    registry.set_shadow(ShadowScope.EVERYWHERE, "", True, who="ben", now=NOW)
    registry.set_paused(False, who="ada", now=NOW)
    now = registry.switches()
    assert (now.paused, now.jobs, now.everywhere) == (False, ("other",), True)
    assert now.shadow_of(job_id="x", cluster=None) == "everywhere"


def test_those_who_act_are_counted_each_once_and_only_so_far_back(registry: JobRegistry) -> None:
    since = NOW - timedelta(minutes=10)
    assert registry.will_act("inc-a", now=NOW - timedelta(minutes=11), since=since) == 0
    assert registry.will_act("inc-b", now=NOW, since=since) == 1
    assert registry.will_act("inc-b", now=NOW + MINUTE, since=since) == 1
    assert registry.will_act("inc-c", now=NOW + MINUTE, since=since) == 2
    assert registry.will_act("inc-c", now=NOW + MINUTE, since=since, group="alike") == 1, "groups count apart"
    assert registry.count_active() == 0


def test_the_breaker_is_tripped_once_pages_once_and_stays_open_until_it_is_lifted(registry: JobRegistry) -> None:
    registry.trip("inc-a", now=NOW, text="too many")
    registry.trip("inc-b", now=NOW + MINUTE, text="still too many")
    breaker = registry.switches().breaker
    assert (breaker.is_open, breaker.incident_id, breaker.tripped_at) == (True, "inc-a", NOW)
    assert [registry.pages_for_breaker(one) for one in ("inc-b", "inc-a", "inc-b")] == [True, False, True]
    registry.release_breaker_page("inc-a")
    assert not registry.pages_for_breaker("inc-a"), "it was not the one that paged"
    registry.release_breaker_page("inc-b")
    assert registry.pages_for_breaker("inc-a"), "the next one pages"
    registry.lift(who="ada", now=NOW + 2 * MINUTE)
    assert not registry.switches().breaker.is_open
    registry.trip("inc-c", now=NOW + 3 * MINUTE, text="again")
    assert registry.switches().breaker.is_open
    assert registry.pages_for_breaker("inc-c"), "a new trip is a new page"
    registry.set_paused(True, who="ada", now=NOW)
    assert registry.switches().breaker.is_open, "one switch leaves the others as they are"
