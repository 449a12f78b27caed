"""Which rank judges the loss, and how rank 0 learns what it found.

Under pipeline, tensor or expert parallelism rank 0 may be given no loss. It judges if it is given one; otherwise
exactly one of the ranks that are, the first to claim it through the exchange, and lower ranks claim earlier. That rank
judges for as long as the attempt lives; its events go to the bus from there, and its judgement reaches rank 0, whose
heartbeat carries it, as one small text:

    loss-open     rank 0 has made steps, and has no loss
    loss-judge    the rank that judges
    loss-news     `RemoteLoss`, overwritten

A rank without a loss never asks, but rank 0. All I/O is in `turn`, on a thread of its own; without an exchange rank 0
judges, if it can, and no other rank does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from rekindle.detectors import Health
from rekindle.detectors.nonfinite import classify
from rekindle.mailbox import LossState
from rekindle.monitor.clock import Clock
from rekindle.monitor.exchange import Exchange
from rekindle.monitor.judge import LossNews
from rekindle.monitor.state import RunState
from rekindle.monitor.trouble import Trouble

OPEN, JUDGE, NEWS = "loss-open", "loss-judge", "loss-news"
MIN_STEPS = 3  # of rank 0 without a loss: a script that logs every tenth step is not asked to wait for ten
SPREAD_S = 2.0  # over the ranks that may claim
MAX_NEWS_CHARS = 1000
UNDECIDED_MAX_S = 60.0
IDLE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLoss:
    """What the judging rank last published. `bad_step`: the first step of values that are not finite now."""

    rank: int
    step: int | None
    loss: float | None
    loss_state: LossState
    bad_step: int | None
    news: LossNews

    def to_text(self) -> str:
        return json.dumps(
            {
                "rank": self.rank,
                "step": self.step,
                "loss": self.loss,
                "loss_state": self.loss_state.value,
                "bad_step": self.bad_step,
                "health": self.news.health.value,
                "onset_step": self.news.onset_step,
                "healed_step": self.news.healed_step,
                "baseline": self.news.baseline,
                "judged_step": self.news.judged_step,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Raises: ValueError for anything that `to_text` does not write."""
        if len(text) > MAX_NEWS_CHARS:
            raise ValueError("too long")
        body = json.loads(text)
        if not isinstance(body, dict) or not {"loss_state", "health"} <= body.keys():
            raise ValueError("not an object of ours")
        return cls(
            rank=_whole(body, "rank") or 0,
            step=_whole(body, "step"),
            loss=_number(body, "loss"),
            loss_state=LossState(body["loss_state"]),
            bad_step=_whole(body, "bad_step"),
            news=LossNews(
                health=Health(body["health"]),
                onset_step=_whole(body, "onset_step"),
                healed_step=_whole(body, "healed_step"),
                baseline=_number(body, "baseline"),
                judged_step=_whole(body, "judged_step"),
            ),
        )


def _whole(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} is no whole number")
    return value


def _number(body: dict[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or classify(float(value)) is not LossState.FINITE:
        raise ValueError(f"{name} is no finite number")
    return float(value)


class Seat:
    """`is_mine` is for any thread; `turn` is the seat's own."""

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        exchange: Exchange | None,
        state: RunState,
        clock: Clock,
        trouble: Trouble,
        publish_s: float,
        news: Callable[[], LossNews],
        on_news: Callable[[], None],
    ) -> None:
        self._rank = rank
        self._exchange = exchange
        self._state = state
        self._clock = clock
        self._trouble = trouble
        self._publish_s = publish_s
        self._news = news
        self._on_news = on_news
        self._share = rank / world_size
        self._has_loss = False
        self._steps = 0
        self._claims_at: float | None = None
        self._undecided_s = 0.0
        self._wants_publishing = False
        self._is_opened = False
        self._is_decided = exchange is None or world_size == 1
        self.is_mine = rank == 0
        self.remote: RemoteLoss | None = None  # rank 0's, where another rank judges

    def given(self, loss: object) -> bool:
        """For the training thread, at each step: whether this rank is given a loss. True where `turn` should know."""
        if self._is_decided and (self.is_mine or self._rank != 0):
            return False
        before = (self._has_loss, self._steps >= MIN_STEPS)
        self._steps += 1
        self._has_loss = self._has_loss or loss is not None
        return before != (self._has_loss, self._steps >= MIN_STEPS)

    def publish(self) -> bool:
        """There is news to publish; whether `turn` should be woken for it."""
        self._wants_publishing = True
        return self.is_mine and self._rank != 0

    def turn(self) -> float:
        """Decide, publish or fetch. Returns seconds until the next turn."""
        exchange = self._exchange
        if exchange is None:
            return IDLE_S
        try:
            return self._turn(exchange)
        except Exception as err:  # whatever the transport raises, training goes on
            self._trouble.once(
                "loss_exchange", "The ranks cannot tell each other which of them judges the loss (%r); trying on", err
            )
            return max(5.0, self._publish_s)

    def _turn(self, exchange: Exchange) -> float:
        if not self._is_decided and not self._decide(exchange):
            self._undecided_s = min(max(2 * self._undecided_s, exchange.poll_s), UNDECIDED_MAX_S)
            return self._undecided_s
        if self._rank != 0:
            if not self.is_mine:
                return IDLE_S
            self._put_news(exchange)
            return self._publish_s
        if self.is_mine:
            return IDLE_S
        self._fetch(exchange)
        return max(exchange.poll_s, self._publish_s / 3)

    def _decide(self, exchange: Exchange) -> bool:
        """Whether it is known by now which rank judges."""
        if self._rank == 0:
            if self._has_loss:
                return self._settle(exchange.put_new(JUDGE, "0"))
            if self._steps >= MIN_STEPS and not self._is_opened:
                exchange.put(OPEN, "1")
                self._is_opened = True
            return self._settle(exchange.get(JUDGE)) if self._is_opened else False
        if not self._has_loss:
            return False
        held = exchange.get(JUDGE)
        if held is None:
            if exchange.get(OPEN) is None:
                return False
            now = self._clock.monotonic()
            if self._claims_at is None:
                self._claims_at = now + self._share * SPREAD_S
            if now < self._claims_at:
                self._undecided_s = 0.0
                return False
            held = exchange.put_new(JUDGE, str(self._rank))
        return self._settle(held)

    def _settle(self, held: str | None) -> bool:
        if held is None:
            return False
        self.is_mine = held == str(self._rank)
        self._is_decided = True
        if self.is_mine and self._rank != 0:
            self._trouble.count("judges_the_loss")
        return True

    def _put_news(self, exchange: Exchange) -> None:
        self._wants_publishing = False
        loss, loss_state = self._state.newest_loss()
        remote = RemoteLoss(
            rank=self._rank,
            step=self._state.step,
            loss=loss,
            loss_state=loss_state,
            bad_step=self._state.bad_since,
            news=self._news(),
        )
        exchange.put(NEWS, remote.to_text())

    def _fetch(self, exchange: Exchange) -> None:
        text = exchange.get(NEWS)
        if text is None:
            return
        try:
            remote = RemoteLoss.from_text(text)
        except ValueError as err:
            self._trouble.once("bad_loss_news", "What another rank says of the loss cannot be read: %s", err)
            return
        before, self.remote = self.remote, remote
        if before is None or (before.loss_state, before.news.health, before.news.healed_step) != (
            remote.loss_state,
            remote.news.health,
            remote.news.healed_step,
        ):
            self._on_news()
