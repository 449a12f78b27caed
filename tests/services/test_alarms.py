"""Alarms: what is made for a Job on moto's wire, whose a user's own alarm is, and what a ringing one is worth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chalicelib.api.fields import read_body
from chalicelib.api.operations.jobs import TrainingJob, watch_of
from chalicelib.aws.cloudwatch.alarms import AlarmKind, CloudWatchAlarms
from chalicelib.bootstrap import install
from chalicelib.domain.model.errors import CapacityUnavailable, InvalidRequest, Noise, NotAuthorized, NotOurs, Throttled
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import AlarmMode, WatchPlan
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.ingest import dispatch
from localcloud.aws.shapes import request_problems
from localcloud.aws.wire import FailureMode
from localcloud.cloud import Cloud
from localcloud.worlds.recoveries import Script, freeze_at, world
from rekindle.protocol.signals import FaultClass
from tests.services.test_sweep import a_job
from tests.services.world import JOB, World

EVENTS = Path(__file__).resolve().parents[2] / "events"
ARN = "arn:aws:cloudwatch:us-west-2:111122223333:alarm:my-own"


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud() as made:
        yield made
        install(None)


# --- what is made ---


def test_a_jobs_alarms_are_made_once_under_fixed_names_and_tags_and_removed(cloud: Cloud) -> None:
    client = cloud.client("cloudwatch")
    store = CloudWatchAlarms(client, stack="prod")
    job = a_job(watch=WatchPlan(alarms=AlarmMode.JOB, hang_minutes=20))
    names = store.put(job)
    assert names == ("prod-job-lm-hang", "prod-job-lm-non-finite", "prod-job-lm-throughput")
    assert store.put(job) == names
    made = {alarm["AlarmName"]: alarm for alarm in client.describe_alarms()["MetricAlarms"]}
    assert set(made) == set(names)
    hang = made["prod-job-lm-hang"]
    assert (hang["EvaluationPeriods"], hang["TreatMissingData"]) == (20, "breaching")
    assert store.tags_of(hang["AlarmArn"]) == {"rekindle:stack": "prod", "rekindle:job": "lm"}
    assert store.tags_of(ARN) == {}
    assert store.listed("") == (frozenset({"lm"}), "")
    store.put_shared()
    assert store.listed("") == (frozenset({"lm"}), "")  # the shared one is no Job's
    store.remove(["lm", "never-had-any"])
    store.remove_shared()
    store.remove_shared()
    assert client.describe_alarms()["MetricAlarms"] == []


def test_what_is_asked_for_is_what_cloudwatch_takes() -> None:
    """Held against botocore's model, without which moto would take anything."""
    asked: list[dict[str, Any]] = []

    class Client:
        def put_metric_alarm(self, **request: Any) -> None:
            asked.append(request)

    store = CloudWatchAlarms(Client(), stack="s" * 100)
    store.put(a_job("j" * 128, watch=WatchPlan(alarms=AlarmMode.JOB)))
    store.put(a_job(watch=WatchPlan(loss="train:loss", alarms=AlarmMode.JOB)))
    store.put_shared()
    assert [request_problems("cloudwatch", "PutMetricAlarm", request) for request in asked] == [[]] * 5
    assert asked[3]["Dimensions"] == [{"Name": "TrainingJobName", "Value": "lm"}]
    assert [entry.get("Expression") for entry in asked[4]["Metrics"]] == [
        'SELECT SUM(NonFinite) FROM SCHEMA("Rekindle/Training", JobId) GROUP BY JobId ORDER BY SUM() DESC'
    ]


@pytest.mark.parametrize("job_id", ["lm", "lm-hang", "a.b_c-non-finite-throughput"])
@pytest.mark.parametrize("kind", AlarmKind)
def test_an_alarms_name_gives_its_job_back(job_id: str, kind: AlarmKind) -> None:
    store = CloudWatchAlarms(None, stack="prod")
    assert store.job_of(store.name_of(job_id, kind)) == job_id
    assert store.job_of(f"prod-jobs-{kind}") == ""
    assert store.job_of("prod-function-errors") == ""


