"""The EventBridge envelope, typed once; every parser reads its `detail`.

    {"version": "0", "id": "5f1c…", "source": "aws.sagemaker", "detail-type": "…", "account": "111122223333",
     "time": "2026-11-20T10:00:00Z", "region": "us-west-2", "resources": ["arn:…"], "detail": {…}}

`id` names this envelope and nothing else: HyperPod's own EventId differs from it, and one fact may come in two of them.

Source: EventBridge user guide, "AWS service event metadata"; delivery is at least once and unordered (events reference,
"event delivery level").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chalicelib.domain.model.errors import MalformedEvent
from chalicelib.ingest.fields import Fields
from rekindle.protocol.wire import MAX_DEPTH, is_deep

MAX_EVENT_BYTES = 256 * 1024  # Source: EventBridge quota for one entry, which also bounds what Lambda is handed
VERSION = "0"  # the only envelope version EventBridge has ever sent

_ACCOUNT = re.compile(r"[0-9]{12}")
_REGION = re.compile(r"[a-z0-9-]{1,32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What stands around every event. `time` is the sender's own, aware UTC."""

    id: str
    source: str
    detail_type: str
    account: str
    region: str
    time: datetime
    resources: tuple[str, ...]
    detail: Fields


def decode(raw: object) -> Mapping[str, Any]:
    """The event as an object, from an object or from JSON text, within the size limit.

    Raises:
        MalformedEvent: field `event`, where it is too large, nested too deep, not JSON or not an object.
    """
    if isinstance(raw, bytes | str):
        size = len(raw) if isinstance(raw, bytes) else len(raw.encode("utf-8", "surrogatepass"))
        if size > MAX_EVENT_BYTES:
            raise MalformedEvent("event", f"larger than {MAX_EVENT_BYTES} bytes")
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError) as err:
            raise MalformedEvent("event", "is not JSON") from err
    if not isinstance(raw, Mapping):
        raise MalformedEvent("event", f"must be an object, not {type(raw).__name__}")
    if is_deep(raw):  # Lambda hands over what is nested thousands deep, which every recursive reader would fail on
        raise MalformedEvent("event", f"is nested more than {MAX_DEPTH} deep")
    return raw


def check_size(raw: Mapping[str, Any]) -> None:
    """Raises: MalformedEvent, field `event`: as JSON it is larger than MAX_EVENT_BYTES, or it is no JSON at all."""
    try:
        text = json.dumps(raw, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as err:
        raise MalformedEvent("event", "is not JSON") from err
    if len(text) > MAX_EVENT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_EVENT_BYTES:
        raise MalformedEvent("event", f"larger than {MAX_EVENT_BYTES} bytes")


def open_envelope(raw: object, *, expected_account: str | None = None) -> Envelope:
    """Type the envelope.

    Raises:
        MalformedEvent: names the first field that is missing or wrong; also for an unknown `version`, an event larger
            than MAX_EVENT_BYTES, and an account other than the expected one.
    """
    body = decode(raw)
    check_size(body)
    # Ours are written by this product, or forged; AWS's change without notice.
    fields = Fields("", body, is_lenient=str(body.get("source")).startswith("aws."))
    version = fields.text("version", limit=16)
    if version != VERSION:
        raise MalformedEvent("version", f"is {version!r}; only {VERSION!r} is known")
    account = fields.text("account", pattern=_ACCOUNT)
    if expected_account is not None and account != expected_account:
        raise MalformedEvent("account", f"is {account}, which is foreign here")
    region = fields.text("region", pattern=_REGION)
    return Envelope(
        id=fields.text("id", limit=128),
        source=fields.text("source", limit=256),
        detail_type=fields.text("detail-type", limit=256),
        account=account,
        region=region,
        time=fields.moment("time"),
        resources=_resources(fields),
        detail=fields.child("detail"),
    )


def _resources(fields: Fields) -> tuple[str, ...]:
    items = fields.items("resources")
    for index, item in enumerate(items):
        if not isinstance(item, str) and not fields.is_lenient:
            raise MalformedEvent(f"resources[{index}]", f"must be a text, not {type(item).__name__}")
    return tuple(item for item in items if isinstance(item, str))
