"""The template as an artefact: what every function, queue, table and alarm must have (style guide §6.6)."""

from __future__ import annotations

import importlib
import json
import re
from typing import Any

import pytest
from cfnlint.api import lint

from chalicelib.bootstrap import Service
from chalicelib.bootstrap.clients import Clients, SystemClock
from chalicelib.config import Settings
from infra import costs
from infra.functions import FUNCTIONS, Function, Trigger
from infra.merge import ENVIRONMENT, OPEN_PATHS, merge_template
from infra.package import ROOT
from rekindle.monitor.base.settings import Config
from tests.infra.stack_reading import REGION, Template, of_type

CONFIG = json.loads((ROOT / ".chalice" / "config.json").read_text(encoding="utf-8"))
RUNBOOK = ROOT / "docs" / "runbook"


@pytest.mark.long
def test_the_template_is_lint_clean_before_and_after_the_sam_transform(template: Template) -> None:
    assert [str(match) for match in lint(json.dumps(template), regions=[REGION])] == []


def test_the_table_of_functions_is_what_app_declares() -> None:
    app = importlib.import_module("app").app
    triggers = {event.name for event in app.event_sources} | {pure.name for pure in app.pure_lambda_functions}
    assert {function.name for function in FUNCTIONS} == {*triggers, "api_handler"}
    assert triggers <= app.handler_map.keys()
    assert CONFIG["lambda_functions"].keys() == {function.name for function in FUNCTIONS}


def test_every_handler_lies_in_app(template: Template) -> None:
    handlers = {
        name: properties["Handler"] for name, properties in of_type(template, "AWS::Serverless::Function").items()
    }
    assert handlers.keys() == {function.logical_id for function in FUNCTIONS}
    assert all(handler.startswith("app.") for handler in handlers.values())


def test_a_function_has_its_own_name_runtime_memory_and_time_out(template: Template, function: Function) -> None:
    properties = template["Resources"][function.logical_id]["Properties"]
    wanted = CONFIG["lambda_functions"][function.name]
    assert properties["FunctionName"] == {"Fn::Sub": f"${{AWS::StackName}}-{function.name}"}
    assert properties["Runtime"] == "python3.13"
    assert properties["Architectures"] == ["arm64"]
    assert properties["MemorySize"] == wanted["lambda_memory_size"]
    assert properties["Timeout"] == wanted["lambda_timeout"]
    assert "rekindle:stack" in properties["Tags"]


def test_a_function_has_its_own_role(template: Template, function: Function) -> None:
    roles = [p["Role"]["Fn::GetAtt"][0] for p in of_type(template, "AWS::Serverless::Function").values()]
    assert roles.count(f"{function.base_id}Role") == 1
    assert CONFIG["lambda_functions"][function.name]["iam_policy_file"] == f"../infra/policies/{function.name}.json"
    assert CONFIG["autogen_policy"] is False


def test_a_function_s_logs_end_and_carry_its_name(template: Template, function: Function) -> None:
    group = template["Resources"][f"{function.base_id}LogGroup"]["Properties"]
    assert group["LogGroupName"] == {"Fn::Sub": f"/aws/lambda/${{AWS::StackName}}-{function.name}"}
    assert group["RetentionInDays"] == {"Ref": "LogRetentionDays"}


@pytest.mark.parametrize("metric", ["Errors", "Throttles"])
def test_a_function_has_alarms_on_errors_and_throttles(template: Template, function: Function, metric: str) -> None:
    alarm = template["Resources"][f"{function.base_id}{metric}Alarm"]["Properties"]
    assert (alarm["Namespace"], alarm["MetricName"]) == ("AWS/Lambda", metric)
    assert alarm["Dimensions"] == [{"Name": "FunctionName", "Value": {"Ref": function.logical_id}}]


