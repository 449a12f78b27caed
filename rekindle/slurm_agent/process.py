"""The agent put together, and its life: four loops, a clean end, one pass for `--once`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Final

from rekindle.protocol.cluster.documents import AgentDoc
from rekindle.slurm_agent.base.aws import Clients
from rekindle.slurm_agent.base.clock import AwsClock, Clock
from rekindle.slurm_agent.base.ports import News, NewsType
from rekindle.slurm_agent.base.problems import Problems
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.base.store import Store
from rekindle.slurm_agent.leases.lease import Lease, LeaseState
from rekindle.slurm_agent.leases.own import host, identity, keep_epoch
from rekindle.slurm_agent.orders.dispatch import OrderDispatcher
from rekindle.slurm_agent.orders.executor import OrderExecutor
from rekindle.slurm_agent.orders.inbox import OrderLoop
from rekindle.slurm_agent.orders.journal import Journal
from rekindle.slurm_agent.orders.specs import StoredSpecs
from rekindle.slurm_agent.privileged.remote import Channels
from rekindle.slurm_agent.publishing.loops import Relaying, Watch
from rekindle.slurm_agent.publishing.outbox import Outbox
from rekindle.slurm_agent.publishing.publisher import Publisher
from rekindle.slurm_agent.slurm.build import AgentContext, Parts

log = logging.getLogger(__name__)

DATABASE: Final = "agent.sqlite"
RELAY_S: Final = 5.0  # the monitor's own rhythm of looking into its mailbox
# At the end: for the order that is being carried out, twice for what waits to be sent. Longer than the quick commands
# of Slurm's, shorter than `__main__.STOP_S` together.
LAST_ORDER_S: Final = 4.0
LAST_NEWS_S: Final = 1.5
TICK_S: Final = 0.5
TELL_AGAIN_S: Final = 90.0  # a call of S3's that a former holder began has ended by then (aws.READ_TIMEOUT_S, twice)

Build = Callable[[AgentContext], Parts]


class Agent:
    """The parts that act, while this process holds the cluster's lease. `guard_fd`: see `lock`.

    lease: see `takeover.wait_for_lease`; None where nothing is changed, and in tests of one part. is_leaving,
    channels: see `AgentContext`.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        clients: Clients,
        clock: Clock,
        build: Build,
        guard_fd: int | None,
        lease: Lease | None = None,
        is_leaving: bool = False,
        channels: Channels | None = None,
    ) -> None:
        self._settings = settings
        self._lease = lease
        self._epoch = lease.epoch if lease is not None else 0
        self._clock = clock
        self._started_at = clock.now()
        self.problems = Problems()
        self.store = Store(settings.state_dir / DATABASE, clock=clock)
        self.outbox = Outbox(self.store)
        self.journal = Journal(self.store)
        self._id = identity(self.store)
        self.parts = build(
            AgentContext(
                settings=settings,
                s3=clients.s3,
                memory=self.outbox,
                own_actions=self.journal,
                is_leaving=is_leaving,
                guard_fd=guard_fd,
                channels=channels,
                holding=lease,
                wall=clock.wall,
            )
        )
        self.publisher = Publisher(
            outbox=self.outbox,
            clients=clients,
            settings=settings,
            clock=clock,
            problems=self.problems,
            heartbeat=self.heartbeat,
            on_answered=lambda token: self.orders.answered(token),
            holding=lease,
        )
        self.watch = Watch(
            watcher=self.parts.watcher,
            outbox=self.outbox,
            clock=clock,
            problems=self.problems,
            poll_s=settings.poll_s,
            on_change=self.publisher.wake,
        )
        self.executor = OrderExecutor(
            cluster=settings.cluster,
            store=self.store,
            outbox=self.outbox,
            journal=self.journal,
            dispatcher=OrderDispatcher(
                slurm=self.parts.slurm,
                specs=StoredSpecs(
                    s3=clients.s3,
                    bucket=settings.bucket,
                    cluster=settings.cluster,
                    kept=self.parts.kept,
                ),
                reread=self.watch,
                own_actions=self.journal,
            ),
            clock=clock,
            problems=self.problems,
            on_answer=self._answered,
            holding=lease,
        )
        self.orders = OrderLoop(
            executor=self.executor,
            sqs=clients.sqs,
            stack=settings.stack,
            cluster=settings.cluster,
            clock=clock,
            problems=self.problems,
            on_no_queue=self.announce,
            holding=lease,
        )
        self.relaying = (
            Relaying(
                relay=self.parts.relay,
                outbox=self.outbox,
                clock=clock,
                problems=self.problems,
                poll_s=RELAY_S,
                on_change=self.publisher.wake,
                holding=lease,
            )
            if self.parts.relay is not None
            else None
        )

    def heartbeat(self) -> AgentDoc:
        """As of now."""
        self.problems.set("allowed", self.parts.slurm.barred_here())
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
            host=host(),
            epoch=self._epoch,
            standbys=self._lease.others if self._lease is not None else (),
            queue_losses=self.parts.watcher.queue_losses,
        )

    def announce(self) -> None:
        """Tell the bus that this agent is there; the service then makes sure that it has a queue."""
        now = self._clock.now()
        detail = {"v": 1, **self.heartbeat().to_wire()}
        self.outbox.news(News(type=NewsType.STARTED, at=now, detail=detail))
        self.publisher.wake()

    def run(self, stop: threading.Event) -> bool:
        """Until `stop` is set, or the lease is another's: then False, and nothing more is done or published.

        At a stop an order that is being carried out is finished; what waits is sent, if it can be.
        Raises: RuntimeError for a fault of ours; the supervisor restarts the process.
        """
        halt = threading.Event()
        self.announce()
        loops: list[tuple[str, Callable[[threading.Event], None]]] = [
            ("watcher", self.watch.run),
            ("publisher", self.publisher.run),
            ("orders", self.orders.run),
        ]
        if self.relaying is not None:
            loops.append(("relay", self.relaying.run))
        if self._lease is not None:
            loops.append(("lease", self._keep_lease))
        # Daemons: a long poll or a hanging path must not hold up the end of this process.
        threads = [threading.Thread(target=run, args=(halt,), name=name, daemon=True) for name, run in loops]
        for thread in threads:
            thread.start()
        log.info("cluster=%s agent=%s started", self._settings.cluster, self._id)
        try:
            while not stop.wait(TICK_S):
                if self._lease is not None and self._lease.standing is LeaseState.LOST:
                    log.warning("agent=%s stands by: %s", self._id, self._lease.problem)
                    return False
                for thread in threads:
                    if not thread.is_alive():
                        raise RuntimeError(f"the {thread.name} loop has ended on its own")
        finally:
            halt.set()
        self._end(threads)
        return True

    def _keep_lease(self, halt: threading.Event) -> None:
        """Renewed in time; what was in flight when another agent lost it is written over a while later."""
        lease = self._lease
        assert lease is not None  # noqa: S101  `run`
        is_from_another = lease.previous is not None and not lease.was_ours(lease.previous)
        again_at = self._clock.monotonic() + TELL_AGAIN_S if is_from_another else None
        while not halt.is_set():
            rest_s = lease.run_once()
            self.problems.set("lease", [lease.problem] if lease.problem else ())
            if lease.epoch not in (0, self._epoch):  # taken anew after S3 was away at our start
                self._epoch = lease.epoch
                keep_epoch(self.store, lease.epoch)
            if again_at is not None and self._clock.monotonic() >= again_at:
                again_at = None
                self.parts.watcher.tell_again()
                self.watch.wake()
            halt.wait(rest_s)

    def _end(self, threads: list[threading.Thread]) -> None:
        self.publisher.wake()
        self.watch.wake()
        is_idle = self.executor.busy.acquire(timeout=LAST_ORDER_S)
        if not is_idle:
            log.warning("an order is left half-way; it is settled at the next start, or by the agent that takes over")
        publisher = next(thread for thread in threads if thread.name == "publisher")
        publisher.join(LAST_NEWS_S)
        if publisher.is_alive() or not self.publisher.flush(LAST_NEWS_S):
            log.warning("some news are left; they are sent at the next start")
        self.store.settle()
        if self._lease is not None and is_idle:  # a command that still runs keeps it, until its term is over
            self._lease.give_back()
        log.info("agent=%s ended", self._id)

    def once(self) -> tuple[str, ...]:
        """One reading, one poll, all that is open; then send. What did not work, one line each."""
        self.announce()
        self.watch.run_once()
        if self.relaying is not None:
            self.relaying.run_once(self._clock.now())
        self.orders.poll(1)
        self.executor.work()
        self.watch.run_once()
        if not self.publisher.flush(30.0):
            self.problems.set("once", ["not all could be sent"])
        self.store.settle()
        if self._lease is not None:
            self._lease.give_back()
        lines = self.problems.lines()
        return lines if self.store.problem is None else (self.store.problem, *lines)

    def _answered(self) -> None:
        self.publisher.wake()
        self.watch.hurry()
