"""Least privilege, measured against the code: no right too many, none missing, nothing wider than it must be."""

from __future__ import annotations

import ast
import importlib.resources
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from botocore import xform_name
from botocore.session import get_session

from infra.functions import FUNCTIONS, Function, Trigger
from infra.grants import (
    EVERYWHERE,
    GRANTS,
    ONE_KINDS,
    POLICIES,
    platform_grants,
    policy_of,
    shared_documents,
    shared_policies,
    withheld,
)
from infra.package import ROOT
from infra.reach import Reach, Source, actions_of_functions
from localcloud.aws.template import references
from tests.infra.stack_reading import Template

COMMITTED = sorted(POLICIES.glob("*.json"))


def _statements(policy: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for statement in policy["Statement"]:
        yield statement["Fn::If"][1] if "Fn::If" in statement else statement


@cache
def _walked() -> dict[str, Reach]:
    return actions_of_functions()


def _reached() -> dict[str, frozenset[str]]:
    return {name: reach.actions() for name, reach in _walked().items()}


@cache
def _aws_actions() -> dict[str, Any]:
    """AWS's own list of actions and the resources each takes, as cfn-lint carries it."""
    text = importlib.resources.files("cfnlint.data.AdditionalSpecs").joinpath("Policies.json").read_text("utf-8")
    return dict(json.loads(text))


def _committed(name: str) -> dict[str, Any]:
    return dict(json.loads((POLICIES / f"{name}.json").read_text(encoding="utf-8")))


def test_what_one_kind_of_event_needs_the_functions_of_the_others_may_not_do() -> None:
    allowed = {action: set[str]() for action in ONE_KINDS}
    for function in FUNCTIONS:
        for statement in _statements(_committed(function.name)):
            for action in ONE_KINDS.keys() & set(statement["Action"]):
                allowed[action].add(function.name)
    assert allowed == {action: set(functions) for action, functions in ONE_KINDS.items()}


def test_a_policy_grants_what_the_code_calls_and_nothing_else(function: Function) -> None:
    granted = {action for statement in _statements(_committed(function.name)) for action in statement["Action"]}
    platform = {action for grant in platform_grants(function) for action in grant.actions}
    called = _reached()[function.name]
    assert granted - platform <= called, "granted, but never called"
    assert called - withheld(function.name) <= granted, "called, but not granted"


def test_the_committed_policies_are_the_generated_ones(function: Function) -> None:
    assert _committed(function.name) == policy_of(function, _reached()[function.name]), "run: python -m infra.grants"


def test_the_committed_shared_policies_are_the_generated_ones() -> None:
    for name, document in shared_documents().items():
        assert _committed(name) == document, "run: python -m infra.grants"


def test_a_function_s_role_carries_its_policy(template: Template, function: Function) -> None:
    role = template["Resources"][f"{function.base_id}Role"]["Properties"]
    (inline,) = role["Policies"]
    assert inline["PolicyDocument"] == _committed(function.name)
    carried = role["ManagedPolicyArns"]["Fn::If"][1] if "ManagedPolicyArns" in role else []
    documents = [template["Resources"][one["Ref"]]["Properties"]["PolicyDocument"] for one in carried]
    assert documents == [_committed(name) for name in shared_policies(_committed(function.name))]


def test_a_function_that_reads_or_writes_mailboxes_does_so_in_the_named_buckets_too(function: Function) -> None:
    own = _reached()[function.name]
    shared = shared_policies(_committed(function.name))
    reads_mailboxes = function.name not in ("notice_event", "deliver")  # those two: Incidents' pages alone
    assert ("training_buckets_read" in shared) is (reads_mailboxes and "s3:GetObject" in own)
    assert ("training_buckets_write" in shared) is (reads_mailboxes and "s3:PutObject" in own)


def test_what_speaks_to_other_peoples_servers_reaches_incidents_pages_alone_in_the_bucket() -> None:
    for name, allowed in (("notice_event", {"s3:PutObject"}), ("deliver", {"s3:GetObject", "s3:ListBucket"})):
        objects = [s for s in _statements(_committed(name)) if any(a.startswith("s3:") for a in s["Action"])]
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
    own = _committed(function.name)
    assert _length(stack.resolve(own)) <= MAX_INLINE
    for name in shared_policies(own):
        resolved = stack.resolve(_committed(name))
        assert _length(resolved) <= MAX_MANAGED
        assert all(any(bucket in one for one in resolved["Statement"][0]["Resource"]) for bucket in buckets)


def _length(document: dict[str, Any]) -> int:
    return len(json.dumps(document, separators=(",", ":")))


@pytest.mark.parametrize("path", COMMITTED, ids=[path.stem for path in COMMITTED])
def test_only_actions_that_aws_offers_for_nothing_smaller_have_a_star(path: Any) -> None:
    for statement in _statements(json.loads(path.read_text(encoding="utf-8"))):
        assert not [action for action in statement["Action"] if "*" in action]
        if statement["Resource"] == "*":
            assert set(statement["Action"]) <= EVERYWHERE.keys()
        else:
            assert '"*"' not in json.dumps(statement["Resource"])


@pytest.mark.parametrize("path", COMMITTED, ids=[path.stem for path in COMMITTED])
def test_every_action_exists_and_takes_the_resource_it_is_given(path: Any) -> None:
    for statement in _statements(json.loads(path.read_text(encoding="utf-8"))):
        for action in statement["Action"]:
            service, _, name = action.partition(":")
            known = _aws_actions()[service]["Actions"]
            assert name.lower() in known, action
            if action not in EVERYWHERE:
                assert known[name.lower()].get("Resources"), f"{action} takes no resource: say so in EVERYWHERE"


def test_every_exception_is_still_used() -> None:
    used = {
        action
        for path in COMMITTED
        for statement in _statements(json.loads(path.read_text(encoding="utf-8")))
        if statement["Resource"] == "*"
        for action in statement["Action"]
    }
    assert used == EVERYWHERE.keys()


def test_a_training_role_is_handed_to_sagemaker_alone(function: Function) -> None:
    for statement in _statements(_committed(function.name)):
        if "iam:PassRole" in statement["Action"]:
            assert function.trigger is Trigger.DURABLE
            assert statement["Condition"] == {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
            assert statement["Resource"] == {"Ref": "TrainingRoleArns"}


def test_no_role_is_handed_over_that_nobody_has_named() -> None:
    (entry,) = [one for one in _committed("recover")["Statement"] if "iam:PassRole" in json.dumps(one)]
    assert entry["Fn::If"][0] == "HasTrainingRoles"
    assert entry["Fn::If"][2] == {"Ref": "AWS::NoValue"}


def test_only_the_recovery_can_stop_or_start_a_training_job(function: Function) -> None:
    granted = {action for statement in _statements(_committed(function.name)) for action in statement["Action"]}
    may = bool(granted & {"sagemaker:StopTrainingJob", "sagemaker:CreateTrainingJob"})
    assert may is (function.trigger is Trigger.DURABLE)


def test_the_walk_through_the_code_leaves_no_port_unresolved() -> None:
    assert {mention for reach in _walked().values() for mention in reach.unsettled} == set()


def test_every_call_of_an_adapter_is_seen_when_all_its_methods_are_walked() -> None:
    """The walk against a plain count: every operation that stands in an adapter's text is found by the walk."""
    source, session = Source(), get_session()
    for found in source.adapters():
        services = source.services_of(found, frozenset())
        names = {
            xform_name(operation): (service, operation)
            for service in services
            for operation in session.get_service_model(service).operation_names
        }
        written = {
            names[node.attr]
            for node in ast.walk(found.node)
            if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value).endswith("client")
        }
        assert written <= source.of_class(found).operations, found.name


def test_a_call_that_nobody_placed_stops_the_generation(function: Function) -> None:
    with pytest.raises(ValueError, match="sagemaker:DeleteCluster"):
        policy_of(function, frozenset({"sagemaker:DeleteCluster"}))


def test_no_grant_is_left_over_from_code_that_is_gone() -> None:
    called = frozenset().union(*_reached().values())
    assert {action for grant in GRANTS for action in grant.actions} == called


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
    }
    granted = {action for statement in _statements(_committed("training-role")) for action in statement["Action"]}
    # Listing is what makes S3 say "not there" (404) instead of "not allowed" (403) for a key that does not exist yet.
    assert granted == called | {"s3:ListBucket"}


def test_the_training_role_cannot_forge_what_the_service_writes() -> None:
    (write,) = [s for s in _statements(_committed("training-role")) if "s3:PutObject" in s["Action"]]
    keys = [resource["Fn::Sub"] for resource in write["Resource"]]
    written = ("replies", "manifests", "hashes", "heartbeats", "reports", "exchange")
    assert all(key.endswith(tuple(f"/rekindle/{folder}/*" for folder in written)) for key in keys)