@pytest.mark.parametrize("metric", ["DurableExecutionFailed", "DurableExecutionTimedOut"])
def test_an_execution_that_ends_badly_rings_at_once(template: Template, metric: str) -> None:
    """Lambda's Errors stays at zero: the failed execution is an invocation's proper answer."""
    alarm = template["Resources"][f"Recover{metric}Alarm"]["Properties"]
    assert (alarm["Namespace"], alarm["MetricName"], alarm["DatapointsToAlarm"]) == ("AWS/Lambda", metric, 1)
    assert alarm["Dimensions"] == [{"Name": "FunctionName", "Value": {"Ref": "Recover"}}]


def test_every_alarm_tells_people_and_names_a_page_that_exists(template: Template) -> None:
    alarms = of_type(template, "AWS::CloudWatch::Alarm")
    assert len(alarms) == 2 * len(FUNCTIONS) + 9
    for name, alarm in alarms.items():
        page = re.search(r"See docs/runbook/([a-z-]+\.md)$", alarm["AlarmDescription"])
        assert page is not None, name
        assert (RUNBOOK / page[1]).is_file(), name
        assert alarm["AlarmActions"] == [{"Ref": "NoticesTopic"}]
        assert alarm["TreatMissingData"] in {"breaching", "notBreaching"}


def test_the_guides_sums_are_the_sums_of_their_rows() -> None:
    page = (ROOT / costs.PAGE).read_text(encoding="utf-8")
    sums = [float(one) for one in re.findall(r"^## .*: about ([0-9.]+) a month", page, re.MULTILINE)]
    assert len(sums) == 2
    for told, table in zip(sums, page.split("\n## ")[1:], strict=False):
        rows = [float(cell) for cell in re.findall(r"\| (?:≤ )?([0-9.]+) \|$", table, re.MULTILINE)]
        assert len(rows) in (8, 9)
        assert round(sum(rows), 2 if told == sums[0] else 1) == told


def test_one_more_alarm_or_another_poll_changes_what_the_guide_says(template: Template) -> None:
    told = costs.page(template, CONFIG, Config())
    more = {**template, "Resources": {**template["Resources"], "One": {"Type": "AWS::CloudWatch::Alarm"}}}
    assert costs.page(more, CONFIG, Config()) != told
    assert costs.page(template, CONFIG, Config(poll_s=10.0)) != told


def test_every_page_of_the_runbook_belongs_to_an_alarm(template: Template) -> None:
    named = {
        alarm["AlarmDescription"].rpartition("/")[2] for alarm in of_type(template, "AWS::CloudWatch::Alarm").values()
    }
    assert {path.name for path in RUNBOOK.glob("*.md")} == named


def settings_of(stage: str) -> Settings:
    names = ("table", "bus", "bucket", "quarantine_url", "recover_function")
    return Settings(region=REGION, stage=stage, **dict.fromkeys(names, "x"))


def test_the_stuck_alarm_watches_what_the_sweep_of_its_own_stage_emits(template: Template) -> None:
    observability = importlib.import_module("chalicelib.observability")
    alarm = template["Resources"]["StuckExecutionsAlarm"]["Properties"]
    assert alarm["Namespace"] == observability.NAMESPACE
    assert alarm["MetricName"] == observability.STUCK_EXECUTIONS
    service = Service(settings_of("rekindle-dev"), clock=SystemClock(), clients=Clients(REGION))
    assert service.observability.metrics.service == "rekindle-dev"
    assert ENVIRONMENT["REKINDLE_STAGE"] == {"Ref": "AWS::StackName"}
    assert alarm["Dimensions"] == [{"Name": "service", "Value": {"Ref": "AWS::StackName"}}]


def test_a_silent_sweep_raises_the_alarm_though_there_is_nothing_to_measure(template: Template) -> None:
    alarm = template["Resources"]["SweepSilentAlarm"]["Properties"]
    assert alarm["TreatMissingData"] == "breaching"
    assert alarm["ComparisonOperator"] == "LessThanThreshold"


