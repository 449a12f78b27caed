"""Deploy and remove a small stack, against moto and the CloudFormation of the embedded cloud."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from infra.deploy.artefacts import Artefacts
from infra.deploy.deployment import Deployment
from infra.grants import POLICIES
from infra.package import BUNDLE, TEMPLATE
from infra.target_stack import DeploymentError, stack_name
from rekindle.cli.main import main as rekindle
from rekindle.client.errors import Exit
from tests.cli.service import FakeService, serve
from tests.infra.live_account import live_account
from tests.infra.stack_reading import CODE, REGION, Template

SMALL: dict[str, Any] = {
    "AWSTemplateFormatVersion": "2010-09-09",
    "Parameters": {"NoticeEmail": {"Type": "String", "Default": ""}},
    "Resources": {
        "RegistryTable": {
            "Type": "AWS::DynamoDB::Table",
            "DeletionPolicy": "Retain",
            "Properties": {
                "TableName": {"Ref": "AWS::StackName"},
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
            },
        },
        "QuarantineQueue": {"Type": "AWS::SQS::Queue"},
    },
    "Outputs": {"TableName": {"Value": {"Ref": "RegistryTable"}}},
}


@pytest.fixture
def account(aws_settings: None) -> Iterator[boto3.session.Session]:
    with live_account() as found:
        yield found.session


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / TEMPLATE).write_text(json.dumps(SMALL), encoding="utf-8")
    (tmp_path / BUNDLE).write_bytes(b"a bundle")
    return tmp_path


def test_deploying_makes_the_stack(account: boto3.session.Session, small: Path) -> None:
    Deployment(session=account, stack="rekindle").deploy(small, parameters={"NoticeEmail": "a@example.org"})
    (stack,) = account.client("cloudformation").describe_stacks(StackName="rekindle")["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    assert stack["Parameters"][0]["ParameterValue"] == "a@example.org"


def test_a_second_deployment_keeps_the_parameters_that_were_chosen(account: boto3.session.Session, small: Path) -> None:
    deployment = Deployment(session=account, stack="rekindle")
    deployment.deploy(small, parameters={"NoticeEmail": "a@example.org"})
    changed = json.loads(json.dumps(SMALL))
    changed["Resources"]["FailuresQueue"] = {"Type": "AWS::SQS::Queue"}
    (small / TEMPLATE).write_text(json.dumps(changed), encoding="utf-8")
    deployment.deploy(small, parameters={})
    (stack,) = account.client("cloudformation").describe_stacks(StackName="rekindle")["Stacks"]
    assert stack["Parameters"][0]["ParameterValue"] == "a@example.org"
    made = account.client("cloudformation").list_stack_resources(StackName="rekindle")["StackResourceSummaries"]
    assert [resource["LogicalResourceId"] for resource in made if resource["ResourceType"] == "AWS::SQS::Queue"] == [
        "QuarantineQueue",
        "FailuresQueue",
    ]


def test_deploying_the_same_again_changes_nothing(account: boto3.session.Session, small: Path) -> None:
    deployment = Deployment(session=account, stack="rekindle")
    deployment.deploy(small, parameters={"NoticeEmail": "a@example.org"})
    cloud = account.client("cloudformation")
    before = len(cloud.describe_stack_events(StackName="rekindle")["StackEvents"])
    deployment.deploy(small, parameters={"NoticeEmail": "a@example.org"})
    assert len(cloud.describe_stack_events(StackName="rekindle")["StackEvents"]) == before


def test_what_is_retained_gets_a_plain_name_so_that_the_next_stack_can_take_it_up(
    account: boto3.session.Session, template: Template, tmp_path: Path
) -> None:
    settled = json.loads(json.dumps(template))
    Artefacts(session=account, stack="rekindle-dev").settle(settled, code=CODE)
    assert settled["Resources"]["RegistryTable"]["Properties"]["TableName"] == "rekindle-dev"
    assert settled["Resources"]["MailboxBucket"]["Properties"]["BucketName"] == f"rekindle-dev-123456789012-{REGION}"
    functions = [r for r in settled["Resources"].values() if r["Type"] == "AWS::Serverless::Function"]
    assert all(function["Properties"]["CodeUri"] == CODE for function in functions)


def test_bundles_are_kept_in_a_private_bucket_that_is_made_once(account: boto3.session.Session, small: Path) -> None:
    deployment = Deployment(session=account, stack="rekindle")
    deployment.deploy(small, parameters={})
    (bucket,) = [b["Name"] for b in account.client("s3").list_buckets()["Buckets"]]
    assert bucket == f"rekindle-artefacts-123456789012-{REGION}"
    blocked = account.client("s3").get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert all(blocked.values())
    deployment.deploy(small, parameters={})
    assert _buckets(account) == [bucket]


def test_removing_names_what_stays_and_can_be_repeated(account: boto3.session.Session, small: Path) -> None:
    deployment = Deployment(session=account, stack="rekindle")
    deployment.deploy(small, parameters={})
    assert deployment.remove() == ("AWS::DynamoDB::Table rekindle",)
    assert account.client("cloudformation").describe_stacks()["Stacks"] == []
    assert deployment.remove() == ()


def test_a_missing_package_is_named(account: boto3.session.Session, tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"sam\.json is missing: run `make package`"):
        Deployment(session=account, stack="rekindle").deploy(tmp_path, parameters={})


def test_the_command_line_prints_the_outputs(
    account: boto3.session.Session, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["stack", "deploy", "--stage", "dev", "--package", str(small), "--yes"]
    assert rekindle([*words, "--parameter", "NoticeEmail=a@example.org"]) == 0
    assert capsys.readouterr().out == "TableName            rekindle-dev\n"


@pytest.mark.long
def test_the_command_line_removes_and_says_what_stays(
    account: boto3.session.Session, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rekindle(["stack", "deploy", "--stage", "dev", "--yes", "--package", str(small)]) == 0
    assert rekindle(["undeploy", "--stage", "dev", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "rekindle-dev is removed." in said
    assert "kept: AWS::DynamoDB::Table rekindle-dev" in said
    assert f"left: the bucket rekindle-artefacts-123456789012-{REGION} of bundles" in said


def _buckets(account: boto3.session.Session) -> list[str]:
    return [bucket["Name"] for bucket in account.client("s3").list_buckets()["Buckets"]]


def _stacks(account: boto3.session.Session) -> dict[str, str]:
    found = account.client("cloudformation").describe_stacks()["Stacks"]
    return {stack["StackName"]: stack["StackStatus"] for stack in found if stack["StackStatus"] != "DELETE_COMPLETE"}


@pytest.mark.long
def test_a_deployment_says_what_it_does_and_is_refused_where_nobody_can_be_asked(
    account: boto3.session.Session, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"stack rekindle (stage prod), account 123456789012, region {REGION}"
    assert rekindle(["deploy", "--package", str(small)]) == 1
    told = capsys.readouterr()
    assert f"Create {where}:" in told.err
    assert (told.err.splitlines()[-1].endswith("in a script say --yes"), told.out) == (True, "")
    assert (_stacks(account), _buckets(account)) == ({}, [])
    assert rekindle(["deploy", "--package", str(small), "--yes"]) == 0
    assert rekindle(["deploy", "--package", str(small)]) == 1
    told = capsys.readouterr()
    assert f"Update {where}:" in told.err
    assert "it is CREATE_COMPLETE now; what it protects now is not known" in told.err


def test_a_plan_of_a_new_stack_leaves_nothing_behind(
    account: boto3.session.Session, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rekindle(["deploy", "--plan", "--package", str(small)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(
        f"stack rekindle (stage prod), account 123456789012, region {REGION}: 2 changes, none of them"
    )
    assert "add       AWS::SQS::Queue                     QuarantineQueue" in told
    assert (_stacks(account), _buckets(account)) == ({}, [])


@pytest.mark.long
def test_a_plan_of_an_update_names_rights_first_and_what_is_replaced_or_removed(
    account: boto3.session.Session, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Deployment(session=account, stack="rekindle").deploy(small, parameters={})
    (bucket,) = _buckets(account)
    s3 = account.client("s3")
    before = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    changed = json.loads(json.dumps(SMALL))
    del changed["Resources"]["QuarantineQueue"]
    changed["Resources"]["RegistryTable"]["Properties"]["BillingMode"] = "PROVISIONED"
    changed["Resources"]["Role"] = {
        "Type": "AWS::IAM::Role",
        "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}},
    }
    (small / TEMPLATE).write_text(json.dumps(changed), encoding="utf-8")
    assert rekindle(["deploy", "--plan", "--package", str(small)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("3 changes, none of them made.")
    assert [" ".join(line.split()) for line in lines[2:]] == [
        "IAM and resource policies: 1",
        "add AWS::IAM::Role Role",
        "",
        "everything else: 2",
        "modify AWS::DynamoDB::Table RegistryTable BillingMode",
        "remove (Delete) AWS::SQS::Queue QuarantineQueue",
    ]
    assert _stacks(account) == {"rekindle": "CREATE_COMPLETE"}
    resources = account.client("cloudformation").list_stack_resources(StackName="rekindle")["StackResourceSummaries"]
    assert {resource["LogicalResourceId"] for resource in resources} == {"RegistryTable", "QuarantineQueue"}
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == before


@pytest.mark.long
def test_a_plan_without_changes_and_one_that_is_refused(
    account: boto3.session.Session, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = Deployment(session=account, stack="rekindle")
    with pytest.raises(Exception, match="ValidationError"):
        deployment.plan(small, parameters={"NoSuchParameter": "1"})
    assert (_stacks(account), _buckets(account)) == ({}, [])
    deployment.deploy(small, parameters={})
    (bucket,) = _buckets(account)
    assert rekindle(["deploy", "--plan", "--package", str(small), "--bucket", bucket]) == 0
    assert capsys.readouterr().out.endswith(": nothing would change.\n")


def test_a_removal_says_what_it_ends_and_is_refused_where_nobody_can_be_asked(
    account: boto3.session.Session, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Deployment(session=account, stack="rekindle").deploy(small, parameters={})
    assert rekindle(["undeploy"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"Remove stack rekindle (stage prod), account 123456789012, region {REGION}:")
    assert "all protection ends" in told
    assert "in a script say --yes" in told
    (stack,) = account.client("cloudformation").describe_stacks(StackName="rekindle")["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"


def test_a_removal_counts_what_the_service_protects(
    account: boto3.session.Session, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = FakeService()
    service.protect("lm")
    service.stall("lm")
    with serve(service) as url:
        template = json.loads(json.dumps(SMALL))
        template["Outputs"]["ApiUrl"] = {"Value": url}
        (small / TEMPLATE).write_text(json.dumps(template), encoding="utf-8")
        Deployment(session=account, stack="rekindle").deploy(small, parameters={})
        assert rekindle(["undeploy"]) == 1
    assert "1 active Jobs and 1 open Incidents are not protected any more" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("flags", [(), ("--yes",)])
def test_a_stack_that_does_not_exist_is_not_said_to_be_removed(
    account: boto3.session.Session, small: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    Deployment(session=account, stack="rekindle").deploy(small, parameters={})
    assert rekindle(["undeploy", "--stage", "typo", *flags]) == 4
    told = capsys.readouterr()
    assert (told.out, "there is no stack rekindle-typo" in told.err) == ("", True)


@pytest.mark.parametrize(
    ("missing", "said"), [("AWS_DEFAULT_REGION", "no AWS Region"), ("AWS_ACCESS_KEY_ID", "no AWS cred")]
)
def test_missing_settings_are_told_in_one_line(
    aws_settings: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str, said: str
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv(missing)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY") if "KEY" in missing else None
    assert rekindle(["stack", "deploy", "--stage", "prod"]) == Exit.UNREACHABLE
    err = capsys.readouterr().err
    assert err.startswith(f"rekindle: {said}")
    assert err.count("\n") == 1


def test_prod_has_the_plain_name_and_every_other_stage_its_own() -> None:
    assert stack_name("prod") == "rekindle"
    assert stack_name("dev") == "rekindle-dev"
    for bad in ("Dev", "a_b", "", "x" * 21):
        with pytest.raises(DeploymentError):
            stack_name(bad)


def test_no_stage_has_a_name_that_another_stage_gives_its_own_resources() -> None:
    """Every family of names in the roles' policies, and the bucket of bundles, which all stages share."""
    text = "".join(path.read_text(encoding="utf-8") for path in POLICIES.glob("*.json"))
    families = set(re.findall(r":\$\{AWS::StackName\}-([a-z]+)-?\*", text))
    assert families == {"agent", "job"}
    for family in (*families, "artefacts"):
        with pytest.raises(DeploymentError, match="other stages' own"):
            stack_name(family)
    for stage in ("x-agent", "agent-x", "x-job-y", "jobs", "x-jobless"):
        with pytest.raises(DeploymentError, match="other stages' own"):
            stack_name(stage)
    assert stack_name("my-agents") == "rekindle-my-agents"


