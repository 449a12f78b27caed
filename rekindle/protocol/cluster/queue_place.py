"""Where a job stands in Slurm's queue, and what a new start of it loses there (docs/slurm-costs.md). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from rekindle.compat import StrEnum
from rekindle.protocol.bounds import Text
from rekindle.protocol.codec import Document


class QueueFact(StrEnum):
    """What places a job in the queue."""

    WAITING_SINCE = "waiting_since"  # what its age is counted from
    PRIORITY = "priority"
    NICE = "nice"
    QOS = "qos"


_WORDS: Final[Mapping[QueueFact, str]] = {
    QueueFact.WAITING_SINCE: "its age",
    QueueFact.PRIORITY: "a priority that an administrator gave it",
    QueueFact.NICE: "its nice value",
    QueueFact.QOS: "its QOS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoss(Document):
    """What a new start has otherwise than the start before it. `before` None: that is not known."""

    fact: QueueFact
    before: Annotated[str, Text(64)] | None
    now: Annotated[str, Text(64)]


def losses_text(losses: Iterable[QueueLoss]) -> str:
    """For people; "" for none."""
    listed = [f"{loss.fact.replace('_', ' ')} was {loss.before or 'not known'}, is {loss.now}" for loss in losses]
    return f"in the queue, {'; '.join(listed)}" if listed else ""


def will_lose_text(facts: Iterable[QueueFact]) -> str:
    """The same before it has happened."""
    listed = [_WORDS[fact] for fact in facts]
    return f"a new start of a job loses in Slurm's queue: {', '.join(listed)}" if listed else ""
