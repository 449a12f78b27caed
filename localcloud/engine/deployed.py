"""What is deployed on the embedded cloud's Lambda, and how a call names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from localcloud.engine.durable import Handler
from localcloud.engine.functions import Settings


@dataclass(slots=True)
class Functions:
    """What is deployed: handlers and settings by function name; which are durable, with their alias and versions.

    Each deployment of a durable function publishes a version, and the alias points to the newest (`AutoPublishAlias` of
    the template). An execution stays on the version that it began with. Source: Lambda guide, durable-functions.
    """

    handlers: dict[str, Handler] = field(default_factory=dict)
    settings: dict[str, Settings] = field(default_factory=dict)
    durable: dict[str, str] = field(default_factory=dict)
    published: dict[str, list[Handler]] = field(default_factory=dict)

    def __getitem__(self, function: str) -> Handler:
        """By `name` or `name:qualifier`. Raises: KeyError."""
        name, _, qualifier = function.partition(":")
        versions = self.published.get(name, [])
        if qualifier.isdigit() and 1 <= int(qualifier) < len(versions):
            return versions[int(qualifier) - 1]
        return self.handlers[name]

    def settings_of(self, name: str) -> Settings:
        """Of a function by its bare name; Lambda's defaults where it was deployed without any."""
        return self.settings.get(name) or Settings(name=name, entry=name)

    def deploy(
        self,
        handlers: Mapping[str, Handler],
        durable: Mapping[str, str],
        settings: Mapping[str, Settings] | None = None,
    ) -> None:
        """Put these in the place of what has their names; the durable ones become a new version."""
        self.handlers |= handlers
        self.settings |= settings or {}
        self.durable |= durable
        for name in durable:
            self.published.setdefault(name, []).append(self.handlers[name])

    def version_of(self, name: str, qualifier: str) -> str | None:
        """The version that a qualifier of a durable function stands for; None where there is no such one."""
        newest = len(self.published[name])
        if qualifier in {self.durable[name], "$LATEST"}:
            return str(newest)
        return qualifier if qualifier.isdigit() and 1 <= int(qualifier) <= newest else None


def split_name(function_name: str, qualifier: str | None) -> tuple[str, str | None]:
    """Name and qualifier of whatever AWS takes as FunctionName: a name, name:qualifier, partial or whole ARN."""
    text = function_name
    if ":function:" in text:
        text = text.split(":function:", 1)[1]
    name, _, inline = text.partition(":")
    return name, inline or qualifier