def test_a_failed_deployment_names_the_first_cause_however_many_events_follow() -> None:
    """A page has 100 events; a create that is rolled back writes several hundred."""

    def told(number: int, resource: str, status: str, reason: str | None = None) -> dict[str, Any]:
        event = {
            "StackId": "arn:aws:cloudformation:us-west-2:123456789012:stack/rekindle/1",
            "EventId": str(number),
            "StackName": "rekindle",
            "LogicalResourceId": resource,
            "ResourceStatus": status,
            "Timestamp": datetime(2026, 11, 1, tzinfo=UTC),
        }
        return event if reason is None else event | {"ResourceStatusReason": reason}

    oldest_first = [
        told(0, "OldQueue", "CREATE_FAILED", "an earlier deployment's reason"),
        told(1, "rekindle", "CREATE_IN_PROGRESS", "User Initiated"),
        told(2, "MonitorBus", "CREATE_FAILED", "the bus already exists"),
        *(told(3 + n, f"Alarm{n}", "CREATE_FAILED", "Resource creation cancelled") for n in range(120)),
        told(123, "rekindle", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed to create: [MonitorBus]."),
        *(told(124 + n, f"Alarm{n}", "DELETE_COMPLETE") for n in range(120)),
    ]
    newest_first = oldest_first[::-1]
    session = boto3.session.Session(region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    client = session.client("cloudformation")

    class OneClient:
        region_name = REGION

        def client(self, _: str) -> Any:
            return client

    with Stubber(client) as stubbed:
        for first in range(0, len(newest_first), 100):
            asked = {"StackName": "rekindle"} | ({"NextToken": str(first)} if first else {})
            rest = {"NextToken": str(first + 100)} if first + 100 < len(newest_first) else {}
            stubbed.add_response(
                "describe_stack_events", {"StackEvents": newest_first[first : first + 100]} | rest, asked
            )
        assert Deployment(session=OneClient(), stack="rekindle")._failures() == "  MonitorBus: the bus already exists"


def test_what_a_removed_stack_leaves_is_taken_up_by_a_name_that_is_no_function(
    account: boto3.session.Session, template: Template
) -> None:
    """CloudFormation imports only by a static identifier; anything else that stays fails the next create."""
    settled = json.loads(json.dumps(template))
    Artefacts(session=account, stack="rekindle-dev").settle(settled, code=CODE)
    identifiers = {"AWS::DynamoDB::Table": "TableName", "AWS::S3::Bucket": "BucketName"}
    kept = {
        name: resource for name, resource in settled["Resources"].items() if resource.get("DeletionPolicy") == "Retain"
    }
    assert {resource["Type"] for resource in kept.values()} == set(identifiers)
    for one in kept.values():
        assert isinstance(one["Properties"][identifiers[one["Type"]]], str)
