"""What would be refused of a copy, asked when a protected job is first seen and not when it is too late."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc, JobSpec
from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.cluster.orders import Order, Verb
from rekindle.slurm_agent.base.ports import SlurmError, SlurmRefused
from rekindle.slurm_agent.copies.compare import ASKED_NAME
from rekindle.slurm_agent.reading.jobs import ENDED

ORDER: Final = "rehearsal"
EVERY_S: Final = 15.0  # one sbatch each; after a start of the agent there may be hundreds of jobs to ask about


class Rehearsals:
    """`jobs` gives the starts that are followed, `spec` what is known of a submission, `would_take`
    asks sbatch and raises what it refuses. For one thread."""

    def __init__(
        self,
        *,
        jobs: Callable[[], tuple[AttemptDoc, ...]],
        spec: Callable[[str], JobSpec | None],
        would_take: Callable[[JobSpec, Order], None],
        now: Callable[[], datetime],
    ) -> None:
        self._jobs = jobs
        self._spec = spec
        self._would_take = would_take
        self._now = now
        self._found: dict[str, str] = {}  # by the spec: a line for people, empty where a copy would be taken
        self._asked_at = 0.0

    def lines(self) -> tuple[str, ...]:
        """What is known of the jobs that are there, one line each. Asks about one more at the most."""
        there = {doc.spec: doc for doc in self._jobs() if doc.spec is not None and doc.state not in ENDED}
        self._found = {sha: line for sha, line in self._found.items() if sha in there}
        left = (doc for sha, doc in there.items() if sha not in self._found and not doc.cannot_resubmit)
        doc = next(left, None)
        if doc is not None and time.monotonic() - self._asked_at >= EVERY_S:
            self._asked_at = time.monotonic()
            spec = self._written(doc)
            if spec is not None:
                self._found[doc.spec or ""] = self._asked(doc, spec)
        return tuple(f"job {there[sha].slurm_job}: {line}" for sha, line in self._found.items() if line)

    def _written(self, doc: AttemptDoc) -> JobSpec | None:
        """None where it is not kept here, or that cannot be read now."""
        with suppress(SlurmError):
            found = self._spec(doc.spec or "")
            return found if found is not None and found.script else None
        return None

    def _asked(self, doc: AttemptDoc, spec: JobSpec) -> str:
        if asked := spec.shown.get(ASKED_NAME):
            named = spec.options.get("job-name") or ""
            return f"it was submitted as {asked[:60]!r} and is {named[:60]!r}: if by a plug-in, a copy will be refused"
        now = self._now()
        order = Order(
            token=ORDER,
            verb=Verb.SUBMIT,
            cluster=doc.cluster,
            issued_at=now,
            expires_at=now + timedelta(minutes=1),
            attempt=doc.attempt,
            slurm_job=doc.slurm_job,
            new_attempt=f"{parse_attempt(doc.attempt).restarted(0).name}-dry",
            spec=doc.spec,
        )
        try:
            self._would_take(spec, order)
        except SlurmRefused as err:
            return f"sbatch --test-only refuses a copy of it at present: {err}"[:300]
        except SlurmError:  # what hangs is not asked again: orders wait meanwhile
            return ""
        return ""
