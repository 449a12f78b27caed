"""Any service that Apprise knows: PagerDuty, Opsgenie, Teams, e-mail and a hundred more, by one address.

Apprise is imported, with all of its plug-ins, when the first such channel sends, in the `deliver` function and nowhere
else: some two seconds of the queue's time, once per sandbox. It says only whether a message was taken, never why not:
every failure counts as one that may pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chalicelib.channels.channel import Secrets
from chalicelib.channels.plain_text import body_of, title_of
from chalicelib.channels.quiet import quieten
from chalicelib.channels.standard_webhooks import message_id_of
from chalicelib.domain.model.errors import DependencyUnavailable, InvalidSettings
from chalicelib.domain.model.urgency import Severity
from chalicelib.domain.notices.channels import AppriseConfig
from chalicelib.ports.clock import Clock
from chalicelib.ports.notices import Notice

# Apprise's own words. Source: apprise.NotifyType.
_TYPES: Final = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.PAGE: "failure"}

# They speak to the desktop or the log of this very machine, a Lambda function. Source: the plug-ins of Apprise.
_NOT_HERE: Final = frozenset({"dbus", "glib", "gnome", "growl", "kde", "macosx", "qt", "syslog", "windows"})

# Where a service knows a repetition by a key, the argument that carries it, by the module of its plug-in. Each notice
# has a key of its own: with one key for a whole Incident, a second page would not ring while the first is open.
# Source: the plug-ins of Apprise 2.2.0; PagerDuty, Events API v2, dedup_key; Opsgenie, Alert API, alias.
KEYS: Final[Mapping[str, str]] = {
    "firehydrant": "dedup",
    "goalert": "dedup",
    "ilert": "dedup",
    "incidentio": "dedup",
    "opsgenie": "alias",
    "pagerduty": "dedup",
    "pagertree": "thirdparty",
    "signl4": "external_id",
    "splunk": "entity_id",
    "squadcast": "dedup",
}

# Where a service shows a link apart from the text, the argument that carries it. Source: the same plug-ins: PagerDuty's
# `links`, ntfy's X-Click.
LINKS: Final[Mapping[str, str]] = {"ntfy": "click", "pagerduty": "click"}


class AppriseChannel:
    """channels.channel.Channel over Apprise."""

    def __init__(self, config: AppriseConfig, secrets: Secrets, *, clock: Clock) -> None:
        """Raises InvalidSettings or UnknownEntity where the address cannot be used; no message holds the address."""
        self._name = config.name
        self._clock = clock
        self._address = _Address(secrets.secret(config.url_secret), f"channels.{config.name}.url_secret")
        self._address.speaker("")  # an address with a part missing is told before anything is sent

    def send(self, notice: Notice, *, attempt: int) -> None:  # noqa: ARG002  every attempt is the same message
        """See channels.channel.Channel. A service that knows repetitions by a key is given one."""
        import apprise

        speaker = self._address.speaker(
            message_id_of(notice.token, self._name), link=notice.address.url if notice.address is not None else ""
        )
        service = apprise.Apprise(asset=speaker.asset)
        service.add(speaker)
        now = self._clock.now()
        title = title_of(notice, now=now)
        room = int(speaker.body_maxlen) - (0 if speaker.title_maxlen > 0 else len(title) + 2)
        taken = service.notify(
            title=title,
            body=body_of(notice, now=now, limit=room),
            notify_type=_TYPES[notice.severity],
            body_format="text",
        )
        if not taken:
            raise DependencyUnavailable(f"{self._name}: its service did not take the message")


class _Address:
    """An address and the plug-in that speaks for it."""

    def __init__(self, address: str, at: str) -> None:
        self._at = at
        quieten()  # its warnings quote the address
        self._plugin = plugin_of(address.partition("://")[0].lower())
        if self._plugin is None:
            raise InvalidSettings(at, "is not one address of a service that Apprise knows")
        self._module = self._plugin.__module__.removeprefix("apprise.plugins.")
        self._given: Any = self._plugin.parse_url(address)
        if not self._given:
            raise InvalidSettings(at, "lacks what its service needs")

    def speaker(self, key: str, *, link: str = "") -> Any:
        """What sends; a repetition of the message has the same `key`. What stands in the address counts instead."""
        import apprise

        # No file of Apprise's own is read or written: no plug-ins, no attachments, no state between two messages.
        asset = apprise.AppriseAsset(
            app_id="Rekindle", app_desc="Rekindle", app_url="", plugin_paths=[], secure_logging=True, async_mode=False
        )
        # Too long a text is cut; most services refuse it, and a page would be lost for its length.
        given = {"overflow": "truncate"} | self._given | {"asset": asset}
        known_as = KEYS.get(self._module)
        if known_as is not None and key and not given.get(known_as):
            given[known_as] = key
        shown_as = LINKS.get(self._module)
        if shown_as is not None and link and not given.get(shown_as):
            given[shown_as] = link
        try:
            return self._plugin(**given)
        except TypeError:  # what Apprise raises for an address with a part missing
            raise InvalidSettings(self._at, "lacks what its service needs") from None


def plugin_of(scheme: str) -> Any:
    """The class of Apprise's that speaks for this scheme of an address; None where there is none."""
    from apprise.manager_plugins import NotificationManager

    plugins: Any = NotificationManager()  # type: ignore[no-untyped-call]  # Apprise is not typed
    return plugins[scheme] if scheme not in _NOT_HERE and scheme in plugins else None