def test_every_rule_retries_and_keeps_what_it_cannot_deliver(transformed: Template) -> None:
    rules = of_type(transformed, "AWS::Events::Rule")
    assert len(rules) == sum(
        function.event_id is not None and function.trigger is not Trigger.QUEUE for function in FUNCTIONS
    )
    for name, rule in rules.items():
        (target,) = rule["Targets"]
        assert target["DeadLetterConfig"]["Arn"] == {"Fn::GetAtt": ["FailuresQueue", "Arn"]}, name
        assert {"MaximumRetryAttempts", "MaximumEventAgeInSeconds"} <= target["RetryPolicy"].keys(), name


def test_only_the_rules_of_our_own_events_stand_on_our_own_bus(transformed: Template) -> None:
    buses = {name: rule.get("EventBusName") for name, rule in of_type(transformed, "AWS::Events::Rule").items()}
    ours = {"MonitorEventMonitorEventEvent", "AgentEventAgentEventEvent", "NoticeEventNoticeEventEvent"}
    assert {name for name, bus in buses.items() if bus is not None} == ours
    for own in ours:
        assert buses[own] == {"Fn::GetAtt": ["MonitorBus", "Name"]}


def test_the_pattern_of_each_rule_is_the_ingest_s_own(transformed: Template) -> None:
    ingest = importlib.import_module("chalicelib.ingest.detail_types")
    patterns = ingest.PATTERNS | {"notice_event": ingest.NOTICES}
    by_function = {
        rule["Targets"][0]["Arn"]["Fn::GetAtt"][0]: rule.get("EventPattern")
        for rule in of_type(transformed, "AWS::Events::Rule").values()
    }
    for function in FUNCTIONS:
        if function.trigger not in {Trigger.DEFAULT_BUS, Trigger.CUSTOM_BUS}:
            continue
        deployed = json.loads(json.dumps(by_function[function.logical_id]))
        assert deployed == patterns[function.name], function.name


def test_an_asynchronous_function_keeps_what_fails(transformed: Template, function: Function) -> None:
    configs = of_type(transformed, "AWS::Lambda::EventInvokeConfig")
    if not function.is_asynchronous:
        assert f"{function.logical_id}EventInvokeConfig" not in configs
        return
    config = configs[f"{function.logical_id}EventInvokeConfig"]
    made = transformed["Resources"][function.logical_id]["Properties"]
    failures = {"Fn::GetAtt": ["FailuresQueue", "Arn"]}
    if function.trigger is Trigger.DURABLE:  # takes a dead-letter queue and no destination
        assert made["DeadLetterConfig"] == {"TargetArn": failures}
        assert not config.get("DestinationConfig")
    else:
        assert config["DestinationConfig"]["OnFailure"]["Destination"] == failures
        assert "DeadLetterConfig" not in made
    assert config["MaximumRetryAttempts"] in range(3)
    assert 60 <= config["MaximumEventAgeInSeconds"] <= 21_600


def test_every_queue_keeps_messages_for_two_weeks_encrypted_and_hands_dead_ones_on(template: Template) -> None:
    queues = of_type(template, "AWS::SQS::Queue")
    dead = {
        "QuarantineDeadQueue",
        "FailuresQueue",
        "UndeliveredQueue",
    }  # the ends of the line: a person or the alarm takes over
    for name, queue in queues.items():
        assert queue["MessageRetentionPeriod"] == 1_209_600
        assert queue["SqsManagedSseEnabled"] is True
        assert ("RedrivePolicy" in queue) is (name not in dead)
    watched = {
        alarm["Dimensions"][0]["Value"]["Fn::GetAtt"][0]
        for alarm in of_type(template, "AWS::CloudWatch::Alarm").values()
        if alarm["Namespace"] == "AWS/SQS"
    }
    assert watched == queues.keys()


