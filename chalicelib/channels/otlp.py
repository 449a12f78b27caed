"""The OTLP channel: the trace of each Incident that has closed, to any receiver of OTLP over HTTP in JSON.

Source: the OTLP specification, "OTLP/HTTP": only 429, 502, 503 and 504 are tried again; headers in the form of
OTEL_EXPORTER_OTLP_HEADERS (`name=value,name=value`, values percent-encoded).
"""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import unquote

from chalicelib.channels.channel import RetryLater, Secrets
from chalicelib.channels.outbound import TOTAL_S, check_accepted, post
from chalicelib.domain.model.errors import InvalidSettings
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.notices.channels import ChannelConfig
from chalicelib.ports.clock import Clock
from chalicelib.ports.notices import Notice, NoticeKind
from chalicelib.services.reporting.traces import Traces

_LATER: Final = frozenset({502, 503, 504})
_TERMINAL: Final = frozenset(phase.value for phase in Phase if phase.is_terminal)
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")  # RFC 9110, 5.6.2: a token
_OURS: Final = frozenset({"content-type", "content-length", "connection", "host", "transfer-encoding"})
NOT_YET_S: Final = 15.0


class OtlpChannel:
    """channels.channel.Channel: one receiver of traces. It acts on the notice of an Incident's end alone."""

    def __init__(
        self, config: ChannelConfig, secrets: Secrets, *, traces: Traces, clock: Clock, total_s: float = TOTAL_S
    ) -> None:
        """Raises InvalidSettings or UnknownEntity where the secret cannot be used."""
        self._name = config.name
        self._url = config.text("url")
        self._is_private = config.flags.get("private", False)
        self._traces = traces
        self._clock = clock
        self._total_s = total_s
        secret = config.text("headers_secret")
        self._headers = headers_of(secrets.secret(secret), name=secret) if secret else {}

    def send(self, notice: Notice, *, attempt: int) -> None:  # noqa: ARG002  every attempt is the same trace
        """See channels.channel.Channel.

        A change of phase is announced once, so each trace goes out once; where an answer is lost it goes out again
        with the same ids.
        """
        if notice.kind is not NoticeKind.CHANGE or notice.phase not in _TERMINAL or not notice.incident_id:
            return
        incident = self._traces.load(notice.incident_id)
        if incident.is_open:
            raise RetryLater("the Incident's end is not stored yet", retry_after_s=NOT_YET_S)
        body = json.dumps(self._traces.of(incident), separators=(",", ":")).encode()
        headers = {**self._headers, "Content-Type": "application/json", "User-Agent": "rekindle"}
        answer = post(self._url, body, headers, private=self._is_private, total_s=self._total_s)
        check_accepted(answer, self._name, now=self._clock.now(), later=_LATER)


def headers_of(text: str, *, name: str) -> dict[str, str]:
    """The headers in a secret.

    Raises:
        InvalidSettings: it is not of this form; the message holds nothing of the secret.
    """
    headers: dict[str, str] = {}
    for part in (header.strip() for header in text.split(",")):
        key, equals, value = part.partition("=")
        key, value = key.strip(), unquote(value.strip())
        if not equals or not _NAME.match(key) or key.lower() in _OURS or not value:
            raise InvalidSettings(f"secrets.{name}", "must be name=value pairs with commas between them")
        if not value.isascii() or not value.isprintable():
            raise InvalidSettings(f"secrets.{name}", "a value holds characters that a header cannot have")
        headers[key] = value
    return headers
