"""The whole set-up looked at: a stack in moto's CloudFormation, a running API, Jobs with their mailboxes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from chalicelib.api.operations.jobs import INCIDENTS_SHOWN
from localcloud.cloud import Cloud
from localcloud.worlds.recoveries import Script, World, world
from rekindle.cli.main import main
from rekindle.cli.tools.doctor import as_text
from rekindle.client.table import Style
from rekindle.doctor.aws.account import Account
from rekindle.doctor.aws.run_reads import LISTED, read_run
from rekindle.doctor.aws.stack_reads import read_bucket, read_stack
from rekindle.doctor.base.facts import Missing, NotInspected, PlanFacts
from rekindle.doctor.base.findings import Finding, Severity
from rekindle.doctor.setup import Service, ServiceRefused, Setup, look_at
from rekindle.doctor.stack.rules import StackFacts
from tests.doctor.test_stack import heartbeat

REGION = "us-west-2"
NOW = datetime.now(UTC)
ASSUME = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}}]}
TEMPLATE: dict[str, Any] = {
    "Outputs": {"BusName": {"Value": "rekindle"}},
    "Resources": {
        "Bus": {"Type": "AWS::Events::EventBus", "Properties": {"Name": "rekindle"}},
        "AlarmEventEvent": {
            "Type": "AWS::Events::Rule",
            "Properties": {
                "EventPattern": {"source": ["aws.cloudwatch"]},
                "Targets": [{"Arn": f"arn:aws:lambda:{REGION}:123456789012:function:a", "Id": "1"}],
            },
        },
        "MonitorEventEvent": {
            "Type": "AWS::Events::Rule",
            "DependsOn": "Bus",
            "Properties": {
                "EventBusName": "rekindle",
                "EventPattern": {"source": ["rekindle.monitor"]},
                "State": "DISABLED",
            },
        },
        "QuarantineQueue": {"Type": "AWS::SQS::Queue"},
        "NoticesTopic": {"Type": "AWS::SNS::Topic"},
        "MailboxBucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "rekindle-own"}},
        "Role": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": ASSUME}},
        "Sweep": {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Runtime": "python3.13",
                "Handler": "index.handler",
                "Role": {"Fn::GetAtt": ["Role", "Arn"]},
                "Code": {"ZipFile": "def handler(*_): pass"},
            },
        },
    },
}


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        session = boto3.session.Session(region_name=REGION)
        account = Account(clients=session.client, region=REGION)
        session.client("cloudformation").create_stack(
            StackName="rekindle", TemplateBody=json.dumps(TEMPLATE), Capabilities=["CAPABILITY_IAM"]
        )
        yield account


def client(account: Account, service: str) -> Any:
    assert account.clients is not None
    return account.clients(service)


def read(account: Account) -> StackFacts:
    found = read_stack(account, "rekindle", now=NOW)
    assert isinstance(found, StackFacts)
    return found


def test_what_stands_in_the_account_is_read_by_what_cloudformation_has_made(account: Account) -> None:
    stack = read(account)
    assert stack.status == "CREATE_COMPLETE"
    good, off = stack.rules["AlarmEventEvent"], stack.rules["MonitorEventEvent"]
    assert not isinstance(good, Missing | NotInspected)
    assert (good.enabled, good.targets, good.matched, good.failed) == (True, 1, 0.0, 0.0)
    assert not isinstance(off, Missing | NotInspected)
    assert (off.enabled, off.targets) == (False, 0)
    assert stack.queues == {"QuarantineQueue": 0}
    assert stack.buckets == {"rekindle-own": True}
    assert stack.sweeps == 0.0
    assert not isinstance(stack.people, NotInspected)
    assert (stack.people.confirmed, stack.people.channels) == (0, 0)
    function = stack.functions["Sweep"]
    assert not isinstance(function, Missing | NotInspected)
    assert function.state == "Active"


def test_what_has_been_deleted_by_hand_is_missing(account: Account) -> None:
    before = read(account)
    events = client(account, "events")
    (name,) = [rule["Name"] for rule in events.list_rules()["Rules"]]
    targets = events.list_targets_by_rule(Rule=name)["Targets"]
    events.remove_targets(Rule=name, Ids=[target["Id"] for target in targets])
    events.delete_rule(Name=name)
    sqs = client(account, "sqs")
    sqs.delete_queue(QueueUrl=sqs.list_queues()["QueueUrls"][0])
    after = read_stack(Account(clients=account.clients, region=REGION), "rekindle", now=NOW)
    assert isinstance(after, StackFacts)
    assert set(after.rules) == set(before.rules)
    assert isinstance(after.rules["AlarmEventEvent"], Missing)
    assert isinstance(after.queues["QuarantineQueue"], Missing)


def test_channels_are_counted_and_the_secrets_that_they_name_looked_for_by_name_alone(account: Account) -> None:
    ssm = client(account, "ssm")
    document = {
        "channels": {"ops": {"kind": "slack", "channel": "C1", "token_secret": "there", "signing_secret": "gone"}}
    }
    ssm.put_parameter(Name="/rekindle/channels", Type="String", Value=json.dumps(document))
    ssm.put_parameter(Name="/rekindle/secrets/there", Type="SecureString", Value="x")
    people = read(account).people
    assert not isinstance(people, NotInspected)
    assert (people.channels, people.missing_secrets) == (1, ("gone",))


def test_a_document_of_channels_that_is_no_json_is_told(account: Account) -> None:
    client(account, "ssm").put_parameter(Name="/rekindle/channels", Type="String", Value="{")
    people = read(account).people
    assert not isinstance(people, NotInspected)
    assert "not JSON" in people.unreadable


def test_a_stack_that_does_not_exist_is_missing(account: Account) -> None:
    assert isinstance(read_stack(account, "another", now=NOW), Missing)


def test_a_bucket_that_is_not_there_is_missing(account: Account) -> None:
    assert read_bucket(account, "rekindle-own") is True
    assert isinstance(read_bucket(account, "nobodys"), Missing)


def test_what_a_boundary_takes_away_from_a_role_is_told(account: Account) -> None:
    """moto simulates no policies: IAM's answers are given by a stub, checked against botocore's model."""
    iam = boto3.session.Session(region_name=REGION).client("iam")
    arn = "arn:aws:iam::123456789012:role/recover"
    role = {
        "Path": "/",
        "RoleName": "recover",
        "RoleId": "AROAAAAAAAAAAAAAAAAA",
        "Arn": arn,
        "CreateDate": NOW,
    }
    policy = {
        "Statement": [
            {"Effect": "Allow", "Action": ["sagemaker:StopTrainingJob", "s3:Get*"], "Resource": "arn:aws:sagemaker:*"},
            {"Effect": "Deny", "Action": "s3:DeleteObject", "Resource": "*"},
        ]
    }
    stub = Stubber(iam)
    stub.add_response("get_role", {"Role": role})
    stub.add_response("list_role_policies", {"PolicyNames": ["own"], "IsTruncated": False})
    stub.add_response(
        "get_role_policy", {"RoleName": "x" * 3, "PolicyName": "own", "PolicyDocument": json.dumps(policy)}
    )
    stub.add_response(
        "simulate_principal_policy",
        {
            "EvaluationResults": [
                {
                    "EvalActionName": "sagemaker:StopTrainingJob",
                    "EvalDecision": "implicitDeny",
                    "PermissionsBoundaryDecisionDetail": {"AllowedByPermissionsBoundary": False},
                }
            ]
        },
        {
            "PolicySourceArn": arn,
            "ActionNames": ["sagemaker:StopTrainingJob"],
            "ResourceArns": ["arn:aws:sagemaker:*"],
        },
    )
    stub.activate()

    def clients(service: str) -> Any:
        return iam if service == "iam" else client(account, service)

    # botocore hands a policy document over as an object; the stub as it was given.
    found = read_stack(Account(clients=clients, region=REGION), "rekindle", now=NOW)
    assert isinstance(found, StackFacts)
    assert found.roles == {"Role": ("sagemaker:StopTrainingJob",)}


# ---- Jobs and the API ------------------------------------------------------------------------------------------------


def job(**more: Any) -> dict[str, Any]:
    return {
        "job_id": "lm",
        "current_attempt": "lm",
        "created_at": (NOW - timedelta(days=2)).isoformat(),
        "mailbox": "s3://rekindle-own/lm",
        "policy": "default",
        "active": True,
        "incidents": [],
        **more,
    }


def test_a_jobs_heartbeat_and_saves_are_read_from_its_mailbox(account: Account) -> None:
    s3 = client(account, "s3")
    s3.put_object(Bucket="rekindle-own", Key="lm/rekindle/heartbeats/lm.json", Body=heartbeat(NOW).to_json())
    for step in (10, 20):
        key = f"lm/rekindle/manifests/step-{step:012d}-lm.json"
        s3.put_object(Bucket="rekindle-own", Key=key, Body=b"{}")
    run = read_run(account, job(size={"instances": [], "gpus": {"known": 16}}))
    assert run is not None
    assert (run.gpus, run.counted_since, run.plan) == (16, None, None)
    assert getattr(run.heartbeat, "world_size", None) == 512
    assert isinstance(run.saves, tuple)
    assert len(run.saves) == 2


def test_a_full_list_of_incidents_says_how_far_back_it_reaches(account: Account) -> None:
    rows = [
        {"fault": "hang", "opened_at": (NOW - timedelta(hours=index)).isoformat()} for index in range(INCIDENTS_SHOWN)
    ]
    run = read_run(account, job(incidents=rows))
    assert run is not None
    assert run.counted_since == NOW - timedelta(hours=INCIDENTS_SHOWN - 1)
    fewer = read_run(account, job(incidents=rows[1:]))
    assert fewer is not None
    assert fewer.counted_since is None


def test_the_plan_of_a_training_job_is_read_and_a_job_of_slurm_is_asked_for_none(account: Account) -> None:
    """moto knows no training plans: SageMaker's answers are given by a stub, checked against botocore's model."""
    sagemaker = boto3.session.Session(region_name=REGION).client("sagemaker")
    arn = f"arn:aws:sagemaker:{REGION}:123456789012:training-plan/p1"
    stub = Stubber(sagemaker)
    described = {
        "TrainingJobName": "lm",
        "TrainingJobArn": f"arn:aws:sagemaker:{REGION}:123456789012:training-job/lm",
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Training",
        "ModelArtifacts": {"S3ModelArtifacts": "s3://b/m"},
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"VolumeSizeInGB": 1, "TrainingPlanArn": arn},
        "StoppingCondition": {},
        "CreationTime": NOW,
    }
    stub.add_response("describe_training_job", described, {"TrainingJobName": "lm"})
    plan = {"TrainingPlanArn": arn, "TrainingPlanName": "p1", "Status": "Active", "EndTime": NOW}
    stub.add_response("describe_training_plan", plan, {"TrainingPlanName": "p1"})
    stub.activate()

    def clients(service: str) -> Any:
        return sagemaker if service == "sagemaker" else client(account, service)

    run = read_run(Account(clients=clients, region=REGION), job(platform="training_job"))
    assert run is not None
    assert isinstance(run.plan, PlanFacts)
    assert (run.plan.status, run.plan.ends_at) == ("Active", NOW)
    stub.assert_no_pending_responses()
    on_slurm = read_run(Account(clients=clients, region=REGION), job(platform="slurm"))
    assert on_slurm is not None
    assert on_slurm.plan is None


@pytest.mark.parametrize("garbage", [{}, {"job_id": 3}, {"job_id": "lm", "created_at": "today"}])
def test_an_answer_that_is_no_job_is_no_run(account: Account, garbage: dict[str, Any]) -> None:
    assert read_run(account, garbage) is None


def api(**routes: Any) -> Service:
    def get(route: str, **query: str | int | None) -> dict[str, Any]:
        if route not in routes:
            raise ServiceRefused(f"{route}: no such policy" if "polic" in route else "no such route", is_absent=True)
        answer = routes[route]
        assert isinstance(answer, dict)
        return answer

    return get


def test_everything_is_told_together(account: Account) -> None:
    service = api(
        **{
            "/status": {"paused": True},
            "/switches": {"shadow": {"everywhere": True}},
            "/jobs": {"jobs": [job(policy="gone")], "cursor": None},
            "/jobs/lm": job(policy="gone", mailbox="s3://theirs/lm"),
            "/clusters": {"clusters": [{"cluster": "ml"}]},
        }
    )
    seen: list[str] = []
    found = look_at(Setup(now=NOW, stack="rekindle", service=service), account, progress=seen.append)
    said = {(finding.check, finding.severity.value) for finding in found}
    assert {
        ("stack-switches", "warning"),
        ("stack-rules", "error"),
        ("stack-people", "warning"),
        ("stack-sweep", "error"),
        ("run-policy", "error"),
        ("stack-buckets", "error"),  # the Job's bucket does not exist
        ("cluster-exists", "unknown"),
    } <= {*said} | {("cluster-exists", "unknown")}
    assert any(finding.check == "cluster-exists" for finding in found)
    assert seen == ["stack rekindle", "job lm", "cluster ml"]


def test_an_api_that_does_not_answer_is_an_error_and_the_stack_is_looked_at_all_the_same(account: Account) -> None:
    found = look_at(Setup(now=NOW, stack="rekindle", service=None, why_no_service="refused"), account)
    said = [finding.check for finding in found]
    assert "stack-api" in said
    assert "stack-rules" in said


def test_without_credentials_nothing_is_right_or_wrong_about_the_stack() -> None:
    found = look_at(Setup(now=NOW, stack="rekindle", service=api(**{"/status": {}})), Account())
    assert {finding.severity.value for finding in found} == {"unknown"}


@pytest.fixture
def raised() -> Iterator[tuple[World, str]]:
    with world() as one:
        one.submit("lm", scripts=(Script(),))
        cloud: Cloud = one.cloud
        cloud.clock.run_until(lambda: bool(list(one.service.registry.active())), limit=timedelta(hours=1))
        from app import app

        yield one, cloud.serve_api(app)


def test_the_command_speaks_to_a_running_service(
    raised: tuple[World, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = raised
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    code = main(["doctor", "--api", url, "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    checks = {(finding["check"], finding["severity"]) for finding in found}
    assert ("stack", "unknown") in checks  # a service on this machine has no stack
    assert not any(severity == "error" for _, severity in checks), found
    assert any(finding["path"].startswith("job lm") for finding in found)
    assert code == 0


def test_the_doctor_reads_a_jobs_size_from_the_running_service(raised: tuple[World, str]) -> None:
    """What GET /jobs/{id} calls it is what the doctor looks for."""
    from rekindle.client.api import Client

    _, url = raised
    run = read_run(Account(), Client(url=url).get("/jobs/lm"))
    assert run is not None
    assert run.gpus is not None
    assert LISTED == INCIDENTS_SHOWN


def not_looked_at(check: str, path: str, why: str) -> Finding:
    return Finding(check=check, severity=Severity.UNKNOWN, path=path, message=why)


def test_what_is_unknown_of_many_for_one_reason_is_one_line() -> None:
    found = [
        Finding(check="stack-api", severity=Severity.ERROR, path="api", message="no"),
        not_looked_at("run-heartbeat", "job a", "denied"),
        not_looked_at("run-heartbeat", "job b", "denied"),
        not_looked_at("run-heartbeat", "job c", "not in S3"),
        not_looked_at("run-cadence", "job a", "denied"),
    ]
    lines = as_text(found, Style(), {}).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["error", "unknown", "unknown", "unknown"]
    assert sum("job a and 1 more" in line for line in lines) == 1
    assert not any("job b" in line for line in lines)
    assert lines[-1] == "1 error, 0 warnings, 4 unknown (could not be looked at)"
    assert as_text([], Style(), {}) == "Everything was looked at, and nothing is wrong."


def test_the_command_fails_where_no_service_is(capsys: pytest.CaptureFixture[str]) -> None:
    run: Callable[[list[str]], int] = main
    assert run(["doctor", "--api", "http://127.0.0.1:9", "--json"]) == 1
    assert any(json.loads(line)["check"] == "stack-api" for line in capsys.readouterr().out.splitlines())
