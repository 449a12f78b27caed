"""An agent that lost its state directory reads back what it followed, and says what became of that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.protocol.cluster.followed import FollowedDoc, followed_key
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.ports import Reading
from rekindle.slurm_agent.reading.numbers import AT_ONCE
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.watching.context import ATTEMPT

log = logging.getLogger(__name__)

REPORTED_FOR: Final = timedelta(hours=1)


@dataclass(slots=True, kw_only=True)
class RecalledState:
    """What was read back, at `at`. Nothing where no agent has followed anything on this cluster before."""

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


def read_back(
    cluster: str,
    published: Callable[[str], bytes | None],
    written: Callable[[str], AttemptDoc | None],
    now: datetime,
) -> RecalledState:
    """Raises: SlurmUnavailable, also where the list cannot be read: what is not known must not be overwritten."""
    raw = published(followed_key(cluster))
    if raw is None:
        return RecalledState(docs=(), at=now)
    try:
        names = FollowedDoc.from_json(raw).attempts
    except MailboxError as err:
        raise Unreadable(f"{followed_key(cluster)}: {err}") from err
    with ThreadPoolExecutor(AT_ONCE) as pool:
        docs = tuple(doc for doc in pool.map(written, names) if doc is not None and doc.cluster == cluster)
    log.warning("part=watcher memory=lost read_back=%d", len(docs))
    return RecalledState(docs=docs, at=now)
