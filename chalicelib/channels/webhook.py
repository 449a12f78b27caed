"""The webhook channel: CloudEvents 1.0 in structured JSON, signed by Standard Webhooks and as GitHub does, over HTTPS.

Sources: CloudEvents 1.0 HTTP binding, structured mode (content type application/cloudevents+json); GitHub docs,
"Validating webhook deliveries": `sha256=` and the hex HMAC-SHA256 of the body.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Final

from chalicelib.channels import standard_webhooks
from chalicelib.channels.bus import detail_of
from chalicelib.channels.channel import Secrets
from chalicelib.channels.outbound import TOTAL_S, check_accepted, post
from chalicelib.domain.notices.channels import WebhookConfig
from chalicelib.ports.clock import Clock
from chalicelib.ports.notices import Notice

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
# For receivers that know GitHub's form alone. One signature fits into it: that of the newer secret.
SIGNATURE_256: Final = "X-Rekindle-Signature-256"
_LATER: Final = frozenset({408, 425, *range(500, 600)})  # besides 429: the same request may be taken later


class Webhook:
    """channels.channel.Channel: one receiver."""

    def __init__(self, config: WebhookConfig, secrets: Secrets, *, clock: Clock, total_s: float = TOTAL_S) -> None:
        """Raises InvalidSettings or UnknownEntity where the secrets cannot be used."""
        self._name = config.name
        self._url = config.url
        self._is_private = config.private
        self._clock = clock
        self._total_s = total_s
        # While a secret is changed both sign, so that a receiver may know either.
        names = [name for name in (config.signing_secret, config.older_signing_secret) if name]
        self._keys = [standard_webhooks.key_of(secrets.secret(name), name=name) for name in names]

    def send(self, notice: Notice, *, attempt: int) -> None:  # noqa: ARG002  every attempt is the same message
        """See channels.channel.Channel. Only the timestamp and its signature differ between attempts."""
        body = json.dumps(detail_of(notice), separators=(",", ":")).encode()
        now = self._clock.now()
        message_id = standard_webhooks.message_id_of(notice.token, self._name)
        timestamp = str(int(now.timestamp()))
        signatures = [
            standard_webhooks.sign(key, message_id=message_id, timestamp=timestamp, body=body) for key in self._keys
        ]
        headers = {
            "Content-Type": CONTENT_TYPE,
            "User-Agent": "rekindle",
            standard_webhooks.ID: message_id,
            standard_webhooks.TIMESTAMP: timestamp,
            standard_webhooks.SIGNATURE: " ".join(signatures),
            SIGNATURE_256: "sha256=" + hmac.new(self._keys[0], body, hashlib.sha256).hexdigest(),
        }
        answer = post(self._url, body, headers, private=self._is_private, total_s=self._total_s)
        check_accepted(answer, self._name, now=now, later=_LATER)
