"""docs/reference/notice.schema.json: a notice, as `detail` of the event on the bus and as a webhook's body.

The document is open: a newer version may send further fields, and a receiver must ignore what it does not know.
Sources: CloudEvents 1.0, "Required Attributes"; EventBridge user guide, "Schemas": its registry takes JSON Schema
draft 4, so nothing that draft 4 lacks is used here.
"""

from __future__ import annotations

import json
from typing import Any, Final

from chalicelib.api.schema import any_text, listing, or_null, record, timestamp, word
from chalicelib.channels.bus import DETAIL_TYPE, MAX_TEXT_CHARS, SOURCE
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.ports.notices import NoticeKind
from rekindle.protocol.signals import FaultClass

PAGE: Final = "docs/reference/notice.schema.json"


def page_text() -> str:
    """The document."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """The schema of channels.bus.detail_of."""
    address = record(
        {
            "url": or_null(any_text("a page that opens; null where there is none")),
            "until": or_null(timestamp("when a signed link ends at the latest; null for an address that stays")),
            "command": any_text("prints a new link"),
        },
        "where the Incident can be looked at",
        is_open=True,
    )
    data = record(
        {
            "severity": word("how urgent", Severity),
            "title": any_text("one line"),
            "text": {"type": "string", "maxLength": MAX_TEXT_CHARS, "description": "what happened and what is done"},
            "incident_id": any_text("empty where it is about no Incident"),
            "job_id": or_null(any_text("null where no Job is known")),
            "kind": word("news, a question that waits for an approval, or a new state of the Incident", NoticeKind),
            "approval_id": any_text("of an approval; else empty"),
            "fault": word("fault class; empty where none is known", ["", *FaultClass]),
            "phase": word("phase of the Incident; empty where it is about none", ["", *Phase]),
            "cluster": any_text("empty where none"),
            "node": any_text("empty where none"),
            "paste": listing(
                {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
                "label, and a command or an address to open",
            ),
            "address": or_null(address),
        },
        is_open=True,
    )
    whole = record(
        {
            "specversion": {"enum": ["1.0"], "description": "of CloudEvents"},
            "id": any_text("the same for a notice that comes twice"),
            "source": {"enum": [SOURCE]},
            "type": {"enum": ["rekindle.notice"]},
            "subject": any_text("the Job, or else the Incident"),
            "time": timestamp("when it was written"),
            "sequence": any_text("orders the notices of one Incident when compared as text; absent where about none"),
            "datacontenttype": {"enum": ["application/json"]},
            "data": data,
        },
        f"`detail` of the event `{DETAIL_TYPE}` of source `{SOURCE}`, and body of a webhook: docs/notifications.md",
        may=("sequence",),
        is_open=True,
    )
    return {"$schema": "http://json-schema.org/draft-04/schema#", "title": DETAIL_TYPE, **whole}
