"""What outlives the embedded cloud's process, and how the cloud is served."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration
from chalice.app import Chalice

from localcloud.cloud import Cloud
from localcloud.cloud_app import ApiServer
from localcloud.platforms.simulated_run import Script
from localcloud.snapshot import Snapshot
from tests.localcloud.conftest import training_job


def test_the_facts_of_a_cloud_are_there_again_in_the_next(tmp_path: Path) -> None:
    with Cloud(store=tmp_path) as cloud:
        cloud.simulated.default = Script(steps=3)
        item = {"pk": {"S": "JOB#lm"}, "sk": {"S": "META"}, "n": {"N": "1.5"}, "raw": {"B": b"\x00\xff"}}
        cloud.client("dynamodb").put_item(TableName="rekindle", Item=item)
        cloud.client("s3").put_object(Bucket="rekindle-mailbox", Key="lm/rekindle/fence.json", Body=b"{}")
        cloud.client("ssm").put_parameter(Name="/rekindle/policies/default", Value="{}", Type="String")
        url = cloud.environ()["REKINDLE_QUARANTINE_URL"]
        attributes = {"error": {"DataType": "String", "StringValue": "detail.TrainingJobName"}}
        cloud.client("sqs").send_message(QueueUrl=url, MessageBody="raw event", MessageAttributes=attributes)
        cloud.client("sagemaker").create_training_job(**training_job("lm", Tags=[{"Key": "a", "Value": "b"}]))
        cloud.clock.run_until(lambda: cloud.training.jobs["lm"].is_terminal, limit=timedelta(hours=1))
        before = cloud.client("sagemaker").describe_training_job(TrainingJobName="lm")
        cloud.client("sagemaker").create_training_job(**training_job("still-running"))

    with Cloud(store=tmp_path) as cloud:
        found = cloud.client("dynamodb").get_item(TableName="rekindle", Key={"pk": item["pk"], "sk": item["sk"]})
        assert found["Item"] == item
        body = cloud.client("s3").get_object(Bucket="rekindle-mailbox", Key="lm/rekindle/fence.json")["Body"].read()
        assert body == b"{}"
        assert cloud.client("ssm").get_parameter(Name="/rekindle/policies/default")["Parameter"]["Value"] == "{}"
        received = cloud.client("sqs").receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"][0]
        assert received["Body"] == "raw event"
        assert received["MessageAttributes"]["error"]["StringValue"] == "detail.TrainingJobName"
        after = cloud.client("sagemaker").describe_training_job(TrainingJobName="lm")
        assert after | {"ResponseMetadata": 0} == before | {"ResponseMetadata": 0}
        assert cloud.client("sagemaker").list_tags(ResourceArn=after["TrainingJobArn"])["Tags"] == [
            {"Key": "a", "Value": "b"}
        ]
        lost = cloud.client("sagemaker").describe_training_job(TrainingJobName="still-running")
        assert lost["TrainingJobStatus"] == "Failed"
        assert "InternalServerError" in lost["FailureReason"]


def test_metrics_of_the_last_hours_are_there_again_and_older_ones_are_not(tmp_path: Path) -> None:
    def read(cloud: Cloud) -> dict[str, list[float]]:
        now = cloud.clock.now()
        metric = {"Namespace": "N", "MetricName": "Loss", "Dimensions": [{"Name": "JobId", "Value": "lm"}]}
        query = {"Id": "m0", "MetricStat": {"Metric": metric, "Period": 1, "Stat": "Sum"}}
        answer = cloud.client("cloudwatch").get_metric_data(
            MetricDataQueries=[query],
            StartTime=now - timedelta(hours=5),
            EndTime=now + timedelta(seconds=1),
            ScanBy="TimestampAscending",
        )
        return {str(result["Id"]): result["Values"] for result in answer["MetricDataResults"]}

    with Cloud(store=tmp_path) as cloud:
        now = cloud.clock.now()
        datum = {"MetricName": "Loss", "Dimensions": [{"Name": "JobId", "Value": "lm"}]}
        data = [
            {**datum, "Timestamp": now, "Values": [1.5, 2.0], "Counts": [2.0, 1.0]},
            {**datum, "Timestamp": now - timedelta(hours=4), "Value": 9.0},
        ]
        cloud.client("cloudwatch").put_metric_data(Namespace="N", MetricData=data)
        assert read(cloud) == {"m0": [9.0, 5.0]}
    with Cloud(store=tmp_path) as cloud:
        assert read(cloud) == {"m0": [5.0]}


def test_saving_again_forgets_what_was_deleted_and_writes_unchanged_objects_once(tmp_path: Path) -> None:
    path = tmp_path / "cloud.sqlite"
    with Cloud() as cloud:
        s3 = cloud.client("s3")
        for key in ("kept", "deleted"):
            s3.put_object(Bucket="rekindle-mailbox", Key=key, Body=b"x")
        Snapshot(path).save(cloud)
        s3.delete_object(Bucket="rekindle-mailbox", Key="deleted")
        reads = cloud.wire.calls["s3.GetObject"]
        Snapshot(path).save(cloud)
        assert cloud.wire.calls["s3.GetObject"] == reads
    with sqlite3.connect(path) as db:
        assert [key for (key,) in db.execute("SELECT key FROM objects")] == ["kept"]


def test_a_save_that_dies_half_way_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cloud.sqlite"

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with Cloud() as cloud:
        cloud.client("ssm").put_parameter(Name="/a", Value="1", Type="String")
        Snapshot(path).save(cloud)
        cloud.client("ssm").put_parameter(Name="/b", Value="2", Type="String")
        monkeypatch.setattr("localcloud.snapshot._save_objects", die)
        with pytest.raises(KeyboardInterrupt):
            Snapshot(path).save(cloud)
    with sqlite3.connect(path) as db:
        assert [name for (name,) in db.execute("SELECT name FROM parameters")] == ["/a"]


def small_app() -> Chalice:
    app = Chalice(app_name="rekindle", configure_logs=False)

    @app.route("/jobs/{job_id}", methods=["POST"])
    def job(job_id: str) -> Any:
        request = app.current_request
        assert request is not None
        return {"job": job_id, "body": request.json_body, "query": request.query_params}

    return app


def test_the_apps_routes_answer_over_http() -> None:
    server = ApiServer(small_app())
    server.start()
    try:
        request = Request(  # noqa: S310  loopback
            f"{server.url}/jobs/lm-7b?limit=3",
            data=b'{"a": 1}',
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        with urlopen(request) as answer:  # noqa: S310
            assert answer.read() == b'{"job":"lm-7b","body":{"a":1},"query":{"limit":"3"}}'
    finally:
        server.close()


@pytest.mark.parametrize("length", ["-5", "abc", "9" * 5000])
def test_a_wrong_content_length_is_a_bad_request(length: str) -> None:
    server = ApiServer(small_app())
    server.start()
    try:
        connection = HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=120)
        connection.putrequest("POST", "/jobs/lm-7b")
        connection.putheader("Content-Length", length)
        connection.endheaders()
        assert connection.getresponse().status == 400
        connection.close()
    finally:
        server.close()


def test_a_running_execution_goes_on_in_the_next_cloud_once_its_function_is_there(tmp_path: Path) -> None:
    steps: list[str] = []

    @durable_execution
    def recover(event: Any, context: DurableContext) -> str:
        context.step(lambda _: steps.append("stop"), name="stop")
        context.wait(Duration.from_minutes(10), name="while it stops")
        context.step(lambda _: steps.append("clone"), name="clone")
        return "recovered"

    with Cloud(store=tmp_path) as cloud:
        cloud.deploy({"recover": recover}, durable={"recover": "live"})
        arn = cloud.engine.start(function="recover", name="i-1", payload="{}").arn
        cloud.clock.run_for(timedelta(minutes=1))
        assert steps == ["stop"]

    with Cloud(store=tmp_path, resumes=False) as cloud:
        cloud.deploy({"recover": recover}, durable={"recover": "live"})
        cloud.clock.run_for(timedelta(hours=1))
        assert cloud.engine.status(arn) == "RUNNING"

    with Cloud(store=tmp_path) as cloud:
        cloud.clock.run_for(timedelta(minutes=1))
        cloud.deploy({"recover": recover}, durable={"recover": "live"})
        assert cloud.clock.run_until(lambda: cloud.engine.status(arn) == "SUCCEEDED", limit=timedelta(hours=1))
        assert steps == ["stop", "clone"]


@pytest.mark.long
@pytest.mark.process
def test_the_served_cloud_tells_the_same_story_after_it_was_ended(tmp_path: Path) -> None:
    project = Path(__file__).parents[2]

    def serve(method: str, path: str, body: bytes | None, *options: str) -> dict[str, Any]:
        process = subprocess.Popen(
            [sys.executable, "-m", "localcloud", "serve", "--store", str(tmp_path / "store"), "--attached", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(project)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        headers = {"Content-Type": "application/json", "Idempotency-Key": "once"} if body else {}
        request = Request(f"{ready['api']}/v1/{path}", data=body, headers=headers, method=method)  # noqa: S310  loopback
        with urlopen(request) as answer:  # noqa: S310
            told = json.loads(answer.read())
        process.communicate()  # closes standard input, which ends it
        assert process.returncode == 0
        return dict(told)

    serve("PUT", "pause", b'{"paused": true, "why": "maintenance"}')
    found = serve("GET", "switches", None, "--still")
    assert (found["paused"], found["paused_why"]) == (True, "maintenance")
