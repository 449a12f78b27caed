"""The lines of docs/notifications.md that verify a webhook, run as they stand on what the channel really sends."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chalicelib.channels.webhook import Webhook
from chalicelib.domain.notices.channels import ChannelKind, WebhookConfig
from localcloud.aws.clock import RealClock
from tests.notify.made import OLDER, SECRET, Secrets, notice
from tests.notify.receiver import Got, Receiver

PAGE = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text(encoding="utf-8")


def _verify(secret: str, monkeypatch: pytest.MonkeyPatch, *, at: float) -> Callable[[dict[str, str], bytes], Any]:
    (block,) = re.findall(r"### Verify a webhook\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block.replace('"..."', repr(secret)), names)  # noqa: S102  what the page tells people to run
    monkeypatch.setattr(time, "time", lambda: at)
    verified: Callable[[dict[str, str], bytes], Any] = names["verified"]
    return verified


@pytest.fixture
def got(receiver: Receiver) -> Got:
    config = WebhookConfig(
        name="ci",
        kind=ChannelKind.WEBHOOK,
        url=receiver.url,
        signing_secret="hook",
        older_signing_secret="older",
        private=True,
    )
    Webhook(config, Secrets(hook=SECRET, older=OLDER), clock=RealClock()).send(notice(), attempt=1)
    (one,) = receiver.got
    return one


@pytest.mark.parametrize("secret", [SECRET, OLDER])
def test_a_real_delivery_is_verified_once(got: Got, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = _verify(secret, monkeypatch, at=_sent_at(got))
    assert verified(got.headers, got.body) == json.loads(got.body)
    assert verified(got.headers, got.body) is None


@pytest.mark.parametrize("late_s", [-400, 400])
def test_a_recorded_request_is_refused_later(got: Got, late_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _verify(SECRET, monkeypatch, at=_sent_at(got) + late_s)(got.headers, got.body) is None


@pytest.mark.parametrize("field", ["webhook-id", "webhook-timestamp", "webhook-signature", "body"])
def test_a_request_that_was_changed_is_refused(got: Got, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = _verify(SECRET, monkeypatch, at=_sent_at(got))
    changed = {"webhook-id": "msg_0", "webhook-timestamp": str(_sent_at(got) - 1), "webhook-signature": "v1,AAAA"}
    headers = got.headers | {name: value for name, value in changed.items() if name == field}
    assert verified(headers, got.body + (b" " if field == "body" else b"")) is None
    assert verified(got.headers, got.body) is not None


def test_the_signature_in_githubs_form_fits(got: Got) -> None:
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    assert got.headers["x-rekindle-signature-256"] == "sha256=" + hmac.new(key, got.body, hashlib.sha256).hexdigest()


def _sent_at(got: Got) -> int:
    assert abs(int(got.headers["webhook-timestamp"]) - datetime.now(UTC).timestamp()) < 3600
    return int(got.headers["webhook-timestamp"])
