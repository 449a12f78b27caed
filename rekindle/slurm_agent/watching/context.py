"""What a look needs, what is remembered between looks, and what one has found so far: documents, news and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc, NodeFacts
from rekindle.protocol.cluster.names import attempt_key
from rekindle.slurm_agent.base.ports import News, NewsType, OwnActions, Reading
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.privileged.remote import RemoteCaptures, RemoteNodeMap
from rekindle.slurm_agent.privileged.submissions import Captures
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.watching.attempt_docs import job_news
from rekindle.slurm_agent.watching.captures import JobCapture
from rekindle.slurm_agent.watching.followed_jobs import FollowedJob
from rekindle.slurm_agent.watching.joining import Joining
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.protection import Protection

MEMORY: Final = "watch/"
ATTEMPT: Final = f"{MEMORY}attempt/"
KNOWN: Final = f"{MEMORY}job/"
NODES: Final = f"{MEMORY}nodes"
WRITTEN: Final = "watch-written"  # when all of the cluster state was last written
MAX_PROBLEMS: Final = 50
# A change of one of these is news; any other only changes the document.
NEWS: Final = ("state", "successor", "held", "nodes", "spec", "ended_by", "requeued_by", "is_known", "job_id", "policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookInputs:
    """What a look needs. `start`: see `Watch`."""

    cluster: str
    reads: CopyReads
    node_map: NodeMap | RemoteNodeMap
    own_actions: OwnActions
    start: Callable[[str], AttemptDoc | None]
    owners: Owners
    joining: Joining
    protection: Protection
    files: UserFiles
    captures: Captures | RemoteCaptures


@dataclass(slots=True, kw_only=True)
class LookMemory:
    """What is remembered between readings: open starts, captures, nodes; and each job as the last reading showed it."""

    docs: dict[str, AttemptDoc] = field(default_factory=dict)
    known: dict[int, JobCapture] = field(default_factory=dict)
    nodes: dict[str, NodeFacts] | None = None
    change_keys: dict[int, tuple[object, ...]] = field(default_factory=dict)
    details: dict[int, Mapping[str, str]] = field(default_factory=dict)
    members: dict[int, FollowedJob] = field(default_factory=dict)
    later: set[int] = field(default_factory=set)
    followed: tuple[str, ...] | None = None
    to_release: set[int] = field(default_factory=set)  # jobs that want no protection any more, and that we hold
    late_copies: set[int] = field(default_factory=set)  # copies beside the one that an order was answered with
    vanished: dict[int, datetime] = field(default_factory=dict)  # jobs whose end accounting has not told, since when
    real_paths: dict[tuple[str, str], str] = field(default_factory=dict)  # of a user's directories
    numbers: dict[int, datetime | None] = field(default_factory=dict)  # of jobs found to be new, and their submission


class ReadingChanges:
    """`held` is what the reading before has left, and is changed here."""

    def __init__(self, held: LookMemory, owners: Owners, now: datetime) -> None:
        self.held = held
        self.documents: dict[str, bytes] = {}
        self.memory: dict[str, bytes | None] = {}
        self.problems: list[str] = []
        self._news: list[News] = []
        self._owners = owners
        self._now = now

    def starts_of(self, number: int) -> list[AttemptDoc]:
        """The followed starts of a Slurm job."""
        return [doc for doc in self.held.docs.values() if doc.slurm_job == number]

    def publish(self, doc: AttemptDoc) -> None:
        """Nothing, where only the time of the reading is another."""
        before = self.held.docs.get(doc.attempt)
        if before is not None and replace(before, seen_at=doc.seen_at) == doc:
            return
        body = doc.to_json()
        self._owners.learn((doc,))
        self.held.docs[doc.attempt] = doc
        self.documents[attempt_key(doc.attempt)] = body
        self.memory[f"{ATTEMPT}{doc.attempt}"] = body
        if before is None or any(getattr(before, name) != getattr(doc, name) for name in NEWS):
            self._news.append(job_news(doc, self._now))

    def node_news(self, detail: dict[str, object]) -> None:
        self._news.append(News(type=NewsType.NODE, at=self._now, detail=detail))

    def forget(self, doc: AttemptDoc) -> None:
        """Nothing more will be reported about it."""
        self.held.docs.pop(doc.attempt, None)
        self.memory[f"{ATTEMPT}{doc.attempt}"] = None

    def forget_capture(self, number: int) -> None:
        self.held.known.pop(number, None)
        self.memory[f"{KNOWN}{number}"] = None

    def reading(self) -> Reading:
        return Reading(
            documents=self.documents,
            news=tuple(self._news),
            memory=self.memory,
            problems=tuple(self.problems[:MAX_PROBLEMS]),
        )
