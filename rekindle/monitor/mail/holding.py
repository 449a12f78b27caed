"""Who holds this rank of the run: this process, or another one with the same environment.

A process claims its rank before it writes anything (`rekindle.protocol.lives`). What it finds there decides:

    nothing, or a claim whose process has ended,     it holds a new life
    is unsupervised, or was started again
    a claim of a process that it descends from       it stays silent
    any other claim                                  it holds a new life once that process has not objected

A process objects where its training moves or is inside an announced phase. One that finds a newer claim which is held
is of an earlier life: it is superseded. Only rank 0 is contested; the others take part in rank 0's life.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from rekindle.monitor.base.processes import is_ancestor, is_gone, name_of, own_process
from rekindle.monitor.base.run import Holding, SystemClock
from rekindle.monitor.base.settings import host_from_env, whole_from_env
from rekindle.monitor.base.trouble import NotWatched, logger
from rekindle.monitor.mail.boxes import Box
from rekindle.protocol.keys import heartbeat_key
from rekindle.protocol.lives import Claim, ListedClaim, LivesOfAttempts, Standing, life_in, life_key, life_prefix
from rekindle.protocol.mailbox import Heartbeat
from rekindle.protocol.wire import MailboxError

OBJECTION_S: Final = 5.0  # for an objection, beside two of the holder's looks at its mailbox
MAX_TRIES: Final = 5  # of a claim whose number another process takes first
MAX_READ: Final = 8  # claims looked into, newest first
USUAL_STEPS: Final = 3  # of a holder's usual length, in which it makes one if it trains
MAX_PATIENCE_S: Final = 600.0
# Started by a launcher that starts its workers again. Source: torchrun manual; srun manual, output environment
_LAUNCHERS: Final = ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID")

_claimed: dict[tuple[str, str, int, str], int] = {}  # of this process: mailbox, attempt, rank, process -> life


def claim_of(env: Mapping[str, str], *, job_id: str, attempt: str, rank: int) -> Claim:
    """This process's, as its environment describes it, before it has a number."""
    return Claim(
        job_id=job_id,
        attempt=attempt,
        life=0,
        rank=rank,
        standing=Standing.CONTESTED,
        host=host_from_env(env),
        process=own_process(),
        launcher=name_of(os.getppid()) if any(env.get(name) for name in _LAUNCHERS) else "",
        restarts=whole_from_env(env, "TORCHELASTIC_RESTART_COUNT") or 0,
        at=SystemClock().now(),
    )


