"""A cluster of files, and everything of the Slurm side on it."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rekindle.protocol.cluster.documents import AttemptDoc, NodesDoc, SlurmState
from rekindle.protocol.cluster.names import attempt_key, nodes_key
from rekindle.slurm_agent.base.ports import News, Reading
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.privileged.helper import Helper
from rekindle.slurm_agent.privileged.remote import Channels, RemoteCaptures, RemoteReads, RemoteWorkers
from rekindle.slurm_agent.privileged.submissions import Captures
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.reading.run import Runner
from rekindle.slurm_agent.slurm.commands import Commands
from rekindle.slurm_agent.watching.followed_jobs import FollowedJobs
from rekindle.slurm_agent.watching.joining import Joining
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.watcher import Watch
from tests.agent_slurm.fake_slurm import FakeSlurm
from tests.agent_slurm.gates import parts

START = datetime(2026, 11, 21, 16, 0, tzinfo=UTC)


class Kept:
    """The agent's memory, as a dict."""

    def __init__(self) -> None:
        self.all: dict[str, bytes] = {}

    def items(self, prefix: str) -> Mapping[str, bytes]:
        return {key: raw for key, raw in self.all.items() if key.startswith(prefix)}


@dataclass
class Journal:
    ended: set[str] = field(default_factory=set)
    requeued: set[str] = field(default_factory=set)
    unproven: set[str] = field(default_factory=set)

    def has_ended(self, attempt: str) -> bool:
        return attempt in self.ended

    def has_requeued(self, new_attempt: str) -> bool:
        return new_attempt in self.requeued

    def holds(self, attempt: str) -> bool | None:
        return None

    def is_unproven(self, new_attempt: str) -> bool:
        return new_attempt in self.unproven

    def copy_of(self, new_attempt: str) -> int | None:
        return None


class Head:
    """A head node: the fake's commands, the watcher, and what it said so far."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeSlurm(folder / "slurm")
        self.memory = Kept()
        self.journal = Journal()
        self.resources = folder / "resource_config.json"
        self.board: dict[str, bytes] = {}
        self.news: list[News] = []
        self.now = START
        self.start()

    def start(self, channels: Channels | None = None) -> None:
        """A new process of the agent. channels: to root's helper, which has the rights that this one has not."""
        runner = Runner(environ={"PATH": self.fake.path})
        self.reads = CopyReads(RemoteReads(channels) if channels else runner, lambda: self.now)
        self.followed_jobs = FollowedJobs()
        node_map = NodeMap(str(self.resources))
        self.owners = owners = Owners("ml", self.board.get)
        kept = SpecFolder(self.fake.folder / "kept")
        self.watch = Watch(
            cluster="ml",
            reads=self.reads,
            node_map=node_map,
            memory=self.memory,
            own_actions=self.journal,
            followed_jobs=self.followed_jobs,
            published=self.board.get,
            owners=owners,
            joining=Joining(self.reads),
            captures=RemoteCaptures(channels) if channels else Captures(self.reads, kept),
            files=UserFiles(RemoteWorkers(channels)) if channels else UserFiles(),
        )
        self.commands = Commands(
            cluster="ml",
            reads=self.reads,
            **parts(runner, self.reads, self.watch.current_settings, hashes=kept.hashes),
            node_map=node_map,
            now=lambda: self.now,
            owners=owners,
            watch=self.watch,
        )

    def saw(self, slurm_job: int, user: str) -> None:
        """An earlier look has seen that job as that user's."""
        self.owners.learn(
            (
                AttemptDoc(
                    attempt=f"slurm.ml.{slurm_job}",
                    cluster="ml",
                    slurm_job=slurm_job,
                    restart=0,
                    state=SlurmState.FAILED,
                    seen_at=START,
                    user=user,
                ),
            )
        )

    def look(self) -> Reading:
        """One look, kept as the agent keeps it. Raises: SlurmUnavailable."""
        self.now += timedelta(seconds=10)
        reading = self.watch.read(self.now)
        for key, raw in reading.memory.items():
            if raw is None:
                self.memory.all.pop(key, None)
            else:
                self.memory.all[key] = raw
        self.board |= reading.documents
        self.news += reading.news
        return reading

    def doc(self, attempt: str) -> AttemptDoc:
        return AttemptDoc.from_json(self.board[attempt_key(attempt)])

    def nodes(self) -> NodesDoc:
        return NodesDoc.from_json(self.board[nodes_key("ml")])


@contextmanager
def served(helper: Helper, ways: int) -> Iterator[list[socket.socket]]:
    """The agent's ends of the ways to root's helper."""
    pairs = [socket.socketpair() for _ in range(ways)]
    for own, _ in pairs:
        threading.Thread(target=helper.serve, args=(own,), daemon=True).start()
    yield [agents for _, agents in pairs]
    for _, agents in pairs:
        agents.close()


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)
