"""An alert of other monitoring -> Signal, by the labels that its source uses (domain/notices/sources.py).

Golden payload: events/webhooks/alertmanager_v4_firing.json. A resolved alert is news, and so is one whose fault no one
named: it joins an open Incident and opens none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.fault_specs.faults import CLAIMED_BY_ALERTS
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.notices.sources import Source, Subject
from chalicelib.ingest.evidence import bounded, dedupe_key, one_line
from chalicelib.ingest.fields import OUR_ID, RESOURCE_NAME, Fields
from rekindle.protocol.signals import FaultClass

MAX_ALERTS: Final = 100  # of one request
AHEAD: Final = timedelta(minutes=5)  # how far another clock may be before ours
# A fact is remembered for 14 days (aws.dynamodb.incidents): a copy of an older request would be a fact of its own, and
# not every source's requests can be told from copies. One that began so long ago opens nothing any more.
OLDEST: Final = timedelta(days=13)
FIRING, RESOLVED = "firing", "resolved"
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FORMS: Final[Mapping[Subject, re.Pattern[str]]] = {
    Subject.JOB: OUR_ID,
    Subject.ATTEMPT: OUR_ID,
    Subject.CLUSTER: RESOURCE_NAME,
    Subject.NODE: _NODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert as any of the formats tells it. `at` is when it began, or ended where it is resolved."""

    name: str
    is_firing: bool
    labels: Fields
    summary: str
    began_at: datetime
    at: datetime
    fingerprint: str
    evidence: Mapping[str, Any]


def signal_of(alert: Alert, source: Source, *, now: datetime) -> Signal:
    """The Signal.

    Raises:
        MalformedEvent: a label does not have the form of what it names, or the alert lies in the future.
    """
    named = {
        subject: alert.labels.optional_text(source.labels[subject], pattern=form) for subject, form in _FORMS.items()
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
        triggers=fault is not None and not source.is_news and now - alert.began_at < OLDEST,
        evidence=bounded({"alert": alert.name, "source": source.name, "state": state, **alert.evidence}),
    )


def _fault(alert: Alert, source: Source) -> FaultClass | None:
    """What a label says, else what the source's table has for the alert's name; None for a word that we do not know."""
    word = alert.labels.optional_text(source.labels[Subject.FAULT], limit=64)
    known = {fault.value: fault for fault in FaultClass}
    fault = known.get(word) if word is not None else source.faults.get(alert.name)
    return fault if fault in CLAIMED_BY_ALERTS else None


def summary_of(annotations: Fields) -> str:
    """What Prometheus' and Grafana's users write for people."""
    for name in ("summary", "description", "message"):
        text = annotations.body.get(name)
        if isinstance(text, str) and text:
            return text
    return "no summary"


def texts_of(fields: Fields) -> dict[str, str]:
    """Labels or annotations as evidence. Raises MalformedEvent where one is no text."""
    return {name: fields.text(name) for name, value in fields.body.items() if value not in (None, "")}
