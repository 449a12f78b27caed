"""Rank 0's side towards the service: the mailbox's reader and the sealer of checkpoints, each on its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rekindle.mailbox import ReplyOutcome
from rekindle.monitor.accounts import Accounts
from rekindle.monitor.aws import Clients
from rekindle.monitor.boxes import Box
from rekindle.monitor.clock import Clock
from rekindle.monitor.desk import Desk
from rekindle.monitor.mail import Mail
from rekindle.monitor.saving import SaveJob, Upload
from rekindle.monitor.seal import Sealer
from rekindle.monitor.settings import Config
from rekindle.monitor.trouble import Trouble
from rekindle.monitor.worker import Worker


class Office:
    """Mail and sealer of one attempt."""

    def __init__(
        self,
        *,
        box: Box,
        job_id: str,
        attempt: str,
        config: Config,
        desk: Desk,
        accounts: Accounts,
        clients: Clients,
        clock: Clock,
        trouble: Trouble,
        upload: Upload | None,
        on_failed: Callable[[int, str], None],
    ) -> None:
        self._desk = desk
        self._settled = threading.Condition()
        self.mail = Mail(
            box=box,
            desk=desk,
            clock=clock,
            trouble=trouble,
            config=config,
            job_id=job_id,
            attempt=attempt,
            beat=accounts.beat,
            position=accounts.position,
            on_superseded=accounts.on_superseded,
            on_reply=accounts.on_reply,
        )
        self._sealer = Sealer(
            box=box,
            mail=self.mail,
            desk=desk,
            clients=clients,
            clock=clock,
            trouble=trouble,
            manifest_of=accounts.manifest,
            upload=upload,
            on_failed=on_failed,
        )
        self._mailing = Worker("mail", self._mail_turn, trouble, is_done=lambda: self.mail.has_said_all)
        self._sealing = Worker("seal", self._seal_turn, trouble, is_done=lambda: self._sealer.is_idle)
        self.mail.wakes(self._mailing.wake)
        self.workers = (self._mailing, self._sealing)

    def submit(self, job: SaveJob) -> None:
        """Have a finished save measured, sealed and answered for. Never waits."""
        self._sealer.submit(job)
        self._sealing.wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all saves are sealed and all replies written; whether that was so in time."""
        with self._settled:
            return self._settled.wait_for(lambda: self._sealer.is_idle and self.mail.has_written_all, timeout_s)

    def end(self, why: str, step: int | None, until: float) -> None:
        """Seal what was saved, answer what is owed, write the last beat."""
        self._sealing.end(until)
        for request in self._desk.owed():
            self.mail.answer(request, ReplyOutcome.CANNOT, f"the run ended: {why}", step=step)
        self._mailing.end(until)

    def _mail_turn(self) -> float:
        wait_s = self.mail.turn(is_last=self._mailing.is_stopping)
        self._notify()
        return wait_s

    def _seal_turn(self) -> float:
        wait_s = self._sealer.turn()
        self._notify()
        return wait_s

    def _notify(self) -> None:
        with self._settled:
            self._settled.notify_all()
