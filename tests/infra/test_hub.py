"""One hub for many accounts: it hears every notice and which account it is of, and can act nowhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from chalicelib.channels.bus import DETAIL_TYPE, SOURCE
from localcloud.aws.events import matches
from localcloud.cloud import ACCOUNT_ID, REGION, STACK
from localcloud.worlds.recoveries import Script, crash_at, world
from tests.infra.bus_to_bus import Bus, Event, StackLocation, forward, transformed

HERE = Path(__file__).resolve().parents[2]
FILES = HERE / "infra" / "wrap" / "hub"
HUB_ACCOUNT, OTHER_ACCOUNT = "999900001111", "444455556666"


def template(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FILES / name).read_text(encoding="utf-8"))
    return found


HUB = StackLocation(
    template=template("hub.yaml"),
    account=HUB_ACCOUNT,
    region="eu-west-1",
    parameters={"MemberAccounts": [ACCOUNT_ID, OTHER_ACCOUNT]},
)


def member(account: str = ACCOUNT_ID, region: str = REGION) -> StackLocation:
    return StackLocation(
        template=template("member.yaml"),
        account=account,
        region=region,
        parameters={"RekindleStack": STACK, "HubBusArn": HUB.arn("Bus")},
    )


@pytest.fixture
def hub() -> Bus:
    return Bus(arn=HUB.arn("Bus"), account=HUB_ACCOUNT, statement=HUB.properties("BusPolicy")["Statement"])


def sent(event: Event, place: StackLocation, hub: Bus) -> str:
    return forward(event, place, hub, rule="Forward", role="ForwardRole")


def mail(event: Event) -> dict[str, Any] | None:
    """What the hub's rule makes of an event for its topic; None where it is not for people."""
    rule = HUB.properties("Rule")
    if not matches(json.dumps(rule["EventPattern"]), event):
        return None
    (target,) = rule["Targets"]
    found: dict[str, Any] = json.loads(transformed(target["InputTransformer"], event))
    return found


def event(**changes: Any) -> Event:
    data = {"kind": "news", "severity": "page", "title": "lm-7b: hang", "text": 'rank 1\n"quoted"', "incident_id": "i"}
    made = {
        "version": "0",
        "id": "e1",
        "account": ACCOUNT_ID,
        "region": REGION,
        "source": SOURCE,
        "detail-type": DETAIL_TYPE,
        "time": "2035-01-01T00:00:00Z",
        "resources": [],
        "detail": {"id": "n1", "time": "2035-01-01T00:00:00+00:00", "data": data},
    }
    return {**made, **changes}


@pytest.mark.long
def test_the_notices_of_a_whole_recovery_reach_the_hub_with_their_account_and_region(hub: Bus) -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.recover(count=1)
        w.cloud.clock.run_for(timedelta(minutes=5))
        on_the_bus = [one for bus, one in w.cloud.events.put if bus == STACK]
    notices = [event for event in on_the_bus if event["detail-type"] == DETAIL_TYPE]
    results = [sent(event, member(), hub) for event in on_the_bus]
    assert results.count("sent") == len(notices) == len(hub.taken) > 1
    assert set(results) <= {"sent", "no rule wants it"}
    mails = [found for one in hub.taken if (found := mail(one)) is not None]
    assert {(mail["account"], mail["region"]) for mail in mails} == {(ACCOUNT_ID, REGION)}
    assert [mail["title"] for mail in mails] == [
        notice["detail"]["data"]["title"] for notice in notices if notice["detail"]["data"]["kind"] != "change"
    ]
    assert len(mails) < len(hub.taken)


def test_a_text_with_quotes_and_line_ends_stays_what_it_is() -> None:
    assert mail(event()) == {
        "account": ACCOUNT_ID,
        "region": REGION,
        "severity": "page",
        "title": "lm-7b: hang",
        "text": 'rank 1\n"quoted"',
        "incident": "i",
        "at": "2035-01-01T00:00:00+00:00",
    }


