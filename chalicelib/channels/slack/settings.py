"""One Slack channel of the channels document, held against what Slack's own names look like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from chalicelib.channels.address import CONSOLE
from chalicelib.channels.slack.web_api_url import SLACK, checked_url
from chalicelib.domain.model.errors import InvalidSettings
from chalicelib.domain.notices.channels import ChannelConfig

# Source: docs.slack.dev, conversations: public and private channels C…, older private ones G…, direct messages D….
_CONVERSATION: Final = re.compile(r"[CGD][A-Z0-9]{5,24}\Z")
_USER: Final = re.compile(r"[UW][A-Z0-9]{5,24}\Z")
_GROUP: Final = re.compile(r"S[A-Z0-9]{5,24}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackSettings:
    """Where it posts, and who may press its buttons: these users, members of these groups, everyone in these channels.

    `console_url`: where the user serves a console, if anywhere.
    """

    name: str
    conversation: str
    token_name: str
    signing_name: str
    api_url: str
    console_url: str
    users: frozenset[str]
    groups: tuple[str, ...]
    channels: frozenset[str]

    @property
    def can_press(self) -> bool:
        """Someone is authorized, and requests can be verified by a secret. Without either there are no buttons."""
        return bool(self.signing_name and (self.users or self.groups or self.channels))

    def takes_answers_at(self, response_url: str) -> bool:
        """Whether an answer may be sent there: to Slack itself, whatever a request says."""
        try:
            asked, api = urlsplit(response_url), urlsplit(self.api_url)
        except ValueError:
            return False
        if api.scheme == "http":
            return (asked.scheme, asked.netloc) == (api.scheme, api.netloc)
        return asked.scheme == "https" and asked.netloc == f"hooks.{api.hostname}"


def slack_settings(config: ChannelConfig) -> SlackSettings:
    """The settings of a checked channel of type Slack.

    Raises:
        InvalidSettings: a value does not have the form of Slack's ids or addresses; it names the field.
    """
    at = f"channels.{config.name}"
    if not _CONVERSATION.match(config.text("channel")):
        raise InvalidSettings(f"{at}.channel", "must be Slack's id of a channel, such as C0123ABCD")
    for field, form in (("users", _USER), ("groups", _GROUP), ("channels", _CONVERSATION)):
        for number, value in enumerate(config.lists.get(field, ())):
            if not form.match(value):
                raise InvalidSettings(f"{at}.{field}.{number}", "must be Slack's own id, not a name")
    try:
        api_url = checked_url(config.text("api_url") or SLACK)
    except InvalidSettings as err:
        raise InvalidSettings(f"{at}.{err.field}", err.problem) from err
    if config.text("console_url") and not CONSOLE.match(config.text("console_url")):
        raise InvalidSettings(f"{at}.console_url", "must be the https address of a console, without a query")
    return SlackSettings(
        name=config.name,
        conversation=config.text("channel"),
        token_name=config.text("token_secret"),
        signing_name=config.text("signing_secret"),
        api_url=api_url,
        console_url=config.text("console_url"),
        users=frozenset(config.lists.get("users", ())),
        groups=config.lists.get("groups", ()),
        channels=frozenset(config.lists.get("channels", ())),
    )
