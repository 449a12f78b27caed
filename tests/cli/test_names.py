"""Names by their beginning, misspelt ones, ages, and the policy that is built in."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from rekindle.client.api import path
from tests.cli.conftest import Run
from tests.cli.service import FakeService


@pytest.fixture
def incident(service: FakeService) -> str:
    service.protect("lm")
    return service.fail("lm")


def test_the_beginning_of_an_incidents_id_is_enough_to_look_at_it(rekindle: Run, incident: str) -> None:
    ended = rekindle("show", incident[:-4], "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["incident_id"] == incident
    assert ended.err == f"rekindle: Incident {incident}\n"


def test_the_beginning_of_a_jobs_name_is_enough_to_look_at_it(rekindle: Run, service: FakeService) -> None:
    service.protect("llama-70b")
    ended = rekindle("jobs", "llama", "--json")
    assert (ended.code, json.loads(ended.out)["job_id"]) == (0, "llama-70b")


def test_a_whole_name_wins_over_what_it_is_the_beginning_of(rekindle: Run, service: FakeService) -> None:
    for name in ("lm", "lm-2"):
        service.protect(name)
    assert json.loads(rekindle("jobs", "lm", "--json").out)["job_id"] == "lm"


def test_a_beginning_of_several_names_is_answered_with_them(rekindle: Run, service: FakeService) -> None:
    for name in ("llama-7b", "llama-70b"):
        service.protect(name)
    ended = rekindle("jobs", "llama")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "rekindle: 'llama' is the beginning of 2 Jobs: llama-70b, llama-7b\n"


@pytest.mark.parametrize(
    "argv",
    [
        ("checkpoint", "llama"),
        ("stop", "llama", "--yes"),
        ("resubmit", "llama", "--yes"),
    ],
)
def test_no_order_is_given_to_a_job_whose_name_was_not_given_whole(
    rekindle: Run, service: FakeService, argv: tuple[str, ...]
) -> None:
    service.protect("llama-70b")
    ended = rekindle(*argv)
    assert (ended.code, ended.out) == (3, "")
    assert "did you mean llama-70b?" in ended.err
    assert service.registry.get("llama-70b").open_incident is None


def test_an_incident_is_not_cancelled_by_its_beginning_where_nobody_is_asked(
    rekindle: Run, service: FakeService, incident: str
) -> None:
    ended = rekindle("cancel", incident[:-4], "--yes")
    assert ended.code == 3
    assert f"did you mean {incident}?" in ended.err
    assert not any(seen.method == "POST" for seen in service.requests)


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (("jobs", "lama-70b"), "llama-70b"),
        (("incidents", "--job", "lama-70b"), "llama-70b"),
        (("policy", "get", "defualt"), "default"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(
    rekindle: Run, service: FakeService, argv: tuple[str, ...], meant: str
) -> None:
    service.protect("llama-70b")
    ended = rekindle(*argv)
    assert ended.code == 3
    assert ended.err.endswith(f"did you mean {meant}?\n")
    assert ended.err.count("\n") == 1


def test_a_name_that_is_near_to_nothing_is_only_not_found(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    ended = rekindle("jobs", "zzzzzz")
    assert (ended.code, "did you mean" in ended.err) == (3, False)


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (("stauts",), "status"),
        (("policy", "lst"), "list"),
        (("status", "--jsn"), "--json"),
        (("policy", "get", "x", "--efective"), "--effective"),
        (("incidents", "--fault", "los_spike"), "loss_spike"),
        (("drill", "hnag", "--job", "lm"), "hang"),
    ],
)
def test_a_misspelt_command_or_option_is_answered_with_the_nearest(run: Run, argv: tuple[str, ...], meant: str) -> None:
    ended = run(*argv)
    assert ended.code == 2
    assert f"did you mean {meant}" in ended.err


@pytest.mark.parametrize(
    ("age", "expected"),
    [("24h", timedelta(hours=24)), ("90m", timedelta(minutes=90)), ("7d", timedelta(days=7)), ("2w", timedelta(14))],
)
def test_an_age_is_counted_back_from_now(rekindle: Run, service: FakeService, age: str, expected: timedelta) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    assert rekindle("incidents", "--since", age).code == 0
    after = datetime.now(UTC)
    asked = parse_qs(urlsplit(service.requests[0].path).query)["since"][0]
    assert before - expected <= datetime.fromisoformat(asked) <= after - expected


@pytest.mark.parametrize("age", ["0h", "-1h", "h", "24", "1y", "1.5h", "9999999h", "999999w", "24 h", "٢h"])
def test_an_age_that_is_none_is_wrong_usage(rekindle: Run, service: FakeService, age: str) -> None:
    ended = rekindle("incidents", f"--since={age}")
    assert ended.code == 2
    assert "--since" in ended.err
    assert service.requests == []


def test_the_built_in_policy_is_printed_with_every_field_and_can_be_stored(
    rekindle: Run, service: FakeService, tmp_path: object
) -> None:
    ended = rekindle("policy", "get", "default")
    document = json.loads(ended.out)
    assert (ended.code, document["budgets"]["max_attempts"] > 0) == (0, True)
    answer = service.policy_documents.validate(document, name="default")
    assert answer["problems"] == []


def test_what_a_name_holds_cannot_leave_its_place_in_the_path() -> None:
    assert path("jobs", "a/../b") == "/jobs/a%2F..%2Fb"
