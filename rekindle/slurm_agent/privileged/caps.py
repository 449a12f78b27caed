"""What was changed on this head node in the last day, counted in a file: the caps hold whatever is ordered.

It also knows which jobs the agent has held and submitted here: those may always be given back.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from rekindle.slurm_agent.privileged.allowed import Counted

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
KEPT_S: Final = 30 * DAY_S  # how long it is known of a job
MAX_KEPT: Final = 10_000
MAX_BYTES: Final = 4 * 1024 * 1024
HELD: Final = "held"
SUBMITTED: Final = "submitted"


class Caps:
    """For one thread. Each change is written down before it is made: a crash in between counts too much, never too
    little. While the disk takes nothing, what is done is counted in memory, as the agent's orders are. Raises OSError
    where the file cannot be read, and ValueError where it is not ours."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        self._unwritten: tuple[dict[str, list[float]], dict[str, tuple[str, float]]] | None = None

    def over(self, counted: Counted, caps: Mapping[Counted, tuple[int, int]]) -> str:
        """Which cap one more would exceed; "" for none. What is dated later than now, by a clock set back, counts."""
        times, now = self._read()[0].get(counted, []), self._now()
        for cap, span, name in zip(caps[counted], (HOUR_S, DAY_S), ("hour", "day"), strict=True):
            if sum(at > now - span for at in times) >= cap:
                return f"{cap} {counted} per {name} is the cap here"
        return ""

    def count(self, counted: Counted) -> None:
        changes, jobs = self._read()
        changes.setdefault(counted, []).append(self._now())
        self._write(changes, jobs)

    def note(self, job: int, what: str) -> None:
        """The agent has held or submitted that job; "": let go, which leaves the time at which it had."""
        changes, jobs = self._read()
        _, at = jobs.pop(str(job), ("", 0.0))
        jobs[str(job)] = (what, self._now() if what else at)
        self._write(changes, jobs)

    def noted(self, job: int) -> str:
        return self._read()[1].get(str(job), ("", 0.0))[0]

    def noted_at(self, job: int) -> float:
        """When it was held or submitted here last, in seconds since 1970; 0 where it was not."""
        return self._read()[1].get(str(job), ("", 0.0))[1]

    def _read(self) -> tuple[dict[str, list[float]], dict[str, tuple[str, float]]]:
        if self._unwritten is not None:
            return self._unwritten
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_BYTES)
        except FileNotFoundError:
            return {}, {}
        try:
            found = json.loads(raw)
            changes = {str(Counted(name)): [float(at) for at in times] for name, times in found["changes"].items()}
            jobs = {str(int(job)): (str(what), float(at)) for job, (what, at) in found["jobs"].items()}
        except (KeyError, TypeError, AttributeError, RecursionError) as err:
            raise ValueError(f"{self._path} does not say what was done") from err
        return changes, jobs

    def _write(self, changes: Mapping[str, list[float]], jobs: Mapping[str, tuple[str, float]]) -> None:
        now = self._now()
        kept = {
            "changes": {name: [at for at in times if at > now - DAY_S] for name, times in changes.items()},
            "jobs": dict([(job, noted) for job, noted in jobs.items() if noted[1] > now - KEPT_S][-MAX_KEPT:]),
        }
        beside = self._path.with_suffix(".new")
        self._unwritten = dict(changes), dict(jobs)
        with suppress(OSError):
            with beside.open("w") as file:
                json.dump(kept, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
            self._unwritten = None
