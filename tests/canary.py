"""Secrets that tests use. Each holds CANARY, so that one search over a whole run's output finds any that leaked."""

from __future__ import annotations

import base64
from typing import Final

CANARY = "c4n4ry"


def _forms() -> tuple[str, ...]:
    """As it reads where a secret was printed encoded: base64 at each of its three offsets, and hex."""
    found = [CANARY, CANARY.encode().hex()]
    for before in range(3):
        text = base64.b64encode(b"\0" * before + CANARY.encode()).decode().rstrip("=")
        whole = (before + len(CANARY)) * 8 // 6  # characters that no later byte changes
        found.append(text[-(-before * 8 // 6) : whole])
    return tuple(found)


FORMS: Final = _forms()

SLACK_SIGNING_SECRET = f"slack-signing-{CANARY}-0d1f"
SLACK_TOKEN = f"xoxb-{CANARY}-slack-token"
WEBHOOK_SECRET = f"whsec-{CANARY}-2b7c9e"
INBOUND_SECRET = f"inbound-{CANARY}-77aa"
CHANNEL_PASSWORD = f"{CANARY}-channel-pw"
