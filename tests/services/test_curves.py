"""Curves: the right metrics in one call, Unknown where there is nothing, and never more points than can be seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from chalicelib.domain.model.errors import InvalidRequest, UnknownEntity
from chalicelib.domain.model.job import Attempt, Job, WatchPlan
from chalicelib.domain.reporting.windows import MAX_MINUTES
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from chalicelib.services.reporting.curves import CURVES, MAX_POINTS, Curves, period_for
from localcloud.memory_tables import MemoryJobs
from rekindle.monitor.base.metrics import Sample, aggregate
from tests.fakes.fleet import fleet
from tests.fakes.watching import FakeMetrics
from tests.fakes.world import FakeClock

AT = datetime(2026, 11, 20, 10, tzinfo=UTC)


def job(**changes: object) -> Job:
    plain = Job(
        job_id="lm",
        name="lm",
        platform=TRAINING_JOB.name,
        policy_name="default",
        created_at=AT,
        current_attempt="lm-r1",
        attempt_number=2,
        attempt_started_at=AT,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def curves(one: Job, *attempts: Attempt) -> tuple[Curves, FakeMetrics]:
    clock, registry, metrics = FakeClock(), MemoryJobs(), FakeMetrics()
    clock.advance(AT + timedelta(hours=1) - clock.now())
    first, *more = attempts or (Attempt(job_id="lm", number=1, name="lm", submitted_at=AT),)
    registry.register(replace(one, current_attempt=first.name, attempt_number=first.number), first)
    for attempt in more:
        registry.add_attempt(registry.get("lm"), attempt, now=AT)
    return Curves(registry=registry, metrics=metrics, clock=clock), metrics


def test_a_monitors_curves_are_its_metrics_and_what_it_did_not_send_is_unknown() -> None:
    read, metrics = curves(job())
    metrics.put("Loss", "lm", [(AT + timedelta(minutes=30), 2.5), (AT + timedelta(minutes=20), 3.0)])
    metrics.put("Step", "lm", [(AT + timedelta(minutes=30), 300.0)])
    metrics.broken.add("GradNorm")
    body = read.read("lm")
    assert body["curves"]["loss"] == {
        "known": [[(AT + timedelta(minutes=20)).timestamp(), 3.0], [(AT + timedelta(minutes=30)).timestamp(), 2.5]]
    }
    assert body["curves"]["step"]["known"] == [[(AT + timedelta(minutes=30)).timestamp(), 300.0]]
    assert body["curves"]["grad_norm"] == {"unknown": "InternalError"}
    assert body["curves"]["step_s"] == {"unknown": "no data points in this window"}
    assert (body["source"], set(body["curves"])) == ("monitor", set(CURVES))


def test_a_training_jobs_own_metrics_are_read_attempt_by_attempt() -> None:
    watch = WatchPlan(loss="train:loss", step="train:step")
    first = Attempt(job_id="lm", number=1, name="lm", submitted_at=AT, ended_at=AT + timedelta(minutes=20))
    second = Attempt(job_id="lm", number=2, name="lm-r1", submitted_at=AT + timedelta(minutes=22))
    read, metrics = curves(job(watch=watch), first, second)
    metrics.put("train:loss", "lm", [(AT + timedelta(minutes=10), 3.0)])
    metrics.put("train:loss", "lm-r1", [(AT + timedelta(minutes=30), 2.0)])
    body = read.read("lm", minutes=60)
    assert [value for _, value in body["curves"]["loss"]["known"]] == [3.0, 2.0]
    assert body["curves"]["step_s"] == {"unknown": "the Job sends no such metric"}
    assert {query.dimension[1] for query in metrics.asked} == {"lm", "lm-r1"}
    metrics.asked.clear()
    read.read("lm", minutes=15)  # the first attempt had ended before
    assert {query.dimension[1] for query in metrics.asked} == {"lm-r1"}


def test_one_attempt_that_cannot_be_read_makes_the_curve_unknown_not_shorter() -> None:
    watch = WatchPlan(loss="train:loss")
    read, metrics = curves(job(watch=watch))
    metrics.broken.add("train:loss")
    assert read.read("lm")["curves"]["loss"] == {"unknown": "InternalError"}


def test_where_seconds_are_refused_minutes_are_read() -> None:
    read, metrics = curves(job())
    metrics.broken |= {"Loss", "Step", "StepSeconds", "GradNorm", "TokensPerSecond", "NonFinite"}
    body = read.read("lm", minutes=10)
    assert [query.period_s for query in metrics.asked] == [1] * 8 + [60] * 8
    assert body["period_s"] == 60


@pytest.mark.parametrize("minutes", [1, 16, 17, 80, 120, 180, 181, 720, 3600, 10_800, MAX_MINUTES])
def test_no_window_has_more_points_than_can_be_seen(minutes: int) -> None:
    window = timedelta(minutes=minutes)
    assert window.total_seconds() / period_for(window, age=window) <= MAX_POINTS
    assert period_for(timedelta(minutes=5), age=timedelta(hours=4)) == 60  # no seconds are kept that long


@pytest.mark.parametrize("minutes", [0, -1, MAX_MINUTES + 1])
def test_a_window_out_of_bounds_is_refused_by_its_name(minutes: int) -> None:
    read, _ = curves(job())
    with pytest.raises(InvalidRequest, match="minutes"):
        read.read("lm", minutes=minutes)
    with pytest.raises(UnknownEntity):
        read.read("nobody")


def test_what_a_fine_monitor_sends_comes_back_by_the_second_in_one_call() -> None:
    with fleet() as f:
        f.add(1)
        (name,) = [job.job_id for job in f.service.registry.active()]
        now = f.cloud.clock.now()
        for second in range(20):
            data = aggregate(
                [Sample(step=second, step_s=0.5, loss=3.0 - second / 10)],
                at=now - timedelta(seconds=20 - second),
                dimensions={"JobId": name},
                is_fine=True,
            )
            assert all(datum["StorageResolution"] == 1 for datum in data)
            f.cloud.client("cloudwatch").put_metric_data(Namespace="Rekindle/Training", MetricData=data)
        f.cloud.wire.calls.clear()
        body = f.service.curves.read(name, minutes=10)
        assert len(body["curves"]["loss"]["known"]) == 20
        assert Counter(f.cloud.wire.calls)["cloudwatch.GetMetricData"] == 1
