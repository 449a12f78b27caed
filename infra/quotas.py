"""Whether the account has room for the stack, in the figures that AWS itself gives.

CloudWatch's alarms (5,000), DynamoDB's tables and API Gateway's APIs have quotas as well; they are far from what one
stack needs, and no call tells how many are used without listing them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from infra.functions import FUNCTIONS, Trigger
from infra.target_stack import Finding, TargetStack, note, problem

# Source: Lambda guide, configuration-concurrency: so much must stay unreserved.
_UNRESERVED: Final = 100
# A storm of events runs a dozen functions at once; new accounts are given 10. Source: Lambda quotas.
_FEW: Final = 50
# Source: EventBridge quotas: "Number of rules" per bus, "Event buses".
_RULES, _BUSES = "L-244521F2", "L-658A4FD9"
_INCREASE: Final = "ask for more: aws service-quotas request-service-quota-increase"


def quotas(target: TargetStack) -> Iterator[Finding]:
    """Stacks, roles, policies, Lambda's code and concurrency, rules and buses."""
    yield from _lambda(target)
    if not target.is_new:
        return
    yield from _stacks(target)
    yield from _iam(target)
    yield from _events(target)


def _short(what: str, *, used: int, more: int, limit: int, remedy: str) -> Iterator[Finding]:
    if used + more > limit:
        yield problem(f"{what}: {used} of {limit} are used and {more} more are needed", remedy)


def _count(template: Mapping[str, Any] | None, kind: str, otherwise: int) -> int:
    if template is None:
        return otherwise
    return sum(resource["Type"] == kind for resource in template["Resources"].values())


def _stacks(target: TargetStack) -> Iterator[Finding]:
    cloud = target.client("cloudformation")
    limits = {limit["Name"]: limit["Value"] for limit in cloud.describe_account_limits()["AccountLimits"]}
    if "StackLimit" in limits:
        used = sum(len(page["Stacks"]) for page in cloud.get_paginator("describe_stacks").paginate())
        used -= target.status is not None
        remedy = f"delete stacks, or {_INCREASE} --service-code cloudformation --quota-code L-0485CB21"
        yield from _short("CloudFormation stacks", used=used, more=1, limit=limits["StackLimit"], remedy=remedy)


def _iam(target: TargetStack) -> Iterator[Finding]:
    summary = target.client("iam").get_account_summary()["SummaryMap"]
    for kind, name, otherwise in (("Role", "Roles", len(FUNCTIONS)), ("ManagedPolicy", "Policies", 3)):
        if f"{name}Quota" in summary:
            yield from _short(
                f"IAM {name.lower()}",
                used=summary[name],
                more=_count(target.template, f"AWS::IAM::{kind}", otherwise),
                limit=summary[f"{name}Quota"],
                remedy="delete some that are not used, or ask for more in Service Quotas (IAM, in us-east-1)",
            )


def _lambda(target: TargetStack) -> Iterator[Finding]:
    answer = target.client("lambda").get_account_settings()
    limit, usage = answer["AccountLimit"], answer["AccountUsage"]
    # Each function, and each version of the recovery, keeps a copy of the bundle.
    yield from _short(
        "Lambda code storage in bytes",
        used=usage["TotalCodeSize"],
        more=target.bundle_bytes * (len(FUNCTIONS) + 1 if target.is_new else 1),
        limit=limit["TotalCodeSize"],
        remedy="delete old functions and versions, or " + _INCREASE + " --service-code lambda --quota-code L-2ACBD22F",
    )
    reserving = sum(function.can_be_flooded for function in FUNCTIONS)
    before = {
        parameter["ParameterKey"]: parameter["ParameterValue"]
        for parameter in (target.existing or {}).get("Parameters", [])
    }
    wanted = _number(target.texts.get("EventConcurrency")) * reserving
    reserved = 0 if target.is_new else _number(before.get("EventConcurrency")) * reserving
    free = limit["UnreservedConcurrentExecutions"] + reserved - _UNRESERVED
    more = _INCREASE + " --service-code lambda --quota-code L-B99A9384 --desired-value 1000"
    if wanted > max(free, 0):
        yield problem(
            f"EventConcurrency reserves {wanted} concurrent executions and the account can reserve {max(free, 0)}",
            f"give a smaller EventConcurrency, 0 for none, or {more}",
        )
    if limit["ConcurrentExecutions"] < _FEW:
        yield note(f"Lambda runs only {limit['ConcurrentExecutions']} functions at once in this account", more)


def _number(text: str | None) -> int:
    """0 for what is no number: the check of the parameters tells that."""
    return int(text) if text is not None and text.isdecimal() else 0


def _events(target: TargetStack) -> Iterator[Finding]:
    events = target.client("events")
    remedy = _INCREASE + " --service-code events --quota-code "
    rules = sum(len(page["Rules"]) for page in events.get_paginator("list_rules").paginate())
    more = sum(function.trigger in (Trigger.DEFAULT_BUS, Trigger.SCHEDULE) for function in FUNCTIONS)
    limit = _quota(target, _RULES)
    yield from _short(
        "EventBridge rules on the default bus", used=rules, more=more, limit=limit, remedy=remedy + _RULES
    )
    buses = len(events.list_event_buses(Limit=100)["EventBuses"])
    yield from _short("EventBridge buses", used=buses, more=1, limit=_quota(target, _BUSES), remedy=remedy + _BUSES)


def _quota(target: TargetStack, code: str) -> int:
    return int(
        target.client("service-quotas").get_service_quota(ServiceCode="events", QuotaCode=code)["Quota"]["Value"]
    )
