"""The functions of the embedded cloud are those of the packaged template: triggers, buses, queues, settings, roles."""

from __future__ import annotations

import json
from typing import Any

from app import app
from infra.functions import ALIAS, FUNCTIONS, Trigger
from infra.grants import POLICIES
from infra.merge import ENVIRONMENT
from localcloud.aws.events import DEFAULT_BUS
from localcloud.aws.intrinsics import Stack
from localcloud.cloud import ACCOUNT_ID, REGION, STACK, Cloud
from localcloud.cloud_app import deployment_of
from tests.infra.stack_reading import Template, of_type

BUCKET = f"{STACK}-mailbox"
# Settings that the embedded cloud leaves at what the code takes without them, and why.
LEFT_OUT = {
    "REKINDLE_ACCOUNT": "recorded events are of other accounts; tests/ingest tries what is foreign",
    "REKINDLE_SWEEP_METRICS_MINUTES": "the code's own value is the parameter's",
    "REKINDLE_CONSOLE_URL": "empty without the parameter",
    "REKINDLE_NOTICE_LINK_HOURS": "a link is signed with real credentials; tests/notify/test_pages.py has them",
    "POWERTOOLS_SERVICE_NAME": "names log lines only",
    "POWERTOOLS_METRICS_NAMESPACE": "names metrics of log lines only",
}


def _functions(template: Template) -> dict[str, dict[str, Any]]:
    made = of_type(template, "AWS::Serverless::Function")
    return {function.name: made[function.logical_id] for function in FUNCTIONS}


def test_every_function_of_the_template_runs_there_and_no_other(template: Template) -> None:
    found = deployment_of(app, bus=STACK)
    by_event = {name for name in _functions(template) if name != "api_handler"}
    routes = {entry.view_name for methods in app.routes.values() for entry in methods.values()}
    assert {name for name in found.handlers if not name.startswith(f"{STACK}-")} - routes == by_event
    assert set(found.durable) == {"recover", f"{STACK}-recover"}
    assert set(found.durable.values()) == {ALIAS}
    durable = {name for name, properties in _functions(template).items() if "DurableConfig" in properties}
    assert durable == {"recover"}


def test_rules_are_the_templates_by_pattern_and_bus(template: Template) -> None:
    rules = {rule.function: rule for rule in deployment_of(app, bus=STACK).rules}
    functions = _functions(template)
    wanted = [one for one in FUNCTIONS if one.trigger in (Trigger.DEFAULT_BUS, Trigger.CUSTOM_BUS)]
    assert set(rules) == {one.name for one in wanted}
    for function in wanted:
        properties = functions[function.name]["Events"][function.event_id]["Properties"]
        pattern = json.loads(json.dumps(properties["Pattern"]))
        if function.name == "mailbox_event":
            pattern["detail"].pop("bucket")  # the stack's own buckets; here every bucket is one
        assert json.loads(json.dumps(rules[function.name].pattern)) == pattern
        assert (rules[function.name].bus == DEFAULT_BUS) is ("EventBusName" not in properties)


def test_schedule_and_queue_are_the_templates(template: Template) -> None:
    found, functions = deployment_of(app, bus=STACK), _functions(template)
    (sweep,) = found.schedules
    assert functions[sweep.function]["Events"]["SweepEvent"]["Properties"]["Schedule"] == "rate(1 minute)"
    assert sweep.every.total_seconds() == 60
    (source,) = found.queues
    event = functions[source.function]["Events"]["DeliverSqsEventSource"]["Properties"]
    assert (source.queue, source.batch_size) == (f"{STACK}-deliveries", event["BatchSize"])
    assert event["Queue"] == {"Fn::GetAtt": ["DeliveriesQueue", "Arn"]}


def test_settings_are_the_templates(template: Template) -> None:
    for properties in _functions(template).values():
        own = properties.get("Environment", {}).get("Variables", {})
        assert not [name for name in own if name.startswith(("REKINDLE_", "POWERTOOLS_"))]
    assert template["Globals"]["Function"]["Environment"]["Variables"] == ENVIRONMENT
    with Cloud() as cloud:
        environ = cloud.environ()
        names = {"AWS::StackName": STACK, "AWS::Region": REGION, "AWS::AccountId": ACCOUNT_ID, "RegistryTable": STACK}
        names |= {"MailboxBucket": BUCKET, "NoticesTopic": f"arn:aws:sns:{REGION}:{ACCOUNT_ID}:{STACK}-notices"}
        queues = {f"{name.title()}Queue": cloud._queue_url(f"{STACK}-{name}") for name in ("quarantine", "deliveries")}
        queues["UndeliveredQueue"] = cloud._queue_url(f"{STACK}-undelivered")
        stack = Stack(
            references={**names, **queues, "TrainingRoleArns": list(cloud.training_roles)},
            attributes={("MonitorBus", "Name"): STACK},
        )
    wanted = {name: stack.resolve(value) for name, value in ENVIRONMENT.items() if name not in LEFT_OUT}
    assert {name: value for name, value in environ.items() if name.startswith("REKINDLE_")} == wanted


def test_each_function_has_the_policy_by_which_it_is_judged_there(template: Template) -> None:
    """localcloud/aws/roles.py reads infra/policies; the template holds the same documents."""
    roles = of_type(template, "AWS::IAM::Role")
    for function in FUNCTIONS:
        (policy,) = roles[f"{function.base_id}Role"]["Policies"]
        committed = json.loads((POLICIES / f"{function.name}.json").read_text(encoding="utf-8"))
        assert policy["PolicyDocument"] == committed
