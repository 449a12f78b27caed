"""docs/reference/alarms.md: every alarm of the stack, from the template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from infra.functions import FUNCTIONS
from infra.merge import merge_template
from infra.tables import cell, code, page, table

PAGE: Final = "docs/reference/alarms.md"
_RUNBOOK: Final = re.compile(r" See docs/runbook/(?P<page>[\w-]+)\.md$")
_FUNCTION: Final = re.compile(r"^The function (?P<name>\w+) ")
_OF_EVERY_FUNCTION: Final = ("Errors", "Throttles")
_SIGNS: Final = {
    "GreaterThanOrEqualToThreshold": "≥",
    "GreaterThanThreshold": ">",
    "LessThanThreshold": "<",
    "LessThanOrEqualToThreshold": "≤",
}


def page_text() -> str:
    resources = merge_template()["Resources"].values()
    alarms = [resource["Properties"] for resource in resources if resource.get("Type") == "AWS::CloudWatch::Alarm"]
    rows = sorted({_row(alarm) for alarm in alarms})  # one row for what every function has
    about = [
        "Alarms on Rekindle itself. Each sends to the topic of `NoticeEmail` when it rings and when it is over.",
        "Alarms on your Jobs:",
        f"[alarms.md](../alarms.md). What the {len(alarms)} of them cost: [deploy.md](../deploy.md#what-it-costs).",
        f"Each of the {len(FUNCTIONS)} functions has those that say FUNCTION.",
        "",
        *table(("alarm", "rings when", "condition", "without data", "what to do"), rows),
    ]
    return page("Alarms of the stack", about)


def _row(alarm: Mapping[str, Any]) -> tuple[str, ...]:
    text = alarm["AlarmDescription"]
    name = alarm["AlarmName"]["Fn::Sub"].replace("${AWS::StackName}", "STACK")
    function = _FUNCTION.search(text)
    if function and alarm["MetricName"] in _OF_EVERY_FUNCTION:
        name, text = (part.replace(function["name"], "FUNCTION", 1) for part in (name, text))
    runbook = _RUNBOOK.search(text)
    if runbook is None:
        raise ValueError(f"an alarm names no page of the runbook: {text}")
    link = f"[{runbook['page']}](../runbook/{runbook['page']}.md)"
    missing = "rings" if alarm["TreatMissingData"] == "breaching" else "is silent"
    return code(name), cell(text[: runbook.start()]), cell(_condition(alarm)), missing, link


def _condition(alarm: Mapping[str, Any]) -> str:
    periods, period_s = alarm["EvaluationPeriods"], alarm["Period"]
    times = alarm.get("DatapointsToAlarm", periods)
    sign = _SIGNS[alarm["ComparisonOperator"]]
    metric = f"`{alarm['Namespace']}` `{alarm['MetricName']}`, {alarm['Statistic'].lower()} of {period_s} s"
    return f"{metric} {sign} {alarm['Threshold']:g}, {times} of {periods} times"
