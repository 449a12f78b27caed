"""Least privilege of the committed policies: nothing wider than it must be, dangerous rights with few functions.

That a function may do what it does, and does what it may, is seen where tests run it (localcloud/aws/roles.py,
tests/security/test_permissions.py).
"""

from __future__ import annotations

import ast
import importlib.resources
import json
from functools import cache
from typing import Any

import pytest
from botocore import xform_name
from botocore.session import get_session

from infra.functions import FUNCTIONS, Function, Trigger
from infra.grants import POLICIES, policy, shared_policies, statements
from infra.package import ROOT
from localcloud.aws.template import references
from tests.infra.stack_reading import Template

COMMITTED = sorted(path.stem for path in POLICIES.glob("*.json"))

# Actions that AWS offers for no smaller resource than all of them.
# Source: service authorization reference (the copy that cfn-lint carries).
EVERYWHERE = {
    "cloudwatch:GetMetricData",  # metrics have no ARN; numbers are read only
    "sagemaker:ListTrainingJobs",  # a listing is of the whole account; it gives names and states
    "cloudwatch:PutMetricData",  # a plain metric has no ARN, only a data set has; narrowed to one namespace
}
# What these functions alone may do.
ONLY = {
    "sqs:CreateQueue": {"agent_event", "api_handler"},
    "sagemaker:DescribeClusterEvent": {"hyperpod_event", "api_handler"},
    "cloudwatch:ListTagsForResource": {"alarm_event", "api_handler"},
    "ssm:PutParameter": {"api_handler"},  # policies
    "ssm:GetParameters": {"api_handler", "deliver"},  # channels' secrets
    "sagemaker:CreateTrainingJob": {"recover"},
    "sagemaker:StopTrainingJob": {"recover"},
    "sagemaker:AddTags": {"recover"},
    "iam:PassRole": {"recover"},
    "kms:CreateGrant": {"recover"},
    "sagemaker:BatchRebootClusterNodes": {"recover"},
    "sagemaker:BatchReplaceClusterNodes": {"recover"},
    "sagemaker:StartClusterHealthCheck": {"recover"},
}


def _actions(name: str) -> set[str]:
    return {action for statement in statements(policy(name)) for action in statement["Action"]}


@cache
def _aws_actions() -> dict[str, Any]:
    """AWS's own list of actions and the resources each takes, as cfn-lint carries it."""
    text = importlib.resources.files("cfnlint.data.AdditionalSpecs").joinpath("Policies.json").read_text("utf-8")
    return dict(json.loads(text))


def test_what_few_functions_need_the_others_may_not_do() -> None:
    allowed = {
        action: {function.name for function in FUNCTIONS if action in _actions(function.name)} for action in ONLY
    }
    assert allowed == ONLY


def test_a_function_may_use_buckets_keys_for_what_it_reads_and_writes(function: Function) -> None:
    own = _actions(function.name)
    assert ("kms:Decrypt" in own) is ("s3:GetObject" in own)
    assert ("kms:GenerateDataKey" in own) is ("s3:PutObject" in own)


@pytest.mark.long
def test_a_function_s_role_carries_its_policy(template: Template, function: Function) -> None:
    role = template["Resources"][f"{function.base_id}Role"]["Properties"]
    (inline,) = role["Policies"]
    assert inline["PolicyDocument"] == policy(function.name)
    carried = role["ManagedPolicyArns"]["Fn::If"][1] if "ManagedPolicyArns" in role else []
    documents = [template["Resources"][reference["Ref"]]["Properties"]["PolicyDocument"] for reference in carried]
    assert documents == [policy(name) for name in shared_policies(policy(function.name))]


def test_what_speaks_to_other_peoples_servers_reaches_incidents_pages_alone_in_the_bucket() -> None:
    for name, allowed in (("notice_event", {"s3:PutObject"}), ("deliver", {"s3:GetObject", "s3:ListBucket"})):
        objects = [s for s in statements(policy(name)) if any(a.startswith("s3:") for a in s["Action"])]
        assert {action for statement in objects for action in statement["Action"]} == allowed
        for statement in objects:
            if statement["Action"] == ["s3:ListBucket"]:
                assert statement["Condition"] == {"StringLikeIfExists": {"s3:prefix": ["incident-pages/*"]}}
            else:
                assert statement["Resource"] == {"Fn::Sub": "${MailboxBucket.Arn}/incident-pages/*"}


