"""What would stop a deployment is found before anything is created, each in one line with its remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from infra.deploy.deployment import Deployment
from infra.preflight.checks import main as preflight_main
from infra.preflight.checks import run_checks
from infra.target_stack import DeploymentError, Finding, Importance
from localcloud.aws.answers import AwsError
from rekindle.cli.main import main as rekindle
from rekindle.client.errors import Exit
from tests.infra.live_account import ACCOUNT_ID, LiveAccount, live_account
from tests.infra.stack_reading import REGION

pytestmark = pytest.mark.long

BUCKET = f"rekindle-{ACCOUNT_ID}-{REGION}"


@pytest.fixture
def account(aws_settings: None) -> Iterator[LiveAccount]:
    with live_account() as found:
        yield found


@pytest.fixture
def found(account: LiveAccount, package: Path) -> Callable[..., list[Finding]]:
    """What is found for these parameters."""

    def found(**parameters: str) -> list[Finding]:
        return list(run_checks(account.session, "rekindle", package=package, parameters=parameters))

    return found


def problems(found: list[Finding]) -> list[str]:
    lines = [str(finding) for finding in found if finding.importance is Importance.PROBLEM]
    assert all("\n" not in line and " -> " in line for line in lines)
    return lines


def only(found: list[Finding]) -> str:
    (line,) = problems(found)
    return line


def test_an_empty_account_has_nothing_to_say(found: Callable[..., list[Finding]]) -> None:
    assert found() == []


def test_a_region_without_durable_functions_is_named(aws_settings: None, package: Path) -> None:
    with live_account(has_durable_functions=False) as account:
        line = only(list(run_checks(account.session, "rekindle", package=package)))
    assert line.startswith(f"problem: Lambda in {REGION} has no durable functions -> choose a Region")


def test_more_concurrency_than_the_account_can_reserve(aws_settings: None, package: Path) -> None:
    with live_account(concurrency=120) as account:
        wanted = {"EventConcurrency": "10"}
        line = only(list(run_checks(account.session, "rekindle", package=package, parameters=wanted)))
        assert "EventConcurrency reserves 30 concurrent executions and the account can reserve 20" in line
        wanted = {"EventConcurrency": "5"}
        assert problems(list(run_checks(account.session, "rekindle", package=package, parameters=wanted))) == []


def test_an_update_may_reserve_again_what_it_has_reserved(aws_settings: None, package: Path) -> None:
    with live_account(concurrency=140) as account:
        Deployment(session=account.session, stack="rekindle").deploy(package, parameters={"EventConcurrency": "10"})
        account.region.reserved = 40
        assert problems(list(run_checks(account.session, "rekindle", package=package))) == []


def test_a_new_account_s_few_executions_are_a_note(aws_settings: None, package: Path) -> None:
    with live_account(concurrency=10) as account:
        (one,) = run_checks(account.session, "rekindle", package=package)
    assert one.importance is Importance.NOTE
    assert "only 10 functions at once" in one.what
    assert "L-B99A9384" in one.remedy


def test_no_room_for_the_code(aws_settings: None, package: Path) -> None:
    with live_account(code_limit=1_000_000, code_bytes=999_000) as account:
        line = only(list(run_checks(account.session, "rekindle", package=package)))
    assert "Lambda code storage in bytes: 999000 of 1000000 are used" in line


def test_no_room_for_rules_and_buses(aws_settings: None, package: Path) -> None:
    with live_account(quotas={("events", "L-244521F2"): 4, ("events", "L-658A4FD9"): 1}) as account:
        lines = problems(list(run_checks(account.session, "rekindle", package=package)))
    assert [line.partition(":")[2].strip().partition(":")[0] for line in lines] == [
        "EventBridge rules on the default bus",
        "EventBridge buses",
    ]


def test_no_room_for_a_stack(found: Callable[..., list[Finding]], account: LiveAccount) -> None:
    account.region.cloudformation.stack_limit = 0
    assert "CloudFormation stacks: 0 of 0 are used and 1 more are needed" in only(found())


def test_no_room_for_roles(found: Callable[..., list[Finding]], account: LiveAccount) -> None:
    from moto.iam.models import iam_backends

    iam_backends[ACCOUNT_ID]["aws"].account_summary._roles_quota = 5
    assert "IAM roles: 0 of 5 are used and 13 more are needed" in only(found())


def test_a_quota_that_nobody_tells_is_a_note(aws_settings: None, package: Path) -> None:
    with live_account(quotas={}) as account:
        (one,) = run_checks(account.session, "rekindle", package=package)
    assert one.importance is Importance.NOTE
    assert "quotas could not be checked" in one.what


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"NoSuch": "1"}, "parameter NoSuch is not a parameter of the template"),
        ({"LogRetentionDays": "31"}, "parameter LogRetentionDays is '31' (allowed: 1, 3, 5"),
        ({"SweepMetricsMinutes": "0"}, "parameter SweepMetricsMinutes is 0 (allowed: 1 to 60)"),
        ({"EventConcurrency": "many"}, "parameter EventConcurrency is 'many', which is no number"),
    ],
)
def test_a_parameter_that_the_template_does_not_take(
    found: Callable[..., list[Finding]], given: dict[str, str], said: str
) -> None:
    assert said in only(found(**given))


@pytest.mark.long
def test_policies_that_outgrow_iam(found: Callable[..., list[Finding]], account: LiveAccount) -> None:
    keys = [f"arn:aws:kms:{REGION}:{ACCOUNT_ID}:key/{number:036d}" for number in range(48)]
    lines = problems(found(KmsKeyArns=",".join(keys), TrainingRoleArns=",".join(_roles(account, 30))))
    assert lines
    assert all("IAM takes 10240" in line and "fewer TrainingBuckets" in line for line in lines)


def _roles(account: LiveAccount, count: int) -> list[str]:
    made = []
    for number in range(count):
        name = f"team-{number:03d}-" + "x" * 50
        made.append(account.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")["Role"]["Arn"])
    return made


def _refused(account: LiveAccount, package: Path, wanted: Mapping[str, str]) -> str:
    """What the deployment says that was begun without the look."""
    with pytest.raises((DeploymentError, ClientError)) as caught:
        Deployment(session=account.session, stack="rekindle").deploy(package, parameters=wanted)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NoticeEmail", "not an address"),
        ("TrainingRoleArns", f"arn:aws:iam::{ACCOUNT_ID}:role/train,*"),
        ("TrainingRoleArns", f"arn:aws:iam::{ACCOUNT_ID}:role/*"),
        ("TrainingBuckets", "team,arn:aws:s3:::team"),
        ("KmsKeyArns", f"arn:aws:kms:{REGION}:{ACCOUNT_ID}:alias/team"),
        ("KmsKeyArns", "*"),
        ("TrainingLogPattern", "?x" * 600),
        ("ConsoleUrl", "http://rekindle.example.com"),
    ],
)
def test_a_value_that_the_template_does_not_take_is_found_and_cloudformation_refuses_it(
    account: LiveAccount, found: Callable[..., list[Finding]], package: Path, name: str, value: str
) -> None:
    assert any(line.startswith(f"problem: parameter {name} ") for line in problems(found(**{name: value})))
    assert name in _refused(account, package, {name: value})


def test_roles_that_outgrow_the_environment_of_a_function(
    account: LiveAccount, found: Callable[..., list[Finding]], package: Path
) -> None:
    """Lambda gives a function 4 KB for all its variables; CloudFormation would find that half way."""
    wanted = {"TrainingRoleArns": ",".join(_roles(account, 35))}
    assert "environment has" in only(found(**wanted))
    assert "exceeded the 4KB limit" in _refused(account, package, wanted)


def test_a_parameter_that_is_longer_than_one_may_be(
    account: LiveAccount, found: Callable[..., list[Finding]], package: Path
) -> None:
    wanted = {"TrainingRoleArns": ",".join(f"arn:aws:iam::{ACCOUNT_ID}:role/{number:050d}" for number in range(60))}
    assert any("where a parameter has 4096 at most" in line for line in problems(found(**wanted)))


@pytest.mark.long
def test_what_the_look_lets_pass_the_model_of_iam_takes(
    account: LiveAccount, found: Callable[..., list[Finding]], package: Path
) -> None:
    """Fifteen long-named buckets: not refused beforehand, and made."""
    buckets = [f"{number:063d}" for number in range(15)]
    for name in buckets:
        account.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    wanted = {"TrainingBuckets": ",".join(buckets)}
    assert problems(found(**wanted)) == []
    Deployment(session=account.session, stack="rekindle").deploy(package, parameters=wanted)


def test_buckets_and_roles_that_are_not_there(found: Callable[..., list[Finding]]) -> None:
    role = f"arn:aws:iam::{ACCOUNT_ID}:role/train"
    lines = problems(found(TrainingBuckets="no-such-bucket", TrainingRoleArns=role))
    assert "the bucket no-such-bucket of TrainingBuckets does not exist" in lines[0]
    assert f"there is no role {role}" in lines[1]


def test_training_logs_need_their_log_group(account: LiveAccount, found: Callable[..., list[Finding]]) -> None:
    assert "there is no log group /aws/sagemaker/TrainingJobs" in only(found(TrainingLogSignatures="yes"))
    account.client("logs").create_log_group(logGroupName="/aws/sagemaker/TrainingJobs")
    assert found(TrainingLogSignatures="yes") == []


# ---- an earlier deployment -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_what_an_earlier_deployment_kept_is_taken_up(
    account: LiveAccount, found: Callable[..., list[Finding]], package: Path
) -> None:
    deployment = Deployment(session=account.session, stack="rekindle")
    deployment.deploy(package, parameters={})
    deployment.remove()
    assert [(finding.importance, finding.what.partition(" of an earlier")[0]) for finding in found()] == [
        (Importance.NOTE, "the table rekindle"),
        (Importance.NOTE, f"the bucket {BUCKET}"),
    ]


def test_a_table_of_another_form_is_not_taken_up(account: LiveAccount, found: Callable[..., list[Finding]]) -> None:
    """CloudFormation compares nothing at an import: the wrong index would stand there as if it were the template's."""
    definitions = [{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "gsi1pk", "gsi1sk")]
    account.client("dynamodb").create_table(
        TableName="rekindle",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=definitions,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "GSI1",
                "KeySchema": [
                    {"AttributeName": "gsi1pk", "KeyType": "HASH"},
                    {"AttributeName": "gsi1sk", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
            }
        ],
    )
    assert "the table rekindle of an earlier deployment has another GlobalSecondaryIndexes" in only(found())


