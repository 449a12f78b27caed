"""One Slack channel of the channels document, held against what Slack's own names look like."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from chalicelib.channels.address import CONSOLE
from chalicelib.domain.model.errors import InvalidSettings
from chalicelib.domain.notices.channels import SlackConfig

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


# Source: docs.slack.dev, conversations: public and private channels C…, older private ones G…, direct messages D….
_CONVERSATION: Final = re.compile(r"[CGD][A-Z0-9]{5,24}\Z")
_USER: Final = re.compile(r"[UW][A-Z0-9]{5,24}\Z")
_GROUP: Final = re.compile(r"S[A-Z0-9]{5,24}\Z")


def can_press(config: SlackConfig) -> bool:
    """Someone is authorized, and requests can be verified by a secret. Without either there are no buttons."""
    return bool(config.signing_secret and (config.users or config.groups or config.channels))


def takes_answers_at(response_url: str, api_url: str) -> bool:
    """Whether an answer may be sent there: to Slack itself, whatever a request says."""
    try:
        asked, api = urlsplit(response_url), urlsplit(api_url)
    except ValueError:
        return False
    if api.scheme == "http":
        return (asked.scheme, asked.netloc) == (api.scheme, api.netloc)
    return asked.scheme == "https" and asked.netloc == f"hooks.{api.hostname}"


def slack_settings(config: SlackConfig) -> SlackConfig:
    """A channel of type Slack whose every value can be used, with the address of the API to call.

    Raises:
        InvalidSettings: a value does not have the form of Slack's ids or addresses; it names the field.
    """
    at = f"channels.{config.name}"
    if not _CONVERSATION.match(config.channel):
        raise InvalidSettings(f"{at}.channel", "must be Slack's id of a channel, such as C0123ABCD")
    for field, given, form in (
        ("users", config.users, _USER),
        ("groups", config.groups, _GROUP),
        ("channels", config.channels, _CONVERSATION),
    ):
        for number, value in enumerate(given):
            if not form.match(value):
                raise InvalidSettings(f"{at}.{field}.{number}", "must be Slack's own id, not a name")
    try:
        api_url = checked_url(config.api_url or SLACK)
    except InvalidSettings as err:
        raise InvalidSettings(f"{at}.{err.field}", err.problem) from err
    if config.console_url and not CONSOLE.match(config.console_url):
        raise InvalidSettings(f"{at}.console_url", "must be the https address of a console, without a query")
    return replace(config, api_url=api_url)
