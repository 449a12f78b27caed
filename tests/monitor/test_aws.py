"""The monitor against AWS's APIs over HTTP, and against their absence."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from chalicelib.domain.model.signal import SignalKind
from chalicelib.ingest.envelope import open_envelope
from chalicelib.ingest.monitor import parse as parse_event
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.run import Holding, Identity, Run, SystemClock
from rekindle.monitor.base.settings import Config
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.mail.boxes import S3Box, mailbox_failed, open_box
from rekindle.monitor.mail.outbox import MAX_EVENTS_WAITING, SPEAKERS, Outbox
from rekindle.monitor.saving.measure import measure
from rekindle.monitor.saving.saved import SaveResult
from rekindle.protocol.keys import heartbeat_key, manifest_key, manifest_prefix, parse_key, reply_key, request_prefix
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, Heartbeat, ReplyOutcome
from rekindle.protocol.manifests import Manifest, verify_listing
from rekindle.protocol.signals import EventType
from rekindle.protocol.wire import Place
from tests.monitor.boxes import PATIENCE_S, QUICK, start_monitor

IDENTITY = Identity(job_id="job", attempt="run-1", attempt_number=1, rank=0, world_size=1)
pytestmark = pytest.mark.long

FAKE = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
}
JOB = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1", "REKINDLE_BUS": "rekindle"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def cloud(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name, value in (FAKE | {"AWS_ENDPOINT_URL": endpoint}).items():
        monkeypatch.setenv(name, value)
    yield Cloud()
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST"))  # noqa: S310


class Cloud:
    """The user's account: a bucket, a bus, and a queue that receives every event of the bus."""

    def __init__(self) -> None:
        self.s3 = boto3.client("s3")
        self.s3.create_bucket(Bucket="box", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
        self.cloudwatch = boto3.client("cloudwatch")
        self.sqs = boto3.client("sqs")
        self.queue = self.sqs.create_queue(QueueName="events")["QueueUrl"]
        arn = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        events = boto3.client("events")
        events.create_event_bus(Name="rekindle")
        events.put_rule(Name="all", EventBusName="rekindle", EventPattern='{"source":["rekindle.monitor"]}')
        events.put_targets(Rule="all", EventBusName="rekindle", Targets=[{"Id": "queue", "Arn": arn}])

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while messages := self.sqs.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10).get("Messages"):
            found += [json.loads(message["Body"]) for message in messages]
        return found

    def wait_for(self, detail_type: EventType) -> dict[str, Any]:
        """The detail of the next such event; other events on the way are dropped."""
        clock = SystemClock()
        until = clock.monotonic() + PATIENCE_S
        while clock.monotonic() < until:
            answer = self.sqs.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=1, WaitTimeSeconds=5)
            for message in answer.get("Messages", ()):
                self.sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
                event = json.loads(message["Body"])
                if event["detail-type"] == detail_type:
                    detail: dict[str, Any] = event["detail"]
                    return detail
        raise AssertionError(f"no {detail_type}")

    def get(self, key: str) -> bytes:
        body: bytes = self.s3.get_object(Bucket="box", Key=f"run/{key}")["Body"].read()
        return body


def test_an_s3_mailbox_behaves_as_a_directory_does(cloud: Cloud, tmp_path: Path) -> None:
    for box in (
        open_box("s3://box/some/prefix", Clients()),
        open_box("s3://box", Clients()),
        open_box(str(tmp_path), Clients()),
    ):
        assert box.get("rekindle/fence.json") is None
        assert box.put_new("rekindle/requests/b.json", b"1")
        assert not box.put_new("rekindle/requests/b.json", b"2")
        box.put("rekindle/requests/a.json", b"3")
        box.put("rekindle/requests/a.json", b"4")
        assert box.get("rekindle/requests/b.json") == b"1"
        assert box.get("rekindle/requests/a.json") == b"4"
        assert box.names("rekindle/requests/") == ("rekindle/requests/a.json", "rekindle/requests/b.json")
        assert box.names("rekindle/replies/") == ()


