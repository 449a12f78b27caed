"""Lambda's API on the embedded cloud, through real boto3 clients, in the process and over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import CallbackConfig, Duration
from botocore.exceptions import ClientError

from localcloud.cloud import ALIAS, Cloud

HOUR = timedelta(hours=1)


@pytest.fixture(params=[False, True], ids=["in the process", "over HTTP"])
def account(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with Cloud(http=request.param) as cloud:
        yield cloud


def deploy(cloud: Cloud) -> dict[str, str]:
    callbacks: dict[str, str] = {}

    @durable_execution
    def recover(event: Any, context: DurableContext) -> Any:
        callback = context.create_callback(name="wake", config=CallbackConfig(timeout=Duration.from_hours(1)))
        context.step(lambda _: callbacks.__setitem__(event["incident_id"], callback.callback_id), name="publish")
        return {"woken_by": callback.result()}

    def plain(event: Any, context: Any) -> Any:
        if event.get("fail"):
            raise ValueError("plain failure")
        return {"name": context.function_name, "event": event}

    cloud.deploy({"rekindle-recover": recover, "plain": plain}, durable={"rekindle-recover": "live"})
    return callbacks


def start(
    cloud: Cloud, name: str = "i-1-g1", payload: str = '{"incident_id": "i-1"}', **changes: Any
) -> dict[str, Any]:
    request = {
        "FunctionName": "rekindle-recover:live",
        "InvocationType": "Event",
        "DurableExecutionName": name,
        "Payload": payload,
    } | changes
    return dict(cloud.client("lambda").invoke(**request))


def code_of(call: Any, **request: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return str(caught.value.response["Error"]["Code"])


def test_a_durable_function_is_started_woken_and_read(account: Cloud) -> None:
    callbacks = deploy(account)
    client = account.client("lambda")
    started = start(account)
    assert started["StatusCode"] == 202
    arn = started["DurableExecutionArn"]
    account.clock.settle()
    client.send_durable_execution_callback_success(CallbackId=callbacks["i-1"], Result=b'"a reply"')
    account.clock.settle()
    (read,) = client.list_durable_executions_by_function(FunctionName="rekindle-recover")["DurableExecutions"]
    assert (read["DurableExecutionArn"], read["Status"]) == (arn, "SUCCEEDED")
    assert read["StartTimestamp"].year == 2035
    execution = account.engine.load(arn)
    assert execution.result is not None
    assert json.loads(execution.result.result or "") == {"woken_by": '"a reply"'}
    assert json.loads(execution.start_input.input or "") == {"incident_id": "i-1"}
    assert code_of(client.send_durable_execution_callback_success, CallbackId=callbacks["i-1"]) == (
        "CallbackTimeoutException"
    )


def test_starting_twice_is_starting_once_and_another_payload_is_refused(account: Cloud) -> None:
    deploy(account)
    assert start(account)["DurableExecutionArn"] == start(account)["DurableExecutionArn"]
    account.clock.settle()
    client = account.client("lambda")
    request = {
        "FunctionName": "rekindle-recover:live",
        "InvocationType": "Event",
        "DurableExecutionName": "i-1-g1",
        "Payload": '{"incident_id": "other"}',
    }
    assert code_of(client.invoke, **request) == "DurableExecutionAlreadyStartedException"


def test_a_durable_function_without_a_qualifier_is_refused(account: Cloud) -> None:
    deploy(account)
    client = account.client("lambda")
    assert code_of(client.invoke, FunctionName="rekindle-recover", Payload="{}") == "InvalidParameterValueException"
    assert code_of(client.invoke, FunctionName="rekindle-recover:old", Payload="{}") == "ResourceNotFoundException"
    arn = "arn:aws:lambda:us-west-2:123456789012:function:rekindle-recover:live"
    assert start(account, FunctionName=arn)["StatusCode"] == 202


def test_executions_are_listed_by_status_name_and_page(account: Cloud) -> None:
    deploy(account)
    client = account.client("lambda")
    for number in range(3):
        start(account, name=f"i-{number}-g1", payload=json.dumps({"incident_id": f"i-{number}"}))
        account.clock.run_for(timedelta(seconds=1))
    running = client.list_durable_executions_by_function(
        FunctionName="rekindle-recover", Statuses=["RUNNING"], MaxItems=2
    )
    assert [e["DurableExecutionName"] for e in running["DurableExecutions"]] == ["i-0-g1", "i-1-g1"]
    rest = client.list_durable_executions_by_function(
        FunctionName="rekindle-recover", Statuses=["RUNNING"], MaxItems=2, Marker=running["NextMarker"]
    )
    assert [e["DurableExecutionName"] for e in rest["DurableExecutions"]] == ["i-2-g1"]
    named = client.list_durable_executions_by_function(FunctionName="rekindle-recover", DurableExecutionName="i-1-g1")
    assert len(named["DurableExecutions"]) == 1


def test_plain_functions_answer_and_fail_as_lambda_says(account: Cloud) -> None:
    deploy(account)
    client = account.client("lambda")
    answer = client.invoke(FunctionName="plain", Payload='{"a": 1}')
    assert json.loads(answer["Payload"].read()) == {"name": "plain", "event": {"a": 1}}
    failed = client.invoke(FunctionName="plain", Payload='{"fail": true}')
    assert failed["FunctionError"] == "Unhandled"
    assert json.loads(failed["Payload"].read())["errorMessage"] == "plain failure"
    assert code_of(client.invoke, FunctionName="nobody", Payload="{}") == "ResourceNotFoundException"


def test_an_asynchronous_call_that_fails_is_tried_three_times(cloud: Cloud) -> None:
    deploy(cloud)
    cloud.client("lambda").invoke(FunctionName="plain", InvocationType="Event", Payload='{"fail": true}')
    cloud.clock.run_for(HOUR)
    assert cloud.lambdas.failed_invocations == [("plain", "ValueError: plain failure")]


def test_unknown_callbacks_are_not_found(cloud: Cloud) -> None:
    deploy(cloud)
    client = cloud.client("lambda")
    assert code_of(client.send_durable_execution_callback_success, CallbackId="bm9ib2R5") == "ResourceNotFoundException"


def test_two_conditional_writes_at_once_have_one_winner(cloud: Cloud) -> None:
    """moto checks and writes in two steps; the wire makes them one."""
    won: list[int] = []
    barrier = threading.Barrier(8)

    def put(number: int) -> None:
        barrier.wait()
        try:
            cloud.client("dynamodb").put_item(
                TableName="rekindle",
                Item={"pk": {"S": "SIG#1"}, "sk": {"S": "META"}, "n": {"N": str(number)}},
                ConditionExpression="attribute_not_exists(pk)",
            )
        except ClientError as err:
            assert err.response["Error"]["Code"] == "ConditionalCheckFailedException"  # noqa: PT017
        else:
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_an_execution_stays_on_the_version_that_it_began_with_and_the_alias_gives_new_ones_the_newest() -> None:
    def version(name: str) -> Any:
        @durable_execution
        def handler(_: Any, context: DurableContext) -> list[str]:
            before = context.step(lambda _: name, name="before")
            context.wait(Duration.from_seconds(60), name="wait")
            return [before, context.step(lambda _: name, name="after")]

        return handler

    with Cloud() as cloud:
        client = cloud.client("lambda")

        def start(name: str, qualifier: str = ALIAS) -> str:
            answer = client.invoke(
                FunctionName=f"f:{qualifier}", InvocationType="Event", Payload=b"{}", DurableExecutionName=name
            )
            return str(answer["DurableExecutionArn"])

        cloud.deploy({"f": version("old")}, durable={"f": ALIAS})
        first = start("one")
        cloud.clock.run_for(timedelta(seconds=10))
        cloud.deploy({"f": version("new")}, durable={"f": ALIAS})
        second, third = start("two"), start("three", "1")
        with pytest.raises(ClientError, match="Function not found: f:3"):
            start("four", "3")
        cloud.clock.run_for(timedelta(minutes=5))
        results = [json.loads(cloud.engine.load(arn).result.result) for arn in (first, second, third)]
        assert results == [["old", "old"], ["new", "new"], ["old", "old"]]
        assert [arn.split(":function:f:")[1].split("/")[0] for arn in (first, second, third)] == ["1", "2", "1"]
