"""The sealing thread: measures what was saved, writes the manifest last, then answers the requests.

A manifest stands once it is written. What is saved of the same step later does not replace it, unless the checkpoint
that it names is whole no more. Emergency checkpoints and those that answer a request go before all others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from rekindle.checkpoints.folders import manifest_problems
from rekindle.checkpoints.marks import is_forensic
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.trouble import Trouble, logger
from rekindle.monitor.mail.boxes import Box
from rekindle.monitor.mail.failures import mailbox_failed
from rekindle.monitor.mail.mailbox_thread import Mail
from rekindle.monitor.mail.requests import Requests
from rekindle.monitor.saving.hasher import Hasher
from rekindle.monitor.saving.measure import MeasuredSave, Preempted, SaveIncomplete, SaveUnsettled, measure
from rekindle.monitor.saving.saved import SaveJob, Upload, local_path
from rekindle.protocol.mailbox import (
    MailboxError,
    Manifest,
    ManifestFile,
    Place,
    ReplyOutcome,
    SaveKind,
    relative_path,
    verify_listing,
)
from rekindle.protocol.manifests import POISONED

MAX_JOBS_WAITING = 8  # sealing slower than saving: the oldest periodic checkpoint is the one least worth a manifest
RETRY_S = 2.0
MAX_RETRY_S = 30.0  # of a periodic checkpoint
SETTLING_S = 0.5  # between two tries to measure what is still being written
MAX_TRIES = 60
MAX_CONFLICTS = 3  # tries to write a manifest that something else is written over at the same time


def summary(manifest: Manifest, took_s: float | None) -> str:
    """What was saved, how big, how long it took: for people."""
    took = "" if took_s is None else f" in {took_s:.1f} s"
    count = len(manifest.files)
    return (
        f"saved at step {manifest.step}: {count} file{'' if count == 1 else 's'}, {manifest.total_bytes} bytes{took}, "
        f"in {manifest.root}"
    )


@dataclass(slots=True)
class _Waiting:
    """A save that has no manifest yet."""

    job: SaveJob
    measured: MeasuredSave | None = None
    tries: int = 0


class Sealer:
    """`submit` never blocks; all I/O is in `turn`."""

    def __init__(
        self,
        *,
        box: Box,
        mail: Mail,
        requests: Requests,
        clients: Clients,
        trouble: Trouble,
        hasher: Hasher,
        manifest_of: Callable[[SaveJob, str, tuple[ManifestFile, ...]], Manifest],
        upload: Upload | None,
        on_failed: Callable[[int, str], None],
        on_done: Callable[[], None],
    ) -> None:
        """on_failed: (step, why). on_done: after each job, for good or bad."""
        self._box = box
        self._mail = mail
        self._requests = requests
        self._clients = clients
        self._trouble = trouble
        self._hasher = hasher
        self._manifest_of = manifest_of
        self._upload = upload
        self._on_failed = on_failed
        self._on_done = on_done
        self._lock = threading.RLock()  # a signal handler of the script may call the monitor inside itself
        self._waiting: list[_Waiting] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    @property
    def has_urgent(self) -> bool:
        """An emergency checkpoint, or one that answers a request, has no manifest yet."""
        with self._lock:
            return any(waiting.job.is_urgent for waiting in self._waiting)

    def submit(self, job: SaveJob) -> None:
        with self._lock:
            self._waiting.append(_Waiting(job))

    def turn(self) -> float:
        """Seal what waits. Returns seconds until the next try."""
        self._drop_oldest()
        while (one := self._next()) is not None:
            wait_s = self._seal(one)
            if wait_s is not None:
                return wait_s
        return 3600.0

    def _next(self) -> _Waiting | None:
        with self._lock:
            return min(self._waiting, key=lambda waiting: not waiting.job.is_urgent, default=None)  # the first such

    def _drop_oldest(self) -> None:
        while True:
            with self._lock:
                periodic = [waiting for waiting in self._waiting if not waiting.job.is_urgent]
            if len(periodic) <= MAX_JOBS_WAITING:
                return
            self._give_up(periodic[0], "too many saves wait for their manifests")

    def _seal(self, one: _Waiting) -> float | None:
        """None where the job is done with, for good or bad; else seconds until the next try."""
        job = one.job
        try:
            if one.measured is None:
                one.measured = self._measure(job)
            self._mail.read_fence()
            if self._requests.superseded_by is not None:
                for request in job.requests:
                    self._mail.answer(request, ReplyOutcome.REFUSED, "this attempt was superseded while it saved")
                self._done(one)
                return None
            root = one.measured.root if self._upload is None else self._upload.to_uri(one.measured.root)
            own = self._manifest_of(job, root, one.measured.files)
            standing = self._write(own)
        except Preempted:
            return 0.0
        except (SaveIncomplete, MailboxError) as err:
            self._give_up(one, str(err))
            return None
        except SaveUnsettled as err:
            return self._again(one, str(err), SETTLING_S)
        except Exception as err:  # the transport's or the file system's: worth another try
            mailbox_failed(self._trouble, self._box, "sealing a checkpoint", err)
            one.measured = None  # meanwhile it may be removed, or written again
            wait_s = RETRY_S if job.is_urgent else min(MAX_RETRY_S, RETRY_S * 2 ** min(one.tries, 8))
            return self._again(one, f"the manifest could not be written: {err!r}", wait_s)
        self._sealed(one, own, standing, one.measured)
        return None

    def _measure(self, job: SaveJob) -> MeasuredSave:
        return measure(job.result, self._clients, is_preempted=lambda: not job.is_urgent and self.has_urgent)

    # ---- the one manifest of a step ----------------------------------------------------------------------------

    def _write(self, own: Manifest) -> Manifest:
        """Write `own` where no manifest stands. Returns the one that stands, which may be another."""
        body = own.to_json()
        for _ in range(MAX_CONFLICTS):
            if self._box.put_new(own.key, body):
                return own
            there = self._box.get(own.key)
            if there == body:  # our own, whose acknowledgement was lost on the way
                return own
            if there is None:
                continue
            first = _parsed(there)
            if first is not None:
                kept = self._kept(first, own)
                if kept is first:
                    return first
                own, body = kept, kept.to_json()
            if self._box.replace(own.key, body, there):
                return own
        raise OSError(f"{own.key} is being written by something else")

    def _kept(self, first: Manifest, own: Manifest) -> Manifest:
        """Which manifest is to stand, where `first` does and `own` is of a later save of the same step.

        Of another root: the first, while its checkpoint is whole and not poisoned. Of the same root, which was written
        again: the newer, as it describes what lies there now; but an emergency checkpoint stays one, and one that now
        is poisoned says so.
        """
        if first.root != own.root:
            return first if (own.poisoned or not first.poisoned) and not self._problems(first) else own
        if first.kind is not SaveKind.EMERGENCY or own.kind is SaveKind.EMERGENCY:
            return own
        if own.poisoned and not first.poisoned:
            return replace(first, files=own.files, poisoned=True, loss=None)
        return first if not self._problems(first) else replace(own, kind=first.kind, request_id=first.request_id)

    def _problems(self, manifest: Manifest) -> tuple[str, ...]:
        """What is wrong with the files of a manifest, apart from its being poisoned. Raises: the transport's errors."""
        manifest = replace(manifest, poisoned=False)
        path = local_path(manifest.root, self._upload)
        if path is not None:
            return manifest_problems(manifest, path)
        place = Place.parse(manifest.root, "root")
        sizes = {
            name: size
            for key, size in self._clients.objects(place.bucket or "", place.path)
            if (name := relative_path(place.path, key)) is not None
        }
        return verify_listing(manifest, sizes)

    # ---- afterwards --------------------------------------------------------------------------------------------

    def _sealed(self, one: _Waiting, own: Manifest, standing: Manifest, measured: MeasuredSave) -> None:
        job = one.job
        if standing.root == own.root:
            self._trouble.count("manifests_written")
            if measured.stamps:
                self._hasher.submit(standing, measured.root.removeprefix("file://"), measured.stamps)
        else:
            self._trouble.once(
                "manifests_refused",
                "Step %d was sealed before, in %s: no manifest is written for what was saved of it in %s",
                job.step,
                standing.root,
                own.root,
            )
        why = summary(standing, job.took_s)
        if job.kind is SaveKind.EMERGENCY:
            logger.info("An emergency checkpoint: %s", why)
        for request in job.requests:
            is_usable = not standing.poisoned or is_forensic(request.request_id)
            self._mail.answer(
                request,
                ReplyOutcome.SAVED if is_usable else ReplyOutcome.CANNOT,
                why if is_usable else f"{why}; {POISONED}",
                step=job.step,
                manifest=standing.key,
                size_bytes=standing.total_bytes,
                took_s=job.took_s,
            )
        self._done(one)

    def _again(self, one: _Waiting, why: str, wait_s: float) -> float | None:
        one.tries += 1
        if one.tries >= MAX_TRIES:
            self._give_up(one, why)
            return None
        return wait_s

    def _give_up(self, one: _Waiting, why: str) -> None:
        self._on_failed(one.job.step, why)
        for request in one.job.requests:
            self._mail.answer(request, ReplyOutcome.CANNOT, why, step=one.job.step)
        self._done(one)

    def _done(self, one: _Waiting) -> None:
        with self._lock:
            self._waiting.remove(one)
        self._on_done()


def _parsed(raw: bytes) -> Manifest | None:
    """None for what is no manifest: nothing can be resumed from that."""
    try:
        return Manifest.from_json(raw)
    except MailboxError:
        return None
