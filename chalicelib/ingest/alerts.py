"""Alerts of other monitoring -> Signals, by the labels that their source uses (domain/notices/sources.py).

Read are Prometheus Alertmanager's webhook, version 4; Grafana alerting's, whose alerts are the same and whose envelope
is its own; and a form of ours. A resolved alert is news, and so is one whose fault no one named: it joins an open
Incident and opens none.

Source: prometheus.io/docs/alerting/latest/configuration, webhook_config; Grafana documentation, "Configure webhook
notifications", body. Golden payloads: events/webhooks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.fault_specs.faults import CLAIMED_BY_ALERTS
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.notices.sources import Source, SourceKind, Subject
from chalicelib.ingest.evidence import bounded, dedupe_key, one_line
from chalicelib.ingest.fields import OUR_ID, RESOURCE_NAME, Fields
from rekindle.protocol.signals import FaultClass

MAX_ALERTS: Final = 100  # of one request
AHEAD: Final = timedelta(minutes=5)  # how far another clock may be before ours
# A fact is remembered for 14 days (aws.dynamodb.incidents): a copy of an older request would be a fact of its own, and
# not every source's requests can be told from copies. One that began so long ago opens nothing any more.
OLDEST: Final = timedelta(days=13)
FIRING, RESOLVED = "firing", "resolved"
VERSION: Final = "4"  # of Alertmanager's body
_LINKS: Final = ("generatorURL", "dashboardURL", "panelURL", "silenceURL", "valueString")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FORMS: Final[Mapping[Subject, re.Pattern[str]]] = {
    Subject.JOB: OUR_ID,
    Subject.ATTEMPT: OUR_ID,
    Subject.CLUSTER: RESOURCE_NAME,
    Subject.NODE: _NODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alert:
    """One alert as any of the formats tells it. `at` is when it began, or ended where it is resolved."""

    name: str
    is_firing: bool
    labels: Fields
    summary: str
    began_at: datetime
    at: datetime
    fingerprint: str
    evidence: Mapping[str, Any]


def _signal_of(alert: _Alert, source: Source, *, now: datetime) -> Signal:
    """The Signal.

    Raises:
        MalformedEvent: a label does not have the form of what it names, or the alert lies in the future.
    """
    named = {
        subject: alert.labels.optional_text(source.label(subject), pattern=form) for subject, form in _FORMS.items()
    }
    if alert.at > now + AHEAD:
        raise alert.labels.fail("startsAt", "lies in the future")
    fault = _fault(alert, source) if alert.is_firing else None
    state = FIRING if alert.is_firing else RESOLVED
    return Signal(
        kind=SignalKind.EXTERNAL_ALERT,
        source=SignalSource.WEBHOOK,
        occurred_at=min(alert.at, now),
        dedupe_key=dedupe_key("external", source.name, alert.fingerprint, alert.began_at, state),
        summary=one_line(f"{source.name}: {alert.name} is {state}: {alert.summary}"),
        job_id=named[Subject.JOB],
        attempt=named[Subject.ATTEMPT],
        cluster=named[Subject.CLUSTER],
        node=named[Subject.NODE],
        fault=fault,
        triggers=fault is not None and not source.news_only and now - alert.began_at < OLDEST,
        evidence=bounded({"alert": alert.name, "source": source.name, "state": state, **alert.evidence}),
    )


def _fault(alert: _Alert, source: Source) -> FaultClass | None:
    """What a label says, else what the source's table has for the alert's name; None for a word that we do not know."""
    word = alert.labels.optional_text(source.label(Subject.FAULT), limit=64)
    known = {fault.value: fault for fault in FaultClass}
    fault = known.get(word) if word is not None else source.faults.get(alert.name)
    return fault if fault in CLAIMED_BY_ALERTS else None


def _summary_of(annotations: Fields) -> str:
    """What Prometheus' and Grafana's users write for people."""
    for name in ("summary", "description", "message"):
        text = annotations.body.get(name)
        if isinstance(text, str) and text:
            return text
    return "no summary"


def _texts_of(fields: Fields) -> dict[str, str]:
    """Labels or annotations as evidence. Raises MalformedEvent where one is no text."""
    return {name: fields.text(name) for name, value in fields.body.items() if value not in (None, "")}


def parse_alertmanager(body: Mapping[str, Any], source: Source, *, now: datetime) -> list[Signal]:
    """Every alert of one notification of Alertmanager.

    Raises:
        MalformedEvent: names the field.
    """
    fields = Fields("", body)
    if (version := fields.text("version", limit=16)) != VERSION:
        raise fields.fail("version", f"is {version!r}; version {VERSION} is known")
    return _alerts(fields, source, now=now)


def _alerts(fields: Fields, source: Source, *, now: datetime) -> list[Signal]:
    """The member `alerts`, which Alertmanager and Grafana write alike. Raises: MalformedEvent."""
    alerts = fields.children("alerts")
    if not alerts:
        raise fields.fail("alerts", "is missing or empty")
    if len(alerts) > MAX_ALERTS:
        raise fields.fail("alerts", f"holds more than {MAX_ALERTS}; set max_alerts")
    return [_signal_of(_alert(alert), source, now=now) for alert in alerts]


def _alert(fields: Fields) -> _Alert:
    labels, annotations = fields.child("labels"), fields.optional_child("annotations")
    is_firing = fields.word("status", (FIRING, RESOLVED)) == FIRING
    began_at = fields.moment("startsAt")
    evidence: dict[str, Any] = {"labels": _texts_of(labels), "annotations": _texts_of(annotations)}
    evidence |= {name: fields.optional_text(name) for name in _LINKS}
    return _Alert(
        name=labels.text("alertname", limit=512),
        is_firing=is_firing,
        labels=labels,
        summary=_summary_of(annotations),
        began_at=began_at,
        at=began_at if is_firing else fields.moment("endsAt"),
        fingerprint=fields.text("fingerprint", limit=128),
        evidence=evidence,
    )


def parse_grafana(body: Mapping[str, Any], source: Source, *, now: datetime) -> list[Signal]:
    """Every alert of one notification of Grafana.

    Raises:
        MalformedEvent: names the field.
    """
    fields = Fields("", body)
    fields.word("status", (FIRING, RESOLVED))
    return _alerts(fields, source, now=now)


def parse_generic(body: Mapping[str, Any], source: Source, *, now: datetime) -> list[Signal]:
    """The one alert of our own form, for any tool that can send JSON. `id` names the alert; the same id with the same
    `began_at` (without one: `at`) and status is the same fact.

        {"id": "disk-7", "name": "DiskFailing", "status": "firing", "at": "2026-11-20T10:00:00Z", "summary": "…",
         "labels": {"rekindle_job": "lm-7b", "rekindle_fault": "node_hardware"}}

    Raises:
        MalformedEvent: names the field.
    """
    fields = Fields("", body)
    labels = fields.optional_child("labels")
    at = fields.moment("at")
    alert = _Alert(
        name=fields.text("name", limit=512),
        is_firing=fields.word("status", (FIRING, RESOLVED)) == FIRING,
        labels=labels,
        summary=fields.text("summary"),
        began_at=fields.optional_moment("began_at") or at,
        at=at,
        fingerprint=fields.text("id", limit=256),
        evidence={"labels": _texts_of(labels), "url": fields.optional_text("url")},
    )
    return [_signal_of(alert, source, now=now)]


PARSERS: Final[Mapping[SourceKind, Callable[..., list[Signal]]]] = {
    SourceKind.ALERTMANAGER: parse_alertmanager,
    SourceKind.GRAFANA: parse_grafana,
    SourceKind.GENERIC: parse_generic,
}