def test_a_quota_that_is_used_up_has_its_own_name(cloud: Cloud) -> None:
    class Full:
        def __init__(self) -> None:
            self.client = cloud.client("cloudwatch")

        def put_metric_alarm(self, **_: Any) -> None:
            raise self.client.exceptions.LimitExceededFault(
                {"Error": {"Code": "LimitExceeded", "Message": "too many"}}, "PutMetricAlarm"
            )

    with pytest.raises(CapacityUnavailable, match="too many"):
        CloudWatchAlarms(Full(), stack="prod").put(a_job())


# --- a registration asks ---


def read_watch(body: dict[str, Any]) -> dict[str, Any]:
    """What a registration with this body sets."""
    return watch_of(read_body(TrainingJob, {"training_job": "lm", **body}))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"alarms": "every"}, "alarms"),
        ({"alarms": 1}, "alarms"),
        ({"alarms": ["job"]}, "alarms"),
        ({"metrics": []}, "metrics"),
        ({"metrics": {"accuracy": "x"}}, "metrics.accuracy"),
        ({"metrics": {"loss": ""}}, "metrics.loss"),
        ({"metrics": {"loss": "a\nb"}}, "metrics.loss"),
        ({"metrics": {"loss": 5}}, "metrics.loss"),
        ({"metrics": {"loss": " "}}, "metrics.loss"),
        ({"metrics": {"step": "perte à l'entraînement"}}, "metrics.step"),
        ({"metrics": {"loss": "x" * 256}}, "metrics.loss"),
        ({"hang_minutes": 4}, "hang_minutes"),
        ({"hang_minutes": 1441}, "hang_minutes"),
        ({"hang_minutes": True}, "hang_minutes"),
        ({"hang_minutes": "15"}, "hang_minutes"),
        ({"alarms": "shared", "metrics": {"loss": "train:loss"}}, "alarms"),
    ],
)
def test_a_registration_that_cannot_be_meant_names_its_field(body: dict[str, Any], field: str) -> None:
    def register() -> None:
        read_watch(body)

    with pytest.raises(InvalidRequest) as caught:
        register()
    assert caught.value.field == field


def test_a_registration_makes_the_alarms_and_a_second_one_changes_them() -> None:
    w = World()
    w.scheduler.put("plain")
    watch = read_watch({"alarms": "job", "metrics": {"loss": "train:loss"}, "hang_minutes": 30})
    job = w.orders.register(training_job="plain", policy=None, mailbox=None, watch=watch)
    assert (job.watch.hang_minutes, job.watch.alarms_state, w.alarm_store.own) == (30, "made:plain", {"plain": "plain"})
    assert w.orders.register(training_job="plain", policy=None, mailbox=None) == w.registry.get("plain")
    job = w.orders.register(training_job="plain", policy=None, mailbox=None, watch=read_watch({"alarms": "none"}))
    assert (job.watch.loss, job.watch.alarms, w.alarm_store.own) == ("train:loss", AlarmMode.NONE, {})


# --- whose is it ---


