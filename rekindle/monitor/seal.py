"""The sealing thread: measures what was saved, writes the manifest last, then answers the requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rekindle.mailbox import MailboxError, Manifest, ManifestFile, ReplyOutcome, SaveKind
from rekindle.monitor.aws import Clients
from rekindle.monitor.boxes import Box
from rekindle.monitor.clock import Clock
from rekindle.monitor.desk import Desk
from rekindle.monitor.mail import Mail, told
from rekindle.monitor.saving import SaveIncomplete, SaveJob, Upload, measure
from rekindle.monitor.trouble import Trouble, logger

MAX_JOBS_WAITING = 8  # hashing slower than saving: the oldest checkpoint is the one least worth a manifest
RETRY_S = 2.0
MAX_TRIES = 30


def said(job: SaveJob, manifest: Manifest) -> str:
    """What was saved, how big, how long it took: for people."""
    took = "" if job.took_s is None else f" in {job.took_s:.1f} s"
    count = len(manifest.files)
    return (
        f"saved at step {job.step}: {count} file{'' if count == 1 else 's'}, {manifest.total_bytes} bytes{took}, "
        f"in {manifest.root}"
    )


class Sealer:
    """One job at a time, in order. `submit` never blocks; all I/O is in `turn`."""

    def __init__(
        self,
        *,
        box: Box,
        mail: Mail,
        desk: Desk,
        clients: Clients,
        clock: Clock,
        trouble: Trouble,
        manifest_of: Callable[[SaveJob, str, tuple[ManifestFile, ...]], Manifest],
        upload: Upload | None,
        on_failed: Callable[[int, str], None],
    ) -> None:
        self._box = box
        self._mail = mail
        self._desk = desk
        self._clients = clients
        self._clock = clock
        self._trouble = trouble
        self._manifest_of = manifest_of
        self._upload = upload
        self._on_failed = on_failed
        self._jobs: deque[SaveJob] = deque()
        self._measured: Manifest | None = None
        self._tries = 0

    @property
    def is_idle(self) -> bool:
        return not self._jobs

    def submit(self, job: SaveJob) -> None:
        self._jobs.append(job)

    def turn(self) -> float:
        """Seal what waits. Returns seconds until the next try."""
        while self._jobs:
            while len(self._jobs) > MAX_JOBS_WAITING:
                self._give_up("too many saves wait for their manifests")
            if not self._seal(self._jobs[0]):
                return RETRY_S
        return 3600.0

    def _seal(self, job: SaveJob) -> bool:
        """Whether the job is done with, for good or bad."""
        try:
            if self._measured is None:
                self._measured = self._measure(job)
            self._mail.read_fence()
            if self._desk.superseded_by is not None:
                for request in job.requests:
                    self._mail.answer(request, ReplyOutcome.REFUSED, "this attempt was superseded while it saved")
                self._next()
                return True
            self._box.put(self._measured.key, self._measured.to_json())
        except (SaveIncomplete, MailboxError) as err:
            self._give_up(str(err))
            return True
        except Exception as err:  # the transport's or the file system's: worth another try
            told(self._trouble, self._box, "sealing a checkpoint", err)
            self._tries += 1
            if self._tries >= MAX_TRIES:
                self._give_up(f"the manifest could not be written: {err!r}")
                return True
            return False
        self._trouble.count("manifests_written")
        why = said(job, self._measured)
        if job.kind is SaveKind.EMERGENCY:
            logger.info("An emergency checkpoint: %s", why)
        for request in job.requests:
            self._mail.answer(
                request,
                ReplyOutcome.SAVED,
                why,
                step=job.step,
                manifest=self._measured.key,
                size_bytes=self._measured.total_bytes,
                took_s=job.took_s,
            )
        self._next()
        return True

    def _measure(self, job: SaveJob) -> Manifest:
        root, files = measure(job.result, self._clients)
        if self._upload is not None:
            root = self._upload.to_uri(root)
        return self._manifest_of(job, root, files)

    def _give_up(self, why: str) -> None:
        job = self._jobs[0]
        self._on_failed(job.step, why)
        for request in job.requests:
            self._mail.answer(request, ReplyOutcome.CANNOT, why, step=job.step)
        self._next()

    def _next(self) -> None:
        self._jobs.popleft()
        self._measured = None
        self._tries = 0
