"""Each function of the embedded cloud calls AWS under its own role, as the packaged policies allow."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.session import get_session

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from infra.cloudformation.intrinsics import Stack
from infra.functions import FUNCTIONS
from localcloud.aws.authorization import _NEEDS, Account, Permission, needs
from localcloud.aws.policies import Policy
from localcloud.aws.roles import acting_as
from localcloud.aws.wire import SERVICE
from localcloud.cloud import ACCOUNT_ID, REGION, STACK, Cloud
from localcloud.worlds.recoveries import Script, crash_at, world

pytestmark = pytest.mark.may_be_denied
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT_ID}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
DENIED = frozenset({"AccessDenied", "AccessDeniedException"})


def _call(cloud: Cloud, function: str, service: str, operation: str, **request: Any) -> Any:
    method: Callable[..., Any] = getattr(cloud.client(service, caller=SERVICE), operation)
    return acting_as(function, lambda: method(**request))()


def _is_denied(cloud: Cloud, function: str, service: str, operation: str, **request: Any) -> bool:
    try:
        _call(cloud, function, service, operation, **request)
    except ClientError as err:
        return err.response["Error"]["Code"] in DENIED
    return False


def test_a_call_that_the_role_does_not_allow_is_denied_as_aws_does_and_has_no_effect() -> None:
    with Cloud() as cloud:
        assert _is_denied(
            cloud, "sweep", "sqs", "send_message", QueueUrl=cloud._queue_url(f"{STACK}-deliveries"), MessageBody="x"
        )
        assert not _is_denied(cloud, "sweep", "s3", "list_objects_v2", Bucket=f"{STACK}-mailbox")
        assert [(function, need.action) for function, need in cloud.roles.denied] == [("sweep", "sqs:SendMessage")]
        assert "sqs.SendMessage" not in cloud.wire.calls


def test_nobody_s_call_is_judged_outside_a_function_and_of_other_callers() -> None:
    with Cloud() as cloud:
        cloud.client("s3", caller=SERVICE).put_object(Bucket=f"{STACK}-mailbox", Key="anywhere", Body=b"")
        acting_as("sweep", lambda: cloud.client("s3").put_object(Bucket=f"{STACK}-mailbox", Key="x", Body=b""))()
        assert cloud.roles.denied == []


def test_a_thread_that_a_function_starts_has_the_function_s_role() -> None:
    refused: list[bool] = []

    def in_a_thread(cloud: Cloud) -> None:
        client = cloud.client("s3", caller=SERVICE)

        def write() -> None:
            try:
                client.put_object(Bucket=f"{STACK}-mailbox", Key="checkpoints/x", Body=b"")
            except ClientError as err:
                refused.append(err.response["Error"]["Code"] in DENIED)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()

    with Cloud() as cloud:
        acting_as("recover", in_a_thread)(cloud)
    assert refused == [True]


@pytest.mark.parametrize(
    ("pk", "denied"),
    [
        ("NOTICE#1", False),
        ("CHANNEL#team", False),
        ("SLACK#team#i-1", False),
        ("CONTROL", True),  # the pause and every other switch
        ("INC#i-1", True),  # approvals stand in the Incident
        ("JOB#lm", True),
        ("POLICY#default", True),
        ("SIG#x", True),
    ],
)
def test_what_speaks_to_foreign_servers_writes_only_what_it_has_delivered(pk: str, denied: bool) -> None:
    item = {"pk": {"S": pk}, "sk": {"S": "META"}}
    with Cloud() as cloud:
        assert _is_denied(cloud, "deliver", "dynamodb", "put_item", TableName=STACK, Item=item) is denied
        assert (
            _is_denied(
                cloud,
                "deliver",
                "dynamodb",
                "transact_write_items",
                TransactItems=[{"Put": {"TableName": STACK, "Item": item}}],
            )
            is denied
        )
        assert _is_denied(cloud, "deliver", "ssm", "put_parameter", Name=f"/{STACK}/policies/p", Value="{}")


def test_the_switches_are_written_by_the_api_and_the_recovery_alone() -> None:
    item = {"pk": {"S": "CONTROL"}, "sk": {"S": "PAUSE"}}
    with Cloud() as cloud:
        allowed = {
            function.name
            for function in FUNCTIONS
            if not _is_denied(cloud, function.name, "dynamodb", "put_item", TableName=STACK, Item=item)
        }
    assert allowed == {"api_handler", "recover"}


@pytest.mark.parametrize("function", [function.name for function in FUNCTIONS])
def test_no_function_reaches_what_is_none_of_its_business(function: str) -> None:
    with Cloud() as cloud:
        cloud.client("s3").create_bucket(
            Bucket="somebody-elses", CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        assert _is_denied(cloud, function, "s3", "get_object", Bucket="somebody-elses", Key="x")
        assert _is_denied(cloud, function, "dynamodb", "get_item", TableName="other", Key={"pk": {"S": "JOB#x"}})
        assert _is_denied(cloud, function, "sqs", "send_message", QueueUrl="https://x/y/other", MessageBody="x")
        assert _is_denied(cloud, function, "ssm", "get_parameter", Name="/other/policies/default")
        assert _is_denied(cloud, function, "lambda", "invoke", FunctionName="other", Qualifier="live")


def test_a_bucket_that_the_stack_was_not_told_of_cannot_be_read_and_one_that_it_was_can() -> None:
    with Cloud() as cloud:
        s3 = cloud.client("s3")
        s3.create_bucket(Bucket="team", CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_object(Bucket="team", Key="x", Body=b"")
        assert _is_denied(cloud, "recover", "s3", "get_object", Bucket="team", Key="x")
        cloud.training_buckets += ("team",)
        cloud.roles.changed()
        assert not _is_denied(cloud, "recover", "s3", "get_object", Bucket="team", Key="x")
        assert not _is_denied(cloud, "recover", "s3", "put_object", Bucket="team", Key="a/rekindle/b", Body=b"")
        assert _is_denied(cloud, "recover", "s3", "put_object", Bucket="team", Key="a/b", Body=b"")


def _encrypt(cloud: Cloud) -> None:
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY}}
    cloud.client("s3").put_bucket_encryption(
        Bucket=f"{STACK}-mailbox", ServerSideEncryptionConfiguration={"Rules": [rule]}
    )


@pytest.mark.long
def test_a_run_whose_bucket_has_a_key_of_its_own_is_recovered_where_the_stack_may_use_the_key() -> None:
    with world() as w:
        _encrypt(w.cloud)
        w.cloud.kms_keys = (KEY,)
        w.cloud.roles.changed()
        w.submit(
            scripts=(Script(faults=(crash_at(25),)), Script()),
            ResourceConfig={
                "InstanceType": "ml.p5.48xlarge",
                "InstanceCount": 4,
                "VolumeSizeInGB": 500,
                "VolumeKmsKeyId": KEY,
            },
        )
        incident = w.recover()
        assert (incident.phase, incident.resubmission.tries[0].resume_step) == (Phase.RECOVERED, Known(20)), w.story()
        assert w.cloud.roles.denied == []


@pytest.mark.long
def test_a_key_that_the_stack_may_not_use_makes_nothing_healthy_and_no_run_begin_anew() -> None:
    with world() as w:
        _encrypt(w.cloud)
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.cloud.clock.run_for(timedelta(minutes=30))
        (incident,) = w.incidents()
        assert incident.resubmission.tries == (), w.story()
        denied = {(function, need.action) for function, need in w.cloud.roles.denied}
        # The Incident's page cannot be written either; people are told without a link.
        assert {function for function, action in denied if action == "kms:GenerateDataKey"} == {"notice_event"}
        assert {action for _, action in denied} == {"kms:Decrypt", "kms:GenerateDataKey"}


@pytest.mark.long
def test_without_named_roles_no_job_is_submitted_and_a_person_is_told_why() -> None:
    with world() as w:
        w.cloud.training_roles = ()
        w.cloud.roles.changed()
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.cloud.clock.run_for(timedelta(minutes=30))
        (incident,) = w.incidents()
        assert "iam:PassRole" in w.story()
        assert incident.phase is not Phase.RECOVERED
        assert list(w.jobs()) == ["lm"]


# ---- the evaluation --------------------------------------------------------------------------------------------------


def _policy(**statement: Any) -> Policy:
    return Policy({"Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*", **statement}]})


READ = Permission("s3:GetObject", "arn:aws:s3:::b/k")


def test_a_denial_outweighs_what_is_allowed() -> None:
    allow = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    deny = {"Effect": "Deny", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}
    assert Policy({"Statement": [allow]}).allows(READ)
    assert not Policy({"Statement": [allow, deny]}).allows(READ)
    assert not Policy({"Statement": []}).allows(READ)


@pytest.mark.parametrize(
    ("resource", "matches"),
    [("arn:aws:s3:::b/k", True), ("arn:aws:s3:::?/*", True), ("arn:aws:s3:::b/k2", False), ("arn.aws:s3:::b/k", False)],
)
def test_a_resource_has_two_wildcards_and_nothing_else(resource: str, matches: bool) -> None:
    assert _policy(Resource=[resource]).allows(READ) is matches


@pytest.mark.parametrize(
    ("operator", "wanted", "given", "holds"),
    [
        ("StringEquals", "a", ("a",), True),
        ("StringEquals", ["a", "b"], ("b",), True),
        ("StringEquals", "a", ("A",), False),
        ("StringEquals", "a", None, False),
        ("StringLike", "a*", ("ab",), True),
        ("ForAllValues:StringLike", ["a*", "b"], ("ab", "b"), True),
        ("ForAllValues:StringLike", ["a*"], ("ab", "b"), False),
        ("ForAllValues:StringLike", ["a*"], None, True),  # IAM: true where the key is missing
        ("ForAnyValue:StringEquals", ["a"], ("b", "a"), True),
        ("ForAnyValue:StringEquals", ["a"], None, False),
        ("Bool", "true", ("true",), True),
    ],
)
def test_conditions_hold_as_iam_says(operator: str, wanted: Any, given: tuple[str, ...] | None, holds: bool) -> None:
    need = Permission(READ.action, READ.resource, (("k", given),) if given is not None else ())
    assert _policy(Condition={operator: {"k": wanted}}).allows(need) is holds


def test_what_cannot_be_evaluated_is_an_error_and_no_permission() -> None:
    with pytest.raises(ValueError, match="NumericEquals"):
        _policy(Condition={"NumericEquals": {"k": "1"}}).allows(
            Permission(READ.action, READ.resource, (("k", ("1",)),))
        )
    with pytest.raises(ValueError, match="NotResource"):
        _policy(NotResource="x").allows(READ)
    with pytest.raises(ValueError, match="Fn::Select"):
        Stack(references={}).resolve({"Fn::Select": [0, ["a"]]})


def test_an_operation_that_nobody_has_described_is_an_error() -> None:
    with pytest.raises(KeyError, match="TerminateInstances"):
        needs(Account(), "ec2", "TerminateInstances", {})


@pytest.mark.parametrize("operation", sorted(_NEEDS))
def test_every_operation_that_is_judged_exists(operation: str) -> None:
    service, _, name = operation.partition(".")
    assert name in get_session().get_service_model(service).operation_names


def test_a_training_job_needs_its_parts_rights_too() -> None:
    request = {
        "TrainingJobName": "lm",
        "RoleArn": "arn:aws:iam::123456789012:role/train",
        "Tags": [{"Key": "a", "Value": "b"}],
        "ResourceConfig": {"VolumeKmsKeyId": KEY, "TrainingPlanArn": "arn:aws:sagemaker:us-west-2:1:training-plan/p"},
    }
    found = needs(Account(), "sagemaker", "CreateTrainingJob", json.loads(json.dumps(request)))
    assert {need.action for need in found} == {
        "sagemaker:CreateTrainingJob",
        "sagemaker:AddTags",
        "iam:PassRole",
        "kms:CreateGrant",
    }
