"""Settings that people write, and secrets, in SSM Parameter Store: documents in String, secrets in SecureString."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.domain.model.errors import InvalidSettings, UnknownEntity
from chalicelib.domain.notices.channels import NAME, Channels
from chalicelib.domain.notices.sources import Source, sources_from_wire
from chalicelib.ports.clock import Clock

MEMORY: Final = timedelta(seconds=30)  # a storm of notices reads the document once in this time, per function instance
_MISSING: Final = "ParameterNotFound"


@dataclass(frozen=True, slots=True)
class _Kept:
    value: str | None  # None: there is no such parameter
    read_at: datetime

    def __repr__(self) -> str:
        return "_Kept(…)"  # it may be a secret


class SsmSettings:
    """The documents of channels and of sources of alerts, and secrets. `client` is a boto3 SSM client.

    Documents lie at `<prefix>/channels` and `<prefix>/sources`, secrets at `<prefix>/secrets/<name>`.
    """

    def __init__(self, client: Any, *, prefix: str, clock: Clock) -> None:
        self._client = client
        self._prefix = prefix.rstrip("/")
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def channels(self) -> Channels:
        """What can be used of it now; an empty one where there is none. Raises InvalidSettings: nothing of it can."""
        return Channels.usable(self._document("channels"))

    def sources(self) -> dict[str, Source]:
        """The sources of alerts by name; none where there is no document. Raises InvalidSettings."""
        return sources_from_wire(self._document("sources"))

    def secret(self, name: str) -> str:
        if not NAME.fullmatch(name):
            raise UnknownEntity("that is not the name of a secret")
        value = self._remembered(f"secrets/{name}", self._read_secret)
        if not value:
            raise UnknownEntity(f"there is no secret {name!r} under {self._prefix}/secrets")
        return value

    def _document(self, name: str) -> object:
        text = self._remembered(name, self._read_document)
        if text is None:
            return {}
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidSettings(name, "is not a JSON document") from None

    def _remembered(self, name: str, read: Callable[[str], str | None]) -> str | None:
        now = self._clock.now()
        kept = self._kept.get(name)
        if kept is None or not timedelta(0) <= now - kept.read_at < MEMORY:
            kept = self._kept[name] = _Kept(read(f"{self._prefix}/{name}"), now)
        return kept.value

    def _read_document(self, path: str) -> str | None:
        try:
            return str(call(self._client.get_parameter, expect=(_MISSING,), Name=path)["Parameter"]["Value"])
        except AwsRefusal:
            return None

    def _read_secret(self, path: str) -> str | None:
        """By GetParameters, a right of its own: who may read documents and policies may not read secrets."""
        found = call(self._client.get_parameters, Names=[path], WithDecryption=True).get("Parameters") or []
        return str(found[0]["Value"]) if found else None
