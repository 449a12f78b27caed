"""The hashing thread: reads sealed checkpoints back, slowly, and writes their hashes beside their manifests.

It gives way to all else: it reads at a bounded rate and at the lowest priority, stops while anything is saved, sealed
or asked for, and is given up when the run ends. What it did not come to stays without hashes, which is no fault.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.checkpoints.found import Stamp
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.worker import Worker
from rekindle.monitor.mail.boxes import Box, document, mailbox_failed
from rekindle.protocol.hashing import Interrupted, hash_file, verify_hashes
from rekindle.protocol.keys import Key, hashes_key, manifest_key
from rekindle.protocol.manifests import ITSELF, Hashes, Manifest

READ_BYTES_S: Final = 100e6  # 40 GB in seven minutes; a tenth of what one NVMe disk reads
MAX_WAITING: Final = 2  # checkpoints: where hashing is slower than saving, the older ones stay without
LOOK_AGAIN_S: Final = 0.2  # while something more urgent is under way


@dataclass(frozen=True, slots=True)
class _HashJob:
    """A checkpoint whose hashes are to be written."""

    manifest: Manifest
    root: Path
    stamps: Mapping[str, Stamp]


class Hasher:
    """`submit` and `check` never wait; all I/O is in `turn`."""

    def __init__(
        self,
        run: Run,
        *,
        box: Box,
        is_busy: Callable[[], bool],
        on_damaged: Callable[[int, str], None],
    ) -> None:
        """is_busy: something more urgent than hashing is in progress. on_damaged: (step, what is wrong with it)."""
        self._box = box
        self._clock, self._trouble = run.clock, run.trouble
        self._is_busy = is_busy
        self._on_damaged = on_damaged
        self._waiting: deque[_HashJob] = deque(maxlen=MAX_WAITING)
        self._to_check: tuple[Key, str] | None = None
        self._stop = threading.Event()
        self._read_at = 0.0  # when the next chunk may be read
        self._is_slowed = False
        self.worker = Worker("hash", self.turn, run.trouble)

    def submit(self, manifest: Manifest, root: str, stamps: Mapping[str, Stamp]) -> None:
        """Read the local files of a checkpoint that was just sealed. stamps: of the files as they were sealed."""
        self._waiting.append(_HashJob(manifest, Path(root), stamps))
        self.worker.wake()

    def check(self, key: Key, path: str) -> None:
        """Compare the checkpoint at `path`, from which this run resumed, with the hashes of its manifest, `key`."""
        self._to_check = (key, path)
        self.worker.wake()

    def stop(self) -> None:
        self._stop.set()
        self.worker.stop()

    def turn(self) -> float:
        """Read what waits. Returns seconds until the next turn."""
        self._slow_down()
        try:
            if self._to_check is not None:
                (key, path), self._to_check = self._to_check, None
                self._check(key, path)
            while self._waiting:
                self._hash(self._waiting.pop())  # the newest is the one that a resume will want
        except Interrupted:
            return 3600.0
        except Exception as err:  # the transport's or the file system's: a checkpoint without hashes is no fault
            mailbox_failed(self._trouble, self._box, "hashing a checkpoint", err)
        return 3600.0

    def _hash(self, work: _HashJob) -> None:
        found: dict[str, str] = {}
        for item in sorted(work.manifest.files, key=lambda item: item.bytes):
            digest = self._as_sealed(work, item.path)
            if digest is None:  # where it was written again, its next seal brings it here
                self._trouble.count("hashes_given_up")
                return
            found[item.path] = digest
        hashes = Hashes(
            job_id=work.manifest.job_id,
            attempt=work.manifest.attempt,
            step=work.manifest.step,
            manifest=work.manifest.digest,
            files=found,
            life=work.manifest.life,
            hashed_at=self._clock.now(),
        )
        # Overwrites: where a root is written again under the manifest that stands, older hashes are of other content.
        self._box.put(hashes.key, hashes.to_json())
        self._trouble.count("hashes_written")

    def _as_sealed(self, work: _HashJob, name: str) -> str | None:
        """The hash of one file, None where it is not the one that was sealed, or was removed as old checkpoints are."""
        path = work.root if name == ITSELF else work.root / name
        try:
            digest = hash_file(path, self._before_chunk)
            return digest if Stamp.of(path) == work.stamps.get(name) else None
        except OSError:
            return None

    def _check(self, key: Key, path: str) -> None:
        named = (key.step or 0, key.name, key.life)
        manifest = document(self._box, manifest_key(*named), Manifest.from_json, "manifest", self._trouble)
        if manifest is None:
            return
        hashes = document(self._box, hashes_key(*named), Hashes.from_json, "hashes", self._trouble)
        found = verify_hashes(manifest, hashes, path, before_chunk=self._before_chunk)
        self._trouble.count("files_checked", len(found.checked))
        if found.problems:
            why = f"this run continued from it, and its content is not what was sealed: {found.text}"
            self._on_damaged(manifest.step, why)

    def _before_chunk(self, size: int) -> None:
        """Wait for one's turn. Raises: Interrupted."""
        while self._is_busy() and not self._stop.is_set():
            self._stop.wait(LOOK_AGAIN_S)
        if self._stop.wait(max(0.0, self._read_at - time.monotonic())):
            raise Interrupted
        self._read_at = max(self._read_at, time.monotonic()) + size / READ_BYTES_S

    def _slow_down(self) -> None:
        """On Linux the priority set for a thread's own id is that thread's alone. Source: setpriority(2), BUGS"""
        if self._is_slowed or not hasattr(os, "setpriority"):
            return
        self._is_slowed = True
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
