"""The agent put together, and its life: three loops, a clean end, one turn for `--once`."""

from __future__ import annotations

import logging
import platform
import sqlite3
import threading
import uuid
from collections.abc import Callable
from importlib import metadata
from typing import Final

from rekindle.protocol.cluster.documents import AgentDoc
from rekindle.slurm_agent.base.aws import Clients
from rekindle.slurm_agent.base.clock import AwsClock, Clock
from rekindle.slurm_agent.base.ports import Ground, News, NewsType, Parts
from rekindle.slurm_agent.base.problems import Problems
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.base.store import Store
from rekindle.slurm_agent.orders.dispatch import Hands
from rekindle.slurm_agent.orders.executor import Desk
from rekindle.slurm_agent.orders.inbox import OrderLoop
from rekindle.slurm_agent.orders.journal import Journal
from rekindle.slurm_agent.orders.specs import Whiteboard
from rekindle.slurm_agent.publishing.loops import Relaying, Watch
from rekindle.slurm_agent.publishing.outbox import Outbox
from rekindle.slurm_agent.publishing.publisher import Publisher, Target

log = logging.getLogger(__name__)

DATABASE: Final = "agent.sqlite"
RELAY_S: Final = 5.0  # the monitor's own rhythm of looking into its mailbox
LAST_ORDER_S: Final = 45.0  # an order that is being carried out when the end comes; systemd waits for 60 s
LAST_NEWS_S: Final = 5.0
_IDENTITY: Final = "agent/id"

Build = Callable[[Ground], Parts]


class Agent:
    """One process's parts. `guard_fd`: see `lock`."""

    def __init__(
        self, *, settings: Settings, clients: Clients, clock: Clock, build: Build, guard_fd: int | None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._started_at = clock.now()
        self.problems = Problems()
        self.store = Store(settings.state_dir / DATABASE, clock=clock)
        self.outbox = Outbox(self.store)
        self.journal = Journal(self.store)
        self._id = self._identity()
        self.parts = build(
            Ground(
                cluster=settings.cluster,
                bucket=settings.bucket,
                s3=clients.s3,
                memory=self.outbox,
                deeds=self.journal,
                resource_config=settings.resource_config,
                guard_fd=guard_fd,
                environ=settings.environ,
                partitions=settings.partitions,
                accounts=settings.accounts,
            )
        )
        self.publisher = Publisher(
            outbox=self.outbox,
            clients=clients,
            target=Target(cluster=settings.cluster, bucket=settings.bucket, bus=settings.bus),
            clock=clock,
            problems=self.problems,
            heartbeat=self.heartbeat,
            on_answered=lambda token: self.orders.answered(token),
        )
        self.watch = Watch(
            watcher=self.parts.watcher,
            outbox=self.outbox,
            clock=clock,
            problems=self.problems,
            poll_s=settings.poll_s,
            on_change=self.publisher.wake,
        )
        self.desk = Desk(
            cluster=settings.cluster,
            store=self.store,
            outbox=self.outbox,
            journal=self.journal,
            hands=Hands(
                slurm=self.parts.slurm,
                specs=Whiteboard(s3=clients.s3, bucket=settings.bucket, cluster=settings.cluster, outbox=self.outbox),
                reread=self.watch,
            ),
            clock=clock,
            problems=self.problems,
            on_answer=self._answered,
        )
        self.orders = OrderLoop(
            desk=self.desk,
            sqs=clients.sqs,
            stack=settings.stack,
            cluster=settings.cluster,
            clock=clock,
            problems=self.problems,
            on_no_queue=self.announce,
        )
        self.relaying = (
            Relaying(
                relay=self.parts.relay,
                outbox=self.outbox,
                clock=clock,
                problems=self.problems,
                poll_s=RELAY_S,
                on_change=self.publisher.wake,
            )
            if self.parts.relay is not None
            else None
        )

    def heartbeat(self) -> AgentDoc:
        """As of now."""
        if isinstance(self._clock, AwsClock):
            self.problems.set("clock", self._clock.problems())
        problems = self.problems.lines()
        if self.store.problem is not None:
            problems = (f"disk: {self.store.problem}"[:400], *problems)
        return AgentDoc(
            cluster=self._settings.cluster,
            agent_id=self._id,
            at=self._clock.now(),
            started_at=self._started_at,
            read_at=self.outbox.read_at(),
            version=metadata.version("rekindle"),
            slurm_version=self.parts.watcher.slurm_version[:64],
            cluster_arn=self.parts.watcher.cluster_arn[:256],
            problems=problems,
        )

    def announce(self) -> None:
        """Tell the bus that this agent is there; the service then makes sure that it has a queue."""
        now = self._clock.now()
        detail = {"v": 1, **self.heartbeat().to_wire()}
        self.outbox.news(News(type=NewsType.STARTED, at=now, detail=detail))
        self.publisher.wake()

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set. An order that is being carried out is finished; what waits is sent, if it can be."""
        self.announce()
        loops: list[tuple[str, Callable[[threading.Event], None]]] = [
            ("watcher", self.watch.run),
            ("publisher", self.publisher.run),
            ("orders", self.orders.run),
        ]
        if self.relaying is not None:
            loops.append(("relay", self.relaying.run))
        # Daemons: a long poll or a hanging path must not hold up the end of this process.
        threads = [threading.Thread(target=run, args=(stop,), name=name, daemon=True) for name, run in loops]
        for thread in threads:
            thread.start()
        log.info("cluster=%s agent=%s started", self._settings.cluster, self._id)
        while not stop.wait(5.0):
            for thread in threads:
                if not thread.is_alive():  # a fault of ours; whoever started us starts us again
                    stop.set()
                    raise RuntimeError(f"the {thread.name} loop has ended by itself")
        self._end(threads)

    def _end(self, threads: list[threading.Thread]) -> None:
        self.publisher.wake()
        self.watch.wake()
        if not self.desk.busy.acquire(timeout=LAST_ORDER_S):
            log.warning("an order is left half-way; it is settled at the next start")
        publisher = next(thread for thread in threads if thread.name == "publisher")
        publisher.join(LAST_NEWS_S)
        if publisher.is_alive() or not self.publisher.flush(LAST_NEWS_S):
            log.warning("some news are left; they are told at the next start")
        self.store.settle()
        log.info("agent=%s ended", self._id)

    def once(self) -> tuple[str, ...]:
        """One look, one poll, all that is open; then send. What did not work, one line each."""
        self.announce()
        self.watch.turn()
        if self.relaying is not None:
            self.relaying.turn(self._clock.now())
        self.orders.poll(1)
        self.desk.work()
        self.watch.turn()
        if not self.publisher.flush(30.0):
            self.problems.set("once", ["not all could be told"])
        self.store.settle()
        lines = self.problems.lines()
        return lines if self.store.problem is None else (self.store.problem, *lines)

    def _answered(self) -> None:
        self.publisher.wake()
        self.watch.hurry()

    def _identity(self) -> str:
        """The same for the life of the state directory; the host's name is in it for people."""
        found = self.outbox.items(_IDENTITY).get(_IDENTITY)
        if found is not None:
            return found.decode()
        host = "".join(char if char.isascii() and (char.isalnum() or char == "-") else "-" for char in platform.node())
        made = f"{host[:60] or 'host'}-{uuid.uuid4().hex[:8]}"

        def work(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR REPLACE INTO memory VALUES(?, ?)", (_IDENTITY, made.encode()))

        self.store.write(work)
        return made
