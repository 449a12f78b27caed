"""The CloudWatch dashboard of a stack, as data. A test holds every metric on it to what the service really sends.

Metrics of closed Incidents carry their fault and outcome, so they are found by a search; all others have one dimension.
Source of the form: CloudWatch API reference, "Dashboard body structure and syntax".
"""

from __future__ import annotations

import json
from typing import Any, Final

from infra.functions import FUNCTIONS

OURS: Final = "Rekindle"
SERVICE: Final = ("service", "${AWS::StackName}")  # each stage's metrics are its own
CLOSED: Final = "{Rekindle,Fault,Outcome,service}"  # CloudWatch wants the names of the dimensions in any order
_HOUR: Final = 3600
_WIDTH: Final = 12  # of 24
_HEIGHT: Final = 6

# title, statistic, metrics of ours with the one dimension
COUNTS: Final = (
    ("Incidents and decisions", "Sum", ("IncidentsOpened", "Decisions")),
    ("Events", "Sum", ("EventsTaken", "EventsDropped", "EventsQuarantined", "InboxOverflow")),
    ("The sweep", "Sum", ("Sweeps", "JobsUnread", "JobsLeft", "MetricsUnknown")),
    ("Notices", "Sum", ("NoticesDelivered", "DeliveriesPostponed", "NoticesUndelivered")),
    ("Not as it should be", "Maximum", ("StuckExecutions", "UnlistedAwsErrors")),
)
# title, statistic, metric of closed Incidents
MEASURES: Final = (
    ("Incidents closed, by fault and outcome", "Sum", "IncidentsClosed"),
    ("Seconds from the onset to the first observation", "Average", "MTTD"),
    ("Seconds from the onset to a run that makes progress", "Average", "MTTR"),
    ("GPU-hours lost", "Sum", "GpuHoursLost"),
    ("GPU-hours kept by emergency checkpoints", "Sum", "GpuHoursSaved"),
)
QUEUES: Final = ("QuarantineQueue", "FailuresQueue", "DeliveriesQueue", "UndeliveredQueue")


def body() -> dict[str, Any]:
    """The document; texts like `${AWS::Region}` are left to CloudFormation."""
    widgets = [_search(title, statistic, metric) for title, statistic, metric in MEASURES]
    widgets += [_counts(title, statistic, metrics) for title, statistic, metrics in COUNTS]
    widgets.append(_graph("Messages waiting", "Maximum", [_queue(name) for name in QUEUES]))
    widgets.append(_graph("Errors of the functions", "Sum", [_lambda(function.name) for function in FUNCTIONS]))
    for index, widget in enumerate(widgets):
        widget |= {"x": _WIDTH * (index % 2), "y": _HEIGHT * (index // 2), "width": _WIDTH, "height": _HEIGHT}
    return {"widgets": widgets}


def resource() -> dict[str, Any]:
    """The resource of the template."""
    return {
        "Type": "AWS::CloudWatch::Dashboard",
        "Properties": {
            "DashboardName": {"Fn::Sub": "${AWS::StackName}"},
            "DashboardBody": {"Fn::Sub": json.dumps(body())},
        },
    }


def _counts(title: str, statistic: str, metrics: tuple[str, ...]) -> dict[str, Any]:
    return _graph(title, statistic, [[OURS, metric, *SERVICE] for metric in metrics])


def _search(title: str, statistic: str, metric: str) -> dict[str, Any]:
    found = f"SEARCH('{CLOSED} MetricName=\"{metric}\" service=\"{SERVICE[1]}\"', '{statistic}', {_HOUR})"
    return _graph(title, statistic, [[{"expression": found, "id": "e1", "label": "", "region": "${AWS::Region}"}]])


def _queue(name: str) -> list[Any]:
    return ["AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", f"${{{name}.QueueName}}"]


def _lambda(name: str) -> list[Any]:
    return ["AWS/Lambda", "Errors", "FunctionName", f"${{AWS::StackName}}-{name}"]


def _graph(title: str, statistic: str, metrics: list[list[Any]]) -> dict[str, Any]:
    return {
        "type": "metric",
        "properties": {
            "title": title,
            "region": "${AWS::Region}",
            "view": "timeSeries",
            "stat": statistic,
            "period": _HOUR,
            "metrics": metrics,
        },
    }