def test_events_metrics_and_a_checkpoint_in_s3_arrive(cloud: Cloud) -> None:
    saved_steps: list[int] = []

    def save(step: int, kind: str) -> str:
        cloud.s3.put_object(Bucket="box", Key=f"ckpt/step-{step}/model.bin", Body=b"w" * step)
        cloud.s3.put_object(Bucket="box", Key=f"ckpt/step-{step}/optim.bin", Body=b"o")
        saved_steps.append(step)
        return f"s3://box/ckpt/step-{step}"

    config = replace(QUICK, metrics_s=3600.0)
    box = PolledBox(Place.parse("s3://box/run"), Clients())
    monitor = start_monitor(save=save, mailbox=box, config=config, env=JOB)
    for step in range(1, 31):
        monitor.step(step, loss=1.0 + step, grad_norm=0.5, tokens=512, accuracy=0.25, bad=math.inf)
        if step == 20:
            cloud.s3.put_object(Bucket="box", Key="run/rekindle/requests/r1.json", Body=a_request())
            box.wait_polls(3)
    assert monitor.flush(PATIENCE_S)
    monitor.step(step + 1, loss=math.nan)
    monitor.finish(timeout_s=PATIENCE_S)

    reply = CheckpointReply.from_json(cloud.get(reply_key("r1")))
    assert (reply.outcome, reply.step) == (ReplyOutcome.SAVED, 21)
    assert reply.manifest is not None
    manifest = Manifest.from_json(cloud.get(reply.manifest))
    assert manifest.root == "s3://box/ckpt/step-21"
    assert verify_listing(manifest, {"model.bin": 21, "optim.bin": 1}) == ()

    events = cloud.events()
    by_type = {event["detail-type"]: event for event in events}
    assert set(by_type) == {
        EventType.STARTED,
        EventType.NON_FINITE,
        EventType.REPLY,
        EventType.FINISHED,
    }
    assert {event["source"] for event in events} == {"rekindle.monitor"}
    nan = by_type[EventType.NON_FINITE]["detail"]
    assert (nan["step"], nan["loss_state"], nan["metric"]) == (step + 1, "nan", "loss")
    assert (nan["v"], nan["job_id"], nan["attempt"], nan["attempt_number"]) == (1, "job", "run-1", 1)
    assert CheckpointReply.from_wire(by_type[EventType.REPLY]["detail"]["reply"]) == reply

    names = {metric["MetricName"] for metric in cloud.cloudwatch.list_metrics(Namespace="Rekindle/Training")["Metrics"]}
    assert names == {"Loss", "GradNorm", "StepSeconds", "TokensPerSecond", "Step", "accuracy", "NonFinite"}


@pytest.mark.parametrize("has_versions", [True, False])
def test_a_seal_keeps_the_versions_of_objects_where_their_bucket_does(cloud: Cloud, has_versions: bool) -> None:
    cloud.s3.put_object(Bucket="box", Key="ckpt/old.bin", Body=b"before")
    if has_versions:
        cloud.s3.put_bucket_versioning(Bucket="box", VersioningConfiguration={"Status": "Enabled"})
    made = {
        name: cloud.s3.put_object(Bucket="box", Key=f"ckpt/{name}", Body=b"w").get("VersionId")
        for name in ("a.bin", "b.bin")
    }
    assert all(made.values()) is has_versions
    measured = measure(SaveResult(path="s3://box/ckpt", files=("a.bin", "b.bin")), Clients())
    assert {item.path: item.version for item in measured.files} == made
    (alone,) = measure(SaveResult(path="s3://box/ckpt/a.bin"), Clients()).files
    assert (alone.path, alone.version) == (".", made["a.bin"])
    (before,) = measure(SaveResult(path="s3://box/ckpt/old.bin"), Clients()).files
    assert before.version is None, "written before the bucket kept any"


class PolledBox(S3Box):
    """Tells when requests were looked for."""

    def __init__(self, place: Place, clients: Clients) -> None:
        super().__init__(place, clients)
        self._polled = threading.Semaphore(0)

    def names(self, prefix: str) -> tuple[str, ...]:
        found = super().names(prefix)
        if prefix == request_prefix():
            self._polled.release()
        return found

    def wait_polls(self, count: int) -> None:
        """Until what lies in the box now has been read: polls that began before do not count."""
        while self._polled.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self._polled.acquire(timeout=PATIENCE_S)


def a_request() -> bytes:
    return CheckpointRequest(
        request_id="r1",
        job_id="job",
        attempt="run-1",
        deadline_s=600.0,
        reason="a test asks",
    ).to_json()


def test_a_bad_loss_that_lasts_leaves_for_the_bus_at_once_not_at_the_next_heartbeat_and_names_its_first_step(
    cloud: Cloud,
) -> None:
    slow = Config(heartbeat_s=3600, poll_s=3600, metrics_s=3600)
    monitor = start_monitor(config=slow, env=JOB)
    monitor.step(1, loss=1.0)
    for step in (2, 3, 4):
        monitor.step(step, loss=math.nan)
    assert cloud.wait_for(EventType.NON_FINITE)["step"] == 2
    monitor.finish(timeout_s=PATIENCE_S)


