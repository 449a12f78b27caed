"""The journal of orders in SQLite: what became of each, kept so that no command is ever run twice.

The executor writes it; `Commands` and the watcher ask it what this agent itself has done (`ports.OwnActions`).

taken   accepted; nothing has been run
begun   a command was about to run: written before it runs, so a kill in between is seen at the next start
done    its Answer is kept, and is given again when the order is delivered again
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rekindle.compat import StrEnum, from_iso
from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.ports import OwnActions
from rekindle.slurm_agent.base.store import Store

KEEP: Final = timedelta(days=15)  # Source: SQS, a message is kept at most 14 days: no older one is delivered again
MAX_QUARANTINED: Final = 200
MAX_QUARANTINED_CHARS: Final = 4000
_COLUMNS: Final = "token, body, verb, subject, attempt, new_attempt"


class State(StrEnum):
    """How far an order has come; see above."""

    TAKEN = "taken"
    BEGUN = "begun"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An order as the journal has it. `tried_at` is when it was last tried, `due_at` when it is to be tried next."""

    order: Order
    body: str
    state: State
    tries: int
    begun_at: datetime | None
    tried_at: datetime | None
    due_at: datetime
    answer: OrderResult | None


class Journal(OwnActions):
    """The orders of one agent; each method is one transaction, but for `finish`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, token: str) -> Entry | None:
        """The order with that token; None where it is not in the journal, or cannot be read."""
        found = self._store.read(lambda db: _rows(db, "WHERE token = ?", (token,)))
        return found[0] if found else None

    def open(self) -> tuple[Entry, ...]:
        """All orders that are not done, oldest first."""
        return self._store.read(lambda db: _rows(db, "WHERE state != 'done' ORDER BY taken_at, token"))

    def requeued_since(self, when: datetime) -> tuple[Entry, ...]:
        """The orders to REQUEUE that were carried out after `when`, and whose starts no later order holds."""
        where = "WHERE verb = 'requeue' AND outcome IN ('done', 'already') AND done_at > ?"
        found = self._store.read(lambda db: _rows(db, where, (when.isoformat(),)))
        return tuple(
            entry for entry in found if entry.order.new_attempt and self.holds(entry.order.new_attempt) is False
        )

    def take(self, order: Order, *, now: datetime) -> None:
        """Record an order as taken. Idempotent: one that is there stays as it is."""
        if self.find(order.token) is not None:
            return
        at = now.isoformat()
        values = (*_columns(order), at, at)
        self._store.write(
            lambda db: db.execute(
                f"INSERT OR REPLACE INTO orders({_COLUMNS}, state, taken_at, due_at)"
                " VALUES(?, ?, ?, ?, ?, ?, 'taken', ?, ?)",
                values,
            )
        )

    def begin(self, token: str, *, now: datetime) -> None:
        """Record that a command of the order is about to run."""
        self._store.write(
            lambda db: db.execute(
                "UPDATE orders SET state = 'begun', begun_at = coalesce(begun_at, ?), tried_at = ? WHERE token = ?",
                (now.isoformat(), now.isoformat(), token),
            )
        )

    def postpone(self, token: str, *, now: datetime, due_at: datetime, counts: bool) -> None:
        """Have the order tried again at `due_at`. `counts`: what came before was a try that failed."""
        self._store.write(
            lambda db: db.execute(
                "UPDATE orders SET due_at = ?, tried_at = ?, tries = tries + ? WHERE token = ? AND state != 'done'",
                (due_at.isoformat(), now.isoformat(), int(counts), token),
            )
        )

    def finish(self, db: sqlite3.Connection, order: Order, answer: OrderResult) -> None:
        """Record the answer, within the caller's transaction `db`, which also keeps the answer to be sent."""
        at = answer.at.isoformat()
        db.execute(
            f"INSERT INTO orders({_COLUMNS}, state, outcome, answer, taken_at, due_at, done_at)"
            " VALUES(?, ?, ?, ?, ?, ?, 'done', ?, ?, ?, ?, ?) ON CONFLICT(token) DO UPDATE SET"
            " state = 'done', outcome = excluded.outcome, answer = excluded.answer, done_at = excluded.done_at",
            (*_columns(order), answer.outcome.value, answer.to_json().decode(), at, at, at),
        )
        db.execute("DELETE FROM orders WHERE state = 'done' AND done_at < ?", ((answer.at - KEEP).isoformat(),))

    def adopt(self, order: Order, *, begun_at: datetime | None = None, answer: OrderResult | None = None) -> None:
        """Record that another agent has begun an order, or answered it. One that is done stays as it is."""
        begun = begun_at.isoformat() if begun_at is not None else None
        at = answer.at.isoformat() if answer is not None else begun
        state = State.DONE if answer is not None else State.BEGUN
        reported = (answer.outcome.value, answer.to_json().decode(), at) if answer is not None else (None, None, None)
        self._store.write(
            lambda db: db.execute(
                f"INSERT INTO orders({_COLUMNS}, state, taken_at, due_at, begun_at, tried_at, outcome, answer, done_at)"
                " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(token) DO UPDATE SET"
                " state = excluded.state, begun_at = coalesce(begun_at, excluded.begun_at),"
                " tried_at = max(coalesce(tried_at, ''), coalesce(excluded.tried_at, '')),"
                " outcome = excluded.outcome, answer = excluded.answer, done_at = excluded.done_at"
                " WHERE state != 'done'",
                (*_columns(order), state.value, at, at, begun, begun, *reported),
            )
        )

    def quarantine(self, body: str, reason: str, *, now: datetime) -> None:
        """Keep a message that is no order, for a person. Bounded: the oldest go."""

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO quarantine(at, reason, body) VALUES(?, ?, ?)",
                (now.isoformat(), reason[:500], body[:MAX_QUARANTINED_CHARS]),
            )
            db.execute(
                "DELETE FROM quarantine WHERE id <= (SELECT max(id) FROM quarantine) - ?",
                (MAX_QUARANTINED,),
            )

        self._store.write(work)

    # ---- ports.OwnActions

    def has_ended(self, attempt: str) -> bool:
        return self._has((Verb.CANCEL, Verb.HOLD), "attempt", attempt)

    def has_requeued(self, new_attempt: str) -> bool:
        try:
            name = parse_attempt(new_attempt)
        except MailboxError:
            return False
        if self._has((Verb.REQUEUE,), "new_attempt", new_attempt):
            return True
        return name.restart > 0 and self._has((Verb.HOLD,), "attempt", name.restarted(name.restart - 1).name)

    def is_unproven(self, new_attempt: str) -> bool:
        return self._has((Verb.SUBMIT,), "new_attempt", new_attempt, (Outcome.FAILED, Outcome.REFUSED))

    def copy_of(self, new_attempt: str) -> int | None:
        rows = self._store.read(
            lambda db: db.execute(
                "SELECT answer FROM orders WHERE verb = 'submit' AND new_attempt = ? AND outcome IN ('done', 'already')"
                " AND answer IS NOT NULL",
                (new_attempt,),
            ).fetchall()
        )
        found = [OrderResult.from_json(str(answer)).slurm_job for (answer,) in rows]
        return next((number for number in found if number is not None), None)

    def holds(self, attempt: str) -> bool | None:
        try:
            name = parse_attempt(attempt)
        except MailboxError:
            return None
        held = (attempt, name.restarted(name.restart - 1).name if name.restart > 0 else attempt)
        row = self._store.read(
            lambda db: db.execute(
                "SELECT verb = 'hold' OR state = 'begun' FROM orders"
                " WHERE (verb = 'hold' AND attempt IN (?, ?) AND (state = 'begun' OR outcome IN ('done', 'failed')))"
                " OR (verb = 'requeue' AND new_attempt = ? AND (state = 'begun' OR outcome IN ('done', 'already')))"
                " ORDER BY coalesce(done_at, begun_at, taken_at) DESC, verb = 'requeue' DESC LIMIT 1",
                (*held, attempt),
            ).fetchone()
        )
        return None if row is None else bool(row[0])

    def _has(
        self,
        verbs: tuple[Verb, ...],
        column: str,
        value: str,
        outcomes: tuple[Outcome, Outcome] = (Outcome.DONE, Outcome.FAILED),
    ) -> bool:
        """Whether an order with one of `verbs` was begun, or had one of `outcomes`. `column` is a constant of ours."""
        marks = ", ".join("?" for _ in verbs)
        row = self._store.read(
            lambda db: db.execute(
                f"SELECT 1 FROM orders WHERE {column} = ? AND verb IN ({marks})"  # noqa: S608
                f" AND (state = 'begun' OR outcome IN (?, ?)) LIMIT 1",
                (value, *(verb.value for verb in verbs), *(outcome.value for outcome in outcomes)),
            ).fetchone()
        )
        return row is not None


