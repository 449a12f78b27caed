"""How notices reach people: from the bus to the queue of deliveries, and from there to each channel."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from chalicelib.bootstrap.reporting import ReportingParts

if TYPE_CHECKING:
    from chalicelib.channels.address import Addresses
    from chalicelib.channels.channel import Channel, Secrets
    from chalicelib.channels.delivery.deliver import Deliverer
    from chalicelib.channels.delivery.fan_out import FanOut
    from chalicelib.channels.makers import Makers
    from chalicelib.domain.notices.channels import SlackConfig


class ChannelParts(ReportingParts):
    """What `notice_event` and `deliver` use."""

    @cached_property
    def makers(self) -> Makers:
        from chalicelib.channels.makers import Makers

        return Makers(secrets=self.written, clock=self.clock, slack=self.slack_channel)

    def slack_channel(self, config: SlackConfig, secrets: Secrets) -> Channel:
        """One Slack channel of the document; Slack's library is loaded by the first."""
        from chalicelib.channels.slack.channel import SlackChannel
        from chalicelib.channels.slack.settings import can_press, slack_settings
        from chalicelib.channels.slack.web_api import SlackApi

        given = slack_settings(config)
        return SlackChannel(
            name=given.name,
            conversation=given.channel,
            api=SlackApi(lambda: secrets.secret(given.token_secret), url=given.api_url),
            threads=self.chats,
            incidents=self.store,
            clock=self.clock,
            can_press=can_press(given),
            ledger=self.incident_ledger,
            console_url=given.console_url or self.settings.console_url,
        )

    @cached_property
    def addresses(self) -> Addresses:
        from chalicelib.channels.address import Addresses

        return Addresses(
            pages=self.page_store,
            console_url=self.settings.console_url,
            lasts=timedelta(hours=self.settings.notice_link_hours),
            within=self.clients.deadline.within,
        )

    @cached_property
    def fan_out(self) -> FanOut:
        from chalicelib.channels.delivery.fan_out import FanOut

        return FanOut(
            book=self.written,
            queue=self.delivery_queue,
            clock=self.clock,
            report=self.observability.record,
            pages=self.pages,
        )

    @cached_property
    def deliver(self) -> Deliverer:
        from chalicelib.channels.delivery.deliver import Deliverer

        return Deliverer(
            book=self.written,
            queue=self.delivery_queue,
            log=self.delivery_log,
            makers=self.makers,
            clock=self.clock,
            report=self.observability.record,
            left_s=self.clients.deadline.left_s,
            addresses=self.addresses,
        )
