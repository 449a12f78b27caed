"""CloudWatch Alarm State Change and CloudWatch Alarm Contributor State Change (aws.cloudwatch, durable).

    {"detail-type": "CloudWatch Alarm State Change", "source": "aws.cloudwatch",
     "resources": ["arn:aws:cloudwatch:us-west-2:111122223333:alarm:lm-7b-loss"],
     "detail": {"alarmName": "lm-7b-loss", "previousState": {"value": "OK", "timestamp": "…"},
      "state": {"value": "ALARM", "reason": "Threshold Crossed: …", "timestamp": "2026-11-20T10:00:00.000+0000",
       "reasonData": "{\\"version\\":\\"1.0\\",\\"recentDatapoints\\":[9.1],\\"threshold\\":5.0}"},
      "configuration": {"description": "…", "metrics": [{"id": "m1", "returnData": true, "metricStat": {
       "metric": {"namespace": "/aws/sagemaker/TrainingJobs", "name": "train:loss",
        "dimensions": {"TrainingJobName": "lm-7b-a3"}}}}]}}}

Metric math and anomaly bands add entries with an `expression`; composite alarms have `alarmRule` instead of metrics and
`triggeringAlarms` in the reasonData (which is JSON inside a text); a contributor event carries `alarmContributor{id,
attributes}`, one event per time series. A muted (`muteDetail`) or suppressed (`actionsSuppressedBy`) alarm is noise.

Which run an alarm speaks of, in this order: the convention `rekindle:job=<job id>` in the alarm's name, description,
tags or triggering alarms; the contributor's attributes; a metric dimension TrainingJobName, or Host=<job>/algo-N. Which
fault: the convention `rekindle:fault=<fault>`, then the table METRIC_FAULTS; else UNCLEAR, which never triggers.

Source: CloudWatch user guide, cloudwatch-and-eventbridge; SageMaker developer guide, monitoring-cloudwatch (Host).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.model.errors import MalformedEvent, Noise, NotOurs
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ingest.detail_types import ALARM_CONTRIBUTOR, NAMES_NO_RUN
from chalicelib.ingest.envelope import Envelope
from chalicelib.ingest.evidence import bounded, dedupe_key, one_line
from chalicelib.ingest.fields import OUR_ID, RESOURCE_NAME, Fields
from rekindle.protocol.signals import FaultClass

_STATES: Final = ("OK", "ALARM", "INSUFFICIENT_DATA")
_JOB_WORD: Final = re.compile(r"rekindle:job=([A-Za-z0-9._-]{1,128})")
_FAULT_WORD: Final = re.compile(r"rekindle:fault=([a-z_]{1,32})")
_HOST: Final = re.compile(r"([a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62})/algo-[0-9]{1,5}")
_MAX_REASON_DATA: Final = 65_536

# (namespace, metric) -> what its alarm means whichever way the threshold lies. Most metrics are not in here on purpose:
# the event does not say the comparison, so low and high GPU use look alike.
# Source: rekindle/monitor/base/metrics.py; names are compared without regard to case.
METRIC_FAULTS: Final[dict[tuple[str, str], FaultClass]] = {
    ("rekindle/training", "nonfinite"): FaultClass.NON_FINITE,  # a count of bad values: it can only be too high
}
_JOB_DIMENSION: Final = "JobId"  # of the monitor's own metrics; Source: rekindle/monitor/live.py
_OUR_NAMESPACE: Final = "rekindle/training"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metric:
    """One metric of the alarm, and the dimensions it is read at."""

    namespace: str
    name: str
    dimensions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The run an alarm speaks of: our job id, the platform's name of the attempt, or both."""

    job_id: str | None
    attempt: str | None


