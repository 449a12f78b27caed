"""A job's place in the queue, from its record, and what one start has lost of another's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from rekindle.protocol.cluster.orders import Order, Verb
from rekindle.protocol.cluster.queue_place import QueueFact, QueueLoss
from rekindle.slurm_agent.base.ports import QueuePlace
from rekindle.slurm_agent.reading import comment, text

PRIORITY: Final = "priority"  # a key of our note in AdminComment


def place_of(shown: Mapping[str, str]) -> QueuePlace:
    """Of the pairs of scontrol show job."""
    nice = text.value(shown.get("Nice"))
    return QueuePlace(
        waiting_since=text.moment(shown.get("SubmitTime")),
        priority=text.whole(shown.get("Priority")) or None,
        nice=int(nice) if text.is_number(nice.removeprefix("-")) else None,
        qos=text.value(shown.get("QOS")),
    )


def what_to_restore(before: QueuePlace, now: QueuePlace, moves: int | None) -> Iterator[dict[str, Any]]:
    """The changes that give a job its place again, in order. moves: by how much a priority may move by itself."""
    if before.qos not in ("", now.qos):
        yield {"qos": before.qos}
    if before.nice not in (None, now.nice):
        yield {"nice": before.nice}
    if before.priority and now.priority and moves is not None and abs(before.priority - now.priority) > moves:
        yield {"priority": before.priority}


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


def noted_priority(noted: str) -> int | None:
    asked = comment.parse(noted)
    return text.whole(dict(asked.others).get(PRIORITY)) if asked is not None else None


def noting(asked: comment.Comment, order: Order, did: Verb, priority: int | None = None) -> comment.Comment:
    """What it asks for, with the verb and the Incident of the newest order about it, and the priority that it had
    before it was held."""
    kept = [(key, said) for key, said in asked.others if key not in ("did", "incident", PRIORITY)]
    kept += [(PRIORITY, str(priority))] if priority is not None else []
    incident = [("incident", order.incident_id)] if order.incident_id else []
    return replace(asked, others=(*kept, ("did", did.value), *incident))
