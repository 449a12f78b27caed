"""Readings of the host that a run trains on, such as its free memory: the place where a new one is added.

A reading is a function that returns a number now, and a row of READINGS that says from which value on, and for how
long, it is worth an event. The first process of each host reads them on a thread of its own, rekindle-host; a host
without a row has no such thread. The event is a plain report (`PLAIN_REPORTS` in rekindle/protocol/signals.py): it
becomes a Signal of the attempt, and what is done about it is the playbook's row of the fault that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rekindle.monitor.base.run import Clock
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.base.worker import Worker
from rekindle.monitor.mail.outbox import Outbox
from rekindle.protocol.signals import EventType

READ_EVERY_S: Final = 15.0  # as often as a heartbeat is written


@dataclass(frozen=True)
class HostReading:
    """One reading. It is reported once in the life of this process, when it has been at `limit` or above for `for_s`.

    `read` returns None where the value cannot be told, which is not below the limit either: the time starts anew. It
    runs on its own thread and may raise. `why`: the event's text, with the fields {value} and {minutes}.
    """

    event: EventType
    read: Callable[[], float | None]
    limit: float
    for_s: float
    why: str


READINGS: Final[tuple[HostReading, ...]] = ()


class HostWatch:
    """Reads the host, and reports what has lasted."""

    def __init__(
        self, readings: Sequence[HostReading], report: Callable[[EventType, str], None], clock: Clock, trouble: Trouble
    ) -> None:
        self._waiting = list(readings)
        self._since: dict[HostReading, float] = {}
        self._report, self._clock, self._trouble = report, clock, trouble

    def turn(self) -> float:
        now = self._clock.monotonic()
        for reading in list(self._waiting):
            value = None
            try:
                value = reading.read()
            except Exception as err:  # a reader may raise anything, and the others are read all the same
                self._trouble.once(f"host:{reading.event}", "A reading of this host failed: %s", err)
            if value is None or value < reading.limit:
                self._since.pop(reading, None)
            elif (lasted_s := now - self._since.setdefault(reading, now)) >= reading.for_s:
                self._waiting.remove(reading)
                self._report(reading.event, reading.why.format(value=value, minutes=lasted_s / 60.0))
        return READ_EVERY_S


def host_workers(env: Mapping[str, str], *, outbox: Outbox, clock: Clock, trouble: Trouble) -> list[Worker]:
    """The thread that reads the host, in the first process of each; none where there is nothing to read.

    Source: torch.distributed.run, LOCAL_RANK; srun(1), SLURM_LOCALID. A process that has neither is alone.
    """
    if not READINGS or env.get("LOCAL_RANK", env.get("SLURM_LOCALID", "0")) != "0":
        return []
    watch = HostWatch(READINGS, lambda event, why: outbox.push(event, why=why), clock, trouble)
    return [Worker("host", watch.turn, trouble)]
