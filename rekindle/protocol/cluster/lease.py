"""Which of a cluster's agents acts: the lease, one object in the stack's bucket, and the marks of those that stand by.

The lease is only ever written with If-None-Match or If-Match, so each write follows a read of what it replaces. Its age
is S3's: from Last-Modified to Date. Pure; standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Final

from rekindle.protocol.bounds import Count, Identity, Items, Number, Required, Text, Whole, Words, check_printable
from rekindle.protocol.cluster.names import ClusterName, cluster_prefix
from rekindle.protocol.codec import Document
from rekindle.protocol.message import Message
from rekindle.protocol.wire import check_id

MAX_TERM_S: Final = 180.0  # the service takes a cluster for unknown after that long (documents.SILENT_AFTER)
MAX_EPOCH: Final = 10**9  # a takeover each second for thirty years
MAX_BEGUN: Final = 300  # an order expires within half an hour, and a job's end is explained within minutes


def lease_key(cluster: str) -> str:
    return f"{cluster_prefix(cluster)}lease.json"


def standby_prefix(cluster: str) -> str:
    """One object for each agent that stands by, written again while it does; an empty one has left."""
    return f"{cluster_prefix(cluster)}standby/"


def standby_key(cluster: str, agent_id: str) -> str:
    return f"{standby_prefix(cluster)}{check_id(agent_id, 'agent_id')}.json"


Printable = Annotated[str, Text(128, check=check_printable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunOrder(Document):
    """An order of which a command was about to run, and when."""

    token: Identity
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDoc(Message):
    """Who may act, and until when: `term_s` after the store's time of this object; 0 where it was given back.

    `epoch` grows by one each time that an agent takes the lease. `process` is drawn by each process, `boot` by
    each start of its machine. `renewal` makes every content another one, so that no two have the same ETag. `begun` are
    the orders that were begun under this lease and those before it, oldest first: its next holder settles them by
    looking. `stopped_on` names the host where an operator stopped all agents; "": they are not stopped.
    """

    LIMIT_BYTES: ClassVar[int] = 128 * 1024

    cluster: ClusterName
    holder: Identity
    host: Printable
    process: Identity
    boot: Printable
    epoch: Annotated[int, Whole(1, MAX_EPOCH)]
    renewal: Count
    term_s: Annotated[float, Number(0.0, MAX_TERM_S)]
    begun: Annotated[tuple[BegunOrder, ...], Items(MAX_BEGUN), Required()] = ()
    stopped_on: Annotated[Printable, Required()] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyDoc(Message):
    """An agent that is there, and leaves everything to the one that holds the lease."""

    cluster: ClusterName
    agent_id: Identity
    host: Printable
    at: datetime
    version: Annotated[str, Text(64)] = ""
    holder: Annotated[str, Text(128)] = ""
    problem: Words = ""