def test_a_stall_reaches_the_bus_with_all_stacks_while_this_thread_is_blocked(cloud: Cloud) -> None:
    monitor = start_monitor(config=replace(QUICK, stall_startup_s=0.1), env=JOB, rank=3, world_size=8)
    stall = cloud.wait_for(EventType.STALL)
    monitor.finish(timeout_s=PATIENCE_S)
    assert (stall["phase"], stall["limit_s"], stall["step"], stall["rank"]) == ("startup", 0.1, None, 3)
    assert stall["silent_s"] >= 0.1  # beyond its limit, and then rounded to milliseconds
    assert "Thread MainThread" in stall["stacks"]["3"]


def test_only_the_first_few_ranks_speak_on_the_bus_of_what_all_see(cloud: Cloud) -> None:
    for rank in (0, SPEAKERS - 1, SPEAKERS):
        monitor = start_monitor(config=QUICK, env=JOB, rank=rank, world_size=64)
        monitor.step(4, loss=math.nan)
        monitor.finish(timeout_s=PATIENCE_S)
    said = [(event["detail-type"], event["detail"]["rank"]) for event in cloud.events()]
    assert [rank for kind, rank in said if kind == EventType.NON_FINITE] == [0, SPEAKERS - 1]
    assert {rank for _, rank in said} == {0, SPEAKERS - 1}


def test_whether_a_rank_is_alone_is_said_where_the_script_knows(cloud: Cloud) -> None:
    for rank, ranks in ((1, [1]), (2, [2, 3]), (3, None)):
        monitor = start_monitor(config=QUICK, env=JOB, rank=rank, world_size=4)
        monitor.local_non_finite(5, "grad", ranks=ranks)
        monitor.local_non_finite(6, "grad", ranks=ranks)
        monitor.finish(timeout_s=PATIENCE_S)
    said = [event["detail"] for event in cloud.events()]
    assert {detail["rank"]: detail["alone"] for detail in said} == {1: True, 2: False, 3: None}
    assert {(detail["step"], detail["metric"], detail["own"]) for detail in said} == {(5, "grad", True)}
    # An entry whose answer was lost is sent again as it is (PutEvents); one that is told anew has a time of its own.
    assert len({json.dumps(detail) for detail in said}) == 3, "the same story is told once"


def test_a_spike_and_its_end_are_told_with_onset_and_evidence_and_stand_in_the_heartbeat(cloud: Cloud) -> None:
    monitor = start_monitor(mailbox="s3://box/run", config=QUICK, env=JOB)
    losses = [2.0 + 2.0 * 0.97**step + 0.01 * (step % 7) for step in range(600)]
    losses[300:310] = [9.0] * 10
    for step, loss in enumerate(losses, start=1):
        monitor.step(step, loss=loss, grad_norm=1.0)
    monitor.finish(timeout_s=PATIENCE_S)
    by_type = {event["detail-type"]: event["detail"] for event in cloud.events()}
    spike, healed = by_type[EventType.LOSS_SPIKE], by_type[EventType.LOSS_RECOVERED]
    assert spike["onset_step"] == 301
    assert 301 <= spike["step"] <= 310
    assert (spike["loss"], 1.9 < spike["baseline"] < 2.2, bool(spike["rule"])) == (9.0, True, True)
    assert spike["evidence"]
    assert healed["onset_step"] == 301
    assert healed["healed_step"] > 310
    heartbeat = Heartbeat.from_json(cloud.get(heartbeat_key("run-1")))
    assert (heartbeat.loss_health, heartbeat.onset_step, heartbeat.healed_step) == ("ok", 301, healed["healed_step"])
    assert heartbeat.judged_step == 600
    assert heartbeat.loss_baseline == pytest.approx(2.03, abs=0.2)


_connects: list[set[int]] = []


def _note_connect(event: str, _args: object) -> None:
    if event == "socket.connect":
        for seen in _connects:
            seen.add(threading.get_ident())


sys.addaudithook(_note_connect)  # a hook cannot be removed: outside `connecting_threads` it does nothing


@contextmanager
def connecting_threads() -> Iterator[set[int]]:
    """The idents of the threads that opened a connection meanwhile, told by the interpreter itself."""
    seen: set[int] = set()
    _connects.append(seen)
    try:
        yield seen
    finally:
        _connects.remove(seen)