def parse(envelope: Envelope) -> Signal:
    """One Signal per state change. Only ALARM with a fault that is known triggers; OK and INSUFFICIENT_DATA are news.

    Raises:
        MalformedEvent: names the field.
        Noise: the alarm is muted or suppressed.
        NotOurs: the alarm names no run, or several.
    """
    detail = envelope.detail
    name = detail.text("alarmName", limit=255)
    is_contributor = envelope.detail_type == ALARM_CONTRIBUTOR
    state = detail.child("state")
    value = state.word("value", _STATES)
    changed_at = state.moment("timestamp")
    reason = state.optional_text("reason") or ""
    reason_data = _reason_data(state)
    contributor = detail.child("alarmContributor") if is_contributor else detail.optional_child("alarmContributor")
    attributes = _texts(contributor.optional_child("attributes"))
    contributor_id = contributor.text("id", limit=1024) if is_contributor else None
    configuration = detail.optional_child("configuration")
    metrics = _metrics(configuration)
    if detail.has("muteDetail"):
        raise Noise("muted alarm")
    if state.has("actionsSuppressedBy"):
        raise Noise("suppressed alarm")
    words = [name, configuration.optional_text("description") or "", *_triggering(reason_data)]
    tags = _texts(detail.optional_child("alarmTags"))
    words += [f"{key}={text}" for key, text in tags.items()]
    # A contributor names no namespace; its query does.
    is_own = any(_OUR_NAMESPACE in expression.lower() for expression in _expressions(configuration))
    run = _run(words, attributes, metrics, is_own=is_own)
    fault = _fault(words, metrics) if value == "ALARM" else None
    arn = envelope.resources[0] if envelope.resources else f"{envelope.account}:{envelope.region}:{name}"
    return Signal(
        kind=SignalKind.ALARM,
        source=SignalSource.CLOUDWATCH,
        occurred_at=changed_at,
        dedupe_key=dedupe_key("alarm", arn, contributor_id, value, changed_at),
        summary=one_line(f"alarm {name} is {value}: {reason}"),
        job_id=run.job_id,
        attempt=run.attempt,
        fault=fault,
        triggers=fault not in (None, FaultClass.UNCLEAR),
        evidence=bounded(
            {
                "alarm": name,
                "state": value,
                "previous": detail.optional_child("previousState").optional_text("value", limit=64),
                "contributor": contributor_id,
                "attributes": attributes or None,
                "metrics": sorted({f"{metric.namespace} {metric.name}" for metric in metrics}) or None,
                "expressions": _expressions(configuration) or None,
                "rule": configuration.optional_text("alarmRule"),
                "query": configuration.optional_text("queryString"),
                "reason": reason or None,
                "datapoints": reason_data.get("recentDatapoints"),
                "threshold": reason_data.get("threshold"),
                "upper": reason_data.get("recentUpperThresholds"),
                "lower": reason_data.get("recentLowerThresholds"),
            }
        ),
    )


def _reason_data(state: Fields) -> Mapping[str, Any]:
    """The object whose JSON the `reasonData` text is; empty where it is none."""
    text = state.optional_text("reasonData", limit=_MAX_REASON_DATA)
    try:
        data = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, Mapping) else {}


def _texts(fields: Fields) -> dict[str, str]:
    return {name: value for name, value in fields.body.items() if isinstance(value, str)}


def _metrics(configuration: Fields) -> list[_Metric]:
    metrics = []
    for entry in configuration.children("metrics"):
        metric = entry.optional_child("metricStat").optional_child("metric")
        name = metric.optional_text("name", limit=255)
        if name is None:
            continue
        metrics.append(
            _Metric(
                namespace=metric.optional_text("namespace", limit=255) or "",
                name=name,
                dimensions=_texts(metric.optional_child("dimensions")),
            )
        )
    return metrics


def _expressions(configuration: Fields) -> list[str]:
    found = [entry.optional_text("expression") for entry in configuration.children("metrics")]
    return [expression for expression in found if expression]


def _triggering(reason_data: Mapping[str, Any]) -> list[str]:
    """The ARNs of the alarms below a composite one that are in ALARM; an ARN ends in the alarm's name."""
    children = reason_data.get("triggeringAlarms")
    return [
        child["arn"]
        for child in (children if isinstance(children, list) else [])
        if isinstance(child, Mapping) and isinstance(child.get("arn"), str)
    ]


def _run(words: Iterable[str], attributes: Mapping[str, str], metrics: list[_Metric], *, is_own: bool) -> _Run:
    jobs = {match for word in words for match in _JOB_WORD.findall(word)}
    attempts = {name for name in [_attempt(attributes), *(_attempt(metric.dimensions) for metric in metrics)] if name}
    own = {name for name in [_own_job(attributes) if is_own else None, *(_metric_job(m) for m in metrics)] if name}
    jobs = jobs or own
    if len(jobs) > 1 or (not jobs and len(attempts) > 1):
        raise NotOurs("alarm names several runs")
    if not jobs and not attempts:
        raise NotOurs(NAMES_NO_RUN)
    return _Run(
        job_id=next(iter(jobs), None),
        attempt=next(iter(attempts)) if len(attempts) == 1 else None,
    )


def _attempt(dimensions: Mapping[str, str]) -> str | None:
    name = dimensions.get("TrainingJobName")
    if name is not None:
        return name if len(name) <= 63 and RESOURCE_NAME.fullmatch(name) else None
    host = _HOST.fullmatch(dimensions.get("Host", "")[:128])
    return host[1] if host else None


def _own_job(dimensions: Mapping[str, str]) -> str | None:
    value = dimensions.get(_JOB_DIMENSION, "")
    return value if OUR_ID.fullmatch(value) else None


def _metric_job(metric: _Metric) -> str | None:
    return _own_job(metric.dimensions) if metric.namespace.lower() == _OUR_NAMESPACE else None


def _fault(words: Iterable[str], metrics: list[_Metric]) -> FaultClass:
    named = {match for word in words for match in _FAULT_WORD.findall(word)}
    if named:
        unknown = sorted(named - set(FaultClass))
        if unknown:
            raise MalformedEvent(
                "detail.configuration.description", f"rekindle:fault={unknown[0]} is not a fault class"
            )
        return FaultClass(next(iter(named))) if len(named) == 1 else FaultClass.UNCLEAR
    known = {METRIC_FAULTS.get((metric.namespace.lower(), metric.name.lower())) for metric in metrics}
    return next(iter(known)) or FaultClass.UNCLEAR if len(known) == 1 else FaultClass.UNCLEAR