# Source: IAM user guide, IAM and STS quotas; white space is not counted.
MAX_INLINE, MAX_MANAGED, LONGEST_BUCKET = 10_240, 6_144, 63


def test_no_role_outgrows_iam_with_thirty_buckets_of_the_longest_names(function: Function) -> None:
    buckets = [f"{n:0{LONGEST_BUCKET}d}" for n in range(30)]
    stack = references(
        "rekindle-" + "s" * 20,
        account_id="123456789012",
        region="ap-southeast-1",
        bucket="m" * LONGEST_BUCKET,
        parameters={
            "TrainingBuckets": buckets,
            "TrainingRoleArns": [f"arn:aws:iam::123456789012:role/team-{n}" for n in range(10)],
            "KmsKeyArns": [f"arn:aws:kms:ap-southeast-1:123456789012:key/{n:036d}" for n in range(10)],
        },
    )
    own = policy(function.name)
    assert _length(stack.resolve(own)) <= MAX_INLINE
    for name in shared_policies(own):
        resolved = stack.resolve(policy(name))
        assert _length(resolved) <= MAX_MANAGED
        assert all(any(bucket in one for one in resolved["Statement"][0]["Resource"]) for bucket in buckets)


def _length(document: dict[str, Any]) -> int:
    return len(json.dumps(document, separators=(",", ":")))


@pytest.mark.parametrize("name", COMMITTED)
def test_only_actions_that_aws_offers_for_nothing_smaller_have_a_star(name: str) -> None:
    for statement in statements(policy(name)):
        assert not [action for action in statement["Action"] if "*" in action]
        if statement["Resource"] == "*":
            assert set(statement["Action"]) <= EVERYWHERE
        else:
            assert '"*"' not in json.dumps(statement["Resource"])


@pytest.mark.parametrize("name", COMMITTED)
def test_every_action_exists_and_takes_the_resource_it_is_given(name: str) -> None:
    for statement in statements(policy(name)):
        for action in statement["Action"]:
            service, _, operation = action.partition(":")
            known = _aws_actions()[service]["Actions"]
            assert operation.lower() in known, action
            if action not in EVERYWHERE:
                assert known[operation.lower()].get("Resources"), f"{action} takes no resource: say so in EVERYWHERE"


def test_every_exception_is_still_used() -> None:
    used = {
        action
        for name in COMMITTED
        for statement in statements(policy(name))
        if statement["Resource"] == "*"
        for action in statement["Action"]
    }
    assert used == EVERYWHERE


def test_a_training_role_is_handed_to_sagemaker_alone(function: Function) -> None:
    for statement in statements(policy(function.name)):
        if "iam:PassRole" in statement["Action"]:
            assert function.trigger is Trigger.DURABLE
            assert statement["Condition"] == {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
            assert statement["Resource"] == {"Ref": "TrainingRoleArns"}


def test_no_role_is_handed_over_that_nobody_has_named() -> None:
    (entry,) = [statement for statement in policy("recover")["Statement"] if "iam:PassRole" in json.dumps(statement)]
    assert entry["Fn::If"][0] == "HasTrainingRoles"
    assert entry["Fn::If"][2] == {"Ref": "AWS::NoValue"}


def test_the_training_role_has_what_the_monitor_calls_and_nothing_else() -> None:
    services = ("s3", "events", "cloudwatch")
    session = get_session()
    names = {
        xform_name(operation): f"{service}:{operation}"
        for service in services
        for operation in session.get_service_model(service).operation_names
    }
    called = {
        names[node.attr]
        for path in (ROOT / "rekindle" / "monitor").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in names
        if not (isinstance(node.value, ast.Name) and node.value.id == "socket")  # its create_connection
    }
    called = {"s3:GetObject" if name == "s3:HeadObject" else name for name in called}  # S3 has no action of that name
    granted = {action for statement in statements(policy("training-role")) for action in statement["Action"]}
    # Listing is what makes S3 say "not there" (404) instead of "not allowed" (403) for a key that does not exist yet.
    assert granted == called | {"s3:ListBucket"}


def test_the_training_role_cannot_forge_what_the_service_writes() -> None:
    (write,) = [s for s in statements(policy("training-role")) if "s3:PutObject" in s["Action"]]
    keys = [resource["Fn::Sub"] for resource in write["Resource"]]
    written = ("replies", "manifests", "hashes", "heartbeats", "reports", "exchange")
    assert all(key.endswith(tuple(f"/rekindle/{folder}/*" for folder in written)) for key in keys)
