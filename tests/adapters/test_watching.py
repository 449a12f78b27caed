"""The registry as the sweep reads it, the sweep's mark, and the listing of states, over the fake and over moto."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from chalicelib.aws.dynamodb.items import key
from chalicelib.aws.dynamodb.small_items import DynamoSweepMarks
from chalicelib.aws.s3.saves import S3Saves
from chalicelib.domain.model.errors import UnknownEntity
from chalicelib.domain.model.job import AlarmMode, WatchPlan
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.platforms.training_job.scheduler import TrainingJobScheduler
from chalicelib.platforms.training_job.tags import TAG_ALARMS, TAG_LOSS, TAG_STEP, watch_of
from chalicelib.ports.sweep import SweepMark
from tests.adapters.conftest import TABLE, Shelf
from tests.adapters.samples import T0, attempt, job

PLAN = WatchPlan(loss="train:loss", alarms=AlarmMode.JOB, hang_minutes=30, alarms_state="made:lm")


def test_active_jobs_come_in_order_from_behind_a_given_one(shelf: Shelf) -> None:
    for name in ("b", "d", "a", "c"):
        shelf.registry.register(job(name), attempt(of=name))
    shelf.registry.deactivate("c", ended_at=T0)
    assert [job.job_id for job in shelf.registry.active()] == ["a", "b", "d"]
    assert [job.job_id for job in shelf.registry.active(after="a")] == ["b", "d"]
    assert [job.job_id for job in shelf.registry.active(after="bb")] == ["d"]
    assert list(shelf.registry.active(after="d")) == []


def test_how_a_job_is_watched_is_kept(shelf: Shelf) -> None:
    shelf.registry.register(job("a", watch=PLAN), attempt(of="a"))
    shelf.registry.register(job("b"), attempt(of="b"))
    assert (shelf.registry.get("a").watch, shelf.registry.get("b").watch) == (PLAN, WatchPlan())
    shelf.registry.set_watch("b", PLAN)
    shelf.registry.set_watch("a", WatchPlan())
    assert (shelf.registry.get("a").watch, shelf.registry.get("b").watch) == (WatchPlan(), PLAN)
    with pytest.raises(UnknownEntity):
        shelf.registry.set_watch("nobody", PLAN)


def test_a_record_that_cannot_be_read_leaves_the_others_listed(table: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b", "c"):
        table.registry.register(job(name), attempt(of=name))
    assert table.wire is not None
    table.wire.client.update_item(TableName=TABLE, Key=key("JOB#b"), UpdateExpression="REMOVE current_attempt")
    assert [job.job_id for job in table.registry.active()] == ["a", "c"]
    assert "cannot be read" in caplog.text


def test_the_sweeps_mark_is_kept_whole_and_a_broken_one_begins_anew(table: Shelf) -> None:
    assert table.wire is not None
    marks = DynamoSweepMarks(table.wire.client, table=TABLE)
    assert marks.load() == SweepMark()
    mark = SweepMark(
        round=7,
        cursor="lm",
        began_at=T0,
        last_began_at=T0 - timedelta(minutes=1),
        jobs=9,
        met=3,
        alarms_token="t",
        has_shared=True,
        has_unread=True,
    )
    marks.save(mark)
    assert marks.load() == mark
    for broken in ('{"round": 1}', "[]", "{", '{"began_at": "x", "last_began_at": null}'):
        item = key("SWEEP") | {"mark": {"S": broken}}
        table.wire.client.put_item(TableName=TABLE, Item=item)
        assert marks.load().round in (0, 1)


class Listing:
    """ListTrainingJobs, page after page."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.asked: list[dict[str, Any]] = []

    def list_training_jobs(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        number = len(self.asked)
        entry = {"TrainingJobName": f"job-{number}", "TrainingJobStatus": "Failed", "SecondaryStatus": "Failed"}
        more = {"NextToken": str(number)} if number < self.pages else {}
        return {"TrainingJobSummaries": [entry], **more}


def test_a_listing_is_read_to_its_end_or_is_unknown() -> None:
    short, long = Listing(3), Listing(1000)
    found = TrainingJobScheduler(short).changed(T0)
    assert found == Known({f"job-{number}": AttemptStatus.FAILED for number in (1, 2, 3)})
    assert [request.get("NextToken") for request in short.asked] == [None, "1", "2"]
    assert all(request["LastModifiedTimeAfter"] == T0 for request in short.asked)
    assert isinstance(TrainingJobScheduler(long).changed(T0), Unknown)
    assert len(long.asked) == 20


@pytest.mark.parametrize(
    ("tags", "plan"),
    [
        ({}, WatchPlan()),
        ({TAG_LOSS: "train:loss", TAG_ALARMS: "job"}, WatchPlan(loss="train:loss", alarms=AlarmMode.JOB)),
        ({TAG_ALARMS: "all of them"}, WatchPlan()),
        ({TAG_LOSS: "l\u00f6ss", TAG_STEP: " "}, WatchPlan()),  # would fail the call that reads all Jobs' metrics
    ],
)
def test_a_training_jobs_tags_say_how_to_watch_it(tags: dict[str, str], plan: WatchPlan) -> None:
    assert watch_of(tags) == plan


def test_saves_that_cannot_be_listed_are_unknown() -> None:
    class Endless:
        def list_objects_v2(self, **_: Any) -> dict[str, Any]:
            return {"Contents": [], "IsTruncated": True, "NextContinuationToken": "t"}

    assert isinstance(S3Saves(Endless()).saves(job("lm", mailbox="s3://b/lm")), Unknown)
    assert isinstance(S3Saves(None).saves(job("lm", mailbox="/fsx/lm")), Unknown)
    assert isinstance(S3Saves(None).saves(job("lm", mailbox="")), Unknown)
