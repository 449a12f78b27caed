"""Prometheus Alertmanager's webhook, version 4 -> Signals, one per alert; and Grafana's, which has the same body.

Source: prometheus.io/docs/alerting/latest/configuration, webhook_config; Grafana documentation, "Configure webhook
notifications". Golden payloads: events/webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from chalicelib.domain.model.signal import Signal
from chalicelib.domain.notices.sources import Source
from chalicelib.ingest.alerts import FIRING, MAX_ALERTS, RESOLVED, Alert, signal_of, summary_of, texts_of
from chalicelib.ingest.fields import Fields

VERSION: Final = "4"
_LINKS: Final = ("generatorURL", "dashboardURL", "panelURL", "silenceURL", "valueString")


def parse(body: Mapping[str, Any], source: Source, *, now: datetime) -> list[Signal]:
    """Every alert of one notification of Alertmanager.

    Raises:
        MalformedEvent: names the field.
    """
    fields = Fields("", body)
    if (version := fields.text("version", limit=16)) != VERSION:
        raise fields.fail("version", f"is {version!r}; version {VERSION} is known")
    return parse_alerts(fields, source, now=now)


def parse_alerts(fields: Fields, source: Source, *, now: datetime) -> list[Signal]:
    """The member `alerts`. Raises as `parse`."""
    alerts = fields.children("alerts")
    if not alerts:
        raise fields.fail("alerts", "is missing or empty")
    if len(alerts) > MAX_ALERTS:
        raise fields.fail("alerts", f"holds more than {MAX_ALERTS}; set max_alerts")
    return [signal_of(_alert(alert), source, now=now) for alert in alerts]


def _alert(fields: Fields) -> Alert:
    labels, annotations = fields.child("labels"), fields.optional_child("annotations")
    is_firing = fields.word("status", (FIRING, RESOLVED)) == FIRING
    began_at = fields.moment("startsAt")
    evidence: dict[str, Any] = {"labels": texts_of(labels), "annotations": texts_of(annotations)}
    evidence |= {name: fields.optional_text(name) for name in _LINKS}
    return Alert(
        name=labels.text("alertname", limit=512),
        is_firing=is_firing,
        labels=labels,
        summary=summary_of(annotations),
        began_at=began_at,
        at=began_at if is_firing else fields.moment("endsAt"),
        fingerprint=fields.text("fingerprint", limit=128),
        evidence=evidence,
    )