def subject_of(order: Order) -> str:
    """What an order is about: two orders about one thing are carried out one after the other."""
    if order.node is not None:
        return f"node {order.node}"
    if order.slurm_job is not None:
        return f"job {order.slurm_job}"
    return f"attempt {order.attempt}" if order.attempt else f"order {order.token}"


def body_of(order: Order) -> str:
    """The order in its one form; two deliveries of one order have the same."""
    return order.to_json().decode()


def _columns(order: Order) -> tuple[str | None, ...]:
    """The values of `_COLUMNS`."""
    return (order.token, body_of(order), order.verb.value, subject_of(order), order.attempt, order.new_attempt)


def _rows(db: sqlite3.Connection, where: str, values: tuple[str, ...] = ()) -> tuple[Entry, ...]:
    """`where` is a constant of ours. A row that another version wrote and this one cannot read is left out."""
    found = db.execute(
        f"SELECT body, state, tries, begun_at, tried_at, due_at, answer FROM orders {where}",  # noqa: S608
        values,
    ).fetchall()
    return tuple(entry for row in found if (entry := _entry(*row)) is not None)


def _entry(
    body: str, state: str, tries: int, begun: str | None, tried: str | None, due: str, answer: str | None
) -> Entry | None:
    try:
        return Entry(
            order=Order.from_json(body),
            body=body,
            state=State(state),
            tries=tries,
            begun_at=from_iso(begun) if begun else None,
            tried_at=from_iso(tried) if tried else None,
            due_at=from_iso(due),
            answer=OrderResult.from_json(answer) if answer else None,
        )
    except ValueError:  # MailboxError is one
        return None
