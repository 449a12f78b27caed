"""Our own webhook, for any tool that can send JSON -> one Signal. Golden: events/webhooks/generic_firing.json.

    {"id": "disk-7", "name": "DiskFailing", "status": "firing", "at": "2026-11-20T10:00:00Z", "summary": "…",
     "labels": {"rekindle_job": "lm-7b", "rekindle_fault": "node_hardware"}}

`id` names the alert; the same id with the same `began_at` (without one: `at`) and status is the same fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from chalicelib.domain.model.signal import Signal
from chalicelib.domain.notices.sources import Source
from chalicelib.ingest.alerts import FIRING, RESOLVED, Alert, signal_of, texts_of
from chalicelib.ingest.fields import Fields


def parse(body: Mapping[str, Any], source: Source, *, now: datetime) -> list[Signal]:
    """The one alert.

    Raises:
        MalformedEvent: names the field.
    """
    fields = Fields("", body)
    labels = fields.optional_child("labels")
    at = fields.moment("at")
    alert = Alert(
        name=fields.text("name", limit=512),
        is_firing=fields.word("status", (FIRING, RESOLVED)) == FIRING,
        labels=labels,
        summary=fields.text("summary"),
        began_at=fields.optional_moment("began_at") or at,
        at=at,
        fingerprint=fields.text("id", limit=256),
        evidence={"labels": texts_of(labels), "url": fields.optional_text("url")},
    )
    return [signal_of(alert, source, now=now)]
