"""Whose a Job is: a comment may only speak of its own user's Jobs.

Everybody may write a comment. `job=` and `attempt=` in it make a job part of a Job that there is already, with its
mailbox, its fence and its next attempt: taken at its word, any user could end or replace any other user's run. So both
count only where the Job's first start belongs to the user whom Slurm names for this job. That start's user is known
from our own readings, else from its document in the cluster state, which the agent before this one has written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.protocol.cluster.names import SlurmAttempt, attempt_key, is_slurm, parse_attempt
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.reading.comment import Comment
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.run import Unreadable

MAX_KEPT: Final = 50_000
T = TypeVar("T")
# Claims of one user that the cluster state is asked about in so many seconds: thousands of false ones, each a request,
# must neither hold up the look nor keep other users' from being found right.
ASKED_AT_MOST: Final = 20
ASKED_IN_S: Final = 10.0
FOREIGN: Final = "the comment names a Job of someone else, which is passed over"


class Owners:
    """`read` gives what the cluster state holds under a key, None for nothing; raises SlurmUnavailable where that
    is unknown now. For several threads."""

    def __init__(self, cluster: str, read: Callable[[str], bytes | None]) -> None:
        self._cluster = cluster
        self._read = read
        self._lock = threading.Lock()
        self._seen: dict[str, str] = {}
        self._reported: dict[str, str | None] = {}
        self._asked: dict[str, tuple[float, int]] = {}

    def learn(self, docs: Iterable[AttemptDoc]) -> None:
        """From what the agent itself has seen of jobs under their own ids."""
        with self._lock:
            for doc in docs:
                if doc.user and parse_attempt(doc.attempt).base == str(doc.slurm_job):
                    _keep(self._seen, self._first(str(doc.slurm_job)), doc.user)

    def seen(self, attempt: str) -> str | None:
        """The user of the Job's first start, as this agent has seen it itself; None where it has not."""
        with self._lock:
            return self._seen.get(self._first(parse_attempt(attempt).base))

    def of(self, attempt: str) -> str | None:
        """The user of the Job's first start, None where nothing tells. Raises: SlurmUnavailable, MailboxError."""
        first = self._first(parse_attempt(attempt).base)
        with self._lock:
            if first in self._seen:
                return self._seen[first]
            if first in self._reported:
                return self._reported[first]
        raw = self._read(attempt_key(first))
        reported = None
        if raw is not None:
            try:
                doc = AttemptDoc.from_json(raw)
                reported = doc.user if doc.attempt == first else None
            except MailboxError:
                reported = None
        with self._lock:
            _keep(self._reported, first, reported or None)
        return reported or None

    def own(self, asked: Comment, job: Job) -> Comment:
        """The comment without what is not its user's to say. Raises: SlurmUnavailable where that is unknown now."""
        named = [name for name in (asked.job, asked.attempt) if name is not None]
        if not named or all(self._is_own(name, job) for name in named):
            return asked
        return replace(asked, job=None, attempt=None, problems=(*asked.problems, FOREIGN))

    def _is_own(self, name: str, job: Job) -> bool:
        if not is_slurm(name) or parse_attempt(name).cluster != self._cluster:
            return False
        if _number(parse_attempt(name).base) == str(job.job):
            return True
        first = self._first(parse_attempt(name).base)
        with self._lock:
            is_known = first in self._seen or first in self._reported
        if not is_known:
            self._count(job.user)
        try:
            return self.of(name) == job.user != ""
        except MailboxError:
            return False

    def _count(self, user: str) -> None:
        now = time.monotonic()
        with self._lock:
            since, count = self._asked.get(user, (now, 0))
            if now - since >= ASKED_IN_S:
                since, count = now, 0
            if count >= ASKED_AT_MOST:
                raise Unreadable(f"whose Job its comment names is asked later: user {user} has many such jobs")
            _keep(self._asked, user, (since, count + 1))

    def _first(self, base: str) -> str:
        return SlurmAttempt(cluster=self._cluster, base=_number(base)).name


def _number(base: str) -> str:
    """`412-a3x1` -> `412`: the Slurm job that the Job began with."""
    return base.partition("-")[0]


def _keep(kept: dict[str, T], name: str, user: T) -> None:
    kept.pop(name, None)
    kept[name] = user
    if len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]