@pytest.mark.parametrize("mailbox", ["s3://box/run", None])
def test_training_does_not_notice_that_aws_is_away_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mailbox: str | None
) -> None:
    for name, value in (FAKE | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}).items():
        monkeypatch.setenv(name, value)
    monitor = start_monitor(save=lambda step, kind: "/x", mailbox=mailbox, config=QUICK, env=JOB)
    assert not monitor.is_silent
    with connecting_threads() as connecting:
        for step in range(2000):
            monitor.step(step, loss=1.0 if step % 100 else math.nan, accuracy=0.5)
        monitor.saved("s3://box/ckpt", 1999)
        monitor.finish(timeout_s=PATIENCE_S)
    assert monitor.health()["aws_away"] >= 3
    assert connecting, "nothing tried to reach AWS"
    assert threading.get_ident() not in connecting, "no step may wait for the network"
    warnings = [r for r in caplog.records if r.name == "rekindle.monitor" and r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "cannot be reached" in warnings[0].message


def test_refusals_are_counted_for_each_call_and_warned_of_once(caplog: pytest.LogCaptureFixture, cloud: Cloud) -> None:
    caplog.set_level(logging.INFO, "rekindle.monitor")
    box = S3Box(Place.parse("s3://no-such-bucket-here/x"), Clients())
    trouble = Trouble()
    for doing in ("writing a heartbeat", "writing a report", "writing a heartbeat"):
        with pytest.raises(Exception, match="NoSuchBucket") as caught:
            box.put("rekindle/heartbeats/a.json", b"{}")
        mailbox_failed(trouble, box, doing, caught.value)
    assert trouble.snapshot() == {"aws_refused.writing a heartbeat": 2, "aws_refused.writing a report": 1}
    said = [record for record in caplog.records if record.name == "rekindle.monitor"]
    assert [record.levelno for record in said] == [logging.WARNING, logging.INFO]


def test_without_aws_the_queues_stay_bounded_and_drop_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = Trouble()
    outbox = Outbox(Run(identity=IDENTITY, trouble=trouble), bus="b", sends_metrics=True)
    for number in range(MAX_EVENTS_WAITING + 50):
        outbox.push(EventType.STALL, number=number)
    assert trouble.snapshot() == {"events_dropped": 50}


@pytest.mark.parametrize(("refusal", "expected"), [("", 1), ("process 7 holds this run", 0)])
def test_a_process_that_is_refused_tells_no_event_before_it_falls_silent(refusal: str, expected: int) -> None:
    holding, told = Holding(), list[str]()
    holding.refusal = refusal
    identity = replace(IDENTITY, holding=holding)
    outbox = Outbox(Run(identity=identity), bus=None, sends_metrics=False, on_event=lambda event, _: told.append(event))
    outbox.push(EventType.STARTED)
    outbox.turn_events()
    assert len(told) == expected


def test_events_that_waited_for_aws_arrive_when_it_is_back(
    cloud: Cloud, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Flaky(Clients):
        """The network is away for the first two calls."""

        failures = 2

        def get(self, service: str) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError("Network is unreachable")
            return super().get(service)

    outbox = Outbox(Run(identity=IDENTITY, clients=Flaky()), bus="rekindle", sends_metrics=False)
    for number in range(23):
        outbox.push(EventType.STALL, number=number)
    assert [outbox.turn_events() for _ in range(2)] == [1.0, 2.0], "backs off"
    outbox.turn_events()
    # A call whose answer is late is sent again: each arrives at least once.
    assert sorted({event["detail"]["number"] for event in cloud.events()}) == list(range(23))
    assert outbox.has_sent_events


def test_manifest_names_in_s3_sort_by_step(cloud: Cloud) -> None:
    box = open_box("s3://box/run", Clients())
    for step in (9, 100, 10):
        box.put(manifest_key(step, "run-1"), b"{}")
    parsed = [parse_key(key) for key in box.names(manifest_prefix())]
    assert [key.step for key in parsed if key] == [9, 10, 100]


def test_an_event_is_dated_by_the_bus_and_not_by_a_host_whose_clock_is_off(cloud: Cloud) -> None:
    class Slow(SystemClock):
        def now(self) -> datetime:
            return super().now() - timedelta(days=3)

    monitor = start_monitor(config=QUICK, env=JOB, clock=Slow())
    monitor.step(4, loss=math.nan)
    monitor.finish(timeout_s=PATIENCE_S)
    signals = [parse_event(open_envelope({"account": "1" * 12} | event)) for event in cloud.events()]
    assert {signal.kind for signal in signals} >= {SignalKind.MONITOR_STARTED, SignalKind.NON_FINITE}
    assert all(abs(SystemClock().now() - signal.occurred_at) < timedelta(days=1) for signal in signals)
