"""What a sweep asks of AWS, counted on moto's wire with the real adapters; no time is measured here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from chalicelib.domain.model.job import WatchPlan
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.signal import SignalKind
from chalicelib.ports.sweep import MetricQuery
from chalicelib.services.reporting.outcome import OutcomeKind
from localcloud.aws.sagemaker import Phase
from localcloud.aws.wire import FailureMode
from rekindle.protocol.mailbox import LossState, RunPhase
from tests.fakes.fleet import BAD, LOSS, STEP, Fleet, fleet

QUIET = {"dynamodb.GetItem", "dynamodb.PutItem", "dynamodb.Query", "dynamodb.BatchGetItem"}  # registry and mark


@pytest.fixture
def f() -> Iterator[Fleet]:
    with fleet() as made:
        yield made


def settle(f: Fleet, rounds: int = 1) -> None:
    """The first rounds ask about every Job; a mark with a round behind it is the steady state."""
    for _ in range(rounds):
        f.move()
        f.sweep()
        f.wait()
    f.service.marks.save(replace(f.service.marks.load(), round=1000))


@pytest.mark.parametrize("count", [10, 100])
def test_a_sweep_over_well_runs_lists_once_and_reads_metrics_in_batches(f: Fleet, count: int) -> None:
    f.add(count)
    settle(f)
    f.move()
    swept, calls = f.sweep()
    assert (swept.jobs, swept.unread, swept.left, swept.unknown, swept.outcomes) == (count, 0, 0, 0, [])
    assert calls["sagemaker.ListTrainingJobs"] == -(-count // 100)
    assert calls["cloudwatch.GetMetricData"] == 1  # two metrics per Job, 500 per call
    assert calls["sagemaker.DescribeTrainingJob"] == f.turns(30)
    assert calls["s3.GetObject"] == f.turns(10)
    assert calls["s3.ListObjectsV2"] == 2 * f.turns(30)  # its manifests, and heartbeats of others
    assert calls["dynamodb.BatchGetItem"] == -(-count // 100)
    assert calls["dynamodb.Query"] == 2  # open Incidents, active Jobs
    assert (calls["dynamodb.GetItem"], calls["dynamodb.PutItem"]) == (1, 1)  # the mark


def test_the_first_round_asks_about_every_job(f: Fleet) -> None:
    f.add(7)
    f.move()
    _, calls = f.sweep()
    assert calls["sagemaker.DescribeTrainingJob"] == 7
    assert calls["sagemaker.ListTrainingJobs"] == 0


def test_600_metrics_take_two_calls(f: Fleet) -> None:
    names = [f"job-{number}" for number in range(600)]
    queries = [
        MetricQuery(key=name, namespace=STEP[0], name=STEP[1], dimension=(STEP[2], name), stat="Sum") for name in names
    ]
    now = f.cloud.clock.now()
    f.points(STEP, {"job-599": [(now - timedelta(minutes=1), 7.0)]})
    f.cloud.wire.calls.clear()
    found = f.service.metrics.series_of(queries, since=now - timedelta(minutes=5), until=now)
    assert f.cloud.wire.calls["cloudwatch.GetMetricData"] == 2
    assert len(found) == 600
    last, other = found["job-599"], found["job-0"]
    assert isinstance(last, Known)
    assert [value for _, value in last.value] == [7.0]
    assert other == Known(())


def test_a_failed_run_whose_event_got_lost_is_found_by_the_listing_and_confirmed(f: Fleet) -> None:
    f.add(30)
    settle(f)
    f.move()
    f.cloud.training.enter("job-00007", Phase.FAILED, failure_reason="AlgorithmError: boom")
    swept, calls = f.sweep()
    described = f.turns(30)
    assert [(outcome.what, outcome.job_id) for outcome in swept.outcomes] == [(OutcomeKind.OPENED, "job-00007")]
    assert calls["sagemaker.ListTrainingJobs"] == 1
    # The failed one is confirmed, and it may have had its pass anyway.
    assert calls["sagemaker.DescribeTrainingJob"] in (described + 1, described + 2)
    f.wait()  # before an Incident opens, the run is asked whether it still wants to be protected
    swept, _ = f.sweep()
    assert swept.outcomes == []  # its Incident has it


def test_a_listing_that_cannot_be_read_falls_back_to_asking_about_every_job(f: Fleet) -> None:
    f.add(5)
    settle(f)
    f.move()
    f.cloud.training.enter("job-00003", Phase.FAILED, failure_reason="boom")
    f.cloud.wire.disturb("sagemaker.ListTrainingJobs", FailureMode.REFUSE)
    swept, calls = f.sweep()
    assert [outcome.job_id for outcome in swept.outcomes] == ["job-00003"]
    assert calls["sagemaker.DescribeTrainingJob"] == 6


def test_a_name_that_the_platform_has_forgotten_is_said_to_be_gone_only_when_asked_for(f: Fleet) -> None:
    f.add(5)
    settle(f)
    gone = f.jobs[3]
    del f.cloud.training.jobs[gone.current_attempt]
    f.give_turn(gone, 30)
    mark = f.service.marks.load()
    f.service.marks.save(replace(mark, round=mark.round + 1))
    f.move()
    assert f.sweep()[0].outcomes == []  # a listing that does not hold it says nothing
    f.give_turn(gone, 30)
    swept, _ = f.sweep()
    assert [(outcome.what, outcome.job_id) for outcome in swept.outcomes] == [(OutcomeKind.OPENED, gone.job_id)]
    (incident,) = [incident for incident, _ in f.service.store.list_open()]
    (signal,) = f.service.store.load(incident.incident_id).inbox
    assert signal.evidence["status"] == "Gone"


def test_only_jobs_whose_steps_do_not_show_are_asked_for_their_heartbeat(f: Fleet) -> None:
    f.add(20)
    settle(f)
    still = f.jobs[4]
    f.wait(10)
    f.move(jobs=[job for job in f.jobs if job is not still])
    f.heartbeat(still, phase=RunPhase.STALLED)
    swept, calls = f.sweep()
    expected = f.turns(10)
    assert calls["s3.GetObject"] in (expected, expected + 1)
    assert [(outcome.what, outcome.job_id, outcome.signal) for outcome in swept.outcomes] == [
        (OutcomeKind.OPENED, still.job_id, SignalKind.STALL)
    ]


def test_metrics_that_cannot_be_read_are_unknown_and_the_heartbeats_speak(f: Fleet) -> None:
    f.add(6)
    settle(f)
    f.move()
    for job in f.jobs:
        f.heartbeat(job)
    f.heartbeat(f.jobs[2], loss=None, loss_state=LossState.NAN)
    f.cloud.wire.disturb("cloudwatch.GetMetricData", FailureMode.FAIL)
    swept, calls = f.sweep()
    assert swept.unknown == 12
    assert calls["s3.GetObject"] == 6
    assert [outcome.job_id for outcome in swept.outcomes] == [f.jobs[2].job_id]


def test_unknown_metrics_without_a_heartbeat_are_no_reason_to_say_anything(f: Fleet) -> None:
    f.add(3)
    settle(f)
    f.wait(120)
    f.cloud.wire.disturb("cloudwatch.GetMetricData", FailureMode.THROTTLE, times=5)
    swept, _ = f.sweep()
    assert (swept.outcomes, swept.unread, swept.unknown) == ([], 0, 6)


def test_a_run_that_moves_and_counts_bad_values_is_judged_by_its_heartbeat(f: Fleet) -> None:
    f.add(2)
    settle(f)
    f.move()
    now = f.cloud.clock.now()
    f.points(BAD, {job.job_id: [(now - timedelta(minutes=1), 3.0)] for job in f.jobs})
    f.heartbeat(f.jobs[0])  # an overflow of fp16 scaling: the loss is finite
    f.heartbeat(f.jobs[1], loss=None, loss_state=LossState.NAN)
    swept, _ = f.sweep()
    assert [outcome.job_id for outcome in swept.outcomes] == [f.jobs[1].job_id]


def test_a_job_without_a_monitor_is_judged_by_its_own_metrics(f: Fleet) -> None:
    f.add(2, mailbox=False, watch=WatchPlan(loss="train:loss"))
    settle(f)
    now = f.cloud.clock.now()
    well = [(now - timedelta(minutes=n), 2.0 + 0.01 * (n % 3)) for n in range(90, 0, -1)]
    bad = [(at, value + (40.0 if now - at <= timedelta(minutes=6) else 0.0)) for at, value in well]
    f.points(LOSS, {f.jobs[0].job_id: well, f.jobs[1].job_id: bad})
    swept, calls = f.sweep()
    assert [(outcome.job_id, outcome.signal) for outcome in swept.outcomes] == [
        (f.jobs[1].job_id, SignalKind.LOSS_SPIKE)
    ]
    assert calls["cloudwatch.GetMetricData"] == 1
    f.wait()
    assert f.sweep()[0].outcomes == []  # its Incident has it


def test_a_job_without_a_monitor_whose_metric_falls_silent_hangs_unless_it_is_uploading(f: Fleet) -> None:
    f.add(2, mailbox=False, watch=WatchPlan(loss="train:loss"))
    settle(f)
    now = f.cloud.clock.now()
    series = [(now - timedelta(minutes=n), 2.0) for n in range(90, 35, -1)]
    f.points(LOSS, {job.job_id: series for job in f.jobs})
    f.cloud.training.enter(f.jobs[1].job_id, Phase.UPLOADING)
    swept, _ = f.sweep()
    assert [(outcome.job_id, outcome.signal) for outcome in swept.outcomes] == [(f.jobs[0].job_id, SignalKind.STALL)]


def test_an_overdue_checkpoint_is_told_when_its_turn_comes(f: Fleet) -> None:
    f.add(1)
    settle(f)
    for step in range(100, 600, 100):
        f.wait(10)
        f.save(f.jobs[0], step)
    f.wait(25)
    f.move()
    f.give_turn(f.jobs[0], 30)
    assert f.sweep()[0].outcomes == []  # within three of its own intervals
    f.wait(10)
    f.move()
    assert f.sweep()[0].outcomes == []  # not its pass
    f.give_turn(f.jobs[0], 30)
    swept, _ = f.sweep()
    assert [(outcome.what, outcome.signal) for outcome in swept.outcomes] == [
        (OutcomeKind.OPENED, SignalKind.SAVE_FAILED)
    ]


def test_pages_of_one_answer_are_put_together_and_an_unfinished_one_is_unknown() -> None:
    from chalicelib.aws.cloudwatch.metrics import CloudWatchMetrics
    from tests.fakes.world import START

    at = [START - timedelta(minutes=n) for n in (3, 2, 1)]

    class Pages:
        """Answers as CloudWatch would, page by page."""

        def __init__(self, *pages: dict[str, object]) -> None:
            self.pages = list(pages)
            self.tokens: list[object] = []

        def get_metric_data(self, **request: object) -> dict[str, object]:
            self.tokens.append(request.get("NextToken"))
            return self.pages.pop(0)

    def result(index: int, times: list[int], status: str) -> dict[str, object]:
        stamps = [at[n] for n in times]
        return {"Id": f"m{index}", "Timestamps": stamps, "Values": [float(n) for n in times], "StatusCode": status}

    client = Pages(
        {"MetricDataResults": [result(0, [0, 1], "PartialData"), result(1, [0], "Complete")], "NextToken": "t"},
        {
            "MetricDataResults": [
                result(0, [2], "Complete"),
                result(2, [0], "PartialData"),
                result(3, [], "InternalError"),
            ]
        },
    )
    queries = [MetricQuery(key=str(n), namespace="N", name="m", dimension=("d", "v"), stat="Sum") for n in range(5)]
    found = CloudWatchMetrics(client).series_of(queries, since=at[0], until=START)
    assert client.tokens == [None, "t"]
    assert found["0"] == Known(((at[0], 0.0), (at[1], 1.0), (at[2], 2.0)))
    assert found["1"] == Known(((at[0], 0.0),))
    assert all(isinstance(found[key], Unknown) for key in ("2", "3", "4"))  # partial, failed, never mentioned
