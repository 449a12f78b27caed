"""TrainingJobScheduler against scripted SageMaker answers; every request and answer is held to botocore's model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.stub import Stubber

from chalicelib.config import Settings
from chalicelib.domain.model.action import Done, ResubmitJob
from chalicelib.domain.model.errors import NotOurs, Throttled
from chalicelib.domain.model.incident import SkipWindow
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.platforms.training_job import status as training_job_status
from chalicelib.platforms.training_job.clone import clone_request, redact
from chalicelib.platforms.training_job.scheduler import TrainingJobScheduler
from chalicelib.platforms.training_job.status import status_of
from chalicelib.platforms.training_job.tags import TAG_CHECKED
from tests.adapters.conftest import make_client
from tests.adapters.samples import job
from tests.domain.policies import changed

ARN = "arn:aws:sagemaker:us-west-2:111122223333:training-job/"
ROLE = "arn:aws:iam::111122223333:role/training"
WHEN = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
SECRET = "hf_abcdefghijklmnop"


def described(name: str = "lm-7b", status: str = "InProgress", secondary: str = "Training", **changes: Any) -> Any:
    answer: dict[str, Any] = {
        "TrainingJobName": name,
        "TrainingJobArn": ARN + name,
        "ModelArtifacts": {"S3ModelArtifacts": ""},
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary,
        "HyperParameters": {"lr": "3e-4", "note": ""},
        "AlgorithmSpecification": {
            "TrainingImage": "111122223333.dkr.ecr.us-west-2.amazonaws.com/lm:1",
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        },
        "RoleArn": ROLE,
        "OutputDataConfig": {"S3OutputPath": "s3://training/out", "KmsKeyId": ""},
        "ResourceConfig": {
            "InstanceType": "ml.p5.48xlarge",
            "InstanceCount": 4,
            "VolumeSizeInGB": 500,
            "KeepAlivePeriodInSeconds": 1800,
            "SelectedInstanceType": "ml.p5.48xlarge",
            "SelectedInstanceCount": 4,
        },
        "VpcConfig": {"SecurityGroupIds": ["sg-0aa"], "Subnets": ["subnet-0bb"]},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "CreationTime": WHEN,
        "LastModifiedTime": WHEN,
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": True,
        "EnableManagedSpotTraining": False,
        "CheckpointConfig": {"S3Uri": "s3://training/runs/lm-7b", "LocalPath": "/opt/ml/checkpoints"},
        "Environment": {"HF_TOKEN": SECRET, "EMPTY": "", "REKINDLE_SKIP": "[[1,2]]", "REKINDLE_RESUME_STEP": "7"},
        "BillableTimeInSeconds": 3600,
        "SecondaryStatusTransitions": [
            {"Status": secondary, "StartTime": WHEN, "StatusMessage": "Training in progress."}
        ],
    }
    return answer | changes


ACTION = ResubmitJob(
    clone_of="lm-7b",
    number=2,
    name="lm-7b-r2",
    resume_step=Known(120),
    resume_root="s3://training/runs/lm-7b/ckpt/step-120",
    resume_manifest="s3://training/runs/lm-7b/rekindle/manifests/step-000000000120-lm-7b.json",
    skips=(SkipWindow(from_step=121, to_step=141),),
    why="test",
)
USER_TAGS = [
    {"Key": "team", "Value": "lm"},
    {"Key": "aws:cloudformation:stack-name", "Value": "x"},
    {"Key": "rekindle:policy", "Value": "careful"},
]
OUR_TAGS = [{"Key": "rekindle:incident", "Value": "inc-a"}, {"Key": "rekindle:attempt", "Value": "2"}]


class Script:
    """The answers SageMaker gives, in order; each is asserted to have been asked for."""

    def __init__(self) -> None:
        self.client = make_client("sagemaker")
        self.stub = Stubber(self.client)
        self.stub.activate()
        self.created: list[dict[str, Any]] = []
        self.client.meta.events.register(
            "provide-client-params.sagemaker.CreateTrainingJob", lambda params, **_: self.created.append(params)
        )
        self.scheduler = TrainingJobScheduler(self.client)

    def describes(self, name: str = "lm-7b", **answer: Any) -> Script:
        self.stub.add_response("describe_training_job", described(name, **answer), {"TrainingJobName": name})
        return self

    def knows_not(self, name: str) -> Script:
        return self.fails("describe_training_job", "ValidationException", "Requested resource not found.")

    def tags(self, tags: list[dict[str, str]], name: str = "lm-7b") -> Script:
        self.stub.add_response("list_tags", {"Tags": tags}, {"ResourceArn": ARN + name})
        return self

    def stops(self) -> Script:
        self.stub.add_response("stop_training_job", {}, {"TrainingJobName": "lm-7b"})
        return self

    def creates(self) -> Script:
        self.stub.add_response("create_training_job", {"TrainingJobArn": ARN + "lm-7b-r2"})
        return self

    def fails(self, method: str, code: str, message: str = "no") -> Script:
        self.stub.add_client_error(method, service_error_code=code, service_message=message)
        return self

    def resubmit(self, action: ResubmitJob = ACTION, **policy: Any) -> Any:
        return self.scheduler.resubmit(action, job=job(), policy=changed(resubmission=policy), incident_id="inc-a")

    @property
    def request(self) -> dict[str, Any]:
        (made,) = self.created
        return made


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("primary", "secondary", "expected"),
    [
        ("InProgress", "Starting", "starting"),
        ("InProgress", "Pending", "starting"),
        ("InProgress", "Downloading", "starting"),
        ("InProgress", "DownloadingTrainingImage", "starting"),
        ("InProgress", "Training", "running"),
        ("InProgress", "Uploading", "running"),
        ("InProgress", "Interrupted", "repairing"),
        ("InProgress", "Restarting", "repairing"),
        ("InProgress", "Stopping", "stopping"),
        ("InProgress", "MaxRuntimeExceeded", "stopping"),
        ("Stopping", "Stopping", "stopping"),
        ("Stopping", "MaxRuntimeExceeded", "stopping"),
        ("Stopped", "Stopped", "stopped"),
        ("Stopped", "MaxRuntimeExceeded", "expired"),
        ("Stopped", "MaxWaitTimeExceeded", "expired"),
        ("Completed", "Completed", "completed"),
        ("Completed", "MaxRuntimeExceeded", "expired"),
        ("Failed", "Failed", "failed"),
        ("Failed", "MaxRuntimeExceeded", "failed"),
        ("Deleting", "Completed", "gone"),
    ],
)
def test_every_pair_of_statuses_has_its_meaning(primary: str, secondary: str, expected: str) -> None:
    assert status_of(primary, secondary) is AttemptStatus(expected)


def test_every_status_of_the_model_is_known() -> None:
    model = make_client("sagemaker").meta.service_model
    for primary in model.shape_for("TrainingJobStatus").enum:
        for secondary in model.shape_for("SecondaryStatus").enum:
            status_of(primary, secondary)
    assert set(model.shape_for("SecondaryStatus").enum) == set(training_job_status._IN_PROGRESS)
    assert set(model.shape_for("TrainingJobStatus").enum) == {*training_job_status._ENDED, "InProgress"}


@pytest.mark.parametrize(("primary", "secondary"), [("", ""), ("Paused", "Training"), ("InProgress", "Hibernating")])
def test_a_status_that_nobody_knows_is_never_healthy_and_never_ended(primary: str, secondary: str) -> None:
    status = status_of(primary, secondary)
    assert status is AttemptStatus.STARTING
    assert not status.has_ended


def test_sagemakers_own_repair_is_seen_in_the_transition_message(script: Script) -> None:
    moved = [
        {"Status": "Training", "StartTime": WHEN, "StatusMessage": "Repairing training cluster due to hardware failure"}
    ]
    view = script.describes(SecondaryStatusTransitions=moved).scheduler.describe("lm-7b")
    assert view.status is AttemptStatus.REPAIRING


def test_an_ended_job_tells_when_and_why(script: Script) -> None:
    script.describes(status="Failed", secondary="Failed", FailureReason="AlgorithmError: boom", TrainingEndTime=WHEN)
    view = script.scheduler.describe("lm-7b")
    assert (view.status, view.failure_reason, view.ended_at) == (AttemptStatus.FAILED, "AlgorithmError: boom", WHEN)
    assert isinstance(view.last_step, Unknown)


@pytest.mark.parametrize("code", ["ResourceNotFound", "ValidationException"])
def test_a_name_the_platform_does_not_know_is_gone(script: Script, code: str) -> None:
    script.fails("describe_training_job", code, "Requested resource not found.")
    assert script.scheduler.describe("lm-7b").status is AttemptStatus.GONE


def test_a_tagged_job_is_discovered_with_its_mailbox(script: Script) -> None:
    found = script.describes().tags(USER_TAGS).scheduler.discover("lm-7b")
    assert found is not None
    assert (found.policy_name, found.job_id, found.mailbox) == ("careful", None, "s3://training/runs/lm-7b")
    assert (found.instance_count, found.created_at) == (4, WHEN)


def test_the_mailbox_variable_wins_over_the_checkpoint_folder(script: Script) -> None:
    script.describes(Environment={"REKINDLE_MAILBOX": "s3://mail/box"}).tags(USER_TAGS)
    found = script.scheduler.discover("lm-7b")
    assert found is not None
    assert found.mailbox == "s3://mail/box"


def test_an_untagged_and_an_unknown_job_ask_for_no_protection(script: Script) -> None:
    script.describes().tags([{"Key": "team", "Value": "lm"}])
    assert script.scheduler.discover("lm-7b") is None
    script.knows_not("other")
    assert script.scheduler.discover("other") is None


def test_a_running_job_is_stopped(script: Script) -> None:
    assert script.describes().stops().scheduler.stop("lm-7b").done is Done.DONE


@pytest.mark.parametrize("status", ["Stopped", "Completed", "Failed", "Stopping"])
def test_a_job_that_has_ended_or_is_stopping_is_left_alone(script: Script, status: str) -> None:
    assert script.describes(status=status, secondary=status).scheduler.stop("lm-7b").done is Done.ALREADY


def test_a_job_that_ends_while_being_stopped_counts_as_stopped(script: Script) -> None:
    script.describes().fails("stop_training_job", "ValidationException", "not in a stoppable state")
    assert script.describes(status="Completed", secondary="Completed").scheduler.stop("lm-7b").done is Done.ALREADY


def test_a_stop_that_is_refused_says_why(script: Script) -> None:
    script.describes().fails("stop_training_job", "AccessDeniedException", "no sagemaker:StopTrainingJob")
    result = script.scheduler.stop("lm-7b")
    assert result.done is Done.REFUSED
    assert "StopTrainingJob" in result.detail


def test_a_clone_is_the_job_itself_with_a_new_name_orders_and_tags(script: Script) -> None:
    result = script.describes().tags(USER_TAGS).creates().resubmit()
    assert result.done is Done.DONE
    made = script.request
    assert made["TrainingJobName"] == "lm-7b-r2"
    assert made["ResourceConfig"] == {
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": 4,
        "VolumeSizeInGB": 500,
        "KeepAlivePeriodInSeconds": 1800,
    }
    assert made["HyperParameters"] == {"lr": "3e-4", "note": ""}
    assert made["OutputDataConfig"] == {"S3OutputPath": "s3://training/out"}
    assert made["VpcConfig"] == {"SecurityGroupIds": ["sg-0aa"], "Subnets": ["subnet-0bb"]}
    assert made["CheckpointConfig"]["S3Uri"] == "s3://training/runs/lm-7b"
    assert (made["EnableNetworkIsolation"], made["EnableInterContainerTrafficEncryption"]) == (False, True)
    assert not made.keys() & {"InputDataConfig", "ModelArtifacts", "CreationTime", "SecondaryStatus", "RetryStrategy"}
    assert made["Environment"] == {
        "HF_TOKEN": SECRET,
        "EMPTY": "",
        "REKINDLE_JOB_ID": "lm-7b",
        "REKINDLE_ATTEMPT": "2",
        "REKINDLE_MAILBOX": "s3://training/runs/lm-7b",
        "REKINDLE_INCIDENT": "inc-a",
        "REKINDLE_SKIP": "[[121,141]]",
        "REKINDLE_RESUME_STEP": "120",
        "REKINDLE_RESUME_URI": ACTION.resume_root,
        "REKINDLE_RESUME_MANIFEST": ACTION.resume_manifest,
    }
    assert {tag["Key"]: tag["Value"] for tag in made["Tags"]} == {
        "team": "lm",
        "rekindle:policy": "careful",
        "rekindle:job": "lm-7b",
        "rekindle:incident": "inc-a",
        "rekindle:attempt": "2",
        "rekindle:stage": "prod",
    }


def test_a_clone_drops_what_is_null_or_empty_and_keeps_false_zero_and_the_users_own_empty_values() -> None:
    answer = described(
        InputDataConfig=[],
        VpcConfig=None,
        DebugHookConfig={"HookParameters": {}, "S3OutputPath": ""},
        AlgorithmSpecification={"TrainingInputMode": "File", "ContainerEntrypoint": [], "MetricDefinitions": None},
        NewMemberOfTomorrow={"x": 1},
    )
    made = clone_request(make_client("sagemaker").meta.service_model, answer)
    assert not made.keys() & {"InputDataConfig", "VpcConfig", "DebugHookConfig", "NewMemberOfTomorrow"}
    assert made["AlgorithmSpecification"] == {"TrainingInputMode": "File"}
    assert made["EnableNetworkIsolation"] is False
    assert made["HyperParameters"]["note"] == ""


def test_a_clone_without_a_resume_point_carries_none_of_the_old_one(script: Script) -> None:
    bare = replace(ACTION, resume_step=Unknown("none"), resume_root=None, resume_manifest=None, skips=())
    script.describes().tags([]).creates().resubmit(bare)
    assert script.request["Environment"]["REKINDLE_SKIP"] == "[]"
    assert not [name for name in script.request["Environment"] if "RESUME" in name]


def test_large_jobs_get_retries_where_the_user_set_none(script: Script) -> None:
    script.describes().tags([]).creates().resubmit(large_instances=4)
    assert script.request["RetryStrategy"] == {"MaximumRetryAttempts": 30}


def test_the_users_own_retries_are_kept(script: Script) -> None:
    script.describes(RetryStrategy={"MaximumRetryAttempts": 3}).tags([]).creates().resubmit(large_instances=1)
    assert script.request["RetryStrategy"] == {"MaximumRetryAttempts": 3}


CHECKED = replace(ACTION, checks_hardware=True)
ON, OWN = {"EnableInfraCheck": True}, {"EnableInfraCheck": False}


def is_marked(script: Script) -> bool:
    return {"Key": TAG_CHECKED, "Value": "yes"} in script.created[-1]["Tags"]


def test_a_start_on_suspected_hardware_has_it_checked_first(script: Script) -> None:
    script.describes().tags([]).creates().resubmit(CHECKED)
    assert (script.request["InfraCheckConfig"], is_marked(script)) == (ON, True)


def test_the_next_clone_keeps_the_owners_own_check_and_not_ours(script: Script) -> None:
    script.describes(InfraCheckConfig=ON).tags([{"Key": TAG_CHECKED, "Value": "yes"}]).creates().resubmit()
    assert ("InfraCheckConfig" in script.request, is_marked(script)) == (False, False)


@pytest.mark.parametrize("action", [ACTION, CHECKED])
def test_the_owners_own_word_about_a_check_stands(script: Script, action: ResubmitJob) -> None:
    script.describes(InfraCheckConfig=OWN).tags([]).creates().resubmit(action)
    assert (script.request["InfraCheckConfig"], is_marked(script)) == (OWN, False)


def test_a_check_that_is_refused_is_left_out(script: Script) -> None:
    script.describes().tags([]).fails("create_training_job", "ValidationException", "not for this type").creates()
    assert script.resubmit(CHECKED).done is Done.DONE
    assert ("InfraCheckConfig" in script.created[-1], is_marked(script), len(script.created)) == (False, False, 2)


def test_instance_groups_are_counted_and_stand_alone(script: Script) -> None:
    groups = [
        {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2, "InstanceGroupName": "gpu"},
        {"InstanceType": "ml.c5.xlarge", "InstanceCount": 1, "InstanceGroupName": "cpu"},
    ]
    resources = {"InstanceCount": 0, "VolumeSizeInGB": 10, "InstanceGroups": groups}
    script.describes(ResourceConfig=resources).tags([]).creates().resubmit(large_instances=3)
    assert script.request["ResourceConfig"] == {"VolumeSizeInGB": 10, "InstanceGroups": groups}
    assert "RetryStrategy" in script.request


def test_a_name_taken_by_our_own_job_is_already_done(script: Script) -> None:
    script.describes().tags([]).fails("create_training_job", "ResourceInUse")
    script.describes("lm-7b-r2").tags(OUR_TAGS, "lm-7b-r2")
    assert script.resubmit().done is Done.ALREADY


@pytest.mark.parametrize("tags", [[], [{"Key": "rekindle:incident", "Value": "inc-a"}]])
def test_a_name_taken_by_somebody_else_is_name_taken(script: Script, tags: list[dict[str, str]]) -> None:
    script.describes().tags([]).fails("create_training_job", "ResourceInUse")
    elsewhere: dict[str, Any] = {"CheckpointConfig": {"S3Uri": "s3://training/runs/elsewhere"}}
    script.describes("lm-7b-r2", **elsewhere).tags(tags, "lm-7b-r2").tags(tags, "lm-7b-r2")
    assert script.resubmit().done is Done.NAME_TAKEN


JOB_TAG = [{"Key": "rekindle:job", "Value": "lm-7b"}]


@pytest.mark.parametrize(
    ("status", "tags", "expected"),
    [
        ("InProgress", JOB_TAG, Done.SIBLING),
        ("Stopping", JOB_TAG, Done.SIBLING),
        ("Stopped", JOB_TAG, Done.NAME_TAKEN),
        ("InProgress", [{"Key": "rekindle:job", "Value": "another"}], Done.NAME_TAKEN),
    ],
)
def test_a_name_taken_by_a_living_attempt_of_the_job_is_a_sibling(
    script: Script, status: str, tags: list[dict[str, str]], expected: Done
) -> None:
    elsewhere: dict[str, Any] = {"CheckpointConfig": {"S3Uri": "s3://training/runs/elsewhere"}}
    script.describes().tags([]).fails("create_training_job", "ResourceInUse")
    script.describes("lm-7b-r2", TrainingJobStatus=status, SecondaryStatus=status, **elsewhere).tags(tags, "lm-7b-r2")
    if status != "Stopped":
        script.tags(tags, "lm-7b-r2")
    if expected is Done.SIBLING:
        script.describes(job().current_attempt)
    answer = script.resubmit()
    assert (answer.done, answer.attempt) == (expected, "lm-7b-r2" if expected is Done.SIBLING else "")


def listing(*names: str) -> dict[str, Any]:
    return {
        "TrainingJobSummaries": [
            {
                "TrainingJobName": name,
                "TrainingJobArn": ARN + name,
                "CreationTime": WHEN,
                "TrainingJobStatus": "InProgress",
            }
            for name in names
        ]
    }


def test_siblings_are_told_by_mailbox_by_tag_and_by_name(script: Script) -> None:
    ours = replace(job(), job_id="lm-7b", name="lm-7b", mailbox="s3://training/runs/lm-7b")
    nowhere: dict[str, Any] = {"CheckpointConfig": {"S3Uri": "s3://training/runs/other"}}
    bare: dict[str, Any] = {"CheckpointConfig": {"S3Uri": "s3://x/y"}, "Environment": {}}
    names = ("same-mailbox", "same-tag", "another", "anothers-in-the-mailbox", "ended", "lm-7b-r2")
    script.stub.add_response("list_training_jobs", listing(*names))
    script.describes("same-mailbox").tags([], "same-mailbox").describes("lm-7b")
    script.describes("same-tag", **nowhere).tags(JOB_TAG, "same-tag").describes("lm-7b")
    script.describes("another", **bare).tags([], "another")
    script.describes("anothers-in-the-mailbox").tags(
        [{"Key": "rekindle:job", "Value": "sweep-2"}], "anothers-in-the-mailbox"
    )
    script.describes("ended", status="Failed", secondary="Failed")
    assert script.scheduler.siblings(ours, besides={"lm-7b-r2"}) == ("same-mailbox", "same-tag")


def test_a_run_under_another_role_is_no_sibling_whatever_it_says_of_itself(script: Script) -> None:
    """Anybody who may start training jobs may name a neighbour's mailbox, or tag a job as an attempt of his."""
    ours = replace(job(), job_id="lm-7b", name="lm-7b", mailbox="s3://training/runs/lm-7b")
    nowhere: dict[str, Any] = {"CheckpointConfig": {"S3Uri": "s3://training/runs/other"}}
    foreign = {"RoleArn": "arn:aws:iam::123456789012:role/neighbour"}
    script.stub.add_response("list_training_jobs", listing("same-mailbox", "same-tag"))
    script.describes("same-mailbox", **foreign).tags([], "same-mailbox").describes("lm-7b")
    script.describes("same-tag", **foreign, **nowhere).tags(JOB_TAG, "same-tag").describes("lm-7b")
    assert script.scheduler.siblings(ours, besides=()) == ()


