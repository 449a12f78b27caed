"""Which of a cluster's agents acts: the lease, one object in the stack's bucket, and the marks of those that stand by.

The lease is only ever written with If-None-Match or If-Match, so each write follows a read of what it replaces. Its age
is S3's: from Last-Modified to Date. Pure; standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from rekindle.compat import Self
from rekindle.protocol.cluster.names import check_cluster, cluster_prefix
from rekindle.protocol.wire import MailboxError, Message, Reader, check_id

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunOrder:
    """An order of which a command was about to run, and when."""

    token: str
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

    cluster: str
    holder: str
    host: str
    process: str
    boot: str
    epoch: int
    renewal: int
    term_s: float
    begun: tuple[BegunOrder, ...] = ()
    stopped_on: str = ""

    def to_wire(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "holder": self.holder,
            "host": self.host,
            "process": self.process,
            "boot": self.boot,
            "epoch": self.epoch,
            "renewal": self.renewal,
            "term_s": self.term_s,
            "begun": [{"token": one.token, "at": one.at.isoformat()} for one in self.begun],
            "stopped_on": self.stopped_on,
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        return cls(
            cluster=check_cluster(reader.text("cluster", 63)),
            holder=reader.identity("holder"),
            host=_word(reader, "host"),
            process=reader.identity("process"),
            boot=_word(reader, "boot"),
            epoch=reader.whole("epoch", 1, MAX_EPOCH),
            renewal=reader.whole("renewal"),
            term_s=reader.number("term_s", 0.0, MAX_TERM_S),
            begun=tuple(_begun(reader.items("begun", MAX_BEGUN))),
            stopped_on=_word(reader, "stopped_on"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyDoc(Message):
    """An agent that is there, and leaves everything to the one that holds the lease."""

    cluster: str
    agent_id: str
    host: str
    at: datetime
    version: str = ""
    holder: str = ""
    problem: str = ""

    def to_wire(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "agent_id": self.agent_id,
            "host": self.host,
            "at": self.at.isoformat(),
            "version": self.version,
            "holder": self.holder,
            "problem": self.problem,
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        return cls(
            cluster=check_cluster(reader.text("cluster", 63)),
            agent_id=reader.identity("agent_id"),
            host=_word(reader, "host"),
            at=reader.moment("at"),
            version=reader.text("version", 64, default=""),
            holder=reader.text("holder", 128, default=""),
            problem=reader.text("problem", default=""),
        )


def _word(reader: Reader, name: str) -> str:
    """Shown to people, so one line without anything that a terminal would obey."""
    found = reader.text(name, 128)
    if not found.isprintable():
        raise reader.fail(name, "must be printable")
    return found


def _begun(found: Any) -> list[BegunOrder]:
    made = []
    for index, one in enumerate(found):
        if not isinstance(one, dict):
            raise MailboxError(f"begun.{index}", "must be an object")
        inner = Reader(one, f"begun.{index}.")
        made.append(BegunOrder(token=inner.identity("token"), at=inner.moment("at")))
    return made
