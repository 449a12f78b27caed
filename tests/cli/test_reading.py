"""Commands that only look, against the real routes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.service import FakeService, resumed_event

_EVENTS = Path(__file__).parents[2] / "events"


def test_status_says_what_goes_on(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    incident = service.fail("lm")
    ended = rekindle("status")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[:3] == ["protection  on", "jobs        1 active", "incidents   1 open"]
    assert incident in ended.out


def test_status_for_machines_is_what_the_service_says(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    body = json.loads(rekindle("status", "--json").out)
    assert (body["paused"], body["jobs_active"], body["incidents_open"]) == (False, 1, 0)


def test_jobs_are_a_table_with_aligned_columns(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    service.protect("a-much-longer-name")
    ended = rekindle("jobs")
    head, *rows = ended.out.splitlines()
    assert head.split() == ["JOB", "STATE", "ATTEMPT", "RUNNING", "AS", "POLICY", "INCIDENT"]
    assert {row.index("active") for row in rows} == {head.index("STATE")}
    assert len(rows) == 2


def test_jobs_of_every_page_are_listed(rekindle: Run, service: FakeService) -> None:
    for number in range(205):
        service.protect(f"lm-{number}")
    assert len(json.loads(rekindle("jobs", "--json").out)["jobs"]) == 205


def test_no_jobs_says_how_to_protect_one(rekindle: Run) -> None:
    ended = rekindle("jobs")
    assert ended.code == 0
    assert "rekindle:policy" in ended.out


def test_one_job_shows_attempts_and_incidents(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    incident = service.stall("lm")
    service.work(incident)
    ended = rekindle("jobs", "lm")
    assert ended.code == 0
    assert "lm-r2" in ended.out
    assert incident in ended.out
    assert "s3://box/runs/lm" in ended.out
    body = json.loads(rekindle("jobs", "lm", "--json").out)
    assert [attempt["name"] for attempt in body["attempts"]] == ["lm", "lm-r2"]


def test_an_unknown_job_or_incident_is_exit_code_3(rekindle: Run) -> None:
    for command in (("jobs", "nothing"), ("show", "inc-nothing"), ("show", "inc-nothing", "--json")):
        ended = rekindle(*command)
        assert ended.code == 3
        assert ended.out == ""
        assert ended.err.startswith("rekindle: ")
        assert ended.err.count("\n") == 1


def test_incidents_are_the_open_ones_and_then_the_closed_ones(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    service.protect("other")
    service.work(service.stall("lm"))
    open_now = service.stall("other")

    def ids(*flags: str) -> list[str]:
        return [item["job_id"] for item in json.loads(rekindle("incidents", *flags, "--json").out)["incidents"]]

    assert ids() == ["other", "lm"]
    assert ids("--open") == ["other"]
    assert ids("--closed") == ["lm"]
    assert ids("--all") == ["other", "lm"]
    assert open_now in rekindle("incidents").out
    assert "recovered" in rekindle("incidents", "--closed").out


def test_more_closed_incidents_than_asked_for_is_said(rekindle: Run, service: FakeService) -> None:
    for name in ("a", "b", "c"):
        service.protect(name)
        service.work(service.stall(name))
    ended = rekindle("incidents", "--closed", "--limit", "2", "--json")
    assert len(json.loads(ended.out)["incidents"]) == 2
    assert "--limit" in ended.err
    assert rekindle("incidents", "--closed", "--limit", "3").err == ""
    assert rekindle("incidents", "--all").err == ""


def test_news_is_counted_in_the_evidence_and_not_told(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    incident = service.stall("lm")
    service.ingress.take("monitor_event", resumed_event("lm", 100))
    service.work(incident, looks=1)
    ended = rekindle("show", incident)
    assert "and 1 more" in ended.out
    assert "progress_resumed" not in ended.out


def test_no_incidents_is_said_in_words(rekindle: Run) -> None:
    assert rekindle("incidents", "--open").out == "No open Incidents.\n"
    assert rekindle("incidents", "--closed").out == "No closed Incidents.\n"
    for flags in ((), ("--all",)):
        assert rekindle("incidents", *flags).out == "No Incidents.\n"


def test_the_story_tells_fault_evidence_looks_actions_and_results_in_order(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    incident = service.stall("lm")
    assert service.work(incident).phase == "recovered"
    ended = rekindle("show", incident)
    assert ended.code == 0
    told = [
        f"{incident}  recovered, open for",
        "job lm",
        "hang, by rule signal.stall",
        "EVIDENCE",
        "stall from rekindle.monitor",
        "STORY",
        "playbook.checkpoint",
        "-> RequestCheckpoint: done",
        "checkpoint.saved",
        "-> StopJob: done",
        "resubmit.now",
        "-> ResubmitJob: done",
        "verify.passed",
        "-> Notify",
        "RESUBMITTED",
        "lm-r2",
    ]
    rest = ended.out
    for words in told:
        assert words in rest, words
        rest = rest.partition(words)[2]
    assert max(len(line) for line in ended.out.splitlines()) <= 100


def test_an_open_story_ends_where_it_stands(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    incident = service.stall("lm")
    waiting = rekindle("show", incident).out
    assert "stall from rekindle.monitor" in waiting  # not absorbed yet, and told all the same
    service.work(incident, looks=1)
    ended = rekindle("show", incident)
    assert "asked for, answer due by 2026-11-20 10:00:30Z" in ended.out
    assert "recovered" not in ended.out


def test_show_for_machines_is_the_whole_incident(rekindle: Run, service: FakeService) -> None:
    service.protect("lm")
    incident = service.stall("lm")
    service.work(incident)
    body = json.loads(rekindle("show", incident, "--json").out)
    assert body["incident_id"] == incident
    assert body["timeline"][0]["rule"] == "playbook.checkpoint"


def test_an_incident_about_a_cluster_is_told(rekindle: Run, service: FakeService) -> None:
    service.clusters.policies["pretrain"] = "default"
    event = json.loads((_EVENTS / "logs_batch_hma_slurm_xid79.json").read_text())
    incident = service.ingress.take("log_batch", event)[0]["incident_id"]
    service.work(incident)
    assert "cluster pretrain" in rekindle("show", incident).out
    assert "pretrain" in rekindle("incidents", "--closed").out


def test_quarantine_shows_which_field_was_wrong(rekindle: Run, service: FakeService) -> None:
    assert rekindle("quarantine", "list").out == "Nothing is in quarantine.\n"
    service.ingress.take("training_job_event", {"version": "0"})
    ended = rekindle("quarantine", "list")
    assert "training_job_event" in ended.out
    assert "account" in ended.out
    assert len(json.loads(rekindle("quarantine", "list", "--json").out)["events"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {
            "timeline": "no list",
            "signals": {"not": "a list"},
            "resubmission": {"tries": [1, None]},
            "loss": 3,
            "halt": [],
        },
        {
            "incident_id": 7,
            "phase": None,
            "opened_at": "yesterday",
            "timeline": [{}],
            "signals": [{}],
            "resubmission": {"tries": [{}]},
        },
        {
            "halt": {"ask": {}},
            "order": [],
            "target_step": {"unknown": None},
            "loss": {"skips": [[1], "x"]},
            "timeline": [{"actions": 3}],
        },
        {"opened_at": "2026-11-20T10:00:00", "timeline": [{"at": "2026-11-20T10:00:00+00:00", "facts": []}]},
    ],
)
def test_an_answer_of_another_shape_is_no_traceback(
    rekindle: Run, service: FakeService, body: dict[str, object]
) -> None:
    for command in (
        ("show", "x"),
        ("status",),
        ("jobs",),
        ("jobs", "x"),
        ("incidents", "--all"),
        ("quarantine", "list"),
        ("undelivered", "list"),
    ):
        content = json.dumps(body).encode()
        service.answers[:] = [(200, {}, content), (200, {}, content)]
        assert rekindle(*command).code == 0