def test_the_one_queue_that_feeds_a_function_keeps_what_the_function_could_not_do(
    template: Template, transformed: Template
) -> None:
    ((_, source),) = of_type(transformed, "AWS::Lambda::EventSourceMapping").items()
    assert source["EventSourceArn"] == {"Fn::GetAtt": ["DeliveriesQueue", "Arn"]}
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert source["ScalingConfig"]["MaximumConcurrency"] >= 2  # Lambda takes no less
    function = template["Resources"]["Deliver"]["Properties"]
    queue = template["Resources"]["DeliveriesQueue"]["Properties"]
    assert queue["VisibilityTimeout"] >= 6 * function["Timeout"]
    assert queue["RedrivePolicy"]["deadLetterTargetArn"] == {"Fn::GetAtt": ["UndeliveredQueue", "Arn"]}
    deliver = importlib.import_module("chalicelib.channels.delivery.deliver")
    outbound = importlib.import_module("chalicelib.channels.outbound")
    assert source["BatchSize"] * (outbound.TOTAL_S + outbound.CONNECT_S) < function["Timeout"]
    assert deliver.HOLD.total_seconds() > function["Timeout"]  # a turn is taken over from the dead only
    # It gives up by itself long before SQS would, however often a message was put off.
    assert deliver.GIVE_UP.total_seconds() < queue["MessageRetentionPeriod"] / 2


def test_the_recovery_is_durable_and_only_its_alias_is_ever_started(template: Template, transformed: Template) -> None:
    properties = template["Resources"]["Recover"]["Properties"]
    assert 1 <= properties["DurableConfig"]["ExecutionTimeout"] <= 31_622_400
    assert 1 <= properties["DurableConfig"]["RetentionPeriodInDays"] <= 90
    assert properties["AutoPublishAlias"] == "live"
    assert properties["AutoPublishAliasAllProperties"] is True
    assert ENVIRONMENT["REKINDLE_RECOVER_FUNCTION"] == {"Fn::Sub": "${AWS::StackName}-recover:live"}
    assert transformed["Resources"]["RecoverEventInvokeConfig"]["Properties"]["Qualifier"] == "live"
    durable = [p for p in of_type(template, "AWS::Serverless::Function").values() if "DurableConfig" in p]
    assert durable == [properties]
    for name, role in of_type(template, "AWS::IAM::Role").items():
        for statement in role["Policies"][0]["PolicyDocument"]["Statement"]:
            if "lambda:InvokeFunction" in statement.get("Action", []):
                assert json.dumps(statement["Resource"]).endswith('-recover:live"}'), name


def test_an_execution_outlives_the_longest_callback_and_the_longest_run(template: Template) -> None:
    workflow = importlib.import_module("chalicelib.recovery.workflow")
    timeout = template["Resources"]["Recover"]["Properties"]["DurableConfig"]["ExecutionTimeout"]
    assert timeout > 28 * 24 * 3600
    assert timeout > workflow.CALLBACK_TIMEOUT.to_seconds()


def test_what_holds_state_survives_the_stack(template: Template) -> None:
    for name in ("RegistryTable", "MailboxBucket"):
        resource = template["Resources"][name]
        assert resource["DeletionPolicy"] == resource["UpdateReplacePolicy"] == "Retain"
    table = template["Resources"]["RegistryTable"]["Properties"]
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["DeletionProtectionEnabled"] is True
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}


def test_the_table_has_the_shape_that_the_adapters_use(template: Template) -> None:
    items = importlib.import_module("chalicelib.aws.dynamodb.items")
    table = template["Resources"]["RegistryTable"]["Properties"]
    (index,) = table["GlobalSecondaryIndexes"]
    assert index["IndexName"] == items.INDEX
    assert table["TimeToLiveSpecification"]["AttributeName"] == items.TTL_ATTRIBUTE
    assert items.key("JOB#x", "META").keys() == {key["AttributeName"] for key in table["KeySchema"]}


def test_the_mailbox_bucket_is_private_and_encrypted(template: Template) -> None:
    bucket = template["Resources"]["MailboxBucket"]["Properties"]
    assert all(bucket["PublicAccessBlockConfiguration"].values())
    assert "BucketEncryption" in bucket