def test_a_table_of_another_stack_is_left_alone(
    account: LiveAccount, found: Callable[..., list[Finding]], tmp_path: Path
) -> None:
    table = {
        "Type": "AWS::DynamoDB::Table",
        "Properties": {
            "TableName": "rekindle",
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
        },
    }
    cloud = account.client("cloudformation")
    cloud.create_change_set(
        StackName="theirs",
        ChangeSetName="one",
        ChangeSetType="CREATE",
        TemplateBody=json.dumps({"Resources": {"Table": table}}),
    )
    cloud.execute_change_set(StackName="theirs", ChangeSetName="one")
    assert "the table rekindle belongs to the stack theirs" in only(found())


def test_a_policy_that_an_older_version_kept(account: LiveAccount, found: Callable[..., list[Finding]]) -> None:
    s3 = account.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": []}))
    assert f"aws s3api delete-bucket-policy --bucket {BUCKET}" in only(found())


def test_names_that_are_taken(account: LiveAccount, found: Callable[..., list[Finding]], package: Path) -> None:
    """Each of them would fail the creation half way, and a stack that failed so must be removed first."""
    account.client("logs").create_log_group(logGroupName="/aws/lambda/rekindle-sweep")
    account.client("logs").create_log_group(logGroupName="/aws/lambda/rekindle-dev-sweep")
    account.client("events").create_event_bus(Name="rekindle")
    account.client("cloudwatch").put_metric_alarm(
        AlarmName="rekindle-sweep-silent",
        Namespace="AWS/Lambda",
        MetricName="Errors",
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1,
        ComparisonOperator="LessThanThreshold",
    )
    account.account.create("AWS::Lambda::Function", "rekindle-sweep", {})
    remedies = [line.partition(" -> ")[2] for line in problems(found())]
    assert remedies == [
        "aws logs delete-log-group --log-group-name /aws/lambda/rekindle-sweep",
        "aws cloudwatch delete-alarms --alarm-names rekindle-sweep-silent",
        "aws events delete-event-bus --name rekindle",
        "aws lambda delete-function --function-name rekindle-sweep",
    ]


