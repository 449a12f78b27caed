"""Notices and documents for these tests."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from chalicelib.domain.model.action import Severity
from chalicelib.ports.notices import Notice
from tests.canary import CANARY, WEBHOOK_SECRET

AT = datetime(2035, 1, 1, 9, 30, tzinfo=UTC)
SECRET = "whsec_" + base64.b64encode(f"a long enough key {CANARY}".encode()).decode()
OLDER = WEBHOOK_SECRET

_NOTICE = Notice(
    token="inc-1.1.3.0",
    severity=Severity.PAGE,
    title="lm-7b: a node is broken",
    text="Asking it to save, then replacing ip-10-0-0-7.",
    incident_id="inc-1",
    job_id="lm-7b",
    at=AT,
    fault="node_hardware",
    phase="checkpointing",
    cluster="pretrain",
    node="ip-10-0-0-7",
    paste=(("Show", "rekindle show inc-1"),),
)


def notice(**changes: Any) -> Notice:
    return replace(_NOTICE, **changes)


def webhook(url: str, **changes: Any) -> dict[str, Any]:
    return {"kind": "webhook", "url": url, "signing_secret": "hook", "private": True} | changes


class Secrets(dict[str, str]):
    """Secrets in memory: what is tested here is what becomes of them."""

    def secret(self, name: str) -> str:
        return self[name]
