"""What is still to be published: documents for the cluster state and events for the bus, in the agent's own file.

Two lanes, so that an answer never waits behind five hundred documents: `ANSWERS` (answers, and the news of them) and
`WORLD` (what was seen of Slurm). A document is kept once per key, its latest content. News keep their order; beyond
`MAX_NEWS` of a lane the oldest are dropped, counted, and reported in the heartbeat: events only wake, and the
documents, which are never dropped, hold the truth.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Final

from rekindle.compat import from_iso
from rekindle.protocol.cluster.names import answer_key
from rekindle.protocol.cluster.orders import OrderResult
from rekindle.slurm_agent.base.ports import News, NewsType, Reading
from rekindle.slurm_agent.base.store import Store, count, counted

MAX_NEWS: Final = 5_000  # an hour without AWS on a cluster where every job and node changes state each minute
MAX_TRIES: Final = 20  # for an event that AWS answers but does not take
DROPPED: Final = "news dropped"


class OutboxLane(IntEnum):
    ANSWERS = 0
    WORLD = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    key: str
    seq: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One event. `token`: of the order that it answers."""

    seq: int
    type: NewsType
    at: datetime
    detail: str
    token: str | None
    tries: int


class Outbox:
    """Filled by every thread, emptied by the publisher."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reads: deque[tuple[datetime, int]] = deque()
        self._read_at: datetime | None = None

    # ---- filling

    def keep(self, reading: Reading, *, read_at: datetime | None = None) -> None:
        """One transaction. `read_at`: this was a whole reading of Slurm at that time (see `read_at`)."""

        def work(db: sqlite3.Connection) -> int:
            seq = _last(db)
            for key, body in reading.documents.items():
                seq += 1
                _put(db, key, seq, OutboxLane.WORLD, body)
            for news in reading.news:
                seq += 1
                _queue_news(db, seq, OutboxLane.WORLD, news, token=None)
            for name, value in reading.memory.items():
                if value is None:
                    db.execute("DELETE FROM memory WHERE key = ?", (name,))
                else:
                    db.execute("INSERT OR REPLACE INTO memory VALUES(?, ?)", (name, value))
            _bound(db, OutboxLane.WORLD)
            return seq

        if reading.documents or reading.news or reading.memory:
            seq = self._store.write(work)
        else:
            seq = self._store.read(_last)
        if read_at is not None:
            self._reads.append((read_at, seq))

    def answer(self, db: sqlite3.Connection, answer: OrderResult, *, writes: bool = True) -> None:
        """Part of the caller's transaction. `writes`: into the cluster state too, not only as an event."""
        seq = _last(db)
        if writes:
            seq += 1
            _put(db, answer_key(answer.cluster, answer.token), seq, OutboxLane.ANSWERS, answer.to_json())
        detail = json.loads(answer.to_json())
        _queue_news(
            db, seq + 1, OutboxLane.ANSWERS, News(type=NewsType.ANSWERED, at=answer.at, detail=detail), answer.token
        )
        _bound(db, OutboxLane.ANSWERS)

    def news(self, event: News) -> None:
        """One event of the agent's own, such as its start."""

        def work(db: sqlite3.Connection) -> None:
            _queue_news(db, _last(db) + 1, OutboxLane.ANSWERS, event, token=None)
            _bound(db, OutboxLane.ANSWERS)

        self._store.write(work)

    # ---- emptying

    def documents(self, lane: OutboxLane, limit: int) -> tuple[Document, ...]:
        """The oldest of a lane."""
        rows = self._store.read(
            lambda db: db.execute(
                "SELECT key, seq, body FROM documents WHERE lane = ? ORDER BY since LIMIT ?", (lane, limit)
            ).fetchall()
        )
        return tuple(Document(key=key, seq=seq, body=bytes(body)) for key, seq, body in rows)

    def written(self, document: Document) -> None:
        """Forget it, unless a newer one has come under its key."""
        self._store.write(
            lambda db: db.execute("DELETE FROM documents WHERE key = ? AND seq = ?", (document.key, document.seq))
        )

    def waiting(self, lane: OutboxLane, limit: int) -> tuple[Waiting, ...]:
        """The oldest news of a lane."""
        rows = self._store.read(
            lambda db: db.execute(
                "SELECT seq, type, at, detail, token, tries FROM news WHERE lane = ? ORDER BY seq LIMIT ?",
                (lane, limit),
            ).fetchall()
        )
        return tuple(
            Waiting(
                seq=seq,
                type=NewsType(kind),
                at=from_iso(at),
                detail=detail,
                token=token,
                tries=tries,
            )
            for seq, kind, at, detail, token, tries in rows
        )

    def settle(self, sent: Sequence[Waiting], refused: Sequence[Waiting]) -> None:
        """`refused` were answered but not taken: kept for another try, and dropped after the last."""

        def work(db: sqlite3.Connection) -> None:
            db.executemany("DELETE FROM news WHERE seq = ?", [(news.seq,) for news in sent])
            db.executemany("UPDATE news SET tries = tries + 1 WHERE seq = ?", [(news.seq,) for news in refused])
            gone = db.execute("DELETE FROM news WHERE tries >= ?", (MAX_TRIES,)).rowcount
            if gone > 0:
                count(db, DROPPED, gone)

        self._store.write(work)

    def drop(self, news: Sequence[Waiting]) -> None:
        """The bus will never take them."""

        def work(db: sqlite3.Connection) -> None:
            db.executemany("DELETE FROM news WHERE seq = ?", [(refused.seq,) for refused in news])
            count(db, DROPPED, len(news))

        self._store.write(work)

    # ---- reading

    def sizes(self) -> Mapping[str, int]:
        """Documents and news that wait, and the news that were dropped for good."""
        return self._store.read(
            lambda db: {
                "documents": int(db.execute("SELECT count(*) FROM documents").fetchone()[0]),
                "news": int(db.execute("SELECT count(*) FROM news").fetchone()[0]),
                "dropped": counted(db, DROPPED),
            }
        )

    def read_at(self) -> datetime | None:
        """When Slurm was last read whole, of which everything is in the cluster state; None: not yet.

        A reader takes every document to hold at this time, so it must not run ahead of one that is not written.
        """
        oldest = self._store.read(
            lambda db: db.execute("SELECT min(since) FROM documents WHERE lane = ?", (OutboxLane.WORLD,)).fetchone()[0]
        )
        while self._reads and (oldest is None or self._reads[0][1] < oldest):
            self._read_at = self._reads.popleft()[0]
        while len(self._reads) > 1000:  # half a day without AWS; only the newest will count when it is back
            self._reads.popleft()
        return self._read_at

    def items(self, prefix: str) -> Mapping[str, bytes]:
        """ports.Memory"""
        rows = self._store.read(
            lambda db: db.execute(
                "SELECT key, value FROM memory WHERE substr(key, 1, ?) = ?", (len(prefix), prefix)
            ).fetchall()
        )
        return {key: bytes(value) for key, value in rows}