def test_a_sibling_that_an_event_told_of_needs_no_list(script: Script) -> None:
    ours = replace(job(), job_id="lm-7b", name="lm-7b", mailbox="s3://training/runs/lm-7b")
    script.describes("ended", status="Failed", secondary="Failed")
    script.describes("by-hand").tags([], "by-hand").describes("lm-7b")
    told = ("lm-7b-r2", "ended", "by-hand")
    assert script.scheduler.siblings(ours, besides={"lm-7b-r2"}, reported=told) == ("by-hand",)


def test_the_newest_run_that_was_submitted_after_ours_and_has_ended_was_missed(script: Script) -> None:
    ours = replace(job(), job_id="lm-7b", name="lm-7b", mailbox="s3://training/runs/lm-7b")
    ours = replace(ours, attempt_started_at=WHEN - timedelta(days=1))
    bare: dict[str, Any] = {"CheckpointConfig": {"S3Uri": "s3://x/y"}, "Environment": {}}
    script.stub.add_response("list_training_jobs", listing("lm-7b-r2", "another", "lives", "by-hand", "older"))
    script.describes("another", status="Failed", secondary="Failed", **bare).tags([], "another")
    script.describes("lives")
    script.describes("by-hand", status="Stopped", secondary="Stopped").tags([], "by-hand").describes("lm-7b")
    assert script.scheduler.missed(ours, besides={"lm-7b-r2"}) == "by-hand"