def event(name: str, **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((EVENTS / f"cloudwatch_alarm_{name}.json").read_text(encoding="utf-8"))
    return body | changes


def test_a_users_own_alarm_is_understood_by_its_tags_looked_up_once() -> None:
    w = World()
    raw = event("no_run", resources=[ARN])
    with pytest.raises(NotOurs) as caught:
        dispatch.parse(raw)
    assert dispatch.alarm_to_look_up(raw, caught.value) == ARN
    w.alarm_store.tags[ARN] = {"rekindle:job": JOB, "rekindle:fault": "hang", "team": "lm"}
    for _ in range(3):
        tags = w.alarms.tags_of(ARN)
    (signal,) = dispatch.parse(dispatch.with_alarm_tags(raw, tags))
    assert (signal.job_id, signal.fault) == (JOB, FaultClass.HANG)
    assert w.alarm_store.lookups == [ARN]
    w.clock.advance(timedelta(minutes=6))
    w.alarms.tags_of(ARN)
    assert w.alarm_store.lookups == [ARN, ARN]  # tags may change


def test_what_is_remembered_of_tags_is_bounded() -> None:
    w = World()
    for number in range(2000):
        w.alarms.tags_of(f"{ARN}-{number}")
    w.alarms.tags_of(f"{ARN}-1999")
    assert len(w.alarm_store.lookups) == 2000
    w.alarms.tags_of(f"{ARN}-0")
    assert len(w.alarm_store.lookups) == 2001


@pytest.mark.parametrize(
    "raw",
    [
        event("several_runs"),
        event("no_run", source="aws.ec2"),
        event("no_run", resources=[]),
        event("no_run", resources=["arn:aws:ec2:us-west-2:111122223333:instance/i-1"]),
        event("no_run", detail={"state": {"value": "OK"}}),
        event("no_run", detail=None),
    ],
    ids=str,
)
def test_only_an_alarm_that_rings_and_names_nothing_is_worth_the_question(raw: dict[str, Any]) -> None:
    for why in ("alarm names no run", "alarm names several runs"):
        if why == "alarm names no run" and raw == event("several_runs"):
            continue
        assert dispatch.alarm_to_look_up(raw, NotOurs(why)) is None


def test_tags_that_may_not_be_read_make_it_nobodys_and_tags_not_now_make_it_come_again(cloud: Cloud) -> None:
    w = World()
    alarms = replace(w.alarms, alarm_store=CloudWatchAlarms(cloud.client("cloudwatch"), stack="prod"))
    cloud.wire.disturb("cloudwatch.ListTagsForResource", FailureMode.REFUSE)
    with pytest.raises(NotOurs):
        alarms.tags_of(ARN)
    cloud.wire.disturb("cloudwatch.ListTagsForResource", FailureMode.THROTTLE)
    with pytest.raises(Throttled):
        alarms.tags_of(ARN)
    assert not isinstance(NotOurs("x"), NotAuthorized)


# --- what a ringing alarm is worth ---


def rings(w: World, **changes: Any) -> Signal:
    signal = w.say(SignalKind.ALARM, None, FaultClass.HANG)
    return replace(signal, **changes)


def heartbeat(w: World, *, age_s: float = 0, work: str = "training") -> None:
    w.mailbox.heartbeats[JOB] = AttemptView(
        name=JOB,
        status=AttemptStatus.RUNNING,
        heartbeat_at=w.clock.now() - timedelta(seconds=age_s),
        last_step=Known(120),
        loss_state="finite",
        work=work,
    )


def test_a_hang_alarm_is_believed_where_neither_platform_nor_heartbeat_refutes_it() -> None:
    w = World()
    w.clock.advance(timedelta(hours=1))
    believed = w.alarms.weighed(rings(w))
    assert (believed.attempt, believed.triggers) == (JOB, True)
    heartbeat(w, work="stalled")
    assert w.alarms.weighed(rings(w)).evidence["step"] == 120
    heartbeat(w, age_s=300)  # the whole process stands still
    assert w.alarms.weighed(rings(w)).attempt == JOB


def test_a_hang_alarm_is_noise_while_a_living_monitor_sees_no_stall() -> None:
    w = World()
    w.clock.advance(timedelta(hours=1))
    heartbeat(w)
    with pytest.raises(Noise, match="own monitor reports"):
        w.alarms.weighed(rings(w))


@pytest.mark.parametrize("status", [AttemptStatus.STARTING, AttemptStatus.COMPLETED, AttemptStatus.STOPPING])
def test_a_hang_alarm_is_noise_while_the_run_is_not_training(status: AttemptStatus) -> None:
    w = World()
    w.clock.advance(timedelta(hours=1))
    w.scheduler.put(JOB, status)
    with pytest.raises(Noise):
        w.alarms.weighed(rings(w))


def test_a_hang_alarm_is_noise_about_the_time_before_the_attempt_and_after_the_end() -> None:
    w = World()
    w.clock.advance(timedelta(minutes=10))
    with pytest.raises(Noise, match="before this attempt"):
        w.alarms.weighed(rings(w))
    w.clock.advance(timedelta(minutes=10))
    w.registry.deactivate(JOB, ended_at=w.clock.now())
    with pytest.raises(Noise, match="over"):
        w.alarms.weighed(rings(w))


def test_other_signals_are_left_as_they_are() -> None:
    w = World()
    stall = w.say(SignalKind.STALL, JOB, FaultClass.HANG)
    unclear = replace(rings(w), fault=FaultClass.UNCLEAR, triggers=False)
    stranger = replace(rings(w), job_id="nobody")
    old = replace(rings(w), attempt="lm-r0")
    for signal in (stall, unclear, stranger, old):
        assert w.alarms.weighed(signal) is signal


# --- from silence to an Incident, on the embedded cloud ---


def hang_of(incidents: list[Incident]) -> list[Incident]:
    return [incident for incident in incidents if incident.fault is FaultClass.HANG]


def test_a_metric_that_falls_silent_rings_and_opens_an_incident() -> None:
    """A run that cannot be changed: no monitor, a loss read from its log, one alarm made by its registration."""
    with world() as w:
        w.cloud.alarms.start()
        stuck = Script(has_monitor=False, step=timedelta(seconds=20), faults=(freeze_at(60),))
        w.submit(scripts=(stuck, Script(has_monitor=False)))
        watch = read_watch({"metrics": {"loss": "train:loss"}, "alarms": "job", "hang_minutes": 5})
        job = w.service.orders.register(training_job="lm", policy=None, mailbox=None, watch=watch)
        assert job.watch.alarms_state == "made:lm"

        def log() -> None:
            """SageMaker reads the log once a minute."""
            for name, run in w.cloud.simulated.runs.items():
                if run.is_moving and run.step > 0:
                    datum = {
                        "MetricName": "train:loss",
                        "Dimensions": [{"Name": "TrainingJobName", "Value": name}],
                        "Timestamp": w.cloud.clock.now(),
                        "Value": 2.0,
                    }
                    w.cloud.client("cloudwatch").put_metric_data(
                        Namespace="/aws/sagemaker/TrainingJobs", MetricData=[datum]
                    )
            w.cloud.clock.after(timedelta(minutes=1), log)

        log()
        w.cloud.clock.run_for(timedelta(minutes=18))
        assert w.incidents() == []  # it starts, and it steps: the alarm has rung for the start, and was not believed
        rung = [body for _, body in w.cloud.events.put if body["source"] == "aws.cloudwatch"]
        assert [body["detail"]["state"]["value"] for body in rung] == ["ALARM", "OK"]
        w.run_until(lambda: bool(hang_of(w.incidents())), limit=timedelta(hours=1))
        (incident,) = hang_of(w.incidents())
        kinds = {signal.kind for signal in incident.signals} | {
            signal.kind for signal in w.service.store.load(incident.incident_id).inbox
        }
        assert SignalKind.ALARM in kinds
        assert incident.attempt == "lm"
        assert shape(rung[1]) == shape(event("plain"))
        w.cloud.alarms.stop()


@pytest.mark.long
def test_one_shared_alarm_rings_for_each_job_of_its_own() -> None:
    with world() as w:
        w.cloud.alarms.start()
        for name in ("a", "b"):
            w.submit(name, scripts=(Script(has_monitor=False),))
            w.service.orders.register(
                training_job=name, policy=None, mailbox=None, watch=read_watch({"alarms": "shared"})
            )
        w.cloud.clock.run_for(timedelta(minutes=2))
        start = w.cloud.clock.now()
        for minute in range(4):
            datum = {
                "MetricName": "NonFinite",
                "Dimensions": [{"Name": "JobId", "Value": "b"}],
                "Timestamp": start + timedelta(minutes=minute),
                "Value": 3.0,
            }
            w.cloud.client("cloudwatch").put_metric_data(Namespace="Rekindle/Training", MetricData=[datum])
        w.run_until(lambda: bool(w.incidents()), limit=timedelta(minutes=10))
        (incident,) = w.incidents()
        assert (incident.job_id, incident.fault) == ("b", FaultClass.NON_FINITE)
        w.cloud.alarms.stop()


def shape(body: Any) -> Any:
    """Names and kinds of a JSON document, without its values; texts that hold JSON are looked into."""
    if isinstance(body, dict):
        free = {"TrainingJobName", "startDate"}  # a dimension's name, and a member that comes and goes
        return {name: shape(value) for name, value in sorted(body.items()) if name not in free}
    if isinstance(body, list):
        return [shape(body[0])] if body else []
    if isinstance(body, str) and body.startswith("{"):
        return shape(json.loads(body))
    return "number" if isinstance(body, int | float) and not isinstance(body, bool) else type(body).__name__