def _last(db: sqlite3.Connection) -> int:
    """The newest sequence number in use. They grow as long as anything waits, which is all that order needs."""
    row = db.execute("SELECT max((SELECT ifnull(max(seq), 0) FROM documents), (SELECT ifnull(max(seq), 0) FROM news))")
    return int(row.fetchone()[0])


def _put(db: sqlite3.Connection, key: str, seq: int, lane: OutboxLane, body: bytes) -> None:
    """`since` stays: until the newest content is written, the cluster state lacks what came under that number."""
    db.execute(
        "INSERT INTO documents(key, seq, since, lane, body) VALUES(?, ?, ?, ?, ?) ON CONFLICT(key) DO UPDATE SET"
        " seq = excluded.seq, lane = excluded.lane, body = excluded.body",
        (key, seq, seq, lane, body),
    )


def _queue_news(db: sqlite3.Connection, seq: int, lane: OutboxLane, event: News, token: str | None) -> None:
    detail = json.dumps(event.detail, allow_nan=False, separators=(",", ":"))
    db.execute(
        "INSERT INTO news(seq, lane, type, at, detail, token) VALUES(?, ?, ?, ?, ?, ?)",
        (seq, lane, event.type.value, event.at.isoformat(), detail, token),
    )


def _bound(db: sqlite3.Connection, lane: OutboxLane) -> None:
    gone = db.execute(
        "DELETE FROM news WHERE lane = ? AND seq <= (SELECT seq FROM news WHERE lane = ? ORDER BY seq DESC"
        " LIMIT 1 OFFSET ?)",
        (lane, lane, MAX_NEWS),
    ).rowcount
    if gone > 0:
        count(db, DROPPED, gone)
