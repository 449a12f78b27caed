"""Where Slack's API is."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from chalicelib.domain.model.errors import InvalidSettings

SLACK: Final = "https://slack.com/api/"


def checked_url(url: str) -> str:
    """An address of Slack's API, ending in a slash: https, or plain http on this very machine.

    Raises:
        InvalidSettings: it is neither.
    """
    try:
        parts = urlsplit(url)
        is_here = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1", "localhost"}
        is_good = bool(parts.hostname) and (parts.scheme == "https" or is_here)
    except ValueError:
        is_good = False
    if not is_good or "@" in url or "?" in url or "#" in url:
        raise InvalidSettings("api_url", "must be an https address")
    return url if url.endswith("/") else url + "/"