def test_what_was_submitted_before_ours_was_not_missed(script: Script) -> None:
    ours = replace(job(), job_id="lm-7b", name="lm-7b", mailbox="s3://training/runs/lm-7b")
    ours = replace(ours, attempt_started_at=WHEN + timedelta(days=1))
    script.stub.add_response("list_training_jobs", listing("by-hand"))
    script.describes("by-hand", status="Completed", secondary="Completed")
    assert script.scheduler.missed(ours, besides=()) is None


def test_a_listing_that_fails_is_no_answer(script: Script) -> None:
    script.fails("list_training_jobs", "ThrottlingException")
    with pytest.raises(Throttled):
        script.scheduler.siblings(job(), besides=())


def test_a_stop_is_dated_by_the_platform(script: Script) -> None:
    moved = [
        {"Status": "Training", "StartTime": WHEN, "EndTime": WHEN},
        {"Status": "Stopping", "StartTime": WHEN.replace(hour=10)},
    ]
    view = script.describes(status="Stopping", secondary="Stopping", SecondaryStatusTransitions=moved)
    assert view.scheduler.describe("lm-7b").stopping_since == WHEN.replace(hour=10)


@pytest.mark.parametrize("code", ["ResourceLimitExceeded", "CapacityError", "InsufficientCapacityException"])
def test_no_room_is_capacity(script: Script, code: str) -> None:
    script.describes().tags([]).fails("create_training_job", code).knows_not("lm-7b-r2")
    assert script.resubmit().done is Done.CAPACITY


