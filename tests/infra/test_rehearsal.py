"""A deployment rehearsed: the packaged template through the SAM transform into moto's CloudFormation.

moto has no CloudFormation for the types in BEYOND_MOTO and cannot make a REST API from a template body: that document
is imported through ImportRestApi instead. Whatever is made is then used: rules by the golden events, the rest by the
service itself, started with the environment that the deployed function has.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.events.models import EventPattern

from chalicelib.bootstrap import build
from chalicelib.channels.bus import detail_of
from chalicelib.domain.model.action import Severity
from chalicelib.ports.notices import Notice
from infra.functions import FUNCTIONS, Trigger
from infra.package import BUNDLE, ROOT
from tests.infra.stack_reading import CODE, DEFAULTS, REGION, Template

STACK = "rekindle"
BEYOND_MOTO = {
    "AWS::CloudWatch::Alarm",
    "AWS::CloudWatch::Dashboard",
    "AWS::Lambda::Alias",
    "AWS::Lambda::EventInvokeConfig",
    "AWS::Logs::SubscriptionFilter",  # under a condition that is false here
    "AWS::S3::BucketPolicy",
    "AWS::SNS::Subscription",  # under a condition that is false here
    "AWS::SNS::TopicPolicy",
    "AWS::SQS::QueuePolicy",
}
pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse .* not supported by moto")
GOLDEN = [
    path
    for path in sorted((ROOT / "events").glob("*.json"))
    if "source" in json.loads(path.read_text(encoding="utf-8"))
]


def without_the_api(template: Template) -> Template:
    """Everything but the REST API and what refers to it."""
    rest = copy.deepcopy(template)
    for section in ("Resources", "Outputs"):
        for name in list(rest[section]):
            if rest[section][name].get("Type", "").startswith("AWS::ApiGateway") or "RestAPI" in json.dumps(
                rest[section][name]
            ):
                del rest[section][name]
    return rest


@pytest.fixture(scope="module")
def stack(transformed: Template, package: Path) -> Iterator[Template]:
    """The template whose stack stands in moto."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        template = without_the_api(transformed)
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=CODE["Bucket"], CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_object(Bucket=CODE["Bucket"], Key=CODE["Key"], Body=(package / BUNDLE).read_bytes())
        s3.put_object(Bucket=CODE["Bucket"], Key="template.json", Body=json.dumps(template))
        # The golden events come from a bucket of their own: it is one of the user's, named by the parameter.
        parameters = {**DEFAULTS, "TrainingBuckets": "rekindle-mailbox"}
        boto3.client("cloudformation").create_stack(
            StackName=STACK,
            TemplateURL=f"https://{CODE['Bucket']}.s3.{REGION}.amazonaws.com/template.json",
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
            Capabilities=["CAPABILITY_IAM"],
        )
        yield template


def _deployed_rules() -> dict[str, list[tuple[str, Any, Any]]]:
    """Bus -> (function, pattern, schedule) of every rule that stands there."""
    events, found = boto3.client("events"), {}
    for bus in ("default", STACK):
        found[bus] = []
        for rule in events.list_rules(EventBusName=bus)["Rules"]:
            (target,) = events.list_targets_by_rule(Rule=rule["Name"], EventBusName=bus)["Targets"]
            function = target["Arn"].rpartition(":")[2].removeprefix(f"{STACK}-")
            found[bus].append((function, rule.get("EventPattern"), rule.get("ScheduleExpression")))
    return found


def test_the_stack_is_made_but_for_what_moto_lacks(stack: Template) -> None:
    cloud = boto3.client("cloudformation")
    assert cloud.describe_stacks(StackName=STACK)["Stacks"][0]["StackStatus"] == "CREATE_COMPLETE"
    pages = cloud.get_paginator("list_stack_resources").paginate(StackName=STACK)
    made = {found["LogicalResourceId"] for page in pages for found in page["StackResourceSummaries"]}
    missing = {resource["Type"] for name, resource in stack["Resources"].items() if name not in made}
    assert missing <= BEYOND_MOTO


