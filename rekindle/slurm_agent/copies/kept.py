"""What is needed to submit jobs again, on the cluster's own file system: nothing of it leaves the cluster.

It lies beside slurmctld's own copies, in StateSaveLocation, which the head nodes of a cluster share; else in the
agent's state directory. Its name is a keyed hash of it, with a key that lies there too: what the cluster state names is
found here or nowhere, and nothing can be guessed from the name.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rekindle.protocol.cluster.documents import MAX_SPEC_BYTES, JobSpec
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.ports import SlurmError
from rekindle.slurm_agent.copies.hashes import ValueHashes

FOLDER: Final = "rekindle"
KEY: Final = "key"
KEPT_S: Final = 90 * 24 * 3600.0  # as long as the cluster state (infra/template/storage.yaml)
MAX_UNWRITTEN: Final = 1000  # in memory, while the file system is full or read-only
_NAME: Final = re.compile(r"[0-9a-f]{64}")


class SpecFolder:
    """For several threads. state_dir None: only in memory. state_location: of slurmctld's settings;
    may raise SlurmError."""

    def __init__(
        self,
        state_dir: Path | None = None,
        state_location: Callable[[], str] = str,
    ) -> None:
        self._own = state_dir / "specs" if state_dir is not None else None
        self._state_location = state_location
        self.hashes = ValueHashes(self._keyed)
        self._unwritten: dict[str, bytes] = {}
        self._key: bytes | None = None

    def put(self, spec: JobSpec) -> str:
        """Its name. What cannot be written is kept in memory, and written later.

        Raises: MailboxError for one that is too large.
        """
        body = spec.to_json()
        name = _named(self._keyed(), body)
        if len(self._unwritten) < MAX_UNWRITTEN:
            self._unwritten[name] = body
        self.write()
        return name

    def write(self) -> bool:
        """Write down what is not yet. False: that cannot be done now."""
        try:
            for name, body in [*self._unwritten.items()]:
                _write(self._folder() / f"{name}.json", body)
                self._unwritten.pop(name, None)
        except OSError:
            return False
        return True

    def get(self, name: str) -> JobSpec | None:
        """None: it is not here, or not what its name says."""
        if _NAME.fullmatch(name) is None:
            return None
        body: bytes | None = self._unwritten.get(name)
        for folder in self._folders() if body is None else ():
            with suppress(OSError):
                with (folder / f"{name}.json").open("rb") as file:
                    found = file.read(MAX_SPEC_BYTES + 1)
                if _named((folder / KEY).read_bytes(), found) == name:
                    body = found
                    break
        try:
            return JobSpec.from_json(body) if body is not None else None
        except MailboxError:
            return None

    def sweep(self, followed: Collection[str]) -> None:
        """Remove what has not been followed for as long as the cluster state is kept."""
        oldest = time.time() - KEPT_S
        for folder in self._folders():
            for path in [*folder.glob("*.json")]:
                with suppress(OSError):
                    if path.stem in followed:
                        os.utime(path)
                    elif path.stat().st_mtime < oldest:
                        path.unlink()

    def remove(self) -> tuple[str, ...]:
        """Remove all of it. The folders that there were. Raises: OSError."""
        found = tuple(self._folders())
        for folder in found:
            shutil.rmtree(folder)
        return tuple(map(str, found))

    # ---- parts

    def _places(self) -> Iterator[Path]:
        if self._own is None:
            return
        with suppress(SlurmError):
            location = Path(self._state_location() or "/nonexistent")
            if location.is_dir():
                yield location / FOLDER
        yield self._own

    def _folders(self) -> Iterator[Path]:
        """Those that are there and ours: StateSaveLocation is another user's, who could put a link there."""
        for place in self._places():
            with suppress(OSError):
                seen = place.lstat()
                if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
                    yield place

    def _folder(self) -> Path:
        """Where to write, with the key in it. Raises: OSError."""
        for place in self._places():
            with suppress(OSError):
                place.mkdir(mode=0o700, parents=place == self._own)
            if place in self._folders() and os.access(place, os.W_OK):
                self._write_key(place)
                return place
        raise OSError("nothing can be written")

    def _keyed(self) -> bytes:
        """The key: of the place that is written to, which another head node may have made; else a new one."""
        if self._key is None:
            self._key = secrets.token_bytes(32)
            with suppress(OSError):
                self._folder()
        return self._key

    def _write_key(self, folder: Path) -> None:
        """Raises: OSError."""
        assert self._key is not None, "_keyed"  # noqa: S101
        path = folder / KEY
        if not path.exists():
            _write(path, self._key, is_new=True)
        self._key = path.read_bytes()


def _named(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _write(path: Path, body: bytes, *, is_new: bool = False) -> None:
    """Whole or not at all, for its owner alone; `is_new`: one that is there already stays. Raises: OSError."""
    if path.exists():
        return
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(body)
            stream.flush()
            os.fsync(stream.fileno())
        if is_new:
            with suppress(FileExistsError):
                os.link(beside, path)
        else:
            beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink()
