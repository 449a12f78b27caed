"""The sealing thread: measures what was saved, writes the manifest last, then answers the requests.

There is one manifest per step and attempt. A later save of the same step does not replace it, unless the checkpoint
that it names is no longer whole. Emergency checkpoints and those that answer a request are sealed first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

from rekindle.checkpoints.marks import is_forensic
from rekindle.checkpoints.verdict import texts
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.base.worker import Worker
from rekindle.monitor.mail.boxes import Box, mailbox_failed
from rekindle.monitor.mail.mailbox_thread import Mail
from rekindle.monitor.mail.requests import Requests
from rekindle.monitor.saving.hasher import Hasher
from rekindle.monitor.saving.measure import (
    Claim,
    MeasuredSave,
    Preempted,
    SaveGone,
    SaveIncomplete,
    SaveUnsettled,
    measure,
)
from rekindle.monitor.saving.own_saves import OwnSaves
from rekindle.monitor.saving.resuming import problems_of
from rekindle.monitor.saving.saved import SaveJob, Upload, local_path
from rekindle.protocol.mailbox import ReplyOutcome
from rekindle.protocol.manifests import POISONED, Manifest, ManifestFile, SaveKind
from rekindle.protocol.wire import MailboxError

MAX_PENDING_PERIODIC = 8  # beyond it, saves are faster than sealing: the oldest periodic checkpoints get no manifest
RETRY_S = 2.0  # after a failure of AWS or of the file system
MAX_RETRY_S = 30.0  # for a periodic checkpoint, whose retries back off exponentially
HOLD_LOOK_S = 0.3  # while it is not settled that the run is this process's
SETTLING_S = 0.5  # between two attempts to measure files that are still being written, or not all seen
LATE_S = 60.0  # the attribute cache of an NFS client, at most. Source: nfs(5), acdirmax
ALONE_S = 4.0  # where no other process and no thread is known to write, for what is not there yet
UNREAD_LOSS = "the loss could not be read, so whether the weights are finite is not known"
MAX_TRIES = 60  # of sealing one save
MAX_CONFLICTS = 3  # attempts to write a manifest whose key another writer changes at the same time


def summary(manifest: Manifest, took_s: float | None) -> str:
    """What was saved, how big it is and how long it took, in a sentence for people."""
    took = "" if took_s is None else f" in {took_s:.1f} s"
    count = len(manifest.files)
    return (
        f"saved at step {manifest.step}: {count} file{'' if count == 1 else 's'}, {manifest.total_bytes} bytes{took}, "
        f"in {manifest.root}"
    )


@dataclass(slots=True)
class _PendingSave:
    """A save that has no manifest yet."""

    job: SaveJob
    until: float  # by the monotonic clock, how long its files are waited for
    measured: MeasuredSave | None = None
    tries: int = 0


@dataclass(eq=False)
class Sealer:
    """Writes the manifests of finished saves.

    Any thread may call `submit`, which never blocks. `turn` does all I/O, and only the sealing thread calls it.

    manifest_of: the manifest of (save, root, files). on_failed: called with (step, why) for a save that gets no
    manifest. own: the run's other checkpoints.
    """

    run: Run
    _: KW_ONLY
    box: Box
    mail: Mail
    requests: Requests
    hasher: Hasher
    manifest_of: Callable[[SaveJob, str, tuple[ManifestFile, ...]], Manifest]
    upload: Upload | None
    on_failed: Callable[[int, str], None]
    own: OwnSaves

    def __post_init__(self) -> None:
        run = self.run
        self._clients, self._clock, self._trouble = run.clients, run.clock, run.trouble
        self._has_others = run.identity.world_size > 1  # which write parts of the checkpoints
        # Reentrant: a signal handler of the training script may call submit while its own thread holds the lock.
        self._lock = threading.RLock()
        self._pending: list[_PendingSave] = []
        self.worker = Worker("seal", self.turn, run.trouble, is_done=lambda: self.is_idle)

    @property
    def is_idle(self) -> bool:
        return not self._pending

    @property
    def has_urgent(self) -> bool:
        """An emergency checkpoint, or one that answers a request, has no manifest yet."""
        with self._lock:
            return any(save.job.is_urgent for save in self._pending)

    def submit(self, job: SaveJob) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._pending.append(_PendingSave(job, now + self._wait_s(job)))
        self.worker.wake()

    def _wait_s(self, job: SaveJob) -> float:
        """How long the files of a save are waited for that cannot be seen yet, as with the caches of NFS and Lustre."""
        if not self._has_others and not any(thread.is_alive() for thread in job.writers):
            return ALONE_S
        return max((request.deadline_s for request in job.requests), default=0.0) or LATE_S

    def turn(self) -> float:
        """Seal the pending saves. Returns the seconds to wait before the next call."""
        self.own.learn()
        self._drop_oldest()
        while (save := self._next()) is not None:
            wait_s = self._seal(save)
            if wait_s is not None:
                return wait_s
        return 3600.0

    def _next(self) -> _PendingSave | None:
        """The first urgent save, or else the first."""
        with self._lock:
            return min(self._pending, key=lambda save: not save.job.is_urgent, default=None)

    def _drop_oldest(self) -> None:
        while True:
            with self._lock:
                periodic = [save for save in self._pending if not save.job.is_urgent]
            if len(periodic) <= MAX_PENDING_PERIODIC:
                return
            self._give_up(periodic[0], "too many saves wait for their manifests")

    def _seal(self, save: _PendingSave) -> float | None:
        """Seal one save. None if it is finished, sealed or not; else the seconds to wait before the next attempt."""
        job = save.job
        try:
            if save.measured is None:
                save.measured = self._measure(job)
            if not self.mail.may_write() and self.requests.superseded_by is None:
                return HOLD_LOOK_S  # another process may hold the run
            self.mail.read_fence()
            if self.requests.superseded_by is not None:
                for request in job.requests:
                    self.mail.answer(request, ReplyOutcome.REFUSED, "this attempt was superseded while it saved")
                self._done(save)
                return None
            own = self._manifest(job, save.measured)
            current = self._write(own)
        except Preempted:
            return 0.0
        except (SaveIncomplete, MailboxError) as err:
            self._give_up(save, str(err))
            return None
        except SaveUnsettled as err:
            if isinstance(err, SaveGone) and self._has_newer(job):
                logger.info("The checkpoint of step %d was removed before it was sealed", job.step)
                self._done(save)
                return None
            if self._clock.monotonic() > save.until:
                self._give_up(save, str(err))
                return None
            return SETTLING_S
        except Exception as err:  # of AWS or of the file system: worth another attempt
            mailbox_failed(self._trouble, self.box, "sealing a checkpoint", err)
            save.measured = None  # the files may be removed or rewritten before the next attempt
            wait_s = RETRY_S if job.is_urgent else min(MAX_RETRY_S, RETRY_S * 2 ** min(save.tries, 8))
            return self._retry_later(save, f"the manifest could not be written: {err!r}", wait_s)
        self._sealed(save, own, current, save.measured)
        return None

    def _has_newer(self, job: SaveJob) -> bool:
        """A further save of the script's own, for which it may have removed this one."""
        if job.is_urgent:
            return False
        with self._lock:
            return any(save.job.step > job.step for save in self._pending)

    def _measure(self, job: SaveJob) -> MeasuredSave:
        raw = os.fspath(job.result.path)
        measured = measure(
            job.result,
            self._clients,
            claim=Claim(
                step=job.step,
                began=job.began,
                writers=job.writers,
                own=self.own,
                told=job.told,
                is_copied=self.upload is not None and self.upload.to_uri(raw) != raw,
            ),
            is_preempted=lambda: not job.is_urgent and self.has_urgent,
        )
        if measured.nan is not None and not (job.poisoned or is_forensic(job.request_id)):
            raise SaveIncomplete(measured.nan)
        return measured

    def _manifest(self, job: SaveJob, measured: MeasuredSave) -> Manifest:
        """Where the files are copied elsewhere, what they are here says nothing of the copies."""
        root, files = measured.root, measured.files
        if self.upload is not None and (copied := self.upload.to_uri(root)) != root:
            root, files = (
                copied,
                tuple(ManifestFile(path=item.path, bytes=item.bytes, step=item.step) for item in files),
            )
        manifest = self.manifest_of(job, root, files)
        return manifest if measured.nan is None else replace(manifest, poisoned=True, loss=None)

    # ---- the one manifest of a step ----------------------------------------------------------------------------

    def _write(self, own: Manifest) -> Manifest:
        """Write `own` unless a manifest is there that must be kept. Returns the one that is there afterwards.

        Raises:
            OSError: other writers kept changing it.
        """
        body = own.to_json()
        for _ in range(MAX_CONFLICTS):
            if self.box.put_new(own.key, body):
                return own
            existing = self.box.get(own.key)
            if existing == body:  # our own: it was written, but the answer was lost
                return own
            if existing is None:
                continue
            first = _parsed(existing)
            if first is not None:
                chosen = self._chosen(first, own)
                if chosen is first:
                    return first
                own, body = chosen, chosen.to_json()
            if self.box.replace(own.key, body, existing):
                return own
        raise OSError(f"{own.key} is being written by something else")

    def _chosen(self, first: Manifest, own: Manifest) -> Manifest:
        """Which manifest to keep where `first` exists and `own` is of a later save of the same step.

        With different roots: `first`, while its checkpoint is whole, and not poisoned unless `own` is, too. With the
        same root, whose files were rewritten: `own`, which describes the files that are there now; but an emergency
        checkpoint keeps its kind, and is marked as poisoned where the new files are.
        """
        if first.root != own.root:
            return first if (own.poisoned or not first.poisoned) and not self._problems(first) else own
        if first.kind is not SaveKind.EMERGENCY or own.kind is SaveKind.EMERGENCY:
            return own
        if own.poisoned and not first.poisoned:
            return replace(first, files=own.files, poisoned=True, loss=None)
        return first if not self._problems(first) else replace(own, kind=first.kind, request_id=first.request_id)

    def _problems(self, manifest: Manifest) -> tuple[str, ...]:
        """What is wrong with a manifest's files, apart from being poisoned. Raises: errors of the transport."""
        manifest = replace(manifest, poisoned=False)
        return texts(problems_of(manifest, local_path(manifest.root, self.upload), self._clients))

    # ---- afterwards --------------------------------------------------------------------------------------------

    def _sealed(self, save: _PendingSave, own: Manifest, current: Manifest, measured: MeasuredSave) -> None:
        """Hash the files, answer the requests, and finish. `current` is the manifest that is kept for the step."""
        job = save.job
        if current.root == own.root:
            self._trouble.count("manifests_written")
            if measured.stamps:
                self.hasher.submit(current, measured.root.removeprefix("file://"), measured.stamps)
        else:
            self._trouble.once(
                "manifests_refused",
                "Step %d was sealed before, in %s: no manifest is written for what was saved of it in %s",
                job.step,
                current.root,
                own.root,
            )
        why = summary(current, job.took_s)
        if job.is_loss_unread:
            why = f"{why}; {UNREAD_LOSS}"
        if job.kind is SaveKind.EMERGENCY:
            logger.info("An emergency checkpoint: %s", why)
        for request in job.requests:
            is_usable = not current.poisoned or is_forensic(request.request_id)
            self.mail.answer(
                request,
                ReplyOutcome.SAVED if is_usable else ReplyOutcome.CANNOT,
                why if is_usable else f"{why}; {POISONED}",
                step=job.step,
                manifest=current.key,
                size_bytes=current.total_bytes,
                took_s=job.took_s,
            )
        self._done(save)

    def _retry_later(self, save: _PendingSave, why: str, wait_s: float) -> float | None:
        save.tries += 1
        if save.tries >= MAX_TRIES:
            self._give_up(save, why)
            return None
        return wait_s

    def _give_up(self, save: _PendingSave, why: str) -> None:
        self.on_failed(save.job.step, why)
        for request in save.job.requests:
            self.mail.answer(request, ReplyOutcome.CANNOT, why, step=save.job.step)
        self._done(save)

    def _done(self, save: _PendingSave) -> None:
        with self._lock:
            self._pending.remove(save)


def _parsed(raw: bytes) -> Manifest | None:
    """None for a document that is not a manifest: nothing can be resumed from it, so it may be replaced."""
    try:
        return Manifest.from_json(raw)
    except MailboxError:
        return None
