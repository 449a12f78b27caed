"""From an entry of the channels document to the Slack channel."""

from __future__ import annotations

from dataclasses import dataclass

from chalicelib.domain.channels import ChannelConfig
from chalicelib.notify.channel import Channel, Secrets
from chalicelib.notify.slack import Reads, SlackChannel, Threads
from chalicelib.notify.slack_api import SlackApi
from chalicelib.notify.slack_settings import slack_settings
from chalicelib.ports import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackMaker:
    """notify.channel.ChannelMaker."""

    threads: Threads
    incidents: Reads
    clock: Clock

    def __call__(self, config: ChannelConfig, secrets: Secrets) -> Channel:
        """Raises InvalidSettings; a missing token is told by the first message."""
        settings = slack_settings(config)
        return SlackChannel(
            name=settings.name,
            conversation=settings.conversation,
            api=SlackApi(lambda: secrets.secret(settings.token_name), url=settings.api_url),
            threads=self.threads,
            incidents=self.incidents,
            clock=self.clock,
            can_press=settings.can_press,
        )
