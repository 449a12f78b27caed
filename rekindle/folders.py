"""Checkpoints in a directory: a run's own disk, or a mounted file system such as FSx. Reads a few bytes of few files.

For the training side and the CLI; the service sees only S3.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from rekindle.checkpoints.discover import discover
from rekindle.checkpoints.found import Found, Read
from rekindle.checkpoints.names import PASSED_OVER
from rekindle.mailbox import ITSELF, Manifest, verify_listing

MAX_FILES = 300_000
MAX_DEPTH = 12


def listing_of(directory: str | os.PathLike[str]) -> dict[str, int]:
    """Relative path -> bytes, bounded. Links to files count as files, links to folders are not followed.

    Raises: OSError where the directory itself cannot be read; what lies in it and cannot be read is left out.
    """
    top = os.path.abspath(directory)
    os.scandir(top).close()  # a directory that is not there is an error, and not an empty one
    found: dict[str, int] = {}
    count = 0
    for folder, inner, names in os.walk(top):
        inside = os.path.relpath(folder, top)
        depth = 0 if inside == "." else inside.count(os.sep) + 1
        inner[:] = sorted(name for name in inner if name not in PASSED_OVER) if depth < MAX_DEPTH else []
        for name in names[: MAX_FILES - count]:
            path = name if inside == "." else f"{inside}/{name}"
            try:
                seen = os.stat(os.path.join(folder, name))
            except OSError:
                continue
            if stat.S_ISREG(seen.st_mode):  # opening a pipe would wait for its writer for ever
                found[path.replace(os.sep, "/")] = seen.st_size
        count += 1 + len(names)
        if count >= MAX_FILES:
            break
    return found


def reader_of(directory: str | os.PathLike[str]) -> Read:
    """Reads files of that directory; None for one that cannot be read."""
    top = Path(directory)

    def read(path: str, start: int, length: int) -> bytes | None:
        try:
            # Without waiting for a pipe's writer: one may stand where the listing saw a file.
            with os.fdopen(os.open(top / path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return None
                file.seek(start)
                return file.read(length)
        except (OSError, ValueError):
            return None

    return read


def discover_in(directory: str | os.PathLike[str]) -> tuple[Found, ...]:
    """The checkpoints in a directory, newest first. Raises: OSError where it cannot be read."""
    return discover(listing_of(directory), reader_of(directory))


def newest_complete(
    directory: str | os.PathLike[str],
    *,
    at_most: int | None = None,
    is_barred: Callable[[str], bool] = lambda _: False,
) -> Found | None:
    """The newest complete checkpoint of known step, none beyond `at_most`; None where there is none.

    `is_barred` (quarantined, say) is asked with the checkpoint's absolute path. Raises: OSError where the directory
    cannot be read.
    """
    for found in discover_in(directory):
        fits = found.step is not None and (at_most is None or found.step <= at_most)
        if fits and found.is_complete and not is_barred(path_of(directory, found)):
            return found
    return None


def path_of(directory: str | os.PathLike[str], found: Found) -> str:
    """Where a found checkpoint lies."""
    top = os.path.abspath(directory)
    return os.path.join(top, *found.root.split("/")) if found.root else top


def manifest_problems(manifest: Manifest, path: str) -> tuple[str, ...]:
    """What keeps the files at `path` from being what the manifest vouches for: missing, empty, of another size.

    For roots that only the training side can see.
    """
    place = Path(path)
    if place.is_file():
        sizes: Mapping[str, int] = {ITSELF: place.stat().st_size}
    elif place.is_dir():
        sizes = {item.path: size for item in manifest.files if (size := _size(place / item.path)) is not None}
    else:
        return (f"{path} is not there",)
    return verify_listing(manifest, sizes)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None
