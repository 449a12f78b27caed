"""From a start to the lease, and what an agent has to know before it acts in another's place.

The orders that were begun stand in the lease (`LeaseDoc.begun`), the orders themselves and their answers in the cluster
state. What was answered is taken into the journal as done; what was begun and not answered is open, and is settled by
looking at Slurm, as after a kill. What this agent once took and another has answered is done as well.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from rekindle.protocol.cluster.lease import MAX_TERM_S, BegunOrder
from rekindle.protocol.cluster.names import answer_key, order_key
from rekindle.protocol.cluster.orders import Order, OrderResult
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MailboxError
from rekindle.slurm_agent.base.aws import AwsError, Clients, is_away, read_object, text_of
from rekindle.slurm_agent.base.clock import Clock
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.base.store import Store
from rekindle.slurm_agent.leases.lease import Lease, LeaseState
from rekindle.slurm_agent.leases.own import boot, forget_all_else, host, identity, keep_epoch, last_epoch
from rekindle.slurm_agent.leases.store import AgentIdentity, standing_by
from rekindle.slurm_agent.orders.journal import Journal
from rekindle.slurm_agent.process import DATABASE

log = logging.getLogger(__name__)

STOPPED: Final = "stopped"  # in the state directory: an operator stopped all agents from here; a start here ends that
AT_ONCE: Final = 16


def make_lease(settings: Settings, clients: Clients, clock: Clock, store: Store) -> Lease:
    """This agent's, not held yet."""
    return Lease(
        who=AgentIdentity(
            cluster=settings.cluster,
            agent_id=identity(store),
            host=host(),
            boot=boot(),
            version=metadata.version("rekindle"),
            last_epoch=last_epoch(store),
        ),
        s3=clients.lease,
        bucket=settings.bucket,
        clock=clock,
        term_s=settings.lease_s,
    )


def wait_for_lease(
    settings: Settings,
    clients: Clients,
    clock: Clock,
    stop: threading.Event,
    *,
    is_once: bool = False,
    ends_stop: bool = False,
) -> Lease | None:
    """The lease, held, with all that this agent has to know in its state directory. None: `stop` was set, or another
    took it again meanwhile, or with `is_once` it cannot be had now. `ends_stop`: also where an operator stopped all
    agents from another host.

    While S3 is away, and this agent was the last that held it, it comes back not held: what is seen of Slurm meanwhile
    would be forgotten there. It is then taken only where no other agent has held it since.
    """
    store = Store(settings.state_dir / DATABASE, clock=clock)
    lease = make_lease(settings, clients, clock, store)
    reported = None
    try:
        while not stop.is_set():
            _end_stop(lease, settings.state_dir / STOPPED, is_ours=ends_stop)
            rest_s = lease.run_once()
            if lease.standing is LeaseState.HELD and _take_over(lease, settings, clients, store):
                return lease
            if lease.standing is LeaseState.STANDBY and lease.is_unsure:
                lease.is_only_ours = True
                return lease
            text = lease.problem or f"{lease.doc.holder} holds the lease" if lease.doc else lease.problem
            if text != reported:
                log.info("part=lease standing=%s why=%s", lease.standing, text)
                reported = text
            if is_once or lease.standing is LeaseState.LOST:
                break
            stop.wait(rest_s)
        lease.give_back()
        return None
    finally:
        store.settle()
        store.close()


def others_on(settings: Settings, clients: Clients, clock: Clock) -> list[str]:
    """The agents that stand by or hold the lease, without this one. Raises: botocore's errors."""
    store = Store(settings.state_dir / DATABASE, clock=clock)
    lease = make_lease(settings, clients, clock, store)
    own, found = identity(store), lease.read()
    store.close()
    marks = [agent for _, agent in standing_by(clients.lease, settings.bucket, settings.cluster)]
    doc = found.doc if found is not None and found.age_s <= MAX_TERM_S else None
    holders = [doc.holder] if doc is not None and doc.term_s and not doc.stopped_on else []
    return sorted({*marks, *holders} - {own})


def stopped_for(settings: Settings, clients: Clients, clock: Clock) -> float | None:
    """Where an operator stopped all agents: for how many seconds the one that held the lease may still act, 0 where it
    has seen it, and what other agents have done is in this one's journal. None: they are not stopped.

    Raises: botocore's errors.
    """
    store = Store(settings.state_dir / DATABASE, clock=clock)
    try:
        found = make_lease(settings, clients, clock, store).read()
        doc = found.doc if found is not None else None
        if found is None or doc is None or not doc.stopped_on:
            return None
        if doc.host != host() and doc.term_s > found.age_s:
            return doc.term_s - found.age_s
        settle(Journal(store), doc.begun, clients.lease, settings)
        return 0.0
    finally:
        store.settle()
        store.close()


def _end_stop(lease: Lease, mark: Path, *, is_ours: bool) -> None:
    if not is_ours and not mark.exists():
        return
    with suppress(*AwsError):  # tried again with the next pass
        lease.start_all()
        mark.unlink(missing_ok=True)


def _take_over(lease: Lease, settings: Settings, clients: Clients, store: Store) -> bool:
    """False: not yet, S3 is away."""
    previous = lease.previous
    before = last_epoch(store)
    is_known = previous is not None and lease.was_ours(previous)
    if not is_known and not (previous is None and before == 0):  # the first lease at all: an upgrade of this agent
        forget_all_else(store)
    try:
        settle(Journal(store), previous.begun if previous is not None else (), clients.lease, settings)
    except AwsError as err:
        log.warning("part=lease problem=%s", text_of("taking over", err))
        return False
    keep_epoch(store, lease.epoch)
    return lease.left_s() > 0


def settle(journal: Journal, begun: tuple[BegunOrder, ...], s3: Any, settings: Settings) -> None:
    """Bring the journal up to what other agents have done. Raises: botocore's errors while S3 is away."""
    open_ = {entry.order.token: entry.order for entry in journal.open()}
    known = {order.token: order for order in begun}

    def fetch(token: str) -> tuple[Order | None, OrderResult | None]:
        order = open_.get(token) or _read(s3, settings, order_key(settings.cluster, token), Order)
        return order, _read(s3, settings, answer_key(settings.cluster, token), OrderResult)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        tokens = [*known, *(token for token in open_ if token not in known)]
        for token, (order, answer) in zip(tokens, pool.map(fetch, tokens), strict=True):
            if order is None or order.token != token or order.cluster != settings.cluster:
                log.warning("part=lease token=%s problem=there is no such order", token)
            elif answer is not None and answer.token == token:
                journal.adopt(order, answer=answer)
            elif token in known:
                journal.adopt(order, begun_at=known[token].at)


def _read(s3: Any, settings: Settings, key: str, kind: type[Any]) -> Any:
    """A document of the cluster state; None where it is missing or unusable. Raises: AwsError while S3 is away."""
    try:
        raw = read_object(s3, settings.bucket, key, limit=MAX_MESSAGE_BYTES)
        return None if raw is None else kind.from_json(raw)
    except AwsError as err:
        if is_away(err):
            raise
        log.warning("part=lease problem=%s", text_of(f"GetObject {key}", err))
    except MailboxError as err:
        log.warning("part=lease key=%s problem=%s", key, err)
    return None
