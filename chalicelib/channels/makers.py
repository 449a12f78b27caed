"""From an entry of the channels document to the Channel that sends; each kind is imported on its first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from chalicelib.channels.channel import Channel, Secrets
from chalicelib.channels.outbound import TOTAL_S
from chalicelib.domain.model.errors import InvalidSettings
from chalicelib.domain.notices.channels import ChannelConfig, ChannelKind
from chalicelib.ports.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Makers:
    """Makes Channels. Nothing is kept: a changed document or secret counts from the next message on."""

    secrets: Secrets
    clock: Clock
    slack: Callable[[ChannelConfig, Secrets], Channel] | None = None  # bootstrap's: it needs the table
    otlp: Callable[[ChannelConfig, Secrets], Channel] | None = None  # as well
    total_s: float = TOTAL_S  # what one webhook's receiver may take

    def make(self, config: ChannelConfig) -> Channel:
        """The Channel.

        Raises:
            InvalidSettings, UnknownEntity: it cannot be made from what the document and the secrets say.
        """
        match config.kind:
            case ChannelKind.WEBHOOK:
                from chalicelib.channels.webhook import Webhook

                return Webhook(config, self.secrets, clock=self.clock, total_s=self.total_s)
            case ChannelKind.APPRISE:
                from chalicelib.channels.apprise_channel import AppriseChannel

                return AppriseChannel(config, self.secrets, clock=self.clock)
            case ChannelKind.SLACK:
                return self._given(self.slack, config)
            case ChannelKind.OTLP:
                return self._given(self.otlp, config)
            case _:
                assert_never(config.kind)

    def _given(self, make: Callable[[ChannelConfig, Secrets], Channel] | None, config: ChannelConfig) -> Channel:
        if make is None:
            raise InvalidSettings(f"channels.{config.name}.kind", f"{config.kind} is not part of this deployment")
        return make(config, self.secrets)