def test_a_quota_that_our_own_lost_answer_job_uses_up_is_no_want_of_capacity(script: Script) -> None:
    script.describes().tags([]).fails("create_training_job", "ResourceLimitExceeded")
    script.describes("lm-7b-r2").tags(OUR_TAGS, "lm-7b-r2")
    assert script.resubmit().done is Done.ALREADY


@pytest.mark.parametrize("code", ["ValidationException", "AccessDeniedException", "ResourceNotFound"])
def test_a_refusal_is_passed_on_without_the_secrets_it_quotes(script: Script, code: str) -> None:
    text = f"Value '{{HF_TOKEN={SECRET}}}' at 'environment' failed"
    script.describes().tags([]).fails("create_training_job", code, text).knows_not("lm-7b-r2")
    result = script.resubmit()
    assert result.done is Done.REFUSED
    assert SECRET not in result.detail
    assert "at 'environment' failed" in result.detail


def test_throttling_is_retryable(script: Script) -> None:
    script.describes().tags([]).fails("create_training_job", "ThrottlingException")
    with pytest.raises(Throttled):
        script.resubmit()


def test_a_job_that_is_gone_cannot_be_cloned(script: Script) -> None:
    assert script.knows_not("lm-7b").resubmit().done is Done.REFUSED


def test_orders_that_do_not_fit_the_environment_are_refused_clearly(script: Script) -> None:
    windows = tuple(SkipWindow(from_step=10**9 + 10 * n, to_step=10**9 + 10 * n + 5) for n in range(60))
    result = script.describes().tags([]).resubmit(replace(ACTION, skips=windows))
    assert result.done is Done.REFUSED
    assert "REKINDLE_SKIP" in result.detail


