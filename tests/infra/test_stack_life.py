"""The packaged template through the life of a stack: made, failed and rolled back, removed, made again, changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.deploy.deployment import Deployment
from infra.package import TEMPLATE
from infra.target_stack import DeploymentError
from tests.infra.live_account import ACCOUNT_ID, LiveAccount, live_account
from tests.infra.stack_reading import REGION, Template

pytestmark = pytest.mark.long

BUCKET = f"rekindle-{ACCOUNT_ID}-{REGION}"
ALARMS = "AWS::CloudWatch::Alarm"


@pytest.fixture
def account(aws_settings: None) -> Iterator[LiveAccount]:
    with live_account() as found:
        yield found


@pytest.fixture
def deployment(account: LiveAccount) -> Deployment:
    return Deployment(session=account.session, stack="rekindle")


@pytest.fixture
def changed(package: Path, tmp_path: Path) -> Callable[[Callable[[Template], None]], Path]:
    """A copy of the package whose template a test changes."""

    def change(do: Callable[[Template], None]) -> Path:
        out = tmp_path / "package"
        shutil.copytree(package, out, dirs_exist_ok=True)
        template = json.loads((out / TEMPLATE).read_text(encoding="utf-8"))
        do(template)
        (out / TEMPLATE).write_text(json.dumps(template), encoding="utf-8")
        return out

    return change


def test_a_first_creation_that_fails_is_removed_and_made_again(
    account: LiveAccount, deployment: Deployment, package: Path
) -> None:
    account.account.limits[ALARMS] = 20
    with pytest.raises(DeploymentError) as told:
        deployment.deploy(package, parameters={})
    stack = account.stack("rekindle")
    assert stack.status == "ROLLBACK_COMPLETE"
    assert len(stack.events) > 100, "the first cause lies on a later page"
    reasons = str(told.value).splitlines()[1:]
    assert len(reasons) == 1
    assert "the maximum number of 20" in reasons[0]
    # What the template keeps is there, with its data, though the stack never worked.
    assert account.statuses("rekindle", "RegistryTable")[-1] == "DELETE_SKIPPED"

    with pytest.raises(DeploymentError, match="remove it first"):
        deployment.deploy(package, parameters={})
    assert deployment.remove() == (f"AWS::S3::Bucket {BUCKET}", "AWS::DynamoDB::Table rekindle")
    account.account.limits.clear()
    deployment.deploy(package, parameters={})
    assert account.stack("rekindle").status == "CREATE_COMPLETE"
    assert account.statuses("rekindle", "RegistryTable") == ["IMPORT_IN_PROGRESS", "IMPORT_COMPLETE"]


def test_a_creation_that_failed_before_the_table_was_made_names_only_what_is_there(
    account: LiveAccount, deployment: Deployment, package: Path
) -> None:
    account.account.limits["AWS::DynamoDB::Table"] = 0
    with pytest.raises(DeploymentError, match="RegistryTable"):
        deployment.deploy(package, parameters={})
    kept = deployment.remove()
    assert "AWS::DynamoDB::Table rekindle" not in kept
    assert deployment.remove() == ()


def test_a_removed_stack_is_deployed_again_on_its_table_and_bucket(
    account: LiveAccount, deployment: Deployment, package: Path
) -> None:
    deployment.deploy(package, parameters={})
    item = {"pk": {"S": "JOB#lm-7b"}, "sk": {"S": "JOB"}}
    account.client("dynamodb").put_item(TableName="rekindle", Item=item)
    assert deployment.remove() == (f"AWS::S3::Bucket {BUCKET}", "AWS::DynamoDB::Table rekindle")
    assert account.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    # moto takes the bucket's policy for a prohibition, whatever its condition: the bucket is used while it has none.
    account.client("s3").put_object(Bucket=BUCKET, Key="team-a/lm-7b/beat", Body=b"1")

    deployment.deploy(package, parameters={})
    assert account.stack("rekindle").status == "CREATE_COMPLETE"
    assert account.client("dynamodb").get_item(TableName="rekindle", Key=item)["Item"] == item
    assert account.statuses("rekindle", "MailboxBucketPolicy")[-1] == "CREATE_COMPLETE"
    deployment.remove()
    assert account.client("s3").list_objects_v2(Bucket=BUCKET)["KeyCount"] == 1


def test_a_policy_that_stays_with_its_bucket_fails_the_next_creation(
    account: LiveAccount, deployment: Deployment, changed: Callable[[Callable[[Template], None]], Path]
) -> None:
    """Why the template lets the bucket's policy go: CloudFormation takes no policy up whose bucket is a reference."""

    def keep(template: Template) -> None:
        template["Resources"]["MailboxBucketPolicy"]["DeletionPolicy"] = "Retain"

    package = changed(keep)
    deployment.deploy(package, parameters={})
    deployment.remove()
    with pytest.raises(DeploymentError, match=f"MailboxBucketPolicy: .*BucketPolicy {BUCKET} already exists"):
        deployment.deploy(package, parameters={})


