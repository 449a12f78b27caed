"""AWS Health Event (aws.health, durable).

    {"detail-type": "AWS Health Event", "source": "aws.health", "resources": ["i-0a1b2c3d4e5f60718"],
     "detail": {"eventArn": "arn:aws:health:us-west-2::event/EC2/AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED/x1",
      "service": "EC2", "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
      "eventTypeCategory": "scheduledChange", "eventScopeCode": "ACCOUNT_SPECIFIC", "communicationId": "c0ffee-1",
      "startTime": "Fri, 27 Nov 2026 10:00:00 GMT", "statusCode": "upcoming", "eventRegion": "us-west-2",
      "eventDescription": [{"language": "en_US", "latestDescription": "…"}],
      "affectedEntities": [{"entityValue": "i-0a1b2c3d4e5f60718", "status": "PENDING"}],
      "page": "1", "totalPages": "1", "affectedAccount": "111122223333"}}

One Signal per affected entity, so that the pages of a large event and its copies need no joining: the fact is
(communicationId, account, entity). The copy that goes to a backup Region (`backupEvent`) is skipped. Times are RFC-1123
text in AWS's samples. Codes for HyperPod nodes are not documented; EC2 codes cover self-managed nodes.

Source: AWS Health user guide, aws-health-events-eventbridge-schema; EventBridge events reference, Health.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from chalicelib.domain.model.errors import Noise, NotOurs
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ingest.envelope import Envelope
from chalicelib.ingest.evidence import bounded, dedupe_key, one_line
from chalicelib.ingest.fields import INSTANCE_ID, Fields
from rekindle.protocol.signals import FaultClass

CATEGORIES: Final = ("issue", "accountNotification", "investigation", "scheduledChange")
STATUS_CODES: Final = ("open", "closed", "upcoming")
SERVICES: Final = frozenset({"EC2", "SAGEMAKER", "EKS", "FSX", "EBS"})  # what a training run stands on
_NUMBER: Final = re.compile(r"[0-9]{1,4}")
_INSTANCE_AT_END: Final = re.compile(rf"(?:.*[:/])?({INSTANCE_ID.pattern})", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What a code or category means for the node it names."""

    fault: FaultClass
    triggers: bool
    source: str


# The code outranks the category. Source: AWS Health event type codes for EC2.
CODES: Final[dict[str, _Row]] = {
    "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED": _Row(
        fault=FaultClass.PLANNED_END, triggers=True, source="EC2 user guide, instance retirement"
    ),
    "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED": _Row(
        fault=FaultClass.PLANNED_END, triggers=True, source="EC2 user guide, scheduled events"
    ),
    "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED": _Row(
        fault=FaultClass.NODE_HARDWARE, triggers=True, source="AWS Health, EC2 event type codes"
    ),
    "AWS_EC2_OPERATIONAL_ISSUE": _Row(
        fault=FaultClass.UNCLEAR, triggers=False, source="AWS Health: a regional notice, no verdict on a node"
    ),
}
_BY_CATEGORY: Final[dict[str, _Row]] = {
    "scheduledChange": _Row(fault=FaultClass.PLANNED_END, triggers=True, source="AWS Health concepts: upcoming change"),
    "issue": _Row(
        fault=FaultClass.UNCLEAR, triggers=False, source="AWS Health concepts: affects a service, maybe not a node"
    ),
    "investigation": _Row(
        fault=FaultClass.UNCLEAR, triggers=False, source="AWS Health concepts: not known to be true yet"
    ),
}


def parse(envelope: Envelope) -> list[Signal]:
    """One Signal for each affected entity, or one without a node where the event names none.

    Raises:
        MalformedEvent: names the field.
        Noise: a backup Region's copy, or an account notification.
        NotOurs: a service no training run stands on.
    """
    detail = envelope.detail
    service = detail.text("service", limit=64)
    code = detail.text("eventTypeCode", limit=256)
    category = detail.word("eventTypeCategory", CATEGORIES)
    communication = detail.optional_text("communicationId", limit=512) or detail.text("eventArn", limit=1600)
    account = detail.optional_text("affectedAccount", limit=12) or envelope.account
    status = detail.optional_word("statusCode", STATUS_CODES)
    starts_at = detail.optional_moment("startTime")
    ends_at = detail.optional_moment("endTime")
    page = _page(detail)
    entities: list[tuple[str | None, str | None]] = [*_entities(detail)] or [(None, None)]
    _refuse_others(detail, category, service)
    row = CODES.get(code) or _BY_CATEGORY[category]
    description = _description(detail)
    about = {
        "code": code,
        "category": category,
        "status": status,
        "starts_at": starts_at.isoformat() if starts_at else None,
        "ends_at": ends_at.isoformat() if ends_at else None,
        "page": page,
        "scope": detail.optional_text("eventScopeCode", limit=64),
        "description": description or None,
    }
    signals = []
    for value, entity_status in entities:
        node = _instance_of(value)
        is_over = status == "closed" or entity_status in ("RESOLVED", "UNIMPAIRED")
        signals.append(
            Signal(
                kind=SignalKind.HEALTH_NOTICE,
                source=SignalSource.HEALTH,
                occurred_at=envelope.time,
                dedupe_key=dedupe_key("health", communication, account, node or value, "over" if is_over else "open"),
                summary=one_line(f"{code} {status or category}{f' for {value}' if value else ''}: {description}"),
                node=node,
                fault=None if is_over else row.fault,
                triggers=row.triggers and node is not None and not is_over,
                evidence=bounded({**about, "entity": value, "entity_status": entity_status}),
            )
        )
    return signals


def _refuse_others(detail: Fields, category: str, service: str) -> None:
    """Raises Noise or NotOurs, as `parse` does."""
    if _flag(detail, "backupEvent"):
        raise Noise("backup event")
    if category == "accountNotification":
        raise Noise("account notification")
    if service.upper() not in SERVICES:
        raise NotOurs("health service")


def _instance_of(entity: str | None) -> str | None:
    """The instance at the end of an entity's value."""
    found = _INSTANCE_AT_END.fullmatch(entity) if entity else None
    return found[1] if found else None


def _flag(detail: Fields, name: str) -> bool:
    """AWS writes flags as text in this event; a real boolean is read too."""
    return detail.body.get(name) in (True, "true", "True")


def _page(detail: Fields) -> str | None:
    """`page/totalPages`, both numbers as text; None where they are none."""
    page, pages = (str(detail.body.get(name))[:5] for name in ("page", "totalPages"))
    return f"{page}/{pages}" if _NUMBER.fullmatch(page) and _NUMBER.fullmatch(pages) else None


def _entities(detail: Fields) -> list[tuple[str, str | None]]:
    return [
        (value, entity.optional_text("status", limit=64))
        for entity in detail.children("affectedEntities")
        if (value := entity.optional_text("entityValue", limit=1024)) is not None
    ]


def _description(detail: Fields) -> str:
    texts = [item.optional_text("latestDescription") or "" for item in detail.children("eventDescription")]
    return texts[0] if texts else ""