@pytest.mark.parametrize("member", ["Environment", "Tags"])
def test_more_entries_than_the_api_takes_are_refused_before_the_call(script: Script, member: str) -> None:
    if member == "Environment":
        script.describes(Environment={f"V{number}": "x" for number in range(98)}).tags([])
    else:
        script.describes().tags([{"Key": f"t{number}", "Value": "x"} for number in range(48)])
    result = script.resubmit()
    assert result.done is Done.REFUSED
    assert "SageMaker takes" in result.detail


def test_redaction_spares_short_values_and_hides_long_ones_wherever_they_stand() -> None:
    request = {"Environment": {"N": "4", "T": 'se"cret\nvalue'}, "HyperParameters": {"key": "s3cr3tkey"}}
    assert redact('4 nodes: se\\"cret\\nvalue s3cr3tkey', request) == "4 nodes: *** ***"


# ---- several stages in one account -----------------------------------------------------------------------------------

ASKS = {"Key": "rekindle:policy", "Value": "default"}
DEV = {"Key": "rekindle:stage", "Value": "dev"}


@pytest.mark.parametrize(
    ("tags", "stage", "ours"),
    [([ASKS], "prod", True), ([ASKS], "dev", False), ([ASKS, DEV], "dev", True), ([ASKS, DEV], "prod", False)],
)
def test_a_job_is_discovered_by_one_stage_of_the_account(tags: list[dict[str, str]], stage: str, ours: bool) -> None:
    script = Script().describes().tags(tags)
    scheduler = TrainingJobScheduler(script.client, stage=stage)
    if ours:
        assert scheduler.discover("lm-7b") is not None
    else:
        with pytest.raises(NotOurs, match="another stage"):
            scheduler.discover("lm-7b")


