"""Rank 0's link to the service: the mailbox's reader, the sealer and the hasher, each on its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from rekindle.monitor.accounts import Accounts
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.worker import wait_until
from rekindle.monitor.mail.boxes import Box, BoxAround, mailbox_failed
from rekindle.monitor.mail.holding import Hold
from rekindle.monitor.mail.mailbox_thread import Mail
from rekindle.monitor.mail.requests import Requests
from rekindle.monitor.saving.hasher import Hasher
from rekindle.monitor.saving.own_saves import OwnSaves
from rekindle.monitor.saving.resuming import counts_of
from rekindle.monitor.saving.saved import Upload
from rekindle.monitor.saving.seal import Sealer
from rekindle.protocol.keys import parse_key
from rekindle.protocol.launch_orders import ResumePlan
from rekindle.protocol.lives import named
from rekindle.protocol.mailbox import ReplyOutcome, RunPhase

SLOW_S: Final = 4.0  # for one call, which usually takes a few hundredths


class TimedBox(BoxAround):
    """A mailbox that knows whether it answers in time: what would wait for it at the end of a run then does not.

    For any number of threads. Raises what the mailbox does.
    """

    def __init__(self, box: Box) -> None:
        super().__init__(box, self._timed)
        self._began: dict[int, float] = {}  # of each call that is under way, by its thread
        self._took_s = 0.0  # the newest call that is over

    @property
    def is_slow(self) -> bool:
        """A call has been under way for `SLOW_S`, or the newest one took as long, whatever came of it."""
        longest = max((time.monotonic() - began for began in list(self._began.values())), default=0.0)
        return max(longest, self._took_s) >= SLOW_S

    def _timed(self, work: Callable[[], Any]) -> Any:
        me, began = threading.get_ident(), time.monotonic()
        self._began[me] = began
        try:
            return work()
        finally:
            self._began.pop(me, None)
            self._took_s = time.monotonic() - began


class ServiceLink:
    """Mail, sealer and hasher of one attempt."""

    def __init__(
        self,
        run: Run,
        *,
        box: Box,
        hold: Hold,
        requests: Requests,
        accounts: Accounts,
        resume: ResumePlan,
        resume_path: str | None,
        upload: Upload | None,
        on_failed: Callable[[int, str], None],
        on_refused: Callable[[str], None],
    ) -> None:
        """resume_path: where the checkpoint to go on from lies on this machine.

        on_failed: see `Sealer`. on_refused: the run is another process's, and why.
        """
        self.box = box = TimedBox(box)
        self._run, self._hold, self._requests, self._accounts = run, hold, requests, accounts
        self._on_refused = on_refused
        self.mail = Mail(
            run,
            box=box,
            requests=requests,
            heartbeat=accounts.heartbeat,
            position=accounts.position,
            is_stuck=lambda: accounts.stall.is_stalled,
            may_write=self._holds,
            on_superseded=accounts.on_superseded,
            on_reply=accounts.on_reply,
        )
        self._hasher = Hasher(
            run,
            box=box,
            is_busy=lambda: (
                accounts.stall.phase is RunPhase.SAVING or not self._sealer.is_idle or bool(requests.owed())
            ),
            on_damaged=on_failed,
        )
        self._sealer = Sealer(
            run,
            box=box,
            mail=self.mail,
            requests=requests,
            hasher=self._hasher,
            manifest_of=accounts.manifest,
            own=OwnSaves(
                sum(window.to_step - window.from_step for window in resume.skip),
                lambda: counts_of(resume, box, resume_path),
                world_size=run.identity.world_size,
            ),
            upload=upload,
            on_failed=on_failed,
        )
        self.workers = (self.mail.worker, self._sealer.worker, self._hasher.worker)
        self.submit = self._sealer.submit  # a finished save, to be measured, sealed and answered for; never waits
        sealed_as = resume.manifest_uri or ""
        key = parse_key(sealed_as.partition("://")[2] or sealed_as)
        if key is not None and key.step is not None and resume_path is not None:
            self._hasher.check(key, resume_path)

    def _holds(self) -> bool:
        """Whether the run is this process's now, as far as the mailbox tells."""
        hold, run = self._hold, self._run
        known = hold.counts, hold.is_settled
        try:
            hold.turn(self.box, self._accounts.objection, run.state.slow_step_s)
        except Exception as err:  # whatever the transport does, training continues
            mailbox_failed(run.trouble, self.box, "looking who holds this run", err)
        if hold.lost_to is not None and known[0]:
            newer = named(run.identity.attempt, hold.lost_to)
            self.mail.lost(newer)
            self._accounts.on_lost(newer)
        elif hold.refusal and known != (False, True):
            self._on_refused(hold.refusal)
        return hold.counts

    def flush(self, timeout_s: float) -> bool:
        """Wait until all saves are sealed and all replies written; whether that was so in time. Not for hashes."""
        return wait_until(lambda: self._sealer.is_idle and self.mail.has_written_all, time.monotonic() + timeout_s)

    def end(self, why: str, step: int | None, until: float, grace_until: float) -> None:
        """Seal what was saved, answer what is owed, write the last heartbeat; until `until` on the monotonic clock.

        Until `grace_until` while an emergency checkpoint has no manifest yet, its answer is not written, or it is not
        settled whose the run is, and the mailbox answers in time: a call that takes many seconds would hardly be the
        last one needed.
        """
        self._hasher.stop()
        left_s = until - time.monotonic()
        wait_until(lambda: self._is_emergency_over() or (time.monotonic() > until and self.box.is_slow), grace_until)
        is_settled = self._is_emergency_over()
        if not is_settled:
            self._run.trouble.once("emergency_lost", "A checkpoint could not be sealed before the run ended")
        until = max(until, time.monotonic() + max(0.0, min(left_s, 1.0))) if is_settled else until
        self._sealer.worker.end(until)
        for request in self._requests.owed():
            self.mail.answer(request, ReplyOutcome.CANNOT, f"the run ended: {why}", step=step)
        self.mail.worker.end(until)

    def _is_emergency_over(self) -> bool:
        is_settled = self._sealer.is_idle or not self._hold.is_open
        return not self._sealer.has_urgent and not self.mail.has_saved_to_tell and is_settled