def test_a_name_that_is_a_function_is_not_taken_up(account: LiveAccount, deployment: Deployment, package: Path) -> None:
    """What Deployment writes into the template is what makes the second creation work."""
    deployment.deploy(package, parameters={})
    template = json.loads(account.stack("rekindle").body)
    deployment.remove()
    template["Resources"]["RegistryTable"]["Properties"]["TableName"] = {"Ref": "AWS::StackName"}
    cloud = account.client("cloudformation")
    account.client("s3").put_object(
        Bucket=f"rekindle-artefacts-{ACCOUNT_ID}-{REGION}", Key="t.json", Body=json.dumps(template)
    )
    cloud.create_change_set(
        StackName="rekindle",
        ChangeSetName="by-hand",
        ChangeSetType="CREATE",
        TemplateURL=f"https://rekindle-artefacts-{ACCOUNT_ID}-{REGION}.s3.{REGION}.amazonaws.com/t.json",
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
        ImportExistingResources=True,
    )
    cloud.execute_change_set(StackName="rekindle", ChangeSetName="by-hand")
    assert account.stack("rekindle").status == "ROLLBACK_COMPLETE"
    assert account.statuses("rekindle", "RegistryTable") == ["CREATE_IN_PROGRESS", "CREATE_FAILED"]


def test_an_update_applies_a_changed_policy(
    account: LiveAccount, deployment: Deployment, package: Path, changed: Callable[[Callable[[Template], None]], Path]
) -> None:
    deployment.deploy(package, parameters={})

    def less(template: Template) -> None:
        del template["Resources"]["SweepRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"][0]

    deployment.deploy(changed(less), parameters={})
    stack = account.stack("rekindle")
    assert stack.status == "UPDATE_COMPLETE"
    touched = {event["LogicalResourceId"] for event in stack.events if event["ResourceStatus"] == "UPDATE_COMPLETE"}
    assert touched == {"rekindle", "SweepRole"}
    role = str(stack.resources["SweepRole"].physical_id)
    (name,) = account.client("iam").list_role_policies(RoleName=role)["PolicyNames"]
    stored = account.client("iam").get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
    assert stored == stack.resources["SweepRole"].properties["Policies"][0]["PolicyDocument"]


def test_an_update_that_fails_half_way_goes_back(
    account: LiveAccount, deployment: Deployment, package: Path, changed: Callable[[Callable[[Template], None]], Path]
) -> None:
    deployment.deploy(package, parameters={"NoticeEmail": "a@example.org"})
    before = {name: dict(resource.properties) for name, resource in account.stack("rekindle").resources.items()}

    def too_much(template: Template) -> None:
        statement = template["Resources"]["SweepRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
        statement.append(
            {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"arn:{n:0200d}" for n in range(60)]}
        )
        template["Resources"]["ExtraQueue"] = {"Type": "AWS::SQS::Queue"}

    with pytest.raises(DeploymentError, match="SweepRole: Maximum policy size of 10240 bytes exceeded"):
        deployment.deploy(changed(too_much), parameters={"NoticeEmail": "b@example.org"})
    stack = account.stack("rekindle")
    assert stack.status == "UPDATE_ROLLBACK_COMPLETE"
    assert {name: resource.properties for name, resource in stack.resources.items()} == before
    deployment.deploy(package, parameters={})  # and the next one works, with what was chosen first
    assert stack.plan is not None
    assert stack.plan.texts["NoticeEmail"] == "a@example.org"


