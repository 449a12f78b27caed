"""Reads Slurm and says what changed.

A look is one squeue and one scontrol show node. Beyond that: one squeue of steps while a protected job runs that is not
known to be ready, one scontrol show job for each protected job that changed, its script once, and what a job that
vanished needs. Nothing is remembered of a look that was not whole.

slurmctld being away, or back for a moment only, is never "all jobs are gone": a job counts as gone when slurmctld, up
for `SETTLED_S` at least, says "Invalid job id" to its very number.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from rekindle.compat import from_iso
from rekindle.protocol.cluster.documents import AttemptDoc, FollowedDoc, JobSpec, NodeFacts, NodesDoc, followed_key
from rekindle.protocol.cluster.names import attempt_key
from rekindle.protocol.cluster.queue_place import QueueFact
from rekindle.protocol.wire import WIRE_VERSION, MailboxError
from rekindle.slurm_agent.base.ports import Advice, Memory, News, OwnActions, Reading, SlurmError, SlurmUnavailable
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.privileged.remote import RemoteCaptures, RemoteNodeMap
from rekindle.slurm_agent.privileged.submissions import Captures
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.comment import Comment
from rekindle.slurm_agent.reading.jobs import ENDED, Job
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.numbers import AT_ONCE
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.watching.advice import advice, have_begun_again, numbering
from rekindle.slurm_agent.watching.attempt_docs import job_news
from rekindle.slurm_agent.watching.captures import JobCapture
from rekindle.slurm_agent.watching.context import ATTEMPT, KNOWN, MEMORY, NODES, WRITTEN, LookInputs, LookMemory
from rekindle.slurm_agent.watching.followed_jobs import FollowedJobs
from rekindle.slurm_agent.watching.joining import Joining
from rekindle.slurm_agent.watching.look import SlurmLook
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.protection import Protection, remembered

log = logging.getLogger(__name__)

SETTINGS_EVERY: Final = timedelta(minutes=5)
# A job joins by the first news of it. Should that be lost on its way, it joins by this: a lost event costs time only.
TELL_AGAIN_EVERY: Final = timedelta(minutes=10)
# What lies in the cluster state unchanged for 90 days is removed there (infra/template/storage.yaml).
WRITE_AGAIN_EVERY: Final = timedelta(days=30)
REPORTED_FOR: Final = timedelta(hours=1)  # that a memory was lost


@dataclass(slots=True, kw_only=True)
class _RecalledState:
    """What an agent that lost its state directory has read back of what it followed, at `at`: nothing where none has
    followed anything on this cluster before."""

    docs: tuple[AttemptDoc, ...]
    at: datetime
    is_kept: bool = False

    def reported_in(self, reading: Reading, now_held: Mapping[str, AttemptDoc], now: datetime) -> Reading:
        """The reading's result, with what was read back kept in the memory, once, and reported for a while."""
        memory = dict(reading.memory)
        if not self.is_kept:
            memory = {**{f"{ATTEMPT}{doc.attempt}": doc.to_json() for doc in self.docs}, **memory}
            self.is_kept = True
        if not self.docs or not timedelta(0) <= now - self.at < REPORTED_FOR:
            return replace(reading, memory=memory)
        closed = sum(doc.attempt not in now_held for doc in self.docs)
        held = sum(doc.held for doc in now_held.values())
        text = (
            f"this agent had no memory of its own: {len(self.docs)} starts were read back from the cluster state; "
            f"{closed} of them are closed by now, {held} wait held and can be released"
        )
        return replace(reading, memory=memory, problems=(text, *reading.problems))


def _read_back(
    cluster: str,
    published: Callable[[str], bytes | None],
    written: Callable[[str], AttemptDoc | None],
    now: datetime,
) -> _RecalledState:
    """Raises: SlurmUnavailable, also where the list cannot be read: what is not known must not be overwritten."""
    raw = published(followed_key(cluster))
    if raw is None:
        return _RecalledState(docs=(), at=now)
    try:
        names = FollowedDoc.from_json(raw).attempts
    except MailboxError as err:
        raise Unreadable(f"{followed_key(cluster)}: {err}") from err
    with ThreadPoolExecutor(AT_ONCE) as pool:
        docs = tuple(doc for doc in pool.map(written, names) if doc is not None and doc.cluster == cluster)
    log.warning("part=watcher memory=lost read_back=%d", len(docs))
    return _RecalledState(docs=docs, at=now)