class Hold(Holding):
    """This process's claim. Without a mailbox there is nothing to claim, and the run is this process's.

    `claim` and `turn` do I/O, one thread at a time; the attributes are for any thread.

    is_settled: its claim is not contested. reached: the step at which the life before this one was.
    """

    def __init__(self, claimant: Claim | None, *, poll_s: float = 0.0) -> None:
        self._claimant = claimant
        self._clock = SystemClock()
        self._wait_s = 2 * poll_s + OBJECTION_S
        self._lock = threading.RLock()
        self._own: bytes | None = None  # the claim as it was written
        self._claimed_at = 0.0
        self._next: int | None = None  # the number of the next claim, which would be another process's
        self._seen: tuple[int, float] | None = None  # a contest of our own claim: its number, and since when
        self.is_settled = claimant is None
        self.reached: int | None = None

    @property
    def claimed_life(self) -> int | None:
        """None while nothing is claimed."""
        return None if self._own is None else self.life

    @property
    def is_open(self) -> bool:
        """Whether another process may still object to the claim."""
        return self._own is not None and not (self.is_settled or self.refusal or self.lost_to is not None)

    @property
    def counts(self) -> bool:
        """Whether what this process writes counts, as far as is known. Yes while nothing could be claimed."""
        return self.lost_to is None and not self.refusal and (self.is_settled or self._own is None)

    # ---- the claim -----------------------------------------------------------------------------------------------

    def claim(self, box: Box, *, life: int | None = None) -> None:
        """Claim the rank once; again after an error. life: rank 0's, where it has told it.

        Raises: NotWatched where an ancestor of this process holds it; the box's own errors.
        """
        if self._own is not None or self._claimant is None:
            return
        for _ in range(MAX_TRIES):
            if self._claim(box, self._claimant, life):
                return
        raise OSError("the claims of this run are being written by something else")

    def _claim(self, box: Box, me: Claim, life: int | None) -> bool:
        numbers = _numbers(box, me.attempt, me.rank)
        newest = _newest(box, me, me.rank, numbers)
        if newest is not None and newest.process == me.process and _claimed.get(self._key(box, me)) == newest.life:
            self._hold(box, newest, newest.to_json())  # a second monitor of this process
            return True
        if newest is not None and is_ancestor(newest.process):
            raise NotWatched(f"process {newest.process.split(' ')[-2]}, which has started this one, holds this run")
        if me.rank != 0:
            life = self._life_of_others(box, me, newest) if life is None else life
            own = self._written(me, life, Standing.HELD)
            box.put(own.key, own.to_json())
            self._hold(box, own, own.to_json())
            return True
        is_free = newest is None or self._is_over(box, me, newest)
        own = self._written(me, max(numbers, default=-1) + 1, Standing.HELD if is_free else Standing.CONTESTED)
        if not box.put_new(own.key, own.to_json()):
            return False
        self._hold(box, own, own.to_json())
        if not is_free and newest is not None:
            logger.info("Another process (%s on %s) holds this run, and may object", newest.process, newest.host)
        return True

    def _life_of_others(self, box: Box, me: Claim, newest: Claim | None) -> int:
        """Rank 0's life, or the one that it is about to begin, where this rank has been in its newest one before."""
        first = _newest(box, me, 0, _numbers(box, me.attempt, 0))
        if first is None:
            return 0
        return first.life if newest is None or newest.life < first.life else first.life + 1

    def _is_over(self, box: Box, me: Claim, newest: Claim) -> bool:
        """Whether the process of that claim trains no more, or its launcher has started this one in its place."""
        heartbeat = _heartbeat(box, me.attempt)
        if heartbeat is not None:
            self.reached = heartbeat.step
            self._wait_s = max(self._wait_s, _patience_s(heartbeat.step_s_median))
        if newest.process == me.process or is_gone(newest.process):
            return True  # the same number and beginning: the script has replaced itself, by exec
        if newest.launcher and me.launcher:
            is_again = newest.launcher == me.launcher and me.restarts > newest.restarts
            if is_again or is_gone(newest.launcher):
                return True
        return heartbeat is not None and heartbeat.life == newest.life and heartbeat.is_last

    def _written(self, me: Claim, life: int, standing: Standing) -> Claim:
        return replace(me, life=life, standing=standing, at=self._clock.now())

    def _hold(self, box: Box, claim: Claim, body: bytes) -> None:
        assert self._claimant is not None  # noqa: S101 - only called by `claim`
        self.life, self._own, self._next = claim.life, body, claim.life + 1
        self._claimed_at = self._clock.monotonic()
        self.is_settled = claim.standing is Standing.HELD
        if self.is_settled:
            _claimed[self._key(box, self._claimant)] = claim.life

    @staticmethod
    def _key(box: Box, me: Claim) -> tuple[str, str, int, str]:
        return box.uri, me.attempt, me.rank, me.process

    # ---- afterwards ------------------------------------------------------------------------------------------------

    def turn(self, box: Box, moving: Callable[[float], str] = lambda _: "", step_s: float | None = None) -> None:
        """Settle a contest, and learn of a newer life.

        moving: what this process does, as an objection: since a time of the monotonic clock, empty where it has not
        moved since. step_s: its usual step. Raises: the box's own errors.
        """
        if self._claimant is None:
            return
        with self._lock:
            if self.lost_to is not None or self.refusal:
                return
            try:
                self.claim(box)
            except NotWatched as err:
                self.refusal = str(err)
                return
            if not self.is_settled:
                self._settle(box, self._claimant)
            if self._claimant.rank == 0 and not self.refusal:
                self._look_for_newer(box, self._claimant, moving, step_s)

    def _settle(self, box: Box, me: Claim) -> None:
        assert self._own is not None  # noqa: S101 - `claim` has set it
        key = life_key(me.attempt, me.rank, self.life)
        now = _read(box.get(key))
        if now is not None and now.standing is Standing.REFUSED:
            self.refusal = now.why or "another process holds this run"
            return
        if now is None or self._clock.monotonic() - self._claimed_at >= self._wait_s:
            held = self._written(me, self.life, Standing.HELD)
            if box.replace(key, held.to_json(), self._own):
                self._hold(box, held, held.to_json())
        elif now.standing is Standing.HELD:
            self._hold(box, now, now.to_json())  # it was granted

    def _look_for_newer(self, box: Box, me: Claim, moving: Callable[[float], str], step_s: float | None) -> None:
        """One read where there is none: claims are numbered without gaps."""
        assert self._next is not None  # noqa: S101 - `claim` has set it
        key = life_key(me.attempt, me.rank, self._next)
        raw = box.get(key)
        newer = _read(raw)
        if raw is None:
            return
        if newer is None or newer.standing is Standing.REFUSED:
            self._next += 1
        elif newer.standing is Standing.HELD:
            self.lost_to = newer.life
        else:
            self._answer(box, me, newer, raw, moving, step_s)

    def _answer(
        self, box: Box, me: Claim, newer: Claim, raw: bytes, moving: Callable[[float], str], step_s: float | None
    ) -> None:
        """Object, or let it have the run; neither where it may still be that this process moves."""
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != newer.life:
            self._seen = (newer.life, now)
        if does := moving(self._seen[1]):
            why = f"process {me.process.split(' ')[-2]} on {me.host} holds this run, and {does}"
            if box.replace(newer.key, replace(newer, standing=Standing.REFUSED, why=why[:1000]).to_json(), raw):
                self._next = newer.life + 1
        elif not moving(now - max(self._wait_s, _patience_s(step_s))):
            box.replace(newer.key, replace(newer, standing=Standing.HELD).to_json(), raw)  # it need not wait