def test_the_durable_settings_cannot_be_changed_under_the_same_name(
    account: LiveAccount, deployment: Deployment, package: Path, changed: Callable[[Callable[[Template], None]], Path]
) -> None:
    deployment.deploy(package, parameters={})

    def longer(template: Template) -> None:
        template["Resources"]["Recover"]["Properties"]["DurableConfig"]["RetentionPeriodInDays"] = 60

    with pytest.raises(DeploymentError, match="Rename rekindle-recover and update the stack again"):
        deployment.deploy(changed(longer), parameters={})
    assert account.stack("rekindle").status == "UPDATE_ROLLBACK_COMPLETE"


def test_a_parameter_that_the_new_template_has_no_more_is_left_out(
    account: LiveAccount, deployment: Deployment, package: Path, changed: Callable[[Callable[[Template], None]], Path]
) -> None:
    def older(template: Template) -> None:
        template["Parameters"]["OldChoice"] = {"Type": "String", "Default": ""}

    deployment.deploy(changed(older), parameters={"OldChoice": "x", "NoticeEmail": "a@example.org"})
    deployment.deploy(package, parameters={})
    plan = account.stack("rekindle").plan
    assert plan is not None
    assert "OldChoice" not in plan.texts
    assert plan.texts["NoticeEmail"] == "a@example.org"


def test_a_plan_names_every_resource_of_the_stack_once_and_makes_none(
    account: LiveAccount, deployment: Deployment, package: Path
) -> None:
    planned = deployment.plan(package, parameters={})
    assert account.region.cloudformation.describe_stacks({})["Stacks"] == []
    deployment.deploy(package, parameters={})
    made = account.stack("rekindle").resources
    assert len(planned) > 100, "more than a page of CloudFormation's"
    assert [change["LogicalResourceId"] for change in planned] == list(made)
    assert deployment.plan(package, parameters={}) == ()


def test_two_stages_stand_in_one_account(account: LiveAccount, deployment: Deployment, package: Path) -> None:
    deployment.deploy(package, parameters={})
    Deployment(session=account.session, stack="rekindle-dev").deploy(package, parameters={})
    assert {account.stack(name).status for name in ("rekindle", "rekindle-dev")} == {"CREATE_COMPLETE"}
    deployment.remove()
    assert account.stack("rekindle-dev").status == "CREATE_COMPLETE"


def test_a_change_set_that_was_never_executed_is_no_obstacle(
    account: LiveAccount, deployment: Deployment, package: Path
) -> None:
    with pytest.raises(Exception, match="ValidationError"):
        deployment.deploy(package, parameters={"NoSuchParameter": "1"})
    assert account.stack("rekindle").status == "REVIEW_IN_PROGRESS"
    deployment.deploy(package, parameters={})
    assert account.stack("rekindle").status == "CREATE_COMPLETE"


def test_a_stack_that_was_only_reviewed_is_removed(account: LiveAccount, deployment: Deployment, package: Path) -> None:
    with pytest.raises(Exception, match="ValidationError"):
        deployment.deploy(package, parameters={"NoSuchParameter": "1"})
    assert deployment.remove() == ()


def _attached(account: LiveAccount) -> str:
    """The ARN of the training policy, which a user's own role has now."""
    policy = str(account.stack("rekindle").resources["TrainingPolicy"].physical_id)
    iam = account.client("iam")
    iam.create_role(RoleName="train", AssumeRolePolicyDocument="{}")
    iam.attach_role_policy(RoleName="train", PolicyArn=policy)
    return policy


