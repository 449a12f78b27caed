"""SHA-256 of a checkpoint's files: read back slowly beside a run, and checked before one is trusted again.

A manifest names sizes. A file can keep its size and lose its content: a disk that returns other bytes, a page that was
never written back before a power cut, a copy that went wrong, another process that wrote to the same name. Hashes tell
these; see `rekindle.protocol.manifests.Hashes`. For the training side and the command line.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.protocol.manifests import ITSELF, Hashes, Manifest

CHUNK_BYTES: Final = 1024 * 1024


class Interrupted(Exception):
    """The reading was given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashCheck:
    """`problems`: files whose content is not what was sealed. `checked`, `unchecked`: names of files, by size."""

    problems: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """For people."""
        if self.problems:
            return "; ".join(self.problems)
        if not self.checked:
            return "no hash was checked"
        left = f", {len(self.unchecked)} were not checked" if self.unchecked else ""
        return f"{len(self.checked)} files have the content that was sealed{left}"


def hash_file(path: str | os.PathLike[str], before_chunk: Callable[[int], None] = lambda _: None) -> str:
    """Lower-case hex. Leaves no more of the file in the page cache than was there dirty.

    before_chunk: called with the bytes about to be read; may wait, or raise to give up. Raises: OSError.
    """
    digest = hashlib.sha256()
    # Without waiting for a pipe's writer: one may stand where a file was listed.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        at = 0
        while True:
            before_chunk(CHUNK_BYTES)
            chunk = file.read(CHUNK_BYTES)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)
            if hasattr(os, "posix_fadvise"):  # the data loader's pages are worth more than these
                os.posix_fadvise(file.fileno(), at, len(chunk), os.POSIX_FADV_DONTNEED)
            at += len(chunk)


def verify_hashes(
    manifest: Manifest,
    hashes: Hashes | None,
    path: str | os.PathLike[str],
    *,
    before_chunk: Callable[[int], None] = lambda _: None,
) -> HashCheck:
    """Compare the content of the files at `path`, smallest first, with what was sealed, until `before_chunk` raises
    Interrupted.

    `hashes` of another manifest say nothing. A file that cannot be read is a problem; one that was not reached any
    more, or that has no hash, is unchecked. Raises only what else `before_chunk` raises.
    """
    by_size = sorted(manifest.files, key=lambda item: (item.bytes, item.path))
    known = hashes.files if hashes is not None and hashes.manifest == manifest.digest else {}
    problems: list[str] = []
    checked: list[str] = []
    unchecked: list[str] = []
    is_given_up = False
    for item in by_size:
        digest = known.get(item.path)
        if digest is None or is_given_up:
            unchecked.append(item.path)
            continue
        file = Path(path) if item.path == ITSELF else Path(path) / item.path
        try:
            found = hash_file(file, before_chunk)
        except Interrupted:
            is_given_up = True
            unchecked.append(item.path)
            continue
        except (OSError, ValueError) as err:
            problems.append(f"{item.path} cannot be read: {err}")
            continue
        checked.append(item.path)
        if found != digest:
            problems.append(f"{item.path} has other content than was sealed")
    return HashCheck(problems=tuple(problems), checked=tuple(checked), unchecked=tuple(unchecked))
