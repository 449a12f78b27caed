"""Incidents and notices as the tests want them, and what Slack's own library says of a message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from slack_sdk.models.blocks import Block

from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.approvals import Approval, ApprovalAnswer
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ports.notices import Notice, NoticeKind
from rekindle.protocol.signals import FaultClass

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def incident(number: int = 1, **more: Any) -> Incident:
    """An open Incident of the Job `lm-<number>`."""
    return Incident(
        incident_id=f"inc-lm-{number:012x}",
        job_id=f"lm-{number}",
        cluster=None,
        opened_at=NOW,
        phase=Phase.OPEN,
        phase_entered_at=NOW,
        fault=FaultClass.NODE_HARDWARE,
        attempt=f"lm-{number}-a1",
    ).changed(**more)


def approval(number: int = 1, **more: Any) -> Approval:
    return Approval(
        **{
            "approval_id": f"ap-{number}",
            "key": f"replace:{number}",
            "actions": ("ReplaceNode",),
            "what": "replace ip-10-0-0-7 of ml (i-1); what is on its volumes is lost",
            "why": "rule 1: replacing asks",
            "asked_at": NOW,
            "deadline_at": NOW + timedelta(minutes=30),
            "default": ApprovalAnswer.DENIED,
            **more,
        }
    )


def signal(summary: str = "Xid 79 on ip-10-0-0-7", **more: Any) -> Signal:
    return Signal(
        **{
            "kind": SignalKind.NODE_HEALTH,
            "source": SignalSource.SAGEMAKER,
            "occurred_at": NOW,
            "dedupe_key": f"k:{summary}"[:200],
            "summary": summary,
            **more,
        }
    )


def notice(number: int = 1, **more: Any) -> Notice:
    return Notice(
        **{
            "token": f"n-{number}",
            "severity": Severity.WARNING,
            "title": "A GPU has fallen off the bus",
            "text": "ip-10-0-0-7 reports Xid 79; the run is asked for a checkpoint.",
            "incident_id": f"inc-lm-{number:012x}",
            "job_id": f"lm-{number}",
            "at": NOW,
            "kind": NoticeKind.NEWS,
            **more,
        }
    )


def texts(value: Any) -> Iterator[str]:
    """Every text of a message, as sent."""
    if isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts(part)
    elif isinstance(value, str):
        yield value


def complaints(blocks: Sequence[dict[str, Any]]) -> list[str]:
    """What Slack would refuse: its library's own checks, and the limits that this one does not know."""
    found: list[str] = []
    if len(blocks) > 50:
        found.append(f"{len(blocks)} blocks")
    parsed = Block.parse_all(json.loads(json.dumps(list(blocks))))
    for raw, block in zip(blocks, parsed, strict=True):
        if block is None:
            found.append(f"unknown block {raw['type']}")
            continue
        try:
            block.validate_json()
        except Exception as err:
            found.append(f"{raw['type']}: {err}")
        found += _finer(raw)
    return found


def _finer(block: dict[str, Any]) -> list[str]:
    found = [f"a field of {len(field['text'])}" for field in block.get("fields", ()) if len(field["text"]) > 2000]
    if block["type"] == "context":
        found += [
            f"context text of {len(element['text'])}" for element in block["elements"] if len(element["text"]) > 3000
        ]
    for button in block.get("elements", ()):
        if button["type"] == "button":
            confirm = button["confirm"]
            sizes: tuple[tuple[dict[str, Any], int], ...] = (
                (button["text"], 75),
                (confirm["title"], 100),
                (confirm["text"], 300),
            )
            sizes += ((confirm["confirm"], 30), (confirm["deny"], 30))
            found += [f"button text {text['text']!r}" for text, most in sizes if not 1 <= len(text["text"]) <= most]
            if len(button["value"]) > 2000 or len(button["action_id"]) > 255:
                found.append("button value or action_id")
    empty = [text for text in texts(block) if not text]
    return found + ["an empty text"] * len(empty)
