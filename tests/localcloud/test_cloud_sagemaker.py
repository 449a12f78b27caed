"""Training jobs on the embedded cloud answer as SageMaker does, and every answer fits botocore's model."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from localcloud.aws.clock import SimClock
from localcloud.aws.events import Rule
from localcloud.aws.sagemaker import TERMINAL, TRANSITIONS, Phase, TrainingJobs
from localcloud.aws.shapes import ShapeMismatch, check_answer
from localcloud.aws.wire import FailureMode
from localcloud.cloud import Cloud
from localcloud.platforms.simulated_run import Script
from localcloud.platforms.simulated_trouble import Fault
from rekindle.protocol.keys import fence_key, heartbeat_key, reply_key, request_key
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, Fence, Heartbeat, LossState, ReplyOutcome
from rekindle.protocol.manifests import Manifest, verify_listing
from tests.localcloud.conftest import training_job
from tests.sizes import examples

HOUR = timedelta(hours=1)
MAILBOX = {"REKINDLE_MAILBOX": "s3://rekindle-mailbox/lm", "REKINDLE_BUS": "rekindle"}


def describe(cloud: Cloud, name: str) -> dict[str, Any]:
    return dict(cloud.client("sagemaker").describe_training_job(TrainingJobName=name))


def code_of(call: Any, **request: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return str(caught.value.response["Error"]["Code"])


def ends(cloud: Cloud, name: str) -> str:
    cloud.clock.run_until(lambda: cloud.training.jobs[name].is_terminal, limit=timedelta(days=2))
    return str(describe(cloud, name)["TrainingJobStatus"])


def test_a_job_goes_through_its_phases_and_each_is_recorded(cloud: Cloud) -> None:
    cloud.simulated.default = Script(steps=10)
    cloud.client("sagemaker").create_training_job(**training_job("lm"))
    assert ends(cloud, "lm") == "Completed"
    described = describe(cloud, "lm")
    names = [transition["Status"] for transition in described["SecondaryStatusTransitions"]]
    assert names == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert all(t["EndTime"] >= t["StartTime"] for t in described["SecondaryStatusTransitions"])
    assert described["TrainingTimeInSeconds"] == 60 + 10 * 10 + 10


def test_describing_gives_back_what_was_asked_for_and_not_the_tags(cloud: Cloud) -> None:
    asked = training_job(
        "lm",
        Environment={"SEED": "1"},
        CheckpointConfig={"S3Uri": "s3://rekindle-mailbox/lm"},
        RetryStrategy={"MaximumRetryAttempts": 30},
        HyperParameters={"lr": "0.1"},
        Tags=[{"Key": "rekindle:policy", "Value": "default"}],
    )
    cloud.client("sagemaker").create_training_job(**asked)
    described = describe(cloud, "lm")
    for key in ("Environment", "RetryStrategy", "HyperParameters", "ResourceConfig", "StoppingCondition", "RoleArn"):
        assert described[key] == asked[key]
    assert described["CheckpointConfig"] == {"S3Uri": "s3://rekindle-mailbox/lm", "LocalPath": "/opt/ml/checkpoints"}
    assert "Tags" not in described
    arn = described["TrainingJobArn"]
    cloud.client("sagemaker").add_tags(ResourceArn=arn, Tags=[{"Key": "team", "Value": "nlp"}])
    cloud.client("sagemaker").delete_tags(ResourceArn=arn, TagKeys=["rekindle:policy"])
    assert cloud.client("sagemaker").list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "nlp"}]


def test_a_name_is_taken_for_ever(cloud: Cloud) -> None:
    cloud.client("sagemaker").create_training_job(**training_job("lm"))
    cloud.simulated.crash("lm")
    assert code_of(cloud.client("sagemaker").create_training_job, **training_job("lm")) == "ResourceInUse"


def test_a_request_that_the_model_does_not_allow_is_a_validation_error(cloud: Cloud) -> None:
    assert code_of(cloud.client("sagemaker").create_training_job, **training_job("lm_1")) == "ValidationException"
    assert cloud.training.jobs == {}


def test_missing_capacity_can_be_had(cloud: Cloud) -> None:
    cloud.simulated.default = Script(lacks_capacity=True)
    cloud.client("sagemaker").create_training_job(**training_job("lm"))
    assert ends(cloud, "lm") == "Failed"
    assert describe(cloud, "lm")["FailureReason"].startswith("CapacityError")


def test_stopping_takes_its_time_and_stopping_a_finished_job_is_an_error(cloud: Cloud) -> None:
    cloud.client("sagemaker").create_training_job(**training_job("lm"))
    cloud.clock.run_for(timedelta(minutes=10))
    cloud.client("sagemaker").stop_training_job(TrainingJobName="lm")
    assert describe(cloud, "lm")["TrainingJobStatus"] == "Stopping"
    cloud.client("sagemaker").stop_training_job(TrainingJobName="lm")
    assert ends(cloud, "lm") == "Stopped"
    assert code_of(cloud.client("sagemaker").stop_training_job, TrainingJobName="lm") == "ValidationException"


def test_unknown_names_are_refused(cloud: Cloud) -> None:
    client = cloud.client("sagemaker")
    assert code_of(client.describe_training_job, TrainingJobName="nobody") == "ValidationException"
    assert code_of(client.stop_training_job, TrainingJobName="nobody") == "ResourceNotFound"


def test_sagemakers_own_repair_shows_as_restarting_and_then_trains_on(cloud: Cloud) -> None:
    cloud.simulated.default = Script(faults=(Fault(kind="hardware", step=150),), steps=180)
    cloud.client("sagemaker").create_training_job(**training_job("lm", Environment=MAILBOX))
    assert cloud.clock.run_until(lambda: cloud.training.jobs["lm"].phase is Phase.RESTARTING, limit=HOUR)
    described = describe(cloud, "lm")
    assert described["TrainingJobStatus"] == "InProgress"
    assert "Repairing training cluster" in described["SecondaryStatusTransitions"][-1]["StatusMessage"]
    cloud.clock.run_until(lambda: cloud.simulated["lm"].step == 101, limit=HOUR)
    assert cloud.simulated["lm"].first_step == 101


def test_jobs_are_listed_by_filter_and_page(cloud: Cloud) -> None:
    client = cloud.client("sagemaker")
    for n in range(5):
        client.create_training_job(**training_job(f"lm-{n}"))
        cloud.clock.run_for(timedelta(minutes=1))
    cloud.simulated.crash("lm-2")
    failed = client.list_training_jobs(StatusEquals="Failed")["TrainingJobSummaries"]
    assert [job["TrainingJobName"] for job in failed] == ["lm-2"]
    pages = client.get_paginator("list_training_jobs").paginate(
        NameContains="lm", SortBy="Name", SortOrder="Descending", PaginationConfig={"PageSize": 2}
    )
    names = [[job["TrainingJobName"] for job in page["TrainingJobSummaries"]] for page in pages]
    assert names == [["lm-4", "lm-3"], ["lm-2", "lm-1"], ["lm-0"]]
    later = client.list_training_jobs(CreationTimeAfter=cloud.clock.now() - timedelta(seconds=90))
    assert [job["TrainingJobName"] for job in later["TrainingJobSummaries"]] == ["lm-4"]


def test_a_warm_pool_is_kept_reused_and_given_up(cloud: Cloud) -> None:
    client = cloud.client("sagemaker")
    resources = training_job("x")["ResourceConfig"] | {"KeepAlivePeriodInSeconds": 600}
    client.create_training_job(**training_job("one", ResourceConfig=resources))
    cloud.simulated.crash("one")
    assert describe(cloud, "one")["WarmPoolStatus"]["Status"] == "Available"
    client.create_training_job(**training_job("two", ResourceConfig=resources))
    assert describe(cloud, "one")["WarmPoolStatus"] | {"ReusedByJob": "two"} == describe(cloud, "one")["WarmPoolStatus"]
    cloud.simulated.crash("two")
    cloud.clock.run_for(timedelta(seconds=601))
    assert describe(cloud, "two")["WarmPoolStatus"]["Status"] == "Terminated"


def test_state_changes_are_events_with_epoch_milliseconds(cloud: Cloud) -> None:
    seen: list[dict[str, Any]] = []
    rule = Rule(function="note", bus="default", pattern={"source": ["aws.sagemaker"]})
    cloud.deploy({"note": lambda event, _: seen.append(event)}, rules=[rule])
    cloud.client("sagemaker").create_training_job(**training_job("lm"))
    cloud.clock.run_for(timedelta(minutes=5))
    cloud.simulated.crash("lm", exit_code=137, text="killed")
    cloud.clock.run_for(timedelta(minutes=1))
    assert [event["detail"]["SecondaryStatus"] for event in seen] == ["Starting", "Downloading", "Training", "Failed"]
    detail = seen[-1]["detail"]
    assert seen[-1]["detail-type"] == "SageMaker Training Job State Change"
    assert detail["CreationTime"] == int(describe(cloud, "lm")["CreationTime"].timestamp() * 1000)
    assert "ExitCode 137" in detail["FailureReason"]
    assert detail["Tags"] == {}


def test_a_simulated_monitor_heartbeats_saves_and_answers(cloud: Cloud) -> None:
    cloud.client("sagemaker").create_training_job(**training_job("lm", Environment=MAILBOX))
    s3 = cloud.client("s3")

    def read(key: str) -> bytes:
        return bytes(s3.get_object(Bucket="rekindle-mailbox", Key=f"lm/{key}")["Body"].read())

    cloud.clock.run_until(lambda: cloud.simulated["lm"].step >= 130, limit=HOUR)
    heartbeat = Heartbeat.from_json(read(heartbeat_key("lm")))
    assert heartbeat.step is not None
    assert 125 <= heartbeat.step <= 130
    request = CheckpointRequest(
        request_id="r1",
        job_id="lm",
        attempt="lm",
        deadline_s=120.0,
        reason="test",
    )
    s3.put_object(Bucket="rekindle-mailbox", Key=f"lm/{request_key('r1')}", Body=request.to_json())
    cloud.clock.run_for(timedelta(minutes=1))
    reply = CheckpointReply.from_json(read(reply_key("r1")))
    assert reply.outcome is ReplyOutcome.SAVED
    assert reply.manifest is not None
    manifest = Manifest.from_json(read(reply.manifest))
    assert manifest.step == reply.step
    size = s3.head_object(Bucket="rekindle-mailbox", Key=f"{manifest.root.split('/', 3)[3]}/model.bin")
    assert verify_listing(manifest, {"model.bin": size["ContentLength"]}) == ()


def test_a_superseded_simulated_attempt_refuses_to_save(cloud: Cloud) -> None:
    cloud.client("sagemaker").create_training_job(**training_job("lm", Environment=MAILBOX))
    cloud.clock.run_until(lambda: cloud.simulated["lm"].step >= 50, limit=HOUR)
    fence = Fence(job_id="lm", attempt="lm-a2", attempt_number=2, superseded=("lm",), written_at=cloud.clock.now())
    cloud.client("s3").put_object(Bucket="rekindle-mailbox", Key=f"lm/{fence_key()}", Body=fence.to_json())
    cloud.clock.run_until(lambda: cloud.simulated["lm"].step >= 120, limit=HOUR)
    assert cloud.simulated["lm"].saved_steps == []


def test_a_frozen_run_stands_still_and_its_monitor_reports_the_stall(cloud: Cloud) -> None:
    seen: list[dict[str, Any]] = []
    rule = Rule(function="note", bus="rekindle", pattern={"source": ["rekindle.monitor"]})
    cloud.deploy({"note": lambda event, _: seen.append(event)}, rules=[rule])
    cloud.simulated.default = Script(faults=(Fault(kind="freeze", step=20),))
    cloud.client("sagemaker").create_training_job(**training_job("lm", Environment=MAILBOX))
    cloud.clock.run_for(HOUR)
    assert cloud.simulated["lm"].step == 19
    assert [event["detail-type"] for event in seen] == ["Rekindle Monitor Started", "Rekindle Stall"]
    assert describe(cloud, "lm")["TrainingJobStatus"] == "InProgress"


def test_a_poisoned_batch_gives_nan_unless_it_is_skipped(cloud: Cloud) -> None:
    cloud.simulated.default = Script(faults=(Fault(kind="nan", step=20, in_data=True),), steps=40)
    client = cloud.client("sagemaker")
    client.create_training_job(**training_job("first", Environment=MAILBOX))
    client.create_training_job(**training_job("second", Environment=MAILBOX | {"REKINDLE_SKIP": "[[20,21]]"}))
    ends(cloud, "first")
    assert cloud.simulated["first"].loss_state is LossState.NAN
    assert cloud.simulated["second"].loss_state is LossState.FINITE


def test_it_works_the_same_over_http() -> None:
    with Cloud(http=True) as cloud:
        client = cloud.client("sagemaker")
        client.create_training_job(**training_job("lm"))
        assert code_of(client.create_training_job, **training_job("lm")) == "ResourceInUse"
        cloud.simulated.crash("lm")
        assert describe(cloud, "lm")["TrainingJobStatus"] == "Failed"


def test_calls_are_counted_and_can_go_wrong_in_every_way(cloud: Cloud) -> None:
    client = cloud.client("sagemaker")
    cloud.wire.disturb("sagemaker.CreateTrainingJob", FailureMode.THROTTLE)
    assert code_of(client.create_training_job, **training_job("a")) == "ThrottlingException"
    assert "a" not in cloud.training.jobs
    cloud.wire.disturb("sagemaker.CreateTrainingJob", FailureMode.TIMEOUT_AFTER)
    with pytest.raises(Exception, match="timeout"):
        client.create_training_job(**training_job("b"))
    assert "b" in cloud.training.jobs
    cloud.wire.disturb("sagemaker.CreateTrainingJob", FailureMode.TIMEOUT_BEFORE, skip=1)
    client.create_training_job(**training_job("c"))
    with pytest.raises(Exception, match="timeout"):
        client.create_training_job(**training_job("d"))
    assert "d" not in cloud.training.jobs
    cloud.wire.disturb("s3.PutObject", FailureMode.REFUSE)
    assert code_of(cloud.client("s3").put_object, Bucket="rekindle-mailbox", Key="x", Body=b"") == "AccessDenied"
    assert cloud.wire.calls["sagemaker.CreateTrainingJob"] == 4


def test_an_answer_that_aws_could_not_give_fails_loudly() -> None:
    answer = {"TrainingJobName": "lm", "Colour": "red", "TrainingJobStatus": "Tired"}
    with pytest.raises(ShapeMismatch) as caught:
        check_answer("sagemaker", "DescribeTrainingJob", answer)
    text = str(caught.value)
    assert "Colour is not known here" in text
    assert "Tired' is not one of its words" in text
    assert "TrainingJobArn is required" in text


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from(list(Phase)), max_size=12))
def test_only_allowed_transitions_happen_whatever_is_tried(tried: list[Phase]) -> None:
    published: list[str] = []
    jobs = TrainingJobs(clock=SimClock(), publish=lambda *event: published.append(event[2]["SecondaryStatus"]))
    jobs.create_training_job(training_job("lm"))
    seen = [Phase.STARTING]
    for phase in tried:
        before = jobs.jobs["lm"].phase
        assert jobs.enter("lm", phase) == (phase in TRANSITIONS[before])
        if jobs.jobs["lm"].phase is not before or phase in TRANSITIONS[before]:
            seen.append(phase)
    check_answer("sagemaker", "DescribeTrainingJob", jobs.describe_training_job({"TrainingJobName": "lm"}))
    assert published == [phase.value for phase in seen]
    assert sum(phase in TERMINAL for phase in seen) <= 1
    json.dumps(jobs.jobs["lm"].event_detail())