class Watch:
    """`published` gives what the cluster state holds under a key, None for nothing; raises SlurmUnavailable where that
    is unknown now."""

    def __init__(
        self,
        *,
        cluster: str,
        reads: CopyReads,
        node_map: NodeMap | RemoteNodeMap,
        memory: Memory,
        own_actions: OwnActions,
        followed_jobs: FollowedJobs,
        published: Callable[[str], bytes | None],
        owners: Owners,
        joining: Joining,
        files: UserFiles,
        captures: Captures | RemoteCaptures,
    ) -> None:
        self.slurm_version = ""
        self.cluster_arn = ""
        self.queue_losses: tuple[QueueFact, ...] = ()
        self._reported_at: datetime | None = None
        self._highest = 0  # number of a job that was ever followed
        self._known_then = 0  # the same, when the settings were read
        self._reads = reads
        self._published = published
        self._inputs = LookInputs(
            cluster=cluster,
            reads=reads,
            node_map=node_map,
            own_actions=own_actions,
            start=self._written,
            owners=owners,
            joining=joining,
            protection=Protection(cluster, joining, owners, start=self.start, spec=self.spec),
            files=files,
            captures=captures,
        )
        self._followed_jobs = followed_jobs
        self._settings: tuple[datetime, Settings] | None = None
        self._held = LookMemory(docs=_docs(memory), known=_known(memory), nodes=_nodes(memory))
        self._has_memory = bool(memory.items(MEMORY))
        self._all_written_at = _time(memory.items(WRITTEN).get(WRITTEN))
        self._recalled: _RecalledState | None = None
        self._is_all_due = False
        owners.learn(self._held.docs.values())

    def current_settings(self) -> Settings:
        """As last read, else read now. Raises: SlurmError."""
        return self._settings[1] if self._settings is not None else self._reads.settings()

    def start(self, attempt: str) -> AttemptDoc | None:
        return self._held.docs.get(attempt) or self._written(attempt)

    def _written(self, attempt: str) -> AttemptDoc | None:
        """A start's document in the cluster state; None also for one that cannot be read."""
        raw = self._published(attempt_key(attempt))
        try:
            return AttemptDoc.from_json(raw) if raw is not None else None
        except MailboxError:
            return None

    def spec(self, name: str) -> JobSpec | None:
        """What is needed to submit a job again; None where it is not kept here, or cannot be read."""
        return self._inputs.captures.kept.get(name)

    @property
    def commands(self) -> int:
        return self._reads.commands

    def advice(self, now: datetime) -> tuple[Advice, ...]:
        settings = self._reads.settings()
        return tuple(
            advice(
                settings,
                self._reads.nodes(),
                cluster=self._inputs.cluster,
                highest=self._highest,
                now=now,
                reads_state=self._inputs.captures.state(settings).is_readable(),
                is_hyperpod=bool(self.cluster_arn),
            )
        )

    def asked(self, job: Job) -> Comment | None:
        """What a job asks for, now; None where it is not protected. One that wants no protection any more and waits
        because we hold it is followed until it is let go. Raises: SlurmUnavailable.
        """
        held = self._held
        found = [doc for doc in held.docs.values() if doc.slurm_job == job.job]
        before = max(found, key=lambda doc: doc.restart, default=None)
        known = held.known.get(job.job)
        if before is not None and job.job in held.to_release:
            return remembered(before)
        return self._inputs.protection.of(job, before, known.comment if known else "")

    def held_unprotected(self) -> tuple[int, ...]:
        """See `Commands`, as of the last reading."""
        return tuple(sorted(self._held.to_release))

    def followed(self) -> tuple[AttemptDoc, ...]:
        """The starts that were not over at the last reading, or are still shown."""
        return tuple(self._held.docs.values())

    def late_copies(self) -> tuple[int, ...]:
        """See `Commands`, as of the last reading."""
        return tuple(sorted(self._held.late_copies))

    def tell_again(self) -> None:
        self._is_all_due = True

    def read(self, now: datetime) -> Reading:
        """One reading. Raises: SlurmUnavailable."""
        settings = self._read_settings(now)
        if not self._has_memory and self._recalled is None:
            self._recall(now)
        self._inputs.captures.kept.write()
        is_first = self._all_written_at is None
        is_late = not is_first and not timedelta(0) <= now - (self._all_written_at or now) < WRITE_AGAIN_EVERY
        is_all_due, held = self._is_all_due or is_late, self._held
        if is_all_due:
            held = replace(held, nodes=None, followed=None)
        look = SlurmLook(self._inputs, held, now, settings)
        try:
            reading = look.look()
        except SlurmUnavailable:
            raise
        except SlurmError as err:  # a refused read tells nothing about any job
            raise Unreadable(str(err)) from err
        if self._recalled is not None:
            reading = self._recalled.reported_in(reading, look.held.docs, now)
            self._has_memory = True
        if is_all_due:
            self._is_all_due = False
            every = {attempt_key(doc.attempt): doc.to_json() for doc in look.held.docs.values()}
            reading = replace(reading, documents={**every, **reading.documents})
            self._inputs.captures.kept.sweep({doc.spec for doc in look.held.docs.values() if doc.spec is not None})
        if is_all_due or is_first:
            self._all_written_at = now
            reading = replace(reading, memory={**reading.memory, WRITTEN: now.isoformat().encode()})
        self._held = look.held
        self._highest = max([self._highest, *(doc.slurm_job for doc in self._held.docs.values())])
        if have_begun_again(settings, self._known_then):
            reading = replace(reading, problems=(numbering(settings, self._known_then), *reading.problems))
        self._followed_jobs.put(look.members)
        self.slurm_version, self.cluster_arn = settings.version, look.arn
        self.queue_losses = settings.queue_losses
        return replace(reading, news=reading.news + self._again(now)) if self._is_due(now) else reading

    def _recall(self, now: datetime) -> None:
        """The memory is lost: what was published is read back."""
        self._recalled = _read_back(self._inputs.cluster, self._published, self._written, now)
        self._held.docs = {doc.attempt: doc for doc in self._recalled.docs}
        self._inputs.owners.learn(self._recalled.docs)
        self._known_then = max([self._known_then, *(doc.slurm_job for doc in self._recalled.docs)])

    def _is_due(self, now: datetime) -> bool:
        """Also after the clock was set back."""
        is_due = self._reported_at is not None and not timedelta(0) <= now - self._reported_at < TELL_AGAIN_EVERY
        if is_due or self._reported_at is None:
            self._reported_at = now
        return is_due

    def _again(self, now: datetime) -> tuple[News, ...]:
        """How every start stands that is not over."""
        return tuple(job_news(doc, now) for doc in self._held.docs.values() if doc.state not in ENDED)

    def _read_settings(self, now: datetime) -> Settings:
        if self._settings is None or not timedelta(0) <= now - self._settings[0] < SETTINGS_EVERY:
            try:
                self._known_then = max([self._highest, *(doc.slurm_job for doc in self._held.docs.values())])
                self._settings = (now, self._reads.settings())
            except SlurmUnavailable:
                raise
            except SlurmError as err:
                raise Unreadable(str(err)) from err
        return self._settings[1]


def _time(raw: bytes | None) -> datetime | None:
    with suppress(ValueError):
        return from_iso(raw.decode()) if raw is not None else None
    return None


def _docs(memory: Memory) -> dict[str, AttemptDoc]:
    found = {}
    for key, raw in memory.items(ATTEMPT).items():
        try:
            doc = AttemptDoc.from_json(raw)
        except MailboxError:
            log.warning("part=watcher %s is of another version and is read again", key)
            continue
        found[doc.attempt] = doc
    return found


def _known(memory: Memory) -> dict[int, JobCapture]:
    found = {}
    for key, raw in memory.items(KNOWN).items():
        number, known = key[len(KNOWN) :], JobCapture.from_json(raw)
        if text.is_number(number) and known is not None:
            found[int(number)] = known
    return found


def _nodes(memory: Memory) -> dict[str, NodeFacts] | None:
    raw = memory.items(NODES).get(NODES)
    if raw is None:
        return None
    try:
        doc = NodesDoc.from_wire(
            {"v": WIRE_VERSION, "cluster": "x", "seen_at": "2026-01-01T00:00:00Z", "nodes": json.loads(raw)}
        )
    except (ValueError, MailboxError):
        return None
    return {node.name: node for node in doc.nodes}