def test_a_clone_belongs_to_the_stage_that_submitted_it() -> None:
    script = Script().describes().tags([ASKS]).creates()
    script.scheduler = TrainingJobScheduler(script.client, stage="dev")
    assert script.resubmit().done is Done.DONE
    assert {"Key": "rekindle:stage", "Value": "dev"} in script.request["Tags"]


def test_a_job_that_was_handed_to_another_stage_meanwhile_is_not_resubmitted() -> None:
    script = Script().describes().tags([ASKS, DEV])
    done = script.resubmit()
    assert done.done is Done.REFUSED
    assert "rekindle:stage" in done.detail


# ---- roles that a resubmitted job may run under ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        (None, False),  # the stack that set the environment is older than this
        ((), True),
        ((ROLE,), False),
        (("arn:aws:iam::111122223333:role/*",), False),  # as IAM reads a resource
        (("arn:aws:iam::111122223333:role/other", "arn:aws:iam::210987654321:role/*"), True),
    ],
)
def test_a_job_whose_role_cannot_be_handed_over_is_told_while_its_owner_is_there(
    roles: tuple[str, ...] | None, told: bool
) -> None:
    script = Script().describes().tags([ASKS])
    found = TrainingJobScheduler(script.client, roles=roles).discover("lm-7b")
    assert found is not None
    assert bool(found.limits) is told
    if told:
        [limit] = found.limits
        assert ROLE in limit
        assert "TrainingRoleArns" in limit


def test_the_roles_are_read_from_the_environment_and_none_is_not_no_role() -> None:
    names = ("AWS_REGION", "REKINDLE_TABLE", "REKINDLE_BUS", "REKINDLE_BUCKET")
    given = {name: "x" for name in (*names, "REKINDLE_QUARANTINE_URL", "REKINDLE_RECOVER_FUNCTION")}
    assert Settings.from_env(given).training_roles is None
    assert Settings.from_env({**given, "REKINDLE_TRAINING_ROLES": ""}).training_roles == ()
    assert Settings.from_env({**given, "REKINDLE_TRAINING_ROLES": f"{ROLE},b"}).training_roles == (ROLE, "b")
