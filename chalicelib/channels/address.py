"""The address that a notice carries: the console's, if the user has set one, else a signed link that expires.

A signed link is made at delivery, not when the notice was written: a delivery may be retried for hours, and must not
carry an expired link. The command beside it prints a new link; it needs permission to read the API.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from chalicelib.domain.model.errors import RecoveryError
from chalicelib.ports.notices import Address, IncidentPages, Notice

_LOG = logging.getLogger(__name__)

# What may stand in front of `/incidents/<id>`: https, a host, a path; an Incident's id is made of the same characters.
CONSOLE: Final = re.compile(r"https://[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]{0,300})?\Z")
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
LOOK_S: Final = 19.0  # what asking for the page may take of a delivery's time, with the reserve of aws.deadline


def in_console(console_url: str, incident_id: str) -> str:
    """The Incident's page in the user's own console; empty where no address is set, or one of both cannot be used."""
    if not console_url or not CONSOLE.match(console_url) or not _ID.match(incident_id):
        return ""
    return f"{console_url.rstrip('/')}/incidents/{incident_id}"


def lasting_links(incident_id: str, console_url: str) -> Address | None:
    """What stays true however late it is read; None where there is no Incident."""
    if not incident_id:
        return None
    command = f"rekindle show {shlex.quote(incident_id)} --report"
    return Address(url=in_console(console_url, incident_id), until=None, command=command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Gives each notice its address as it is handed over. `lasts` zero: no signed link leaves the account."""

    pages: IncidentPages
    console_url: str
    lasts: timedelta
    within: Callable[[float], AbstractContextManager[None]]

    def addressed(self, notice: Notice) -> Notice:
        """The notice with what can be opened now. Never raises, and never holds a delivery up for long."""
        address = lasting_links(notice.incident_id, self.console_url)
        if address is None or address.url or not self.lasts:
            return replace(notice, address=address)
        try:
            with self.within(LOOK_S):
                link = self.pages.link(notice.incident_id, lasts=self.lasts)
        except RecoveryError as err:
            extra = {"incident_id": notice.incident_id, "error": f"{err}"[:300]}
            _LOG.warning("a notice goes out without a link", extra=extra)
            link = None
        if link is not None:
            address = replace(address, url=link.url, until=link.until)
        return replace(notice, address=address)
