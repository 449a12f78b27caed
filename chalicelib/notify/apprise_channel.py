"""Any service that Apprise knows: PagerDuty, Opsgenie, Teams, e-mail and a hundred more, by one address.

Apprise is imported when the first such channel sends, in the `deliver` function and nowhere else, and of its plug-ins
the one that is asked for (ADR 0030). It says only whether a message was taken, never why not: every failure counts as
one that may pass.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from chalicelib.domain.actions import Severity
from chalicelib.domain.channels import ChannelConfig
from chalicelib.domain.errors import DependencyUnavailable, InvalidSettings
from chalicelib.notify.apprise_table import SERVICES
from chalicelib.notify.channel import Secrets
from chalicelib.notify.quiet import quieten
from chalicelib.notify.words import body_of, title_of
from chalicelib.ports import Notice

# Apprise's own words. Source: apprise.NotifyType.
_TYPES: Final = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.PAGE: "failure"}


class AppriseChannel:
    """notify.channel.Channel over Apprise."""

    def __init__(self, config: ChannelConfig, secrets: Secrets) -> None:
        """Raises InvalidSettings or UnknownEntity where the address cannot be used; no message holds the address."""
        self._name = config.name
        self._service = _service(secrets.secret(config.text("url_secret")), config.name)

    def send(self, notice: Notice, *, attempt: int) -> None:  # noqa: ARG002  Apprise has no word for a repetition
        """See notify.channel.Channel."""
        taken = self._service.notify(
            title=title_of(notice), body=body_of(notice), notify_type=_TYPES[notice.severity], body_format="text"
        )
        if not taken:
            raise DependencyUnavailable(f"{self._name}: its service did not take the message")


def _service(address: str, name: str) -> Any:
    at = f"channels.{name}.url_secret"
    where = SERVICES.get(address.partition("://")[0].lower())
    if where is None:
        raise InvalidSettings(at, "is not one address of a service that Apprise knows")
    import apprise

    quieten()  # its warnings quote the address
    module, _, word = where.partition(":")
    plugin = getattr(import_module(f"apprise.plugins.{module}"), word)
    # No file of Apprise's own is read or written: no plug-ins, no attachments, no state between two messages.
    asset = apprise.AppriseAsset(
        app_id="Rekindle", app_desc="Rekindle", app_url="", plugin_paths=[], secure_logging=True, async_mode=False
    )
    service = apprise.Apprise(asset=asset)
    try:
        service.add(plugin(**(plugin.parse_url(address) | {"asset": asset})))
    except TypeError:  # what Apprise raises, and parse_url's None, for an address with a part missing
        raise InvalidSettings(at, "lacks what its service needs") from None
    if len(service) != 1:
        raise InvalidSettings(at, "is not one address")
    return service
