"""The functions of the embedded cloud are made from the packaged template: nothing of them is written down twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from app import app
from chalicelib.aws.deadline import WIND_UP_S, OutOfTime
from infra.functions import FUNCTIONS
from infra.grants import policy, shared_policies
from infra.merge import EXECUTION_RETENTION_DAYS, EXECUTION_TIMEOUT_S
from infra.package import ROOT
from localcloud.aws.events import Rule
from localcloud.aws.packaged import packaged_template
from localcloud.aws.template import resources
from localcloud.cloud import ACCOUNT_ID, REGION, STACK, Cloud
from localcloud.cloud_app import deployment_of
from localcloud.engine.functions import Settings
from localcloud.stack import deploy_rekindle
from tests.infra.stack_reading import Template, of_type

SIZES = json.loads((ROOT / ".chalice" / "config.json").read_text(encoding="utf-8"))["lambda_functions"]


@contextmanager
def _deployed() -> Iterator[Cloud]:
    with Cloud() as cloud:
        cloud.deploy_app(app, schedules=False)
        yield cloud


def test_the_template_that_they_are_made_from_is_the_packaged_one(template: Template) -> None:
    assert json.loads(json.dumps(packaged_template())) == template


def test_tables_queues_buckets_and_buses_are_the_packaged_ones_too(template: Template) -> None:
    """They are made from the files that the packaged template is merged from."""
    made = {name: resource for name, resource in resources().items() if resource["Type"] != "AWS::IAM::ManagedPolicy"}
    assert {resource["Type"] for resource in made.values()} >= {
        "AWS::DynamoDB::Table",
        "AWS::SQS::Queue",
        "AWS::S3::Bucket",
    }
    assert made == {name: template["Resources"][name] for name in made}


def test_every_function_of_the_template_is_there_and_no_other(template: Template) -> None:
    with _deployed() as cloud:
        found = deployment_of(app, cloud.stack_functions(), stack=STACK)
    assert len(of_type(template, "AWS::Serverless::Function")) == len(FUNCTIONS)
    assert set(found.settings) == {
        name for function in FUNCTIONS for name in (function.name, f"{STACK}-{function.name}")
    }
    assert found.handlers.keys() == found.settings.keys()
    assert set(found.durable) == {"recover", f"{STACK}-recover"}


def test_lambda_answers_with_each_function_s_configuration_as_the_template_has_it() -> None:
    with _deployed() as cloud:
        ask = cloud.client("lambda").get_function_configuration
        for function in FUNCTIONS:
            found = ask(FunctionName=f"{STACK}-{function.name}")
            sizes = SIZES[function.name]
            assert (found["MemorySize"], found["Timeout"]) == (sizes["lambda_memory_size"], sizes["lambda_timeout"])
            assert found["LoggingConfig"]["LogGroup"] == f"/aws/lambda/{STACK}-{function.name}"
            own = {name: value for name, value in cloud.environ().items() if name.startswith(("REKINDLE", "POWER"))}
            assert found["Environment"]["Variables"] == own
        durable = ask(FunctionName=f"{STACK}-recover")
        with pytest.raises(ClientError, match="ResourceNotFoundException"):
            ask(FunctionName=f"{STACK}-nothing")
    assert durable["DurableConfig"] == {
        "ExecutionTimeout": EXECUTION_TIMEOUT_S,
        "RetentionPeriodInDays": EXECUTION_RETENTION_DAYS,
    }
    assert durable["DeadLetterConfig"]["TargetArn"] == f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{STACK}-failures"


def test_log_groups_are_kept_as_long_as_the_parameter_asks() -> None:
    with _deployed() as cloud:
        assert {function.log_days for function in cloud.stack_functions()} == {30}


def test_each_function_s_role_has_its_committed_policy_and_the_shared_ones() -> None:
    with _deployed() as cloud:
        cloud.create_bucket("team-data")
        for function in cloud.stack_functions():
            name = function.name.removeprefix(f"{STACK}-")
            own = policy(name)
            shared = [policy(each) for each in shared_policies(own)]
            wanted = [statement for document in (own, *shared) for statement in document["Statement"]]
            assert [statement.get("Sid") for statement in function.role] == [
                one.get("Sid") for one in cloud._references().resolve(wanted)
            ]


# ---- what the settings do -------------------------------------------------------------------------------------------


def _tiny(cloud: Cloud, handler: Callable[..., Any], **settings: Any) -> None:
    cloud.deploy({"f": handler}, settings={"f": Settings(name="f", entry="f", **settings)})


def test_an_invocation_has_its_function_s_time_and_memory_and_fails_where_it_takes_longer() -> None:
    seen: list[tuple[int, int]] = []
    with Cloud() as cloud:

        def handler(event: Any, context: Any) -> str:
            seen.append((context.memory_limit_in_mb, context.get_remaining_time_in_millis()))
            cloud.clock.run_for(timedelta(seconds=event["s"]))
            seen.append((context.memory_limit_in_mb, context.get_remaining_time_in_millis()))
            return "done"

        _tiny(cloud, handler, memory_mb=640, timeout_s=30)
        answer = cloud.client("lambda").invoke(FunctionName="f", Payload=b'{"s": 12}')
        assert json.loads(answer["Payload"].read()) == "done"
        assert seen == [(640, 30_000), (640, 18_000)]
        answer = cloud.client("lambda").invoke(FunctionName="f", Payload=b'{"s": 31}')
        assert answer["FunctionError"] == "Unhandled"
        assert "timed out after 30.00 seconds" in answer["Payload"].read().decode()


def test_the_service_begins_no_call_that_would_outlast_its_function_there() -> None:
    with Cloud() as cloud:
        service = deploy_rekindle(cloud)
        context = cloud.engine.context_for(f"{STACK}-sweep")
        assert context.get_remaining_time_in_millis() == SIZES["sweep"]["lambda_timeout"] * 1000
        with service.clients.deadline.during(context):
            service.clients("sqs").list_queues()
            cloud.clock.run_for(timedelta(seconds=SIZES["sweep"]["lambda_timeout"] - WIND_UP_S))
            with pytest.raises(OutOfTime):
                service.clients("sqs").list_queues()


def test_what_an_asynchronous_call_fails_with_in_the_end_lies_in_the_failures_queue() -> None:
    tries: list[Any] = []

    def handler(event: Any, _: Any) -> None:
        tries.append(event)
        raise ValueError("broken")

    with Cloud() as cloud:
        pattern = {"source": ["aws.ec2"]}
        cloud.deploy(
            {"f": handler},
            rules=[Rule(function="f", bus="default", pattern=pattern)],
            settings={"f": Settings(name="f", entry="f", retries=1, on_failure=f"{STACK}-failures")},
        )
        cloud.events.publish("aws.ec2", "t", {"n": 1}, [])
        cloud.client("lambda").invoke(FunctionName="f", InvocationType="Event", Payload=b'{"n": 2}')
        cloud.clock.run_for(timedelta(hours=1))
        records = _messages(cloud)
    assert len(tries) == 4
    assert sorted(record["requestPayload"].get("n", 1) for record in records) == [1, 2]
    for one in records:
        assert one["requestContext"]["condition"] == "RetriesExhausted"
        assert one["requestContext"]["approximateInvokeCount"] == 2
        assert one["responsePayload"] == {"errorMessage": "broken", "errorType": "ValueError"}


def test_the_event_of_a_failed_execution_lies_in_the_failures_queue() -> None:
    with _deployed() as cloud:
        name = f"{STACK}-recover:live"
        cloud.client("lambda").invoke(
            FunctionName=name, InvocationType="Event", DurableExecutionName="x-1", Payload=b'{"no": "incident"}'
        )
        cloud.clock.run_for(timedelta(hours=1))
        (execution,) = cloud.engine.executions(function=f"{STACK}-recover")
        assert execution.current_status().value == "FAILED"
        assert _messages(cloud) == [{"no": "incident"}]


def test_more_invocations_than_are_reserved_are_refused_and_the_asynchronous_ones_come_later() -> None:
    done: list[str] = []
    with Cloud() as cloud:

        def handler(event: Any, _: Any) -> None:
            if event.get("again"):
                with pytest.raises(ClientError, match="TooManyRequestsException"):
                    cloud.client("lambda").invoke(FunctionName="f", Payload=b"{}")
                cloud.client("lambda").invoke(FunctionName="f", InvocationType="Event", Payload=b'{"later": true}')
                cloud.clock.run_for(timedelta(seconds=1))
                assert done == []
            done.append("later" if event.get("later") else "first")

        _tiny(cloud, handler, reserved=1)
        cloud.client("lambda").invoke(FunctionName="f", Payload=b'{"again": true}')
        cloud.clock.run_for(timedelta(minutes=5))
    assert done == ["first", "later"]


def _messages(cloud: Cloud) -> list[Any]:
    url = cloud._queue_url(f"{STACK}-failures")
    found = cloud.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
    return [json.loads(message["Body"]) for message in found]