def test_each_account_and_region_sends_for_itself_alone(hub: Bus) -> None:
    other = member(OTHER_ACCOUNT, "us-east-1")
    assert sent(event(account=OTHER_ACCOUNT, region="us-east-1"), other, hub) == "sent"
    assert sent(event(), other, hub) == "no rule wants it"  # an event of another account, on this one's bus
    stranger = member("777788889999")
    assert sent(event(account="777788889999"), stranger, hub) == "the bus's policy does not allow it"
    assert [event["account"] for event in hub.taken] == [OTHER_ACCOUNT]


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "rekindle.monitor"},
        {"source": "rekindle.agent"},
        {"source": "aws.sagemaker"},
        {"detail-type": "Training Job State Change"},
    ],
)
def test_the_hub_takes_notices_and_no_other_event_even_from_a_member_that_sends_past_its_rule(
    hub: Bus, changes: dict[str, Any]
) -> None:
    assert sent(event(**changes), member(), hub) == "no rule wants it"
    assert not hub.put(event(**changes), sender=ACCOUNT_ID)
    assert hub.put(event(), sender=ACCOUNT_ID)


def test_a_member_forwards_to_no_other_bus_than_the_one_it_was_given(hub: Bus) -> None:
    hub.arn = hub.arn.replace(HUB_ACCOUNT, "777788889999")
    assert sent(event(), member(), hub) == "the role does not allow it"


def statements(value: Any) -> Iterator[dict[str, Any]]:
    """Every statement of every policy in a template."""
    if isinstance(value, dict):
        if {"Effect", "Action"} <= value.keys():
            yield value
        for one in value.values():
            yield from statements(one)
    if isinstance(value, list):
        for one in value:
            yield from statements(one)


def test_neither_template_gives_the_hub_an_action_in_a_member_or_starts_anything_in_the_hub() -> None:
    of_member, of_hub = template("member.yaml"), template("hub.yaml")
    allowed = {
        (json.dumps(statement.get("Principal", "the role"), sort_keys=True), json.dumps(statement["Action"]))
        for statement in statements(of_member)
    }
    service = '{"Service": "events.amazonaws.com"}'
    assert allowed == {
        (service, '"sts:AssumeRole"'),
        ('"the role"', '"events:PutEvents"'),
        (service, '"sqs:SendMessage"'),
    }
    used = {resource["Type"] for resource in (*of_member["Resources"].values(), *of_hub["Resources"].values())}
    assert not used & {"AWS::Lambda::Function", "AWS::Lambda::Permission", "AWS::StepFunctions::StateMachine"}
    assert "AWS::IAM::Role" not in {resource["Type"] for resource in of_hub["Resources"].values()}
    for one in statements(of_hub):  # to members: to send notices, and to show metrics
        if "AWS" in one["Principal"]:
            assert one["Action"] in ("events:PutEvents", ["oam:CreateLink", "oam:UpdateLink"])
            assert one["Condition"]


def test_the_metrics_that_the_hub_sees_are_the_services_and_the_monitors_alone() -> None:
    link = template("member.yaml")["Resources"]["Link"]["Properties"]
    page = (HERE / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert link["ResourceTypes"] == ["AWS::CloudWatch::Metric"]
    found = re.findall(r"'([^']+)'", link["LinkConfiguration"]["MetricConfiguration"]["Filter"])
    assert found == re.findall(r"^\| `(Rekindle[^`]*)` \|", page, re.MULTILINE)


@pytest.mark.long
def test_cloudformation_s_own_schemas_take_both_templates() -> None:
    ended = subprocess.run(
        [str(Path(sys.executable).with_name("cfn-lint")), *(str(FILES / name) for name in ("hub.yaml", "member.yaml"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


def test_the_page_gives_every_parameter_that_has_no_default() -> None:
    page = (HERE / "docs" / "hub.md").read_text(encoding="utf-8")
    for name in ("hub.yaml", "member.yaml"):
        body = template(name)
        for parameter, about in body["Parameters"].items():
            assert parameter in page
            if "Default" not in about:
                assert f"{parameter}=" in page
                assert re.search(rf"^ +{parameter} += ", page, re.MULTILINE)
        assert f"hub/{name}" in page
