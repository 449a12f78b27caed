"""Orders about jobs; the table in `verbs` says when each counts as done."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, JobSpec, SlurmState
from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.cluster.orders import Order, Outcome, RunTie, Standing, Verb
from rekindle.slurm_agent.base.ports import (
    NotProtected,
    OwnActions,
    QueuePlace,
    SlurmError,
    SlurmRefused,
    UnknownJob,
)
from rekindle.slurm_agent.orders.size_verbs import restore_size
from rekindle.slurm_agent.orders.specs import StoredSpecs
from rekindle.slurm_agent.orders.verbs import (
    ACTIVE,
    ENDED,
    OrderedJob,
    OrderNotReady,
    OrderTry,
    Result,
    done,
    present,
    refused,
    secrets_words,
    sentence,
    stale,
    started,
    waiting_words,
)
from rekindle.slurm_agent.reading.jobs import HELD_BY_SLURM, spaced_reason
from rekindle.slurm_agent.slurm.commands import Commands

# slurmctld forgets an ended job after MinJobAge (default 300 s): where the agent was away for longer than this, a job
# that is not found may have been submitted, have ended, and be forgotten.
SETTLED_WITHIN: Final = timedelta(seconds=240)


class JobVerbs:
    """`own_actions` None: whose a hold is, is not asked (tests of one part)."""

    def __init__(self, slurm: Commands, specs: StoredSpecs, own_actions: OwnActions | None = None) -> None:
        self._slurm = slurm
        self._specs = specs
        self._own_actions = own_actions

    def cancel(self, order_try: OrderTry) -> Result:
        doc = self._to_stop(order_try)
        if isinstance(doc, Result):
            return doc
        order_try.begin()
        self._slurm.note(doc.slurm_job, order_try.order)
        try:
            self._slurm.cancel(doc.slurm_job)
        except SlurmRefused as err:
            return self._ended_meanwhile(order_try, err)
        return done(f"job {doc.slurm_job} was cancelled while {doc.state}")

    def hold(self, order_try: OrderTry) -> Result:
        doc = self._to_stop(order_try)
        if isinstance(doc, Result):
            return doc
        order_try.begin()
        self._slurm.note(doc.slurm_job, order_try.order)
        try:
            if doc.state is SlurmState.PENDING:
                self._slurm.hold(doc.slurm_job)
            else:
                self._slurm.requeue_hold(doc.slurm_job)
        except SlurmRefused as err:
            return self._ended_meanwhile(order_try, err)
        return done(f"job {doc.slurm_job} was {doc.state} and waits in the queue, held")

    def requeue(self, order_try: OrderTry) -> Result:
        order = order_try.order
        assert order.new_attempt is not None, "orders.NEEDED"  # noqa: S101
        assert order.attempt is not None, "orders.NEEDED"  # noqa: S101
        new, old = parse_attempt(order.new_attempt), parse_attempt(order.attempt)
        if new.base != old.base or new.restart <= old.restart:
            return refused(f"{order.new_attempt} is no later start of {order.attempt}")
        found = present(self._slurm, order)
        if isinstance(found, Result):
            return found
        doc = found.doc
        if doc is None:
            return order_try.failed_or_refused(
                f"slurmctld does not know job {order.slurm_job} any more: submit it again"
            )
        restart = old.restart + found.lead
        if restart > new.restart:
            return order_try.there(f"it has started since: {doc.attempt}") if order_try.was_begun else stale(order, doc)
        if restart == new.restart:
            return self._let_go(order_try, doc)
        if doc.state is SlurmState.COMPLETING:
            raise OrderNotReady(f"job {doc.slurm_job} is still completing")
        if restart < new.restart - 1:
            return refused(f"{order.new_attempt} is not the next start: job {doc.slurm_job} is {doc.attempt}")
        if doc.state not in ENDED:
            return refused(f"job {doc.slurm_job} has not ended, it is {doc.state}: stop it first")
        if (other := self._other_lives(order, doc.slurm_job)) is not None:
            return other
        before = self._slurm.queue_place(doc.slurm_job)
        order_try.begin()
        self._slurm.note(doc.slurm_job, order, Verb.HOLD)
        self._slurm.requeue_hold(doc.slurm_job)  # held, so that it cannot start before its nodes are excluded
        again = self._slurm.job(doc.slurm_job)
        if again is None or parse_attempt(again.attempt).restart != new.restart:
            raise OrderNotReady(f"job {doc.slurm_job} was put back into the queue and is not there yet")
        note = self._pointed(order, doc.slurm_job, doc.slurm_job)
        return self._start(
            again, order_try, before, f"job {doc.slurm_job} had ended ({doc.state}) and was requeued{note}"
        )

    def submit(self, order_try: OrderTry) -> Result:
        order = order_try.order
        assert order.new_attempt is not None, "orders.NEEDED"  # noqa: S101
        assert order.spec is not None, "orders.NEEDED"  # noqa: S101
        there = self._slurm.find_by_attempt(order.new_attempt)
        if there is not None:
            return self._found(order_try, there)
        away = order_try.now - (order_try.tried_at or order_try.now)
        if order_try.was_begun and away > SETTLED_WITHIN:
            return Result(
                outcome=Outcome.FAILED,
                detail=f"begun, then this agent was away for {away.total_seconds():.0f} s: if the job was submitted, "
                "it has ended and is forgotten; it is not submitted again",
            )
        if (unfinished := self._still_there(order_try)) is not None:
            return unfinished
        if (other := self._other_lives(order)) is not None:
            return other
        try:
            self._specs.check(order)
            spec = self._specs.get(order.spec)
        except LookupError as err:
            return order_try.failed_or_refused(str(err))
        order_try.begin()
        slurm_job = self._slurm.submit(spec, order)
        self._slurm.note(slurm_job, order, Verb.HOLD)
        if (taken_back := self._unlike(order_try, slurm_job, spec)) is not None:
            return taken_back
        before = self._place_of_original(order)
        if before is not None:  # what a held job can be given
            self._slurm.restore_place(slurm_job, before)
        if (taken_back := self._let_copy_go(slurm_job)) is not None:
            return taken_back
        losses = self._slurm.restore_place(slurm_job, before) if before is not None else ()
        self._slurm.note(slurm_job, order)
        others = self._slurm.other_secrets(slurm_job, spec, order)
        note = f"{secrets_words(others)}{self._repoint(order, slurm_job)}"
        return started(f"job {slurm_job} was submitted{note}", losses, slurm_job)

    def _place_of_original(self, order: Order) -> QueuePlace | None:
        """None where slurmctld does not know it any more."""
        if order.slurm_job is None or order.attempt is None:
            return None
        try:
            found = present(self._slurm, order)
            is_there = isinstance(found, OrderedJob) and found.doc is not None
            return self._slurm.queue_place(order.slurm_job) if is_there else None
        except (UnknownJob, NotProtected, OrderNotReady):
            return None

    def _found(self, order_try: OrderTry, copy: AttemptDoc) -> Result:
        """The submission is there. One that never ran was perhaps not compared yet, or was cancelled for a difference:
        it is compared again."""
        order, number = order_try.order, copy.slurm_job
        assert order.spec is not None, "orders.NEEDED"  # noqa: S101
        is_held = copy.state is SlurmState.PENDING and copy.held
        if copy.restart == 0 and (is_held or (copy.state in ENDED and not copy.nodes)):
            order_try.begin()
            try:
                spec = self._specs.get(order.spec)
            except LookupError as err:
                return self._taken_back(number, str(err))
            if (taken_back := self._unlike(order_try, number, spec)) is not None:
                return taken_back
            if is_held and (who := self._held_by_others(copy, None, was_begun=True)):
                return _left_held(copy, who)
            if is_held and (taken_back := self._let_copy_go(number)) is not None:
                return taken_back
            self._slurm.note(number, order)
            if not is_held:  # by us for an earlier order of that name, or by its user
                return order_try.failed_or_refused(
                    f"job {number}, {order.new_attempt}, was cancelled before it could start"
                )
        note = self._repoint(order, number)
        return order_try.there(f"job {number} is {order.new_attempt}{note}", number)

    def _let_copy_go(self, copy: int) -> Result | None:
        """A refusal where Slurm does not let it go: a copy is never left held for an order that is answered."""
        try:
            self._slurm.release(copy)
        except UnknownJob as err:  # a slurmctld that came back, or took over, without it
            raise OrderNotReady(f"slurmctld has lost job {copy}, the copy, before it was released") from err
        except SlurmRefused as err:
            return self._taken_back(copy, str(err))
        return None

    def _unlike(self, order_try: OrderTry, copy: int, spec: JobSpec) -> Result | None:
        """A refusal where the copy is not the same job as its original; it is then cancelled, before it could run."""
        found = self._slurm.differences(copy, spec, order_try.order)
        return self._taken_back(copy, f"it is not the same job: {sentence(found)}") if found else None

    def _taken_back(self, copy: int, why: str) -> Result:
        with suppress(SlurmRefused):  # it is cancelled already
            self._slurm.cancel(copy)
        return refused(f"job {copy}, the copy, was cancelled before it could start: {why}")

    def exclude(self, order_try: OrderTry) -> Result:
        order = order_try.order
        found = present(self._slurm, order)
        if isinstance(found, Result):
            return found
        doc = found.doc
        if doc is None:
            return refused(f"slurmctld does not know job {order.slurm_job}")
        if doc.state is not SlurmState.PENDING:
            return refused(f"job {doc.slurm_job} is {doc.state}: only a pending job's nodes can be excluded")
        if set(doc.exclude) == set(order.exclude):
            return order_try.there(f"job {doc.slurm_job} has just this list")
        order_try.begin()
        self._exclude(doc.slurm_job, order.exclude)
        return done(f"job {doc.slurm_job} gets none of {len(order.exclude)} nodes" if order.exclude else "lifted")

    # ---- parts

    def _let_go(self, order_try: OrderTry, doc: AttemptDoc) -> Result:
        """The new start is in the queue, or further."""
        if doc.state is not SlurmState.PENDING:
            return order_try.there(f"{doc.attempt} is {doc.state}")
        wanted = set(order_try.order.exclude) - set(doc.exclude)
        if not doc.held and not wanted and not order_try.was_begun:
            order_try.begin()
            self._at_once(doc.slurm_job)
            return Result(outcome=Outcome.ALREADY, detail=f"{doc.attempt} waits in the queue, not held")
        if doc.held and (who := self._held_by_others(doc, order_try.order.attempt, was_begun=order_try.was_begun)):
            return _left_held(doc, who)
        if doc.held and (other := self._other_lives(order_try.order, doc.slurm_job)) is not None:
            return other
        old, before = self._slurm.start(order_try.order.attempt or ""), self._slurm.queue_place(doc.slurm_job)
        before = replace(before, waiting_since=old.submitted_at if old is not None else None)
        order_try.begin()
        return self._start(doc, order_try, before, f"job {doc.slurm_job} was released as {doc.attempt}")

    def _other_lives(self, order: Order, *ours: int) -> Result | None:
        """The user has submitted the run in the moments since this was ordered: nothing is started beside it. The
        service looks for it before it orders anything again.
        """
        old = self._slurm.start(order.attempt or "")
        if old is None:
            return None
        other = self._slurm.sibling(old, besides={*ours, old.slurm_job})
        if other is None:
            return None
        if other.tie is RunTie.UNSURE:
            detail = (
                f"nothing was started: job {other.slurm_job} of the same script may be another start of it; with which "
                "arguments it was submitted cannot be told"
            )
            return Result(outcome=Outcome.REFUSED, detail=detail)
        how = "has nodes" if other.standing is Standing.HAS_NODES else "will run by itself"
        detail = f"nothing was started: job {other.slurm_job} of the same run {how} (the same {other.tie})"
        return Result(outcome=Outcome.REFUSED, detail=detail, sibling=other)

    def _held_by_others(self, doc: AttemptDoc, before: str | None, *, was_begun: bool = False) -> str:
        """Who holds it, and is to let it go; "" where we do, or Slurm itself: by this agent's journal, else by what an
        agent has written of the start that the order is about. Raises: SlurmRefused where that cannot be told."""
        if self._slurm.is_held_by_admin(doc.slurm_job):
            return "an administrator"
        if was_begun or self._own_actions is None or self._own_actions.holds(doc.attempt):
            return ""
        if spaced_reason(doc.reason).startswith(HELD_BY_SLURM):
            return ""
        old = self._slurm.start(before) if before is not None else None
        is_ours = old is not None and old.attempt != doc.attempt and EndedBy.AGENT in (old.ended_by, old.requeued_by)
        return "" if is_ours else "its user"

    def _start(self, doc: AttemptDoc, order_try: OrderTry, before: QueuePlace, what: str) -> Result:
        """Exclude more nodes (its user's own stay excluded), then release, then have it start at once. What others have
        changed of a job that is not held by us any more stays so."""
        order = order_try.order
        if not set(order.exclude) <= set(doc.exclude):
            try:
                self._exclude(doc.slurm_job, dict.fromkeys((*doc.exclude, *order.exclude)))
            except SlurmRefused as err:
                held = "; it is left held" if doc.held else ""
                raise SlurmRefused(f"job {doc.slurm_job} cannot do without those nodes: {err}{held}") from err
        size = restore_size(self._slurm, order, doc)
        if doc.held:
            self._slurm.release(doc.slurm_job)
        is_ours = doc.held or order_try.was_begun
        losses = self._slurm.restore_place(doc.slurm_job, before) if is_ours else ()
        self._slurm.note(doc.slurm_job, order)
        self._at_once(doc.slurm_job)
        return started(f"{what}{size}", losses)

    def _exclude(self, slurm_job: int, nodes: Collection[str]) -> None:
        if why := self._slurm.needs_one_of(slurm_job, nodes):
            raise SlurmRefused(why)
        self._slurm.exclude(slurm_job, nodes)

    def _at_once(self, slurm_job: int) -> None:
        """Without this it starts some seconds later (cred_expire), which is no reason to fail."""
        with suppress(SlurmError):
            self._slurm.start_now(slurm_job)

    def _to_stop(self, order_try: OrderTry) -> AttemptDoc | Result:
        """The start that is to be cancelled or held; what the order comes to where that needs no command, or may not be
        done. COMPLETING is over, or on its way back into the queue: a command then would be refused or lost.
        """
        order = order_try.order
        found = present(self._slurm, order)
        if isinstance(found, Result):
            return found
        doc = found.doc
        if doc is None:
            return order_try.there(f"slurmctld does not know job {order.slurm_job} any more")
        if doc.state in ENDED:
            return order_try.there(f"the start is over: job {doc.slurm_job} has ended, {doc.state}")
        if order.verb is Verb.HOLD and doc.state is SlurmState.PENDING and doc.held:
            return order_try.there(f"job {doc.slurm_job} waits, held")
        if found.lead:
            return stale(order, doc)
        if doc.state is not SlurmState.COMPLETING:
            return doc
        if order_try.was_begun:
            return done(f"job {doc.slurm_job} is completing")
        raise OrderNotReady(f"job {doc.slurm_job} is completing")

    def _ended_meanwhile(self, order_try: OrderTry, err: SlurmRefused) -> Result:
        """Slurm refused a stop: fine where the start is over by now."""
        found = present(self._slurm, order_try.order)
        if isinstance(found, OrderedJob):
            doc = found.doc
            if doc is None or found.lead or doc.state in ENDED | {SlurmState.COMPLETING}:
                return Result(outcome=Outcome.ALREADY, detail=f"it ended meanwhile; {err}")
        return refused(str(err))

    def _still_there(self, order_try: OrderTry) -> Result | None:
        """A refusal where the attempt that this one takes the place of could still run beside it."""
        order = order_try.order
        if order.slurm_job is None or order.attempt is None:
            return None
        try:
            found = present(self._slurm, order)
        except NotProtected:
            return None  # the id is another's by now
        if isinstance(found, Result):
            return None  # the same
        doc = found.doc
        if doc is None or doc.state in ENDED:
            return None
        if doc.state is SlurmState.PENDING and doc.held:
            who = self._held_by_others(doc, order.attempt)
            return _left_held(doc, who) if who else None
        if doc.state is SlurmState.COMPLETING:
            raise OrderNotReady(f"job {doc.slurm_job} is still completing")
        if doc.state in ACTIVE or doc.state is SlurmState.PENDING:
            return order_try.failed_or_refused(
                f"job {doc.slurm_job} is {doc.state} as {doc.attempt}: the run would be there twice"
            )
        return None

    def _repoint(self, order: Order, new_job: int) -> str:
        """The new job runs whether or not this works, so a failure is reported, not made the order's."""
        old = order.slurm_job
        if old is None or order.attempt is None or old == new_job:
            return ""
        try:
            if isinstance(present(self._slurm, order), Result):
                return ""  # another job has that number: what waits for it waits for that one
        except (UnknownJob, NotProtected, OrderNotReady):
            return ""
        except SlurmError as err:
            return f"; jobs that waited for {old} could not be pointed at it: {err}"
        return self._pointed(order, old, new_job)

    def _pointed(self, order: Order, old: int, new: int) -> str:
        """What waits for a start that is over waits for its next one, also where its end could not satisfy it."""
        try:
            moved = self._slurm.repoint(old, new, others=order.repoint_others)
        except SlurmError as err:
            return f"; jobs that waited for {old} could not be pointed at it: {err}"
        return waiting_words(moved)


def _left_held(doc: AttemptDoc, who: str) -> Result:
    detail = f"job {doc.slurm_job} waits held, and not by us: it is for {who} to release"
    return Result(outcome=Outcome.REFUSED, detail=detail, is_held_by_user=True)