@pytest.mark.long
def test_every_name_that_the_template_gives_is_looked_for(
    account: LiveAccount, found: Callable[..., list[Finding]], package: Path
) -> None:
    """A new resource with a name of its own cannot be forgotten: all of them stand there, and each is told."""
    from tests.infra.stacks.types import resource_type

    deployment = Deployment(session=account.session, stack="rekindle")
    deployment.deploy(package, parameters={})
    stack = account.stack("rekindle")
    named = {
        resource.physical_id
        for resource in stack.resources.values()
        if resource_type(resource.kind).identity(resource.properties) is not None
        and resource.kind.rpartition("::")[2] in _OWN_NAMES
    }
    for resource in stack.resources.values():  # as if the stack had lost them all
        resource.is_kept = True
    account.client("cloudformation").delete_stack(StackName="rekindle")
    told = "\n".join(str(one) for one in found())
    assert len(named) > 60
    assert not [name for name in named if str(name) not in told]


# Types whose name is their own; the rest is named after what it belongs to (a policy after its bucket). A dashboard of
# the name is overwritten by PutDashboard.
_OWN_NAMES = {"Table", "Bucket", "LogGroup", "Alarm", "EventBus", "Function"}


def test_which_types_have_names_of_their_own(account: LiveAccount, package: Path) -> None:
    from tests.infra.stacks.types import resource_type

    Deployment(session=account.session, stack="rekindle").deploy(package, parameters={})
    resources = account.stack("rekindle").resources.values()
    named = {
        resource.kind
        for resource in resources
        if resource_type(resource.kind).identity(resource.properties) is not None
    }
    own = {kind.rpartition("::")[2] for kind in named}
    assert own == _OWN_NAMES | {"BucketPolicy", "Dashboard", "EventInvokeConfig", "Stage"}


