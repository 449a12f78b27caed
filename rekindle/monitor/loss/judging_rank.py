"""Which rank judges the loss, and how rank 0 learns what it found.

Under pipeline, tensor or expert parallelism rank 0 may be given no loss. It judges if it is given one; otherwise
exactly one of the ranks that are, the first to claim it through the exchange. That rank judges for as long as the
attempt lives; its events go to the bus from there, and its judgement reaches rank 0, whose heartbeat carries it, as one
small text:

    <session>/loss/open     rank 0 has made steps, and has no loss
    <session>/loss/judge    the rank that judges
    <session>/loss/news     `RemoteLoss`, overwritten

A rank without a loss never asks, but rank 0. All I/O is in `turn`, on the thread that holds the exchange; without an
exchange rank 0 judges, if it can, and no other rank does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rekindle.detectors.health import Health
from rekindle.monitor.base.run import Run
from rekindle.monitor.mail.exchange import Exchange, Note
from rekindle.protocol.bounds import Count, Finite, Rank
from rekindle.protocol.codec import Document
from rekindle.protocol.mailbox import LossState

OPEN, JUDGE, NEWS = "loss/open", "loss/judge", "loss/news"
MIN_CALLS = 3  # of `Monitor.step` on rank 0 without a loss, before another rank may judge
UNDECIDED_CALLS = 10_000  # after which a rank that is not told which one judges leaves it


@dataclass(frozen=True, slots=True)
class LossNews(Document):
    """The detectors' last judgement of the loss, exchanged as one value between threads, and between ranks."""

    health: Health = Health.UNKNOWN
    onset_step: Count | None = None
    healed_step: Count | None = None
    baseline: Finite | None = None
    judged_step: Count | None = None  # the newest step whose loss they were given


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLoss(Note):
    """What the judging rank last published. `bad_step`: the first step of values that are not finite now."""

    rank: Rank
    step: Count | None
    loss: Finite | None
    loss_state: LossState
    bad_step: Count | None
    news: LossNews


class JudgingRank:
    """`given`, `publish` and `is_mine` are for any thread; `turn` is the thread's that holds the exchange."""

    def __init__(self, run: Run, *, news: Callable[[], LossNews], on_news: Callable[[], None]) -> None:
        """on_news: rank 0's, for what it learned."""
        self._rank = rank = run.identity.rank
        self._state, self._clock, self._trouble = run.state, run.clock, run.trouble
        self._publish_s = run.config.heartbeat_s  # between two publications where nothing is new
        self._news = news
        self._on_news = on_news
        self._session = ""
        self._has_loss = False
        self._calls = 0
        self._is_decided = False
        self._is_opened = False
        self._next_at = 0.0
        self._has_news = False
        self.wake: Callable[[], None] = lambda: None  # the thread that holds the exchange
        self.is_mine = rank == 0
        self.remote: RemoteLoss | None = None  # rank 0's, where another rank judges

    def given(self, loss: object) -> None:
        """For the training thread, at each step: whether this rank is given a loss."""
        self._calls += 1
        if loss is not None:
            self._has_loss = True

    @property
    def may_judge(self) -> bool:
        """Whether this rank follows the loss: it judges, or may yet be the one that does."""
        return self.is_mine or (not self._is_decided and self._calls < UNDECIDED_CALLS)

    def publish(self) -> None:
        """There is news."""
        self._has_news = True
        if self.is_mine and self._rank != 0:
            self.wake()

    def turn(self, exchange: Exchange, session: str) -> None:
        """Decide, publish or fetch, where it is due. May raise what the transport raises."""
        if session != self._session:  # rank 0 is another process now: its decision, and what was published, are gone
            self._session = session
            self._is_decided = self._is_opened = False
            self.remote = None
            self.is_mine = self._rank == 0
        if not self._is_decided:
            self._is_decided = self._decide(exchange)
            return
        is_judging_for_rank_0 = self.is_mine and self._rank != 0
        is_listening = self._rank == 0 and not self.is_mine
        now = self._clock.monotonic()
        is_due = now >= self._next_at or (is_judging_for_rank_0 and self._has_news)
        if is_due and (is_judging_for_rank_0 or is_listening):
            self._next_at = now + self._publish_s / (3 if is_listening else 1)
            if is_listening:
                self._fetch(exchange)
            else:
                self._put_news(exchange)

    def _decide(self, exchange: Exchange) -> bool:
        """Whether it is known by now which rank judges."""
        if self._rank == 0:
            if self._has_loss:
                return self._settle(exchange.put_new(self._key(JUDGE), "0"))
            if self._calls >= MIN_CALLS and not self._is_opened:
                exchange.put(self._key(OPEN), "1")
                self._is_opened = True
            return self._is_opened and self._settle(exchange.get(self._key(JUDGE)))
        if not self._has_loss:
            return False
        held = exchange.get(self._key(JUDGE))
        if held is None:
            if exchange.get(self._key(OPEN)) is None:
                return False
            held = exchange.put_new(self._key(JUDGE), str(self._rank))
        return self._settle(held)

    def _settle(self, held: str | None) -> bool:
        if held is None:
            return False
        self.is_mine = held == str(self._rank)
        return True

    def _key(self, name: str) -> str:
        return f"{self._session}/{name}"

    def _put_news(self, exchange: Exchange) -> None:
        self._has_news = False
        loss, loss_state = self._state.newest_loss()
        remote = RemoteLoss(
            rank=self._rank,
            step=self._state.step,
            loss=loss,
            loss_state=loss_state,
            bad_step=self._state.bad_since,
            news=self._news(),
        )
        exchange.put(self._key(NEWS), remote.to_text())

    def _fetch(self, exchange: Exchange) -> None:
        text = exchange.get(self._key(NEWS))
        if text is None:
            return
        try:
            remote = RemoteLoss.from_text(text)
        except ValueError as err:
            self._trouble.once("bad_loss_news", "What another rank says of the loss cannot be read: %s", err)
            return
        before, self.remote = self.remote, remote
        if before is None or _judged(before) != _judged(remote):
            self._on_news()


def _judged(remote: RemoteLoss) -> tuple[LossState, Health, int | None]:
    return remote.loss_state, remote.news.health, remote.news.healed_step
