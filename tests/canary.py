"""Secrets that tests use. Each holds CANARY, so that one search over a whole run's output finds any that leaked."""

from __future__ import annotations

CANARY = "c4n4ry"

SLACK_SIGNING_SECRET = f"slack-signing-{CANARY}-0d1f"
SLACK_TOKEN = f"xoxb-{CANARY}-slack-token"
WEBHOOK_SECRET = f"whsec-{CANARY}-2b7c9e"
INBOUND_SECRET = f"inbound-{CANARY}-77aa"
CHANNEL_PASSWORD = f"{CANARY}-channel-pw"
