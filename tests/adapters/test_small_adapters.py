"""Durable executions, cluster facts and announcements: every request is held to botocore's model."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.stub import Stubber

from chalicelib.aws.durable import LambdaExecutions, unqualified
from chalicelib.aws.sagemaker.clusters import SageMakerClusters
from chalicelib.channels.bus import BusAnnouncer
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.errors import NotAuthorized, Retryable, Throttled
from chalicelib.ports.notices import Notice
from tests.adapters.conftest import make_client
from tests.adapters.samples import CLUSTER, T0

FUNCTION = "arn:aws:lambda:us-west-2:111122223333:function:rekindle-recover"
CALLBACK = "Y2FsbGJhY2s="


def stubbed(service: str) -> tuple[Any, Stubber]:
    client = make_client(service)
    stub = Stubber(client)
    stub.activate()
    return client, stub


def test_an_execution_is_started_on_the_alias_with_a_payload_that_follows_from_its_name() -> None:
    client, stub = stubbed("lambda")
    stub.add_response(
        "invoke",
        {"StatusCode": 202},
        {
            "FunctionName": f"{FUNCTION}:live",
            "InvocationType": "Event",
            "DurableExecutionName": "inc-a-g3",
            "Payload": b'{"incident_id": "inc-a", "generation": 3}',
        },
    )
    LambdaExecutions(client, function=f"{FUNCTION}:live").start("inc-a", generation=3)
    stub.assert_no_pending_responses()


def test_an_execution_that_was_started_before_is_left_alone() -> None:
    client, stub = stubbed("lambda")
    stub.add_client_error("invoke", "DurableExecutionAlreadyStartedException")
    LambdaExecutions(client, function=f"{FUNCTION}:live").start("inc-a", generation=1)
    stub.add_client_error("invoke", "TooManyRequestsException")
    with pytest.raises(Throttled):
        LambdaExecutions(client, function=f"{FUNCTION}:live").start("inc-a", generation=1)


def test_a_wake_completes_the_callback() -> None:
    client, stub = stubbed("lambda")
    wanted = {"CallbackId": CALLBACK, "Result": b'{"why": "stall"}'}
    stub.add_response("send_durable_execution_callback_success", {}, wanted)
    assert LambdaExecutions(client, function="f:live").wake(CALLBACK, why="stall")


@pytest.mark.parametrize(
    "code", ["CallbackTimeoutException", "ResourceNotFoundException", "InvalidParameterValueException"]
)
def test_a_callback_that_is_gone_wakes_nobody_and_is_no_error(code: str) -> None:
    client, stub = stubbed("lambda")
    stub.add_client_error("send_durable_execution_callback_success", code)
    assert not LambdaExecutions(client, function="f:live").wake(CALLBACK, why="stall")


def test_running_executions_are_listed_over_all_pages_and_versions() -> None:
    client, stub = stubbed("lambda")
    asked = {"FunctionName": "rekindle-recover", "Statuses": ["RUNNING", "PAUSING", "PAUSED"], "MaxItems": 1000}

    def page(*names: str) -> list[dict[str, Any]]:
        return [
            {
                "DurableExecutionArn": f"{FUNCTION}:7/durable-execution/{name}/0f0e0d0c-1111-4222-8333-444455556666",
                "DurableExecutionName": name,
                "FunctionArn": f"{FUNCTION}:7",
                "Status": "RUNNING",
                "StartTimestamp": T0,
            }
            for name in names
        ]

    stub.add_response(
        "list_durable_executions_by_function",
        {"DurableExecutions": page("inc-a-g1", "inc-b-g2"), "NextMarker": "more"},
        asked,
    )
    stub.add_response(
        "list_durable_executions_by_function", {"DurableExecutions": page("inc-c-g1")}, asked | {"Marker": "more"}
    )
    running = LambdaExecutions(client, function="rekindle-recover:live").running()
    assert running == {"inc-a-g1", "inc-b-g2", "inc-c-g1"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("rekindle-recover:live", ("rekindle-recover", "live")),
        ("rekindle-recover", ("rekindle-recover", None)),
        (f"{FUNCTION}:live", (FUNCTION, "live")),
        (FUNCTION, (FUNCTION, None)),
        ("111122223333:function:f:3", ("111122223333:function:f", "3")),
    ],
)
def test_a_function_name_is_taken_apart(given: str, expected: tuple[str, str | None]) -> None:
    assert unqualified(given) == expected


def test_a_cluster_event_is_described_as_plain_json() -> None:
    client, stub = stubbed("sagemaker")
    event = {
        "EventId": "0b7d4c52-1111-4222-8333-94a5b6c7d8e9",
        "ClusterArn": CLUSTER,
        "ClusterName": "pretrain",
        "ResourceType": "Instance",
        "EventTime": datetime(2026, 11, 20, 10, tzinfo=UTC),
        "EventLevel": "Error",
        "EventDetails": {"EventMetadata": {"Instance": {"FailureMessage": "EFA health checks did not run"}}},
    }
    asked = {"ClusterName": "pretrain", "EventId": event["EventId"]}
    stub.add_response("describe_cluster_event", {"EventDetails": event}, asked)
    answer = SageMakerClusters(client).describe_event("pretrain", str(event["EventId"]))
    assert answer is not None
    assert json.loads(json.dumps(answer)) == {"EventDetails": event | {"EventTime": "2026-11-20T10:00:00+00:00"}}


@pytest.mark.parametrize("code", ["ValidationException", "ResourceNotFound"])
def test_a_legacy_cluster_has_no_events(code: str) -> None:
    client, stub = stubbed("sagemaker")
    stub.add_client_error("describe_cluster_event", code)
    assert SageMakerClusters(client).describe_event("pretrain", "0b7d4c52-1111-4222-8333-94a5b6c7d8e9") is None


def cluster_answer(*counts: dict[str, int]) -> dict[str, Any]:
    return {"ClusterArn": CLUSTER, "ClusterStatus": "InService", "InstanceGroups": list(counts)}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([{"CurrentCount": 15, "TargetCount": 16}, {"CurrentCount": 1, "TargetCount": 1}], True),
        ([{"CurrentCount": 16, "TargetCount": 16}], False),
        ([{"CurrentCount": 16, "TargetCount": 16}, {"CurrentCount": 3}], None),
        ([], None),
    ],
)
def test_groups_move_while_counts_differ_and_unknown_is_not_still(counts: list[Any], expected: bool | None) -> None:
    client, stub = stubbed("sagemaker")
    stub.add_response("describe_cluster", cluster_answer(*counts), {"ClusterName": "pretrain"})
    assert SageMakerClusters(client).groups_in_motion("pretrain") is expected


def test_a_clusters_policy_is_its_tag_on_whatever_page() -> None:
    client, stub = stubbed("sagemaker")
    stub.add_response("describe_cluster", cluster_answer(), {"ClusterName": "pretrain"})
    first = {"Tags": [{"Key": "team", "Value": "lm"}], "NextToken": "more"}
    stub.add_response("list_tags", first, {"ResourceArn": CLUSTER})
    second = {"Tags": [{"Key": "rekindle:policy", "Value": "careful"}]}
    stub.add_response("list_tags", second, {"ResourceArn": CLUSTER, "NextToken": "more"})
    assert SageMakerClusters(client).policy_of("pretrain") == "careful"
    stub.add_response("list_tags", {"Tags": []}, {"ResourceArn": CLUSTER})
    assert SageMakerClusters(client).policy_of(CLUSTER) is None
    stub.add_client_error("describe_cluster", "ResourceNotFound")
    assert SageMakerClusters(client).policy_of("gone") is None


@pytest.mark.parametrize(
    ("tag", "stage", "expected"),
    [(None, "prod", "default"), (None, "dev", None), ("dev", "dev", "default"), ("dev", "prod", None)],
)
def test_a_cluster_asks_one_stage_for_protection(tag: str | None, stage: str, expected: str | None) -> None:
    client, stub = stubbed("sagemaker")
    tags = [{"Key": "rekindle:policy", "Value": "default"}]
    tags += [{"Key": "rekindle:stage", "Value": tag}] if tag else []
    stub.add_response("list_tags", {"Tags": tags}, {"ResourceArn": CLUSTER})
    assert SageMakerClusters(client, stage=stage).policy_of(CLUSTER) == expected


def test_a_permission_that_is_missing_is_no_unprotected_cluster() -> None:
    client, stub = stubbed("sagemaker")
    stub.add_client_error("list_tags", "AccessDeniedException")
    with pytest.raises(NotAuthorized):
        SageMakerClusters(client).policy_of(CLUSTER)


NOTICE = Notice(
    token="inc-a.1.4.0",
    severity=Severity.PAGE,
    title="lm-7b: no progress\nafter 3 attempts ü",
    text="Everything known.",
    incident_id="inc-a",
    job_id="lm-7b",
    at=T0,
)


def test_a_notice_reaches_the_bus_and_the_topic(aws: None) -> None:
    events, sns, sqs = make_client("events"), make_client("sns"), make_client("sqs")
    events.create_event_bus(Name="rekindle")
    topic = sns.create_topic(Name="people")["TopicArn"]
    url = sqs.create_queue(QueueName="inbox")["QueueUrl"]
    arn = "arn:aws:sqs:us-west-2:123456789012:inbox"
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    put: list[dict[str, Any]] = []
    events.meta.events.register("provide-client-params.events.PutEvents", lambda params, **_: put.append(params))
    BusAnnouncer(events, bus="rekindle", sns=sns, topic=topic).announce(NOTICE)
    (entry,) = put[0]["Entries"]
    assert (entry["Source"], entry["DetailType"], entry["EventBusName"]) == ("rekindle", "Rekindle Notice", "rekindle")
    detail = json.loads(entry["Detail"])
    assert (detail["specversion"], detail["id"], detail["subject"]) == ("1.0", NOTICE.token, "lm-7b")
    assert detail["data"]["severity"] == "page"
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    body = json.loads(message["Body"])
    assert body["Subject"] == "[page] lm-7b: no progress after 3 attempts ?"
    assert "incident inc-a" in body["Message"]


def test_one_channels_failure_does_not_silence_the_other_and_is_retryable_whatever_it_is() -> None:
    events, event_stub = stubbed("events")
    sns, sns_stub = stubbed("sns")
    event_stub.add_client_error("put_events", "AccessDeniedException")
    sns_stub.add_response("publish", {"MessageId": "1"})
    with pytest.raises(Retryable, match="AccessDenied"):
        BusAnnouncer(events, bus="rekindle", sns=sns, topic="arn:aws:sns:us-west-2:1:people").announce(NOTICE)
    sns_stub.assert_no_pending_responses()


def test_an_entry_that_failed_inside_an_answer_of_200_is_seen() -> None:
    events, stub = stubbed("events")
    failed = {"FailedEntryCount": 1, "Entries": [{"ErrorCode": "ThrottlingException", "ErrorMessage": "slow"}]}
    stub.add_response("put_events", failed)
    with pytest.raises(Retryable):
        BusAnnouncer(events, bus="rekindle").announce(NOTICE)
