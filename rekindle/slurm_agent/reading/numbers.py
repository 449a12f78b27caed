"""Whether a job that squeue shows is the one that is known under its number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.protocol.cluster.names import first_attempt
from rekindle.protocol.cluster.same_job import why_different
from rekindle.slurm_agent.base.ports import SlurmError
from rekindle.slurm_agent.reading.jobs import Job

AT_ONCE: Final = 16  # requests to S3: 400 documents take a second
MAX_ASKED: Final = 2000  # ahead, in one look; the others one by one


class Numbers:
    """Of one reading. `before` and `now` are numbers that were found to be no known job's, and when their jobs were
    submitted: they are not asked about again. `start`: see `Watch`."""

    def __init__(
        self,
        cluster: str,
        start: Callable[[str], AttemptDoc | None],
        *,
        before: dict[int, datetime | None],
        now: dict[int, datetime | None],
    ) -> None:
        self._cluster = cluster
        self._start = start
        self._before = before
        self._now = now
        self._asked: dict[int, AttemptDoc | None] = {}

    def ask(self, jobs: Iterable[Job], tracked: Collection[int]) -> None:
        """Ahead, where there are many protected jobs: at the very first reading, each is new."""
        new = [job.job for job in jobs if job.job not in tracked and self._is_new(job)]
        if len(new) < AT_ONCE:
            return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for number, found in pool.map(self._answer, new[:MAX_ASKED]):
                if not isinstance(found, SlurmError):
                    self._asked[number] = found

    def another(self, job: Job, docs: Iterable[AttemptDoc]) -> str:
        """Why this job only has the number of one that is known; "" where it is that one, or the number is new.

        docs: of the starts that are followed. Raises: SlurmUnavailable.
        """
        held = [doc for doc in docs if doc.slurm_job == job.job]
        known = max(held, key=lambda start: start.restart, default=None)
        if known is None and self._is_new(job):
            known = self._asked[job.job] if job.job in self._asked else self._start(self._first(job.job))
        if known is None:
            why = ""
        elif job.is_taken_down:  # its record speaks of the next start already
            why = why_different(known, user=job.user, restart=job.restart - 1, submitted_at=None)
        else:
            why = why_different(known, user=job.user, restart=job.restart, submitted_at=job.submitted)
        if not why:
            self._now[job.job] = job.submitted
        return why

    def _is_new(self, job: Job) -> bool:
        return job.job not in self._before or (job.restart == 0 and self._before[job.job] != job.submitted)

    def _answer(self, number: int) -> tuple[int, AttemptDoc | SlurmError | None]:
        try:
            return number, self._start(self._first(number))
        except SlurmError as err:
            return number, err

    def _first(self, number: int) -> str:
        return first_attempt(self._cluster, number).name
