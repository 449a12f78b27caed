"""Grafana alerting's webhook -> Signals. Its alerts are Alertmanager's, and its envelope is its own.

Source: Grafana documentation, "Configure webhook notifications", body. Golden: events/webhooks/grafana_firing.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from chalicelib.domain.model.signal import Signal
from chalicelib.domain.notices.sources import Source
from chalicelib.ingest.alertmanager import parse_alerts
from chalicelib.ingest.alerts import FIRING, RESOLVED
from chalicelib.ingest.fields import Fields


def parse(body: Mapping[str, Any], source: Source, *, now: datetime) -> list[Signal]:
    """Every alert of one notification of Grafana.

    Raises:
        MalformedEvent: names the field.
    """
    fields = Fields("", body)
    fields.word("status", (FIRING, RESOLVED))
    return parse_alerts(fields, source, now=now)
