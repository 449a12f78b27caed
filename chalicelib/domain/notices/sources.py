"""Whose alerts are taken in, as data: the document `/<stage>/sources` in Parameter Store (docs/notifications.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

from chalicelib.domain.model.codec import read
from chalicelib.domain.model.errors import InvalidSettings
from chalicelib.domain.notices.channels import Line, Name, entry
from rekindle.protocol.bounds import Items
from rekindle.protocol.signals import FaultClass
from rekindle.protocol.wire import MailboxError

MAX_SOURCES: Final = 32
MAX_ENTRIES: Final = 200


class SourceKind(StrEnum):
    """Whose payload it is."""

    ALERTMANAGER = "alertmanager"  # Prometheus Alertmanager's webhook, version 4
    GRAFANA = "grafana"  # Grafana alerting's webhook
    GENERIC = "generic"  # our own, for anything else


class Auth(StrEnum):
    """How a source shows that it is itself."""

    STANDARD = "standard"  # Standard Webhooks: id, timestamp, HMAC-SHA256
    GRAFANA = "grafana"  # Grafana's own HMAC-SHA256, with its timestamp header
    BEARER = "bearer"
    BASIC = "basic"


class Subject(StrEnum):
    """What a label of an alert may say."""

    JOB = "job"
    ATTEMPT = "attempt"
    CLUSTER = "cluster"
    NODE = "node"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source. `secret` and `older_secret` are names of secrets; `user` belongs to basic authentication.

    `faults` maps an alert's name to a fault class, for alerts without a label that says so. `news_only`: its alerts
    join open Incidents and never open one.
    """

    name: Name
    kind: SourceKind
    auth: Auth = Auth.STANDARD
    secret: Name
    older_secret: Name = ""
    user: Line = ""
    labels: Mapping[Subject, Line] = field(default_factory=dict)
    faults: Annotated[Mapping[Line, FaultClass], Items(MAX_ENTRIES)] = field(default_factory=dict)
    news_only: bool = False

    def check_fields(self) -> None:
        """Raises: MailboxError for a user without basic authentication, or the other way round."""
        if (self.auth is Auth.BASIC) is not bool(self.user):
            raise MailboxError("user", "belongs to basic authentication, and only there")

    def label(self, subject: Subject) -> str:
        """The label of an alert that names it."""
        return self.labels.get(subject, f"rekindle_{subject}")


def sources_from_wire(wire: object) -> dict[str, Source]:
    """Read the document, name -> source.

    Raises:
        InvalidSettings: names the field that is missing, wrong or not known.
    """
    body = read(Annotated[Mapping[str, Any], Items(MAX_SOURCES)], wire, error=InvalidSettings, at="sources document")
    return {name: entry(Source, name, source, at=name[:80]) for name, source in body.items()}
