"""Whoever holds one training role reaches the mailboxes below its own prefix, and no other: its policy, evaluated."""

import pytest

from infra import grants
from infra.cloudformation.intrinsics import Stack
from localcloud.aws.authorization import Context, Permission
from localcloud.aws.policies import Policy
from rekindle.protocol.keys import (
    doorbell_key,
    fence_key,
    hashes_key,
    heartbeat_key,
    manifest_key,
    plan_key,
    reply_key,
    request_key,
)
from rekindle.protocol.reports import ReportKind, report_key
from rekindle.protocol.summaries import summary_key

BUCKET = "arn:aws:s3:::rekindle-mailbox"
BUS = "arn:aws:events:us-west-2:123456789012:event-bus/rekindle"
TAG = "aws:PrincipalTag/rekindle-mailbox"
WRITES = (
    reply_key("r-1"),
    manifest_key(7, "lm-7b"),
    hashes_key(7, "lm-7b"),
    heartbeat_key("lm-7b"),
    report_key("lm-7b", ReportKind.STALL, 3),
    summary_key("lm-7b", ReportKind.STALL, 8),
    "rekindle/exchange/lm-7b/wish",
)
READS = (*WRITES, fence_key(), request_key("r-1"), plan_key("lm-7b"), doorbell_key())


def policy() -> Policy:
    stack = Stack(references={}, attributes={("MailboxBucket", "Arn"): BUCKET, ("MonitorBus", "Arn"): BUS})
    return Policy(stack.resolve(grants.policy("training-role")))


def may(action: str, resource: str, *, tag: str | None = "team-a", **context: str) -> bool:
    own: Context = () if tag is None else ((TAG, (tag,)),)
    given = tuple((key.replace("__", ":"), (value,)) for key, value in context.items())
    return policy().allows(Permission(action, resource, (*own, *given)))


@pytest.mark.parametrize("key", WRITES)
def test_a_role_writes_what_its_own_runs_write(key: str) -> None:
    assert may("s3:PutObject", f"{BUCKET}/team-a/{key}")
    assert may("s3:PutObject", f"{BUCKET}/team-a/lm-7b/{key}")
    assert may("s3:PutObject", f"{BUCKET}/team-a/lm/7b/{key}")


@pytest.mark.parametrize("key", READS)
@pytest.mark.parametrize("prefix", ["", "team-b/", "team-ab/", "team-b/team-a/", "x/team-a/", "team-/a/", "Team-a/"])
def test_a_role_neither_writes_nor_reads_in_anybody_elses_mailbox(prefix: str, key: str) -> None:
    assert not may("s3:PutObject", f"{BUCKET}/{prefix}{key}")
    assert not may("s3:GetObject", f"{BUCKET}/{prefix}{key}")


@pytest.mark.parametrize("key", READS)
def test_a_role_without_the_tag_reaches_no_mailbox(key: str) -> None:
    for prefix in ("", "team-a/", "${aws:PrincipalTag/rekindle-mailbox}/"):
        assert not may("s3:PutObject", f"{BUCKET}/{prefix}{key}", tag=None)
        assert not may("s3:GetObject", f"{BUCKET}/{prefix}{key}", tag=None)


@pytest.mark.parametrize("tag", ["*", "team-?", "", "?eam-b", "team-*"])
def test_no_sign_in_the_tag_is_a_wildcard(tag: str) -> None:
    assert not may("s3:PutObject", f"{BUCKET}/team-b/{heartbeat_key('x')}", tag=tag)


@pytest.mark.parametrize("key", [fence_key(), request_key("r"), plan_key("a"), doorbell_key(), "rekindle/quarantine/x"])
def test_a_role_writes_nothing_that_the_service_writes(key: str) -> None:
    assert may("s3:GetObject", f"{BUCKET}/team-a/lm-7b/{key}")
    assert not may("s3:PutObject", f"{BUCKET}/team-a/lm-7b/{key}")


def test_a_role_lists_its_own_prefix() -> None:
    assert may("s3:ListBucket", BUCKET, s3__prefix="team-a/lm-7b/rekindle/requests/")
    assert not may("s3:ListBucket", BUCKET, s3__prefix="team-b/lm-7b/rekindle/requests/")
    assert not may("s3:ListBucket", BUCKET, s3__prefix="")
    assert may("s3:ListBucket", BUCKET), "what makes S3 say of an object that it is not there"


@pytest.mark.parametrize("source", ["rekindle.agent", "rekindle.notices", "aws.sagemaker", "rekindle.sweep"])
def test_a_role_speaks_on_the_bus_as_a_monitor_alone(source: str) -> None:
    assert may("events:PutEvents", BUS, events__source="rekindle.monitor")
    assert not may("events:PutEvents", BUS, events__source=source)


@pytest.mark.parametrize("action", ["s3:DeleteObject", "s3:PutBucketPolicy", "dynamodb:PutItem", "sqs:SendMessage"])
def test_a_role_may_nothing_else(action: str) -> None:
    assert not may(action, f"{BUCKET}/team-a/{heartbeat_key('x')}")