def test_each_bus_has_its_rules_and_each_rule_its_function(stack: Template) -> None:
    rules = _deployed_rules()
    for bus, trigger in (("default", Trigger.DEFAULT_BUS), (STACK, Trigger.CUSTOM_BUS)):
        wanted = {function.name for function in FUNCTIONS if function.trigger is trigger}
        assert {function for function, pattern, _ in rules[bus] if pattern} == wanted
    assert [(function, when) for function, _, when in rules["default"] if when] == [("sweep", "rate(1 minute)")]


@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_a_golden_event_matches_exactly_one_deployed_rule(stack: Template, path: Path) -> None:
    event = json.loads(path.read_text(encoding="utf-8"))
    bus = STACK if event["source"] in ("rekindle.monitor", "rekindle.agent") else "default"
    rules = [(function, pattern) for function, pattern, _ in _deployed_rules()[bus] if pattern]
    hits = [function for function, pattern in rules if EventPattern.load(pattern).matches_event(event)]
    assert len(hits) == 1, hits


def test_a_notice_goes_from_the_bus_s_rule_to_the_queue_that_feeds_the_delivery(stack: Template) -> None:
    rules = [(function, pattern) for function, pattern, _ in _deployed_rules()[STACK] if pattern]
    event = {"source": "rekindle", "detail-type": "Rekindle Notice", "detail": {}}
    assert [function for function, pattern in rules if EventPattern.load(pattern).matches_event(event)] == [
        "notice_event"
    ]
    (source,) = boto3.client("lambda").list_event_source_mappings()["EventSourceMappings"]
    assert source["FunctionArn"].rpartition(":")[2].startswith(f"{STACK}-deliver")
    deployed = boto3.client("lambda").get_function_configuration(FunctionName=f"{STACK}-notice_event")
    service = build(deployed["Environment"]["Variables"] | {"AWS_REGION": REGION})
    document = {"channels": {"one": {"kind": "apprise", "url_secret": "one"}}, "routes": [{"to": ["one"]}]}
    boto3.client("ssm").put_parameter(Name=f"/{STACK}/channels", Value=json.dumps(document), Type="String")
    notice = Notice(
        token="t", severity=Severity.PAGE, title="t", text="t", incident_id="i", job_id=None, at=datetime.now(UTC)
    )
    assert service.fan_out.take({"detail": detail_of(notice)}) == {"channels": ["one"]}
    url = deployed["Environment"]["Variables"]["REKINDLE_DELIVERIES_URL"]
    assert source["EventSourceArn"].rpartition(":")[2] == url.rpartition("/")[2]
    (message,) = boto3.client("sqs").receive_message(QueueUrl=url)["Messages"]
    assert json.loads(message["Body"])["channel"] == "one"


def test_the_service_runs_on_what_was_deployed(stack: Template) -> None:
    deployed = boto3.client("lambda").get_function_configuration(FunctionName=f"{STACK}-training_job_event")
    environ = deployed["Environment"]["Variables"] | {"AWS_REGION": REGION}
    service = build(environ)
    # The table with its index answers, and an event that cannot be read waits in the deployed queue.
    event = {"requestContext": {}, "headers": {}, "queryStringParameters": None}
    assert service.api.answer("status", {}, event, b"").status == 200
    assert service.ingress.take("training_job_event", {"source": "aws.sagemaker"})[0]["what"] == "quarantined"
    assert len(service.ingress.quarantine.peek(limit=10)) == 1


def test_the_recovery_is_deployed_with_its_version(stack: Template) -> None:
    versions = boto3.client("lambda").list_versions_by_function(FunctionName=f"{STACK}-recover")["Versions"]
    assert [version["Version"] for version in versions] == ["$LATEST", "1"]


def test_the_api_s_document_is_accepted_and_lists_every_route(transformed: Template, aws_settings: None) -> None:
    body = copy.deepcopy(transformed["Resources"]["RestAPI"]["Properties"]["Body"])
    # moto takes no Swagger 2.0, though API Gateway does; what it reads of the document is the same in both.
    assert body.pop("swagger") == "2.0"
    body["openapi"] = "3.0.1"
    with mock_aws():
        gateway = boto3.client("apigateway")
        api = gateway.import_rest_api(body=json.dumps(body).encode())
        made = {item["path"] for item in gateway.get_resources(restApiId=api["id"], limit=500)["items"]}
    assert body["paths"].keys() <= made