# ---- the stack's state -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("ROLLBACK_COMPLETE", "make undeploy STAGE=prod"),
        ("DELETE_FAILED", "make undeploy STAGE=prod"),
        ("UPDATE_IN_PROGRESS", "wait until that has ended"),
        ("UPDATE_ROLLBACK_FAILED", "aws cloudformation continue-update-rollback --stack-name rekindle"),
    ],
)
def test_a_stack_that_takes_no_deployment_now(
    account: LiveAccount, found: Callable[..., list[Finding]], package: Path, status: str, remedy: str
) -> None:
    Deployment(session=account.session, stack="rekindle").deploy(package, parameters={})
    account.stack("rekindle").status = status
    line = only(found())
    assert f"rekindle is {status}" in line
    assert remedy in line


# ---- the command lines -----------------------------------------------------------------------------------------------


def test_nothing_is_created_when_something_would_stop_it(
    aws_settings: None, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_account(has_durable_functions=False) as account:
        assert rekindle(["stack", "deploy", "--stage", "dev", "--package", str(package)]) == 1
        assert account.client("s3").list_buckets()["Buckets"] == []
        assert account.client("cloudformation").describe_stacks()["Stacks"] == []
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("rekindle: target: stack rekindle-dev (stage dev), account ")
    assert lines[1].startswith("problem: Lambda in")
    assert lines[2].startswith("rekindle: nothing was created")


def test_the_look_alone_needs_no_package(aws_settings: None, capsys: pytest.CaptureFixture[str]) -> None:
    with live_account():
        assert preflight_main(["--stage", "dev"]) == 0
    assert capsys.readouterr().err == ""
    with live_account(has_durable_functions=False):
        assert preflight_main(["--stage", "dev"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("ExpiredToken", "rekindle: the credentials have expired: sign in again"),
        ("RequestExpired", "rekindle: AWS finds the request too old: set this machine's clock"),
        ("InvalidClientTokenId", "rekindle: AWS does not know the access key, or the Region is not enabled"),
        ("SignatureDoesNotMatch", "rekindle: the secret key does not belong to the access key"),
        ("SomethingElse", "rekindle: AWS does not accept these credentials"),
    ],
)
def test_credentials_that_aws_refuses_are_told_in_one_line(
    aws_settings: None, capsys: pytest.CaptureFixture[str], code: str, said: str
) -> None:
    with live_account(sign_in=AwsError(code, "The security token included in the request is expired", status=403)):
        assert rekindle(["stack", "deploy", "--stage", "prod"]) == Exit.UNREACHABLE
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_a_sign_in_that_is_over_is_told_in_one_line(
    aws_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile work]\nregion = eu-west-1\nsso_session = work\nsso_account_id = 123456789012\nsso_role_name = admin\n"
        "[sso-session work]\nsso_region = eu-west-1\nsso_start_url = https://example.awsapps.com/start\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert rekindle(["stack", "deploy", "--stage", "prod"]) == Exit.UNREACHABLE
    err = capsys.readouterr().err
    assert "aws sso login" in err
    assert err.count("\n") == 1


def test_what_may_not_be_asked_is_a_note(aws_settings: None, package: Path) -> None:
    def deny(_: dict[str, Any]) -> dict[str, Any]:
        raise AwsError("AccessDeniedException", "not authorized to perform: servicequotas:GetServiceQuota")

    from tests.infra.stacks.server import served

    with (
        live_account(),
        served("service-quotas", {"GetServiceQuota": deny}) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AWS_ENDPOINT_URL_SERVICE_QUOTAS", url)
        (one,) = run_checks(boto3.session.Session(region_name=REGION), "rekindle", package=package)
    assert (one.importance, one.remedy) == (
        Importance.NOTE,
        "deploy with credentials that may ask, or check it yourself",
    )