def lives_in(box: Box) -> LivesOfAttempts:
    """By the store's clock. Raises: the box's own errors."""

    def claims(attempt: str) -> Iterator[ListedClaim]:
        for number in _numbers(box, attempt, 0):
            key = life_key(attempt, 0, number)
            yield ListedClaim(number, partial(box.get, key), partial(box.written_at, key))

    return LivesOfAttempts(claims)


def _patience_s(step_s: float | None) -> float:
    return min(USUAL_STEPS * (step_s or 0.0), MAX_PATIENCE_S)


def _numbers(box: Box, attempt: str, rank: int) -> list[int]:
    return sorted(life for key in box.names(life_prefix(attempt, rank)) if (life := life_in(key)) is not None)


def _newest(box: Box, me: Claim, rank: int, numbers: list[int]) -> Claim | None:
    """The newest claim that was not refused; beneath very many that were, that of the life in the heartbeat."""
    to_read = numbers[: -MAX_READ - 1 : -1]
    if len(numbers) > MAX_READ and (heartbeat := _heartbeat(box, me.attempt)) is not None:
        to_read.append(heartbeat.life)
    for number in to_read:
        claim = _read(box.get(life_key(me.attempt, rank, number)))
        if claim is not None and claim.standing is not Standing.REFUSED:
            return claim
    return None


def _heartbeat(box: Box, attempt: str) -> Heartbeat | None:
    """The newest of the attempt; None where there is none that can be read."""
    raw = box.get(heartbeat_key(attempt))
    with suppress(MailboxError):
        return None if raw is None else Heartbeat.from_json(raw)
    return None


def _read(raw: bytes | None) -> Claim | None:
    try:
        return None if raw is None else Claim.from_json(raw)
    except MailboxError as err:
        logger.info("A claim of this run cannot be read: %s", err)
        return None
