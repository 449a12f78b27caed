"""Whether a request is from the source that it says it is from. Secrets are compared in constant time. Pure.

Sources: standardwebhooks.com, specification; Grafana documentation, "Configure webhook notifications", HMAC signature
(hex HMAC-SHA256 over `timestamp:body`, with the timestamp header that we ask for: without one, a person who has seen a
request once could send it forever); Alertmanager configuration, http_config (`authorization`, `basic_auth`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from chalicelib.channels import standard_webhooks
from chalicelib.domain.notices.sources import Auth, Source

GRAFANA_SIGNATURE: Final = "x-grafana-alerting-signature"
GRAFANA_TIMESTAMP: Final = "x-grafana-alerting-timestamp"
AUTHORIZATION: Final = "authorization"
_ID: Final = re.compile(r"[!-~]{1,200}\Z")
_SECONDS: Final = re.compile(r"[0-9]{1,12}\Z")
_HEX: Final = re.compile(r"[0-9a-f]{64}\Z")


class HookRefused(Exception):
    """The request is turned away. `field` is the header at fault; no text holds what was sent."""

    def __init__(self, field: str, why: str, *, status: int = 401) -> None:
        super().__init__(f"{field}: {why}")
        self.field, self.status = field, status


def authenticate(
    source: Source, secrets: Sequence[tuple[str, str]], headers: Mapping[str, str], raw: bytes, *, now: datetime
) -> str | None:
    """Whether one of the secrets (name, value) fits. The answer is equal for copies of one request, None where a source
    signs nothing, so that a copy cannot be distinguished from a request of its own.

    Raises:
        HookRefused: forged, late, or without what it must carry.
        InvalidSettings: a secret cannot be used.
    """
    match source.auth:
        case Auth.STANDARD:
            return _standard(secrets, headers, raw, now)
        case Auth.GRAFANA:
            return _grafana(secrets, headers, raw, now)
        case Auth.BEARER:
            _authorized(headers, [f"Bearer {secret}" for _, secret in secrets])
        case Auth.BASIC:
            _authorized(headers, [f"Basic {_base64(f'{source.user}:{secret}')}" for _, secret in secrets])
    return None


def _authorized(headers: Mapping[str, str], wanted: Sequence[str]) -> None:
    given = _header(headers, AUTHORIZATION)
    if not _is_one_of(_normal(given), wanted):
        raise HookRefused(AUTHORIZATION, "is not this source's")


def _standard(secrets: Sequence[tuple[str, str]], headers: Mapping[str, str], raw: bytes, now: datetime) -> str:
    message_id = _header(headers, standard_webhooks.ID, _ID)
    timestamp = _header(headers, standard_webhooks.TIMESTAMP, _SECONDS)
    signature = _header(headers, standard_webhooks.SIGNATURE)
    keys = [standard_webhooks.key_of(secret, name=name) for name, secret in secrets]
    checks = [
        standard_webhooks.is_signed(key, message_id=message_id, timestamp=timestamp, body=raw, header=signature)
        for key in keys
    ]
    if not any(checks):
        raise HookRefused(standard_webhooks.SIGNATURE, "does not fit")
    _fresh(timestamp, standard_webhooks.TIMESTAMP, now)
    return message_id


def _grafana(secrets: Sequence[tuple[str, str]], headers: Mapping[str, str], raw: bytes, now: datetime) -> str:
    timestamp = _header(headers, GRAFANA_TIMESTAMP, _SECONDS)
    signature = _header(headers, GRAFANA_SIGNATURE, _HEX)
    content = f"{timestamp}:".encode() + raw
    keys = [standard_webhooks.key_of(secret, name=name) for name, secret in secrets]
    if not _is_one_of(signature, [hmac.new(key, content, hashlib.sha256).hexdigest() for key in keys]):
        raise HookRefused(GRAFANA_SIGNATURE, "does not fit")
    _fresh(timestamp, GRAFANA_TIMESTAMP, now)
    return signature


def _header(headers: Mapping[str, str], name: str, form: re.Pattern[str] | None = None) -> str:
    value = headers.get(name, "")
    if not value:
        raise HookRefused(name, "missing")
    if len(value) > 4096 or not value.isascii() or (form is not None and not form.match(value)):
        raise HookRefused(name, "is not of the form that it must have")
    return value


def _fresh(timestamp: str, name: str, now: datetime) -> None:
    if abs(int(timestamp) - now.timestamp()) > standard_webhooks.TOLERANCE_S:
        raise HookRefused(name, "is too far from now: the request is late, or a clock is wrong")


def _is_one_of(given: str, wanted: Sequence[str]) -> bool:
    # A list, not a generator: all are compared, whichever fits.
    return any([hmac.compare_digest(given.encode(), secret.encode()) for secret in wanted])


def _normal(given: str) -> str:
    """The scheme's name in one spelling; base64 with its padding."""
    scheme, _, rest = given.partition(" ")
    return f"{scheme.title()} {rest.strip()}"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