def test_what_others_hung_on_the_stack_is_named_before_anything_is_deleted(
    account: LiveAccount, deployment: Deployment, package: Path
) -> None:
    """Deleting half of it first would leave a stack that is neither there nor gone."""
    deployment.deploy(package, parameters={})
    policy = _attached(account)
    iam = account.client("iam")
    account.client("events").put_rule(Name="ours", EventBusName="rekindle", EventPattern='{"source": ["rekindle"]}')
    with pytest.raises(DeploymentError) as told:
        deployment.remove()
    lines = str(told.value).splitlines()[1:]
    assert f"aws iam detach-role-policy --role-name train --policy-arn {policy}" in lines[0] + lines[1]
    assert "aws events delete-rule --event-bus-name rekindle --name ours" in lines[0] + lines[1]
    assert account.stack("rekindle").status == "CREATE_COMPLETE"

    iam.detach_role_policy(RoleName="train", PolicyArn=policy)
    account.client("events").delete_rule(Name="ours", EventBusName="rekindle")
    deployment.remove()
    assert deployment.remove() == ()


def test_a_policy_that_is_still_attached_stops_cloudformation_half_way(
    account: LiveAccount, deployment: Deployment, package: Path
) -> None:
    """What `remove` looks for is real in the model: without the look, this is what would be left."""
    deployment.deploy(package, parameters={})
    _attached(account)
    account.client("cloudformation").delete_stack(StackName="rekindle")
    assert account.stack("rekindle").status == "DELETE_FAILED"


def test_what_is_left_after_the_removal_is_named_with_its_command(
    account: LiveAccount, deployment: Deployment, package: Path
) -> None:
    deployment.deploy(package, parameters={})
    other = Deployment(session=account.session, stack="rekindle-job-x")
    other.deploy(package, parameters={})
    put_alarm(account, "rekindle-job-lm-7b-hang", stack="rekindle")
    put_alarm(account, "rekindle-job-x-job-lm-7b-hang", stack="rekindle-job-x")
    account.client("sqs").create_queue(QueueName="rekindle-agent-pretrain")
    account.client("ssm").put_parameter(Name="/rekindle/policies/careful", Value="{}", Type="String")
    account.client("ssm").put_parameter(Name="/rekindle-dev/policies/careful", Value="{}", Type="String")
    logs = account.client("logs")
    logs.create_log_group(logGroupName="/aws/sagemaker/Clusters/pretrain/k3v9m2x7q1ab")
    logs.put_subscription_filter(
        logGroupName="/aws/sagemaker/Clusters/pretrain/k3v9m2x7q1ab",
        filterName="rekindle",
        filterPattern="",
        destinationArn=made_function(account, "rekindle-log_batch"),
    )
    deployment.remove()
    said = "\n".join(str(leftover) for leftover in deployment.leftovers())
    assert "could not be checked" not in said
    assert "aws cloudwatch delete-alarms --alarm-names rekindle-job-lm-7b-hang" in said
    assert "rekindle-job-x-job" not in said, "another stage's alarm"
    assert "rekindle-agent-pretrain" in said
    assert "aws ssm delete-parameters --names /rekindle/policies/careful" in said
    assert "/rekindle-dev/" not in said
    assert "--log-group-name /aws/sagemaker/Clusters/pretrain/k3v9m2x7q1ab --filter-name rekindle" in said
    assert f"aws s3 rb s3://rekindle-artefacts-{ACCOUNT_ID}-{REGION} --force" in said
    assert all("\n" not in str(leftover) for leftover in deployment.leftovers())


def put_alarm(account: LiveAccount, name: str, *, stack: str) -> None:
    account.client("cloudwatch").put_metric_alarm(
        AlarmName=name,
        Namespace="Rekindle/Training",
        MetricName="Step",
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1,
        ComparisonOperator="LessThanThreshold",
        Tags=[{"Key": "rekindle:stack", "Value": stack}],
    )


def made_function(account: LiveAccount, name: str) -> str:
    """moto wants a function of its own behind a subscription; ours stands in the stack alone."""
    import boto3

    role = "arn:aws:iam::123456789012:role/any"
    iam = account.client("iam")
    if not [role for role in iam.list_roles()["Roles"] if role["RoleName"] == "any"]:
        role = iam.create_role(RoleName="any", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    made: dict[str, Any] = boto3.client(
        "lambda", endpoint_url=f"https://lambda.{REGION}.amazonaws.com"
    ).create_function(
        FunctionName=name, Runtime="python3.13", Role=role, Handler="app.log_batch", Code={"ZipFile": b"zip"}
    )
    return str(made["FunctionArn"])
