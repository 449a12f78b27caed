"""Whose alerts are taken in, as data: the document `/<stage>/sources` in Parameter Store (docs/notifications.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from chalicelib.domain.model.errors import InvalidSettings
from chalicelib.domain.policy.readers import a_flag, a_name, a_text, a_word, an_object, only
from rekindle.protocol.signals import FaultClass

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


LABELS: Final[Mapping[Subject, str]] = {subject: f"rekindle_{subject}" for subject in Subject}
"""The label of an alert that names each of them, unless the source's `labels` says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source. `secret` and `older_secret` are names of secrets; `user` belongs to basic authentication.

    `faults` maps an alert's name to a fault class, for alerts without a label that says so. `is_news`: its alerts join
    open Incidents and never open one.
    """

    name: str
    kind: SourceKind
    auth: Auth
    secret: str
    older_secret: str = ""
    user: str = ""
    labels: Mapping[Subject, str] = field(default_factory=lambda: dict(LABELS))
    faults: Mapping[str, FaultClass] = field(default_factory=dict)
    is_news: bool = False


def sources_from_wire(wire: object) -> dict[str, Source]:
    """Read the document, name -> source.

    Raises:
        InvalidSettings: names the field that is missing, wrong or not known.
    """
    body = an_object(wire, "sources document")
    if len(body) > MAX_SOURCES:
        raise InvalidSettings("sources", f"at most {MAX_SOURCES}")
    return {name: _source(name, entry) for name, entry in body.items()}


def _source(name: str, wire: object) -> Source:
    at = name[:80]
    a_name(name, at)
    body = an_object(wire, at)
    only(body, at, ("kind", "auth", "secret", "older_secret", "user", "labels", "faults", "news_only"))
    auth = a_word(body.get("auth", Auth.STANDARD.value), f"{at}.auth", Auth)
    if (auth is Auth.BASIC) is not ("user" in body):
        raise InvalidSettings(f"{at}.user", "belongs to basic authentication, and only there")
    return Source(
        name=name,
        kind=a_word(body.get("kind"), f"{at}.kind", SourceKind),
        auth=auth,
        secret=a_name(a_text(body.get("secret"), f"{at}.secret"), f"{at}.secret"),
        older_secret=a_name(a_text(body["older_secret"], f"{at}.older_secret"), f"{at}.older_secret")
        if "older_secret" in body
        else "",
        user=a_text(body["user"], f"{at}.user") if "user" in body else "",
        labels=_labels(body.get("labels", {}), f"{at}.labels"),
        faults=_faults(body.get("faults", {}), f"{at}.faults"),
        is_news=a_flag(body.get("news_only", False), f"{at}.news_only"),
    )


def _labels(value: Any, at: str) -> dict[Subject, str]:
    given = an_object(value, at)
    only(given, at, tuple(Subject))
    return {**LABELS, **{Subject(name): a_text(label, f"{at}.{name}") for name, label in given.items()}}


def _faults(value: Any, at: str) -> dict[str, FaultClass]:
    given = an_object(value, at)
    if len(given) > MAX_ENTRIES:
        raise InvalidSettings(at, f"at most {MAX_ENTRIES}")
    return {a_text(alert, at): a_word(fault, f"{at}.{alert[:80]}", FaultClass) for alert, fault in given.items()}
