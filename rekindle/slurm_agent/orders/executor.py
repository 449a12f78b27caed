"""Orders from the queue to their answers: nothing is run twice, nothing that is late, nothing that is not understood.

A message is deleted only after its answer is in the cluster state. What is taken is carried on from the journal, so
neither a lost message nor a restart loses it; what comes again is answered again from there.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MAX_TEXT_CHARS, MailboxError, is_id, parse_json
from rekindle.slurm_agent.base.clock import Clock
from rekindle.slurm_agent.base.ports import BarredHere, LeaseHolder, NotHolder, SlurmRefused, SlurmUnavailable
from rekindle.slurm_agent.base.problems import Problems
from rekindle.slurm_agent.base.store import Store
from rekindle.slurm_agent.orders.dispatch import OrderDispatcher
from rekindle.slurm_agent.orders.journal import Entry, Journal, State, body_of, subject_of
from rekindle.slurm_agent.orders.verbs import OrderNotReady, OrderTry, Result, refused
from rekindle.slurm_agent.publishing.outbox import Outbox

log = logging.getLogger(__name__)

MAX_TRIES: Final = 40  # with the waits below about half an hour of slurmctld being away
FIRST_WAIT_S: Final = 2.0
MAX_WAIT_S: Final = 60.0
UNSURE_S: Final = 1.0
# How long ago an order may have let a job go that is let go again. slurmctld loses the seconds before its end; what
# waits held for longer may wait for a person.
FORGOTTEN_WITHIN: Final = timedelta(minutes=15)


class _Expired(Exception):
    """A command would have to be run, and it is too late for that."""


class OrderExecutor:
    """Takes messages, and works on what is open. Used by the order loop's thread alone."""

    def __init__(
        self,
        *,
        cluster: str,
        store: Store,
        outbox: Outbox,
        journal: Journal,
        dispatcher: OrderDispatcher,
        clock: Clock,
        problems: Problems,
        on_answer: Callable[[], None],
        holding: LeaseHolder | None = None,
    ) -> None:
        self._holding = holding
        self._cluster = cluster
        self._store = store
        self._outbox = outbox
        self._journal = journal
        self._dispatcher = dispatcher
        self._clock = clock
        self._problems = problems
        self._on_answer = on_answer
        self.busy = threading.Lock()  # held while an order is carried out: a stop waits for it

    # ---- messages

    def take(self, body: str) -> str | None:
        """One message. The token to delete it by once that is answered; None: it can be deleted now."""
        now = self._clock.now()
        try:
            order = Order.from_json(body)
        except MailboxError as err:
            self._malformed(body, err, now)
            return None
        entry = self._journal.find(order.token)
        if entry is None:
            if (refusal := self._refusal(order, now)) is not None:
                self._finish(order, refusal)
            else:
                self._journal.take(order, now=now)
        elif entry.body != body_of(order):
            self._another(order, body, now)
        elif entry.answer is not None:
            answer = entry.answer
            self._store.write(lambda db: self._outbox.answer(db, answer))
            log.info("token=%s verb=%s answered=again", order.token, order.verb)
            self._on_answer()
        return order.token

    def _refusal(self, order: Order, now: datetime) -> Result | None:
        if order.cluster != self._cluster:
            return refused(f"this is the agent of {self._cluster}, not of {order.cluster}")
        for name in (order.attempt, order.new_attempt):  # the same job id is another run on another cluster
            if name is not None and parse_attempt(name).cluster != self._cluster:
                return refused(f"{name} is of another cluster than {self._cluster}")
        if now >= order.expires_at:
            return refused(f"expired at {order.expires_at:%Y-%m-%d %H:%M:%S} UTC, came at {now:%Y-%m-%d %H:%M:%S} UTC")
        return None

    def _malformed(self, body: str, err: MailboxError, now: datetime) -> None:
        """Kept for a person; refused where its order is known."""
        log.warning("malformed=%s", err)
        self._journal.quarantine(body, str(err), now=now)
        self._problems.set("quarantine", [f"a message that is no order was put aside: {err}"])
        token, verb = _named(body)
        if token is None or verb is None:
            return
        answer = self._answer(token, verb, refused(f"malformed: {err}"), now)
        is_known = self._journal.find(token) is not None
        self._store.write(lambda db: self._outbox.answer(db, answer, writes=not is_known))
        self._on_answer()

    def _another(self, order: Order, body: str, now: datetime) -> None:
        """Sent as an event only: the answer in the cluster state is the first order's."""
        reason = "another order was taken under this token before"
        self._journal.quarantine(body, f"token {order.token}: {reason}", now=now)
        answer = self._answer(order.token, order.verb, refused(reason), now, order)
        self._store.write(lambda db: self._outbox.answer(db, answer, writes=False))
        self._on_answer()

    # ---- work

    def work(self) -> float | None:
        """Carry out all that is due. Seconds until more is due; None: nothing is open."""
        if self._holding is None or self._holding.left_s() > 0:
            self._problems.set("held", self._dispatcher.release_and_cancel())
            self._problems.set("copies", self._dispatcher.refusals_of_copies())
        if not self._clock.is_sure():  # what is late, and what is due, cannot be told until AWS has answered
            return UNSURE_S if self._journal.open() else None
        self._let_go_again()
        behind: set[str] = set()
        for entry in self._journal.open():
            subject = subject_of(entry.order)
            if subject in behind or not self._is_due(entry) or not self._try(entry):
                behind.add(subject)
        left = [entry.due_at for entry in self._journal.open()]
        return max(0.0, (min(left) - self._clock.now()).total_seconds()) if left else None

    def _let_go_again(self) -> None:
        """What an order let go and slurmctld, which came back with an older state, holds once more."""
        now = self._clock.now()
        for entry in self._journal.requeued_since(now - FORGOTTEN_WITHIN):
            if self._holding is not None and self._holding.left_s() <= 0:
                return
            if not self._dispatcher.has_forgotten(entry.order):
                continue
            order_try = OrderTry(
                order=entry.order, begun_at=entry.begun_at, tried_at=entry.tried_at, now=now, begin=lambda: None
            )
            try:
                with self.busy:
                    self._dispatcher.let_go_again(order_try)
            except Exception:  # as in `_result`: a fault of ours must not keep the orders from being carried out
                log.exception("token=%s let_go_again", entry.order.token)

    def _is_due(self, entry: Entry) -> bool:
        """A time that no wait of ours explains comes from a clock that was set back since."""
        wait_s = (entry.due_at - self._clock.now()).total_seconds()
        return wait_s <= 0 or wait_s > 2 * MAX_WAIT_S

    def _try(self, entry: Entry) -> bool:
        """True: it is answered."""
        if self._holding is not None and self._holding.left_s() <= 0:
            return False
        order, now = entry.order, self._clock.now()
        result = self._refusal(order, now) if entry.state is State.TAKEN else None
        if result is None:
            with self.busy:
                result = self._result(entry, now)
        if result is not None:
            self._finish(order, result)
        return result is not None

    def _result(self, entry: Entry, now: datetime) -> Result | None:
        """None: not yet."""
        order, is_begun = entry.order, entry.begun_at is not None

        def begin() -> None:
            nonlocal is_begun
            self._begin(order)
            is_begun = True

        order_try = OrderTry(order=order, begun_at=entry.begun_at, tried_at=entry.tried_at, now=now, begin=begin)
        try:
            return self._carried_out(order_try)
        except OrderNotReady as err:
            if now >= order.expires_at and not is_begun:
                return refused(f"it expired, and nothing was run: {err}")
            return self._again(entry, str(err), wait_s=err.after_s, counts=False)
        except SlurmUnavailable as err:
            wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** min(entry.tries, 10))
            return self._again(entry, str(err), wait_s=wait_s, counts=True)
        except BarredHere as err:
            return Result(outcome=Outcome.REFUSED, detail=str(err), barred=err.barred)
        except SlurmRefused as err:
            return refused(f"Slurm refused: {err}")
        except _Expired:
            return order_try.failed_or_refused("it expired before it had taken effect")
        except Exception as err:  # a fault of ours in one verb must not end the loop for all the others
            log.exception("token=%s verb=%s", order.token, order.verb)
            return Result(outcome=Outcome.FAILED, detail=f"internal error: {type(err).__name__}: {err}")

    def _carried_out(self, order_try: OrderTry) -> Result:
        """Tried once more where Slurm refused: another may have acted in between, and each verb looks first at what is
        there. Not a signal, of which nothing can be seen. Raises: what the dispatcher raises.
        """
        try:
            return self._dispatcher.carry_out(order_try)
        except BarredHere:
            raise
        except SlurmRefused:
            if order_try.order.verb is Verb.SIGNAL:
                raise
        return self._dispatcher.carry_out(order_try)

    def _begin(self, order: Order) -> None:
        """Raises: _Expired, OrderNotReady, SlurmError, and then nothing may be run."""
        at = self._clock.now()
        if at >= order.expires_at:
            raise _Expired
        self._dispatcher.check(order)
        if self._holding is not None:
            try:
                self._holding.begin(order.token, at)
            except NotHolder as err:
                raise OrderNotReady(str(err)) from err
        if not self._clock.is_sure():
            raise OrderNotReady("the clock of this host was set, or it was suspended: AWS is asked for the time")
        at = self._clock.now()
        if at >= order.expires_at:  # by what AWS has just answered: the machine may have stood still
            raise _Expired
        self._journal.begin(order.token, now=at)

    def _again(self, entry: Entry, why: str, *, wait_s: float, counts: bool) -> Result | None:
        now, order = self._clock.now(), entry.order
        is_late = now >= order.expires_at
        if is_late or (counts and entry.tries + 1 >= MAX_TRIES):
            after = "it expired" if is_late else f"{entry.tries + 1} tries"
            return Result(outcome=Outcome.FAILED, detail=f"given up, {after}: {why}")
        log.info("token=%s verb=%s later=%s wait_s=%.0f", order.token, order.verb, why, wait_s)
        self._journal.postpone(order.token, now=now, due_at=now + timedelta(seconds=wait_s), counts=counts)
        return None

    def _finish(self, order: Order, result: Result) -> None:
        """Journal and answer in one transaction: never the one without the other."""
        answer = self._answer(order.token, order.verb, result, self._clock.now(), order)

        def work(db: sqlite3.Connection) -> None:
            self._journal.finish(db, order, answer)
            self._outbox.answer(db, answer)

        self._store.write(work)
        log.info(
            "token=%s verb=%s attempt=%s slurm_job=%s node=%s outcome=%s detail=%s",
            order.token,
            order.verb,
            order.attempt,
            answer.slurm_job,
            order.node,
            answer.outcome,
            answer.detail,
        )
        self._on_answer()

    def _answer(self, token: str, verb: Verb, result: Result, at: datetime, order: Order | None = None) -> OrderResult:
        """Under our own cluster's name, also to an order for another: we write nowhere else."""
        return OrderResult(
            token=token,
            verb=verb,
            cluster=self._cluster,
            outcome=result.outcome,
            at=at,
            detail=result.detail[:MAX_TEXT_CHARS],
            attempt=order.attempt if order else None,
            slurm_job=result.slurm_job or (order.slurm_job if order and order.verb is not Verb.SUBMIT else None),
            node=order.node if order else None,
            incident_id=order.incident_id if order else None,
            sibling=result.sibling,
            is_held_by_user=result.is_held_by_user,
            barred=result.barred,
            queue_losses=result.queue_losses,
        )


def _named(body: str) -> tuple[str | None, Verb | None]:
    """Token and verb of a message that is otherwise wrong, where they can be read."""
    try:
        wire = parse_json(body, MAX_MESSAGE_BYTES)
    except MailboxError:
        return None, None
    if not isinstance(wire, dict):
        return None, None
    token, verb = wire.get("token"), wire.get("verb")
    return (
        token if isinstance(token, str) and is_id(token) else None,
        Verb(verb) if isinstance(verb, str) and verb in set(Verb) else None,
    )
