"""What the way out needs from the world, as Protocols; adapters make them real. Every method may raise Retryable."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from chalicelib.channels.channel import Channel
from chalicelib.domain.notices.channels import ChannelConfig, Channels
from chalicelib.domain.notices.deliveries import DeliveryClaim
from chalicelib.ports.notices import Notice


class ChannelFactory(Protocol):
    """Where Channels come from (channels.makers)."""

    def make(self, config: ChannelConfig) -> Channel:
        """Raises InvalidSettings, UnknownEntity."""
        ...


class DeliveryLog(Protocol):
    """One record per notice and channel, kept for some days; and how long a channel rests."""

    def begin(self, token: str, channel: str, *, now: datetime, held_until: datetime) -> DeliveryClaim:
        """Take the turn, unless the notice has arrived or another attempt's hold lasts. Conditional, so one wins."""
        ...

    def sent(self, token: str, channel: str, *, now: datetime) -> None:
        """It has arrived."""
        ...

    def failed(self, token: str, channel: str, *, why: str) -> None:
        """It has not: the turn is free again."""
        ...

    def rests_until(self, channel: str) -> datetime | None:
        """Until when nothing is to be sent over the channel; None where no pause was asked for."""
        ...

    def rest(self, channel: str, *, until: datetime) -> None:
        """Send nothing over the channel until then."""
        ...


class ChannelBook(Protocol):
    """The channels document."""

    def channels(self) -> Channels:
        """What can be used of it now; an empty one where there is none. Raises InvalidSettings: nothing of it can."""
        ...


class DeliveryQueue(Protocol):
    """The queue between fan-out and delivery, and the one for what could not be delivered."""

    def enqueue(self, bodies: Sequence[str]) -> None:
        """Lay them into the queue: all of them, or an error after which all may be laid in again."""
        ...

    def later(self, receipt: str, *, wait_s: int) -> None:
        """Let a message that was received come again after `wait_s` seconds. One that is gone is no error."""
        ...

    def bury(self, body: str, *, why: str, at: datetime) -> None:
        """Lay a message into the queue of the undeliverable, with the reason."""
        ...


class PageWriter(Protocol):
    """Incidents' pages (services.pages)."""

    def write(self, incident_id: str) -> bool:
        """Write the page again; False where that failed. Never raises."""
        ...


class LinkSource(Protocol):
    """What a notice leads to (channels.address)."""

    def addressed(self, notice: Notice) -> Notice:
        """The notice with its address as it is now. Never raises."""
        ...
