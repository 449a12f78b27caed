"""A job's place in the queue, from its record, and what one start has lost of another's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rekindle.protocol.cluster.queue_place import QueueFact, QueueLoss
from rekindle.slurm_agent.base.ports import QueuePlace
from rekindle.slurm_agent.reading import text


def place_of(shown: Mapping[str, str]) -> QueuePlace:
    """Of the pairs of scontrol show job."""
    nice = text.value(shown.get("Nice"))
    return QueuePlace(
        waiting_since=text.moment(shown.get("SubmitTime")),
        priority=text.whole(shown.get("Priority")) or None,
        nice=int(nice) if text.is_number(nice.removeprefix("-")) else None,
        qos=text.value(shown.get("QOS")),
    )


def losses(before: QueuePlace, now: QueuePlace) -> Iterator[QueueLoss]:
    """What differs; of a priority also that the one before is not known."""
    for fact, old, new in (
        (QueueFact.WAITING_SINCE, _time(before), _time(now)),
        (QueueFact.PRIORITY, _number(before.priority), _number(now.priority)),
        (QueueFact.NICE, _number(before.nice), _number(now.nice)),
        (QueueFact.QOS, before.qos or None, now.qos or None),
    ):
        if new is not None and new != old and (old is not None or fact is QueueFact.PRIORITY):
            yield QueueLoss(fact=fact, before=old, now=new)


def _time(place: QueuePlace) -> str | None:
    return None if place.waiting_since is None else place.waiting_since.isoformat(timespec="seconds")


def _number(given: int | None) -> str | None:
    return None if given is None else str(given)
