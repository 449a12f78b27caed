"""Rank 0's link to the service: the mailbox's reader, the sealer and the hasher, each on its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from rekindle.monitor.accounts import Accounts
from rekindle.monitor.base.run import Run
from rekindle.monitor.mail.boxes import Box, BoxAround
from rekindle.monitor.mail.mailbox_thread import Mail
from rekindle.monitor.mail.requests import Requests
from rekindle.monitor.saving.hasher import Hasher
from rekindle.monitor.saving.own_saves import OwnSaves
from rekindle.monitor.saving.saved import Upload
from rekindle.monitor.saving.seal import Sealer
from rekindle.protocol.keys import parse_key
from rekindle.protocol.mailbox import ReplyOutcome

LOOK_S = 0.2
SLOW_S: Final = 4.0  # for one call, which usually takes a few hundredths


class TimedBox(BoxAround):
    """A mailbox that knows whether it answers in time: what would wait for it at the end of a run then does not.

    For any number of threads. Raises what the mailbox does.
    """

    def __init__(self, box: Box) -> None:
        super().__init__(box, self._timed)
        self._lock = threading.RLock()  # a signal handler of the script may call the monitor inside itself
        self._began: dict[int, float] = {}  # of each call that is under way, by its thread
        self._took_s = 0.0  # the newest call that is over

    @property
    def is_slow(self) -> bool:
        """A call has been under way for `SLOW_S`, or the newest one took as long, whatever came of it."""
        with self._lock:
            longest = max((time.monotonic() - began for began in self._began.values()), default=0.0)
        return max(longest, self._took_s) >= SLOW_S

    def _timed(self, work: Callable[[], Any]) -> Any:
        me, began = threading.get_ident(), time.monotonic()
        with self._lock:
            self._began[me] = began
        try:
            return work()
        finally:
            with self._lock:
                self._began.pop(me, None)
                self._took_s = time.monotonic() - began


class ServiceLink:
    """Mail, sealer and hasher of one attempt."""

    def __init__(
        self,
        run: Run,
        *,
        box: Box,
        requests: Requests,
        accounts: Accounts,
        upload: Upload | None,
        on_failed: Callable[[int, str], None],
        is_saving: Callable[[], bool],
        is_stuck: Callable[[], bool],
        hold: Callable[[Box], bool],
        own: OwnSaves,
    ) -> None:
        """is_saving: the training thread writes a checkpoint now. is_stuck, hold: see `Mail`; own: `Sealer`."""
        self.box = box = TimedBox(box)
        self._requests = requests
        self._holding = run.identity.holding
        self._trouble = run.trouble
        self._settled = threading.Condition()
        self.mail = Mail(
            run,
            box=box,
            requests=requests,
            heartbeat=accounts.heartbeat,
            position=accounts.position,
            is_stuck=is_stuck,
            hold=lambda: hold(box),
            on_superseded=accounts.on_superseded,
            on_reply=accounts.on_reply,
            on_turn=self._notify,
        )
        self._hasher = Hasher(
            run,
            box=box,
            is_busy=lambda: is_saving() or not self._sealer.is_idle or bool(requests.owed()),
            on_damaged=on_failed,
        )
        self._sealer = Sealer(
            run,
            box=box,
            mail=self.mail,
            requests=requests,
            hasher=self._hasher,
            manifest_of=accounts.manifest,
            own=own,
            upload=upload,
            on_failed=on_failed,
            on_done=self._notify,
        )
        self.workers = (self.mail.worker, self._sealer.worker, self._hasher.worker)
        self.submit = self._sealer.submit  # a finished save, to be measured, sealed and answered for; never waits

    def check_resumed(self, manifest_uri: str | None, path: str | None) -> None:
        """Compare what this run resumed from with its hashes, in the background. Never waits.

        manifest_uri: in this mailbox; path: where the checkpoint lies on this machine. Nothing where either is None.
        """
        key = None if manifest_uri is None else parse_key(manifest_uri.partition("://")[2] or manifest_uri)
        if key is not None and key.step is not None and path is not None:
            self._hasher.check(key, path)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all saves are sealed and all replies written; whether that was so in time. Not for hashes."""
        with self._settled:
            return self._settled.wait_for(lambda: self._sealer.is_idle and self.mail.has_written_all, timeout_s)

    def end(self, why: str, step: int | None, until: float, grace_until: float) -> None:
        """Seal what was saved, answer what is owed, write the last heartbeat; until `until` on the monotonic clock.

        Until `grace_until` while an emergency checkpoint has no manifest yet, its answer is not written, or it is not
        settled whose the run is, and the mailbox answers in time: a call that takes many seconds would hardly be the
        last one needed.
        """
        self._hasher.stop()
        left_s = until - time.monotonic()
        is_settled = self._await_emergency(until, grace_until)
        if not is_settled:
            self._trouble.once("emergency_lost", "A checkpoint could not be sealed before the run ended")
        until = max(until, time.monotonic() + max(0.0, min(left_s, 1.0))) if is_settled else until
        self._sealer.worker.end(until)
        for request in self._requests.owed():
            self.mail.answer(request, ReplyOutcome.CANNOT, f"the run ended: {why}", step=step)
        self.mail.worker.end(until)

    def _await_emergency(self, until: float, grace_until: float) -> bool:
        with self._settled:
            while not self._is_emergency_over():
                now = time.monotonic()
                if now > grace_until or (now > until and self.box.is_slow):
                    return False
                self._settled.wait(LOOK_S)
        return True

    def _is_emergency_over(self) -> bool:
        is_settled = self._sealer.is_idle or not self._holding.is_open
        return not self._sealer.has_urgent and not self.mail.has_saved_to_tell and is_settled

    def _notify(self) -> None:
        with self._settled:
            self._settled.notify_all()
