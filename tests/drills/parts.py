"""What the tests of drills share."""

from __future__ import annotations

from collections import Counter

from localcloud.worlds.recoveries import World

# What is no read. Counted over every call that left a client.
_READS = ("Describe", "Get", "List", "Head", "Query", "BatchGet")


def writes(calls: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in calls.items() if not name.split(".")[1].startswith(_READS)}


def step_of(made: World, name: str, job: str) -> int:
    """The attempt's step by its own heartbeat."""
    look = made.service.look
    view = look.mailbox.heartbeat(made.service.registry.get(job), look.scheduler.of_name(name).describe(name))
    return int(getattr(view.last_step, "value", 0))


def until_step(made: World, name: str, step: int, *, job: str = "") -> None:
    made.run_until(lambda: made.service.registry.job_of_attempt(name) is not None)
    made.run_until(lambda: step_of(made, name, job or name) >= step)
