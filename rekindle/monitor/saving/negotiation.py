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
    <session>/<plan>/pulse/<rank>, /gone, /lifeless   who lives in it (see `joint_save`)
    <session>/<save>/done/<rank>, /failed     whose part is over, and the first failure; `<save>` is a plan's number too
    <session>/<save>/root, /files/<rank>      where it is, and what that rank sees of it (see `rank_files`)
    <session>/<plan>/end              all parts are over, or why the save was abandoned; written once
    <session>/phase           what some rank is inside of, counted up (see `run_phases`)
    <session>/loss/open, /judge, /news        which rank judges the loss, and what it found (see `judging_rank`)

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
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rekindle.monitor.base.processes import own_process
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.stacks import may_write
from rekindle.monitor.base.worker import Worker
from rekindle.monitor.liveness.run_phases import RunPhases
from rekindle.monitor.loss.judging_rank import JudgingRank
from rekindle.monitor.mail.exchange import Exchange
from rekindle.monitor.saving.agreement import AT_OTHER_STEPS, GO, NO_COORDINATOR, Agreement, Over
from rekindle.monitor.saving.agreement_terms import Notice, Plan, RankRequest, wish_of
from rekindle.monitor.saving.joint_save import ALL_OVER, LEFT, JointSave
from rekindle.monitor.saving.rank_files import OwnFiles, PartFiles

if TYPE_CHECKING:  # rank 0's
    from rekindle.monitor.saving.leading import Leader

PASSED: Final = "late"  # a rank was already past the plan's call
NOTHING_OPEN: Final = "the ranks have nothing to agree through"
WRITERS_S: Final = 60.0  # how long the threads that a save began are waited for
MAX_PARTS: Final = 64  # reports that wait for a broken exchange
FAILURES_REPORTED: Final = (
    2  # the first one may be the end of the run: the process that holds torch's store may end first
)


