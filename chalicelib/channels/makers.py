"""From an entry of the channels document to the Channel that sends; each kind is imported on its first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from chalicelib.channels.channel import Channel, Secrets
from chalicelib.channels.outbound import TOTAL_S
from chalicelib.domain.notices.channels import AppriseConfig, ChannelConfig, SlackConfig, WebhookConfig
from chalicelib.ports.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Makers:
    """Makes Channels. Nothing is kept: a changed document or secret counts from the next message on."""

    secrets: Secrets
    clock: Clock
    slack: Callable[[SlackConfig, Secrets], Channel]  # bootstrap's: it needs the table
    total_s: float = TOTAL_S  # what one webhook's receiver may take

    def make(self, config: ChannelConfig) -> Channel:
        """The Channel.

        Raises:
            InvalidSettings, UnknownEntity: it cannot be made from what the document and the secrets say.
        """
        match config:
            case WebhookConfig():
                from chalicelib.channels.webhook import Webhook

                return Webhook(config, self.secrets, clock=self.clock, total_s=self.total_s)
            case AppriseConfig():
                from chalicelib.channels.apprise_channel import AppriseChannel

                return AppriseChannel(config, self.secrets, clock=self.clock)
            case SlackConfig():
                return self.slack(config, self.secrets)
            case _:
                assert_never(config)
