"""What the log of deliveries says to one who wants to deliver a notice over a channel. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ClaimResult(StrEnum):
    """Whether to deliver."""

    GO = "go"
    SENT = "sent"  # it has arrived: nothing to do
    HELD = "held"  # another invocation is sending it


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryClaim:
    """The answer. `attempt` counts from 1, over all that tried this notice on this channel."""

    begun: ClaimResult
    attempt: int = 1