@dataclass(frozen=True, slots=True)
class _Part:
    """That this rank's part of a save is over: once its `writers` have ended, or at `until`."""

    save: str
    failure: str | None
    writers: Sequence[threading.Thread] = ()
    until: float = 0.0

    def is_over(self, now: float) -> bool:
        return self.failure is not None or now > self.until or not any(map(may_write, self.writers))


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
        self._open = open_exchange
        self._resume_step = resume_step
        self._leader = leader
        self._judging_rank = judging_rank
        self._abandoned = abandoned
        self._is_waiting = is_waiting
        self._phases = phases
        self._clock, self._trouble = run.clock, run.trouble
        self._bounds = agreement.bounds
        self._token = secrets.token_hex(8)
        self._exchange: Exchange | None = None
        self._open_at = run.clock.monotonic()
        self._failures = 0
        self._read: str | None = None
        self._notice: Notice | None = None
        self._session = ""
        self._era = 0
        self._seen = 0  # the newest plan's number
        self._unheard = ""
        self._unheard_since: float | None = None
        self._inside: JointSave | None = None
        self._parts: deque[_Part] = deque(maxlen=MAX_PARTS)
        self._files = OwnFiles(agreement.rank)
        self._abandon_why: tuple[Plan, str] | None = None
        self._is_ending = False
        self._is_over = False  # nothing is read or written any more
        self.worker = Worker("agree", self.turn, run.trouble, is_done=lambda: self.has_left)
        agreement.set_negotiator(self, self.worker.wake)

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
        exchange = self._opened()
        agreement.run_requests()
        if exchange is None:
            if self._failures == 0 and not self._is_over:
                agreement.set_lost(NOTHING_OPEN)
                self._trouble.once("coordinator", NO_COORDINATOR, NOTHING_OPEN)
            return self._bounds.reopen_at_most_s if self._is_over else max(0.0, self._open_in())
        if self._is_over:
            self._exchange = None  # torch's store closes where nothing holds it
            return self._bounds.reopen_at_most_s
        if self._leader is not None:
            self._leader.turn(exchange)
        self._follow(exchange)
        self._report(exchange)
        if self._session:
            self._files.turn(exchange, self._session)
        self._watch(exchange)
        if self._session and self._judging_rank is not None:
            self._judging_rank.turn(exchange, self._session)
        if self._session and self._phases is not None:
            self._phases.turn(exchange, self._session)
        if self._is_ending or self._has_rank_0_left:
            self._leave(exchange)
        agreement.run_requests()
        self._failures = 0
        return exchange.quick_s if self._is_urgent() else exchange.poll_s

    def end(self) -> None:
        """The run is over: what breaks from now on is no news."""
        self._is_ending = True

    @property
    def is_idle(self) -> bool:
        """This rank has reported everything, and no save waits for the other ranks' parts; or nothing can be heard."""
        if self._agreement.is_silent or (self._exchange is None and self._failures >= FAILURES_REPORTED):
            return True
        if self._agreement.has_requests or self._parts or not self._files.is_idle:
            return False
        return self._leader is None or not self._leader.is_awaiting

    @property
    def is_writing(self) -> bool:
        """Threads that this rank's part of a save began are still at work: the others wait for them."""
        now = self._clock.monotonic()
        return not self._agreement.is_silent and any(not part.is_over(now) for part in tuple(self._parts))

    @property
    def has_left(self) -> bool:
        """This rank has left, and on rank 0 the others know."""
        return self.is_idle and (self._is_over or self._exchange is None)

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

    def _open_in(self) -> float:
        return self._open_at - self._clock.monotonic()

    def _opened(self) -> Exchange | None:
        if self._exchange is None and not self._is_over and self._open_in() <= 0:
            self._exchange = self._open()
            self._read = None
            self._open_at = self._clock.monotonic() + self._bounds.reopen_at_most_s
        return self._exchange

    def _broken(self, err: Exception) -> float:
        """What is armed stays armed: at its call this rank tries to hear of it once more."""
        self._exchange = None
        wait_s: float = min(self._bounds.reopen_s * 2**self._failures, self._bounds.reopen_at_most_s)
        self._failures = min(self._failures + 1, 16)
        self._open_at = self._clock.monotonic() + wait_s
        why = f"the ranks' exchange failed: {err!r}"
        self._agreement.set_lost(why)
        if self._failures >= FAILURES_REPORTED and not self._is_ending:
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
            self._take(None if text is None else Notice.from_text(text))
        notice = self._notice
        if notice is not None:
            if (notice.session, notice.era) != (self._session, self._era):
                self._join(exchange, notice)
            if notice.plan is not None and notice.plan.number > self._seen:
                self._answer(exchange, notice.plan)
                self._seen = notice.plan.number
            armed = agreement.armed
            if armed is not None and agreement.is_undecided:
                fate = exchange.get(self._key(armed, "fate"))
                if fate is not None:
                    agreement.decided(armed, fate == GO)
        agreement.set_lost((notice.lost if notice is not None else "") or self._unheard)
        if self._leader is None:
            self._look_at_own_wish(exchange)

    def _take(self, notice: Notice | None) -> None:
        if notice is not None and notice.is_over and notice.session != self._session:
            notice = None  # of a process that ended before this one began
        self._notice = notice

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

    def _answer(self, exchange: Exchange, plan: Plan) -> None:
        if self._agreement.arm(plan):
            exchange.put(self._key(plan, f"ack/{self._agreement.rank}"), "1")
        else:
            exchange.put_new(self._key(plan, "fate"), f"{PASSED} {self._agreement.calls}")

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

    def _report(self, exchange: Exchange) -> None:
        """Publish whose part is over; what could not be published is at the next read."""
        session = self._session or (self._leader.session if self._leader is not None else "")
        now = self._clock.monotonic()
        for part in [part for part in self._parts if part.is_over(now)] if session else ():
            if part.failure is not None:
                why = f"rank {self._agreement.rank}: {part.failure}"
                exchange.put_new(f"{session}/{part.save}/failed", why)
            exchange.put(f"{session}/{part.save}/done/{self._agreement.rank}", "1")
            self._parts.remove(part)

    def _watch(self, exchange: Exchange) -> None:
        """The save that is under way: whether it has ended everywhere, or can end at all."""
        inside = self._inside
        if inside is None:
            return
        if inside.has_begun is None:  # broken off before this rank knew: it did not begin
            start = exchange.put_new(
                self._key(inside.plan, "start"), f"rank {self._agreement.rank} could not hear of it"
            )
            if start != GO:
                self._inside = None
                return
            self._did_not_hear(inside)
            self._report(exchange)
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
        self._parts.append(_Part(str(inside.plan.number), "it did not hear in time that all ranks save"))

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
            if self._inside is None:
                self._mark_left(exchange)
        elif self._leader.leave(exchange):
            self._is_over = True

    def _mark_left(self, exchange: Exchange) -> None:
        """The process that holds torch's store may end now, so nothing is asked of it any more."""
        if self._session:
            exchange.put(f"{self._session}/left/{self._agreement.rank}", "1")
        self._is_over, self._inside = True, None
        self._agreement.release()

    # ---- asked for by the training thread ----------------------------------------------------------------------

    def withdraw(self, plan: Plan) -> str:
        """The plan's call has come, and this rank does not know whether all keep to it: it is withdrawn for all ranks.

        Returns `GO` where they had agreed on it already, else why not.
        """
        exchange = self._opened_now()
        if exchange is None or not self._session:
            return "the ranks' exchange is not open"
        fate = exchange.put_new(self._key(plan, "fate"), f"{PASSED} {self._agreement.calls}")
        self._agreement.decided(plan, fate == GO)
        return fate

    def meet(self, plan: Plan, step: int, objection: str) -> str:
        """All ranks come here at the same call. `GO` where all save; else why not, which is the same everywhere."""
        agreement = self._agreement
        exchange = self._opened_now()
        if exchange is None or not self._session:
            return agreement.lost or "the ranks' exchange is not open"
        start, number = self._key(plan, "start"), agreement.rank
        if objection:
            exchange.put_new(start, f"rank {number}: {objection}")
        held = exchange.put_new(self._key(plan, "step"), str(step))
        if held != str(step):
            exchange.put_new(start, f"{AT_OTHER_STEPS}: rank {number} at {step}, another one at {held}")
        self._inside = inside = JointSave(
            plan, self._session, agreement=agreement, is_waiting=self._is_waiting, clock=self._clock
        )
        exchange.put(self._key(plan, f"here/{number}"), own_process())
        until = self._clock.monotonic() + agreement.meet_s()
        pause = threading.Event()
        while (decided := exchange.get(start)) is None:
            agreement.report_alive()
            if self._leader is not None and self._leader.are_all_here(exchange, plan):
                exchange.put_new(start, GO)
            elif self._clock.monotonic() > until:
                exchange.put_new(start, f"the other ranks did not come to the agreed step {step} within seconds")
            else:
                pause.wait(exchange.quick_s)
        if decided == GO:
            inside.has_begun = True
        else:
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

    def finish(
        self,
        save: str,
        failure: str | None,
        over: Over | None,
        writers: Sequence[threading.Thread],
        files: PartFiles | None,
    ) -> str:
        """This rank's part of a save is over, but for what `writers` still write.

        over: on rank 0, what to call when that of all ranks is.
        """
        if self._is_over:
            if over is not None:
                over(failure or LEFT, {})
            return GO
        if self._leader is not None:
            if over is not None:
                self._leader.await_parts(save, over)
            if files is not None and files.root is not None:
                self._leader.lies_at(save, files.root)
        elif files is not None and failure is None:
            self._files.tell(save, files.began, self._clock.monotonic() + self._bounds.must_finish_s)
        self._parts.append(_Part(save, failure, writers, self._clock.monotonic() + WRITERS_S))
        if self._exchange is not None:
            self._report(self._exchange)
        return GO

    def abandon(self, plan: Plan, why: str) -> None:
        """Give up a shared save, which ends the run; on the training thread.

        Also where the exchange cannot carry it: this rank ends, and so do the others then, by its absence.
        """
        self._abandon_why = (plan, why)
        self._abandoned(why)

    def _opened_now(self) -> Exchange | None:
        """A plan's call has come: a broken exchange is opened again at once, which takes milliseconds or fails."""
        if self._exchange is None and self._failures == 1:
            self._open_at = self._clock.monotonic()
            return self._opened()
        return self._exchange

    def _key(self, plan: Plan, name: str) -> str:
        return f"{self._session}/{plan.number}/{name}"
