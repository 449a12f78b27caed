"""How the ranks come to save at the same step without waiting for each other in a collective.

Everything here runs on the thread `rekindle-agree` of each rank and goes through an `Exchange`:

    notice            rank 0 → all    the session, the newest plan, why there can be none (see `agreement_terms.Notice`)
    <session>/wish    all → rank 0    the highest wish that no plan has covered yet
    <session>/m<era>/<rank>           who takes part; `again` beside them: a monitor that was started a second time
    <session>/resume, /apart          the step from which all resumed, or the first rank that differs
    <session>/left/<rank>             who has finished, or knows that rank 0 has
    <session>/<plan>/ack/<rank>       who will be at the plan's call; rank 0 decides when all are in
    <session>/<plan>/fate             "go", or why not; written once, by whichever rank is first
    <session>/<plan>/step, /here/<rank>   at that call: the same step everywhere; which processes are there
    <session>/<plan>/start            "go" where all came, or why not; written once
    <session>/<plan>/in/<rank>        who began the save
    <session>/<plan>/end              all parts are over, or why the save was abandoned; written once

Further keys stand in `rank_files` (whose part is over, and what it wrote), `joint_save` (who lives in it), `run_phases`
and `judging_rank`.

`fate`, `start` and `end` are written once, so all ranks that can read go the same way. Every other write may be
repeated without harm, so that one which failed halfway is made again. One window is left: a rank whose exchange
breaks after it came to the plan's call and before it could read `start` does not save, while the others may. They see
that it does not begin (`enter_s`), and a rank that waits inside the save for it gives up after `stuck_s`: the save is
abandoned and the run ends with that reason, instead of at the time-out of the user's collective.

A rank that takes no part, or cannot be reached, makes rank 0 publish "lost": then each rank acts alone for a while,
before all are asked again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rekindle.monitor.base.run import Run
from rekindle.monitor.base.worker import Worker, wait_until
from rekindle.monitor.liveness.run_phases import RunPhases
from rekindle.monitor.loss.judging_rank import JudgingRank
from rekindle.monitor.mail.exchange import Connection, Exchange
from rekindle.monitor.saving.agreement import GO, NO_COORDINATOR, Agreement
from rekindle.monitor.saving.agreement_terms import Notice, Plan, RankRequest, wish_of
from rekindle.monitor.saving.joint_save import ALL_OVER, LEFT, JointSave
from rekindle.monitor.saving.rank_files import OwnFiles, OwnParts, Part

if TYPE_CHECKING:  # rank 0's
    from rekindle.monitor.saving.leading import Leader

PASSED: Final = "late"  # a rank was already past the plan's call
NOTHING_OPEN: Final = "the ranks have nothing to agree through"
LATE_S: Final = 1.0  # at the end of the run, for what is on its way to the other ranks
FAILURES_REPORTED: Final = 2  # the first may be the end of the run: the process with torch's store may end first


class Negotiation:
    """One per rank; `turn` is the thread's, `end` and the properties for any thread."""

    def __init__(
        self,
        run: Run,
        *,
        agreement: Agreement,
        open_exchange: Callable[[], Exchange | None],
        resume_step: int | None,
        leader: Leader | None,
        judging_rank: JudgingRank | None,
        abandoned: Callable[[str], None],
        is_waiting: Callable[[], bool],
        phases: RunPhases | None = None,
    ) -> None:
        """leader: on rank 0. open_exchange: may raise, and is called again after a while where it did.

        abandoned: a save in which ranks wait for each other for good was given up, and why: the run must end.
        is_waiting: whether the training thread waits for other ranks right now.
        """
        self._agreement = agreement
        self._resume_step = resume_step
        self._leader = leader
        self._also = [shared for shared in (judging_rank, phases) if shared is not None]  # use this thread, too
        self._abandoned = abandoned
        self._is_waiting = is_waiting
        self._clock, self._trouble = run.clock, run.trouble
        self._bounds = agreement.bounds
        self._token = secrets.token_hex(8)
        self._line = Connection(
            open_exchange, run.clock, reopen_s=self._bounds.reopen_s, at_most_s=self._bounds.reopen_at_most_s
        )
        self._read: str | None = None
        self._notice: Notice | None = None
        self._session = ""
        self._era = 0
        self._seen = 0  # the newest plan's number
        self._unheard = ""
        self._unheard_since: float | None = None
        self._inside: JointSave | None = None
        self._parts = OwnParts(agreement.rank)
        self._files = OwnFiles(agreement.rank)
        self._abandon_why: tuple[Plan, str] | None = None
        self._is_ending = False
        self.worker = Worker("agree", self.turn, run.trouble, is_done=lambda: self.has_left)
        agreement.set_negotiator(self, self.worker.wake)
        if judging_rank is not None:
            judging_rank.wake = self.worker.wake

    # ---- the thread --------------------------------------------------------------------------------------------

    def turn(self) -> float:
        """Read news and act on it. Returns seconds until the next read."""
        self._agreement.report_alive()
        try:
            wait_s = self._look()
        except Exception as err:  # the transport's: nothing that it does may reach training
            wait_s = self._broken(err)
        self._agreement.report_alive(wait_s)
        return wait_s

    def _look(self) -> float:
        agreement = self._agreement
        exchange = self._line.opened()
        agreement.run_requests()
        if exchange is None:
            if self._line.failures == 0 and not self._line.is_closed:
                agreement.set_lost(NOTHING_OPEN)
                self._trouble.once("coordinator", NO_COORDINATOR, NOTHING_OPEN)
            return self._line.opens_in_s
        if self._leader is not None:
            self._leader.turn(exchange)
        self._follow(exchange)
        self._watch(exchange)
        for user in (self._parts, self._files, *self._also) if self._session else ():
            user.turn(exchange, self._session)
        if self._is_ending or self._has_rank_0_left:
            self._leave(exchange)
        agreement.run_requests()
        self._line.failures = 0
        return exchange.quick_s if self._is_urgent() else exchange.poll_s

    def end(self) -> None:
        """The run is over: what breaks from now on is no news."""
        self._is_ending = True

    def finish_run(self, until: float, grace_until: float, *, is_saving: bool) -> float:
        """End, when this rank has told the others what it owes them. Returns until when the run has now.

        grace_until: for what a save still writes, and, where `is_saving`, for the other ranks' parts of it.
        """
        began = time.monotonic()
        # What threads that a save began still write is waited for, or the others would wait for it in vain.
        wait_until(lambda: self._agreement.is_silent or not self._parts.are_writing, grace_until)
        until = min(until + time.monotonic() - began, grace_until)
        wait_until(lambda: self.is_idle, grace_until if is_saving else min(until, time.monotonic() + LATE_S))
        self.end()
        is_silent = self._agreement.is_silent  # stuck in its transport: it would not end
        self.worker.end(0.0 if is_silent else min(until, time.monotonic() + LATE_S))
        return until

    @property
    def is_idle(self) -> bool:
        """This rank has reported everything, and no save waits for the other ranks' parts; or nothing can be heard."""
        if self._agreement.is_silent or (self._line.exchange is None and self._line.failures >= FAILURES_REPORTED):
            return True
        if self._agreement.has_requests or not (self._parts.is_idle and self._files.is_idle):
            return False
        return self._leader is None or not self._leader.is_awaiting

    @property
    def has_left(self) -> bool:
        """This rank has left, and on rank 0 the others know."""
        return self.is_idle and self._line.exchange is None

    @property
    def is_in_save(self) -> bool:
        """Whether a shared save that this rank has begun is not over on all ranks."""
        inside = self._inside
        return inside is not None and inside.has_begun is not None

    @property
    def save_failure(self) -> str | None:
        """Why the save that this rank is in has failed on some rank, as far as it has heard."""
        inside = self._inside
        return None if inside is None else inside.failed

    @property
    def _has_rank_0_left(self) -> bool:
        return self._notice is not None and self._notice.is_over and self._leader is None

    def _is_urgent(self) -> bool:
        return (
            self._agreement.is_undecided
            or self._agreement.is_held
            or not self._files.is_idle
            or (self._inside is not None and self._inside.has_begun is not True)
            or (self._leader is not None and self._leader.is_busy)
        )

    def _broken(self, err: Exception) -> float:
        """What is armed stays armed: at its call this rank tries to hear of it once more."""
        self._read = None
        wait_s = self._line.broke()
        why = f"the ranks' exchange failed: {err!r}"
        self._agreement.set_lost(why)
        if self._line.failures >= FAILURES_REPORTED and not self._is_ending:
            self._trouble.once("coordinator", NO_COORDINATOR, why)
        else:
            self._trouble.count("exchange_failures")
        if self._leader is not None:
            self._leader.lost()
        while self._agreement.has_requests:  # with no exchange they are answered without I/O
            try:
                self._agreement.run_requests()
            except Exception:
                self._trouble.count("exchange_failures")
        return wait_s

    # ---- every rank --------------------------------------------------------------------------------------------

    def _follow(self, exchange: Exchange) -> None:
        agreement = self._agreement
        text = exchange.get("notice")
        if text != self._read:
            self._read, self._unheard = text, ""
            self._notice = None if text is None else Notice.from_text(text)
        notice = self._notice
        if notice is not None and notice.is_over and notice.session != self._session:
            notice = self._notice = None  # of a process that ended before this one began
        if notice is not None:
            if (notice.session, notice.era) != (self._session, self._era):
                self._join(exchange, notice)
            if notice.plan is not None and notice.plan.number > self._seen:
                if agreement.arm(notice.plan):
                    exchange.put(self._key(notice.plan, f"ack/{agreement.rank}"), "1")
                else:
                    exchange.put_new(self._key(notice.plan, "fate"), f"{PASSED} {agreement.calls}")
                self._seen = notice.plan.number
            armed = agreement.armed
            if armed is not None and agreement.is_undecided:
                fate = exchange.get(self._key(armed, "fate"))
                if fate is not None:
                    agreement.decided(armed, fate == GO)
        agreement.set_lost((notice.lost if notice is not None else "") or self._unheard)
        if self._leader is None:
            self._look_at_own_wish(exchange)

    def _join(self, exchange: Exchange, notice: Notice) -> None:
        """Take part in what rank 0 leads now: at the start, or after rank 0 or this rank has restarted.

        A plan that is there already is not for this rank: it may be of a process that ended long ago.
        """
        agreement, session = self._agreement, notice.session
        if session != self._session:
            self._seen = notice.plan.number if notice.plan is not None else 0
            agreement.disarm()
            self._inside = None
            agreement.release()
        own = "nothing" if self._resume_step is None else f"step {self._resume_step}"
        held = exchange.put_new(f"{session}/resume", own)
        if held != own:
            why = f"rank {agreement.rank} resumed from {own}, another one from {held}"
            exchange.put_new(f"{session}/apart", why)
            if self._leader is not None:
                self._leader.resumed_apart(why)
            self._trouble.once("resumed_apart", "The ranks resumed apart, so no save of this run counts: %s", why)
        members = f"{session}/m{notice.era}"
        if exchange.put_new(f"{members}/{agreement.rank}", self._token) != self._token:
            exchange.put_new(f"{members}/again", str(agreement.rank))
        self._session, self._era = session, notice.era  # last: what failed above is done again

    def _look_at_own_wish(self, exchange: Exchange) -> None:
        """Rank 0 knows its own wishes; the others leave theirs where rank 0 looks, until a plan covers them."""
        agreement = self._agreement
        wish, armed = agreement.wish(), agreement.armed
        if wish is RankRequest.NOTHING or (armed is not None and armed.wish >= wish):
            self._unheard_since = None
            return
        now = self._clock.monotonic()
        self._unheard_since = now if self._unheard_since is None else self._unheard_since
        if wish.stops and now - self._unheard_since > self._bounds.unheard_s + 2 * exchange.poll_s:
            self._unheard = "rank 0 does not answer"
        if self._session and wish_of(exchange.get(f"{self._session}/wish")) < wish:
            exchange.put(f"{self._session}/wish", str(int(wish)))

    def _watch(self, exchange: Exchange) -> None:
        """The save that is under way: whether it has ended everywhere, or can end at all."""
        inside = self._inside
        if inside is None:
            return
        if inside.has_begun is None:  # broken off before this rank knew: it did not begin
            if not inside.has_started(exchange):
                self._inside = None
                return
            self._did_not_hear(inside)
        asked, self._abandon_why = self._abandon_why, None
        if asked is not None and asked[0] is inside.plan:
            inside.give_up(exchange, asked[1])
        end = inside.turn(exchange, has_rank_0_left=self._has_rank_0_left)
        if end is None:
            return
        self._inside = None
        if end != ALL_OVER:
            self._abandoned(end)
        self._agreement.release()

    def _did_not_hear(self, inside: JointSave) -> None:
        inside.has_begun = False
        self._parts.add(Part(str(inside.plan.number), "it did not hear in time that all ranks save"))

    def _leave(self, exchange: Exchange) -> None:
        """This rank comes to no further step, or rank 0 does not: the others need not wait for it."""
        agreement = self._agreement
        armed = agreement.armed
        if armed is not None and self._is_ending:
            gone = f"rank {agreement.rank} has finished"
            if exchange.put_new(self._key(armed, "fate"), gone) == GO and armed.wish.saves:
                exchange.put_new(self._key(armed, "start"), gone)
            agreement.disarm()
        if self._leader is None:
            if self._inside is not None:
                return
            if self._session:
                exchange.put(f"{self._session}/left/{agreement.rank}", "1")
            agreement.release()
        elif not self._leader.leave(exchange):
            return
        # The process that holds torch's store may end now. It closes where nothing holds it.
        self._line.close()

    # ---- asked for by the training thread ----------------------------------------------------------------------

    def withdraw(self, plan: Plan) -> str:
        """The plan's call has come, and this rank does not know whether all keep to it: it is withdrawn for all ranks.

        Returns `GO` where they had agreed on it already, else why not.
        """
        exchange = self._line.opened(at_once=True)
        if exchange is None or not self._session:
            return "the ranks' exchange is not open"
        fate = exchange.put_new(self._key(plan, "fate"), f"{PASSED} {self._agreement.calls}")
        self._agreement.decided(plan, fate == GO)
        return fate

    def meet(self, plan: Plan, step: int, objection: str) -> str:
        """All ranks come here at the same call. `GO` where all save; else why not, which is the same everywhere."""
        agreement = self._agreement
        exchange = self._line.opened(at_once=True)
        if exchange is None or not self._session:
            return agreement.lost or "the ranks' exchange is not open"
        self._inside = inside = JointSave(plan, self._session, agreement, self._is_waiting, self._clock)
        decided = inside.meet(exchange, step, objection, self._leader.are_all_here if self._leader else None)
        if decided != GO:
            self._inside = None
        return decided

    def missed(self, plan: Plan, answer: str) -> None:
        """The training thread timed out before this answer of `meet` or `withdraw` came, and ignores the plan."""
        if answer != GO:
            return
        if self._inside is not None and self._inside.plan is plan:
            self._did_not_hear(self._inside)
        elif plan.wish.stops:
            self._agreement.owe_stop()

    def finish(self, part: Part) -> str:
        """This rank's part of a save is over, but for what its writers still write."""
        over, files = part.over, part.files
        if self._line.is_closed:
            if over is not None:
                over(part.failure or LEFT, {})
            return GO
        if self._leader is not None:
            if over is not None:
                self._leader.await_parts(part.save, over)
            if files is not None and files.root is not None:
                self._leader.lies_at(part.save, files.root)
        elif files is not None and part.failure is None:
            self._files.tell(part.save, files.began, self._clock.monotonic() + self._bounds.must_finish_s)
        self._parts.add(part)
        return GO

    def abandon(self, plan: Plan, why: str) -> None:
        """Give up a shared save, which ends the run; on the training thread.

        Also where the exchange cannot carry it: this rank ends, and so do the others then, by its absence.
        """
        self._abandon_why = (plan, why)
        self._abandoned(why)

    def _key(self, plan: Plan, name: str) -> str:
        return f"{self._session}/{plan.number}/{name}"