def test_every_function_is_told_what_settings_need(template: Template, function: Function) -> None:
    config = importlib.import_module("chalicelib.config")
    told = template["Globals"]["Function"]["Environment"]["Variables"]
    own = template["Resources"][function.logical_id]["Properties"].get("Environment", {}).get("Variables", {})
    environ = {name: "1" for name in {**told, **own}} | {"AWS_REGION": REGION}  # some are numbers
    settings = config.Settings.from_env(environ)
    assert settings.topic == settings.account == "1"
    source = (ROOT / "chalicelib" / "config.py").read_text(encoding="utf-8")
    assert set(re.findall(r'"(REKINDLE_[A-Z_]+)"', source)) - told.keys() == {"REKINDLE_LOG_LEVEL"}
    assert {name for name in told if name.startswith("REKINDLE_")} <= set(re.findall(r'"(REKINDLE_[A-Z_]+)"', source))


def test_every_request_to_the_api_must_be_signed_but_those_that_carry_a_proof_of_their_own(
    transformed: Template,
) -> None:
    (api,) = of_type(transformed, "AWS::ApiGateway::RestApi").values()
    body: dict[str, Any] = api["Body"]
    signed = {
        name
        for name, scheme in body["securityDefinitions"].items()
        if scheme.get("x-amazon-apigateway-authtype") == "awsSigv4"
    }
    for path, methods in body["paths"].items():
        for method, operation in methods.items():
            if path in OPEN_PATHS:
                assert (method, operation["security"]) == ("post", [{"NONE": []}]), path  # SAM's word for none
                continue
            schemes = [scheme for choice in operation["security"] for scheme in choice]
            assert schemes, (path, method)
            assert set(schemes) <= signed, (path, method)


def test_every_stack_output_names_something_(template: Template) -> None:
    outputs = template["Outputs"]
    assert {"ApiUrl", "TableName", "BusName", "BucketName", "TopicArn", "TrainingPolicyArn"} <= outputs.keys()
    for parameter in template["Parameters"].values():
        assert "Default" in parameter  # a first deployment needs no answers


def test_no_part_of_the_merge_template_goes_astray(template: Template) -> None:
    for name in merge_template()["Resources"]:
        assert "Type" in template["Resources"][name], f"{name} is not made by Chalice: a misspelt logical id"


@pytest.mark.parametrize("text", ["0", "61", "x", "-1", "1.5", "²"])
def test_a_setting_that_is_no_number_of_minutes_names_itself(text: str) -> None:
    config = importlib.import_module("chalicelib.config")
    names = ("AWS_REGION", "REKINDLE_TABLE", "REKINDLE_BUS", "REKINDLE_BUCKET", "REKINDLE_QUARANTINE_URL")
    environ = dict.fromkeys((*names, "REKINDLE_RECOVER_FUNCTION"), "x") | {"REKINDLE_SWEEP_METRICS_MINUTES": text}
    with pytest.raises(config.BadSettings, match="REKINDLE_SWEEP_METRICS_MINUTES"):
        config.Settings.from_env(environ)


def test_the_training_log_is_subscribed_to_only_where_that_is_asked_for(template: Template) -> None:
    subscription = template["Resources"]["TrainingLogSubscription"]
    assert subscription["Condition"] == "WantsTrainingLogs"
    assert subscription["Properties"]["LogGroupName"] == "/aws/sagemaker/TrainingJobs"
    assert template["Parameters"]["TrainingLogSignatures"]["Default"] == "no"


def test_functions_that_can_be_flooded_can_be_bounded_and_no_other(template: Template, function: Function) -> None:
    properties = template["Resources"][function.logical_id]["Properties"]
    takes_foreign_words = function.trigger in (Trigger.CUSTOM_BUS, Trigger.LOGS)
    is_bounded = "ReservedConcurrentExecutions" in properties
    assert is_bounded is (takes_foreign_words and function.name != "notice_event")
    if is_bounded:
        assert properties["ReservedConcurrentExecutions"]["Fn::If"][0] == "HasEventConcurrency"
