"""Checkpoints in a directory: a run's own disk, or a mounted file system such as FSx. Reads a few bytes of few files.

For the training side and the CLI; the service sees only S3.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rekindle.checkpoints.discover import discover, judge_one
from rekindle.checkpoints.families import of_one_run
from rekindle.checkpoints.found import Format, Found, Read
from rekindle.checkpoints.names import PASSED_OVER
from rekindle.checkpoints.sharded import LATE
from rekindle.protocol.mailbox import ITSELF, Manifest, verify_listing

MAX_FILES = 300_000
MAX_DEPTH = 12
# A manifest's time is of its host's clock, a file's of the file system's or of another host's.
CLOCKS_APART_S = 300.0


def listing_of(directory: str | os.PathLike[str]) -> dict[str, int]:
    """Relative path -> bytes, bounded. Links to files count as files, links to folders are not followed.

    Raises: OSError where the directory itself cannot be read; what lies in it and cannot be read is left out.
    """
    return {path: seen.st_size for path, seen in _survey(directory).items()}


def times_of(directory: str | os.PathLike[str]) -> dict[str, float]:
    """Relative path -> when it was last written, in seconds of that file system. Raises: OSError, as `listing_of`."""
    return {path: seen.st_mtime for path, seen in _survey(directory).items()}


def _survey(directory: str | os.PathLike[str]) -> dict[str, os.stat_result]:
    top = os.path.abspath(directory)
    os.scandir(top).close()  # a directory that is not there is an error, and not an empty one
    found: dict[str, os.stat_result] = {}
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
                found[path.replace(os.sep, "/")] = seen
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


def discover_in(
    directory: str | os.PathLike[str], *, like: Iterable[str] = (), has_times: bool = True
) -> tuple[Found, ...]:
    """The checkpoints in a directory, newest first; those that are not the run's own have a problem that says so.

    like: absolute paths known to be the run's. has_times: False where the files were not written here but fetched from
    elsewhere, so that their times say nothing. Raises: OSError where the directory cannot be read.
    """
    seen = _survey(directory)
    times = {path: stat.st_mtime for path, stat in seen.items()} if has_times else None
    found = discover({path: stat.st_size for path, stat in seen.items()}, reader_of(directory), times)
    top = os.path.abspath(directory)
    roots = [os.path.relpath(path, top).replace(os.sep, "/") for path in like]
    return of_one_run(found, [root for root in roots if not root.startswith("..")])


def newest_complete(
    directory: str | os.PathLike[str],
    *,
    at_most: int | None = None,
    is_barred: Callable[[str], bool] = lambda _: False,
    like: Iterable[str] = (),
    has_times: bool = True,
) -> Found | None:
    """The newest complete checkpoint of the run, of known step, none beyond `at_most`; None where there is none.

    `is_barred` (quarantined, say) is asked with the checkpoint's absolute path. like, has_times: see `discover_in`.
    Raises: OSError where the directory cannot be read.
    """
    for found in discover_in(directory, like=like, has_times=has_times):
        fits = found.step is not None and (at_most is None or found.step <= at_most)
        if fits and found.is_complete and not is_barred(path_of(directory, found)):
            return found
    return None


def problems_at(path: str | os.PathLike[str], *, has_times: bool = False) -> tuple[str, ...]:
    """What keeps the checkpoint at that path from being whole; empty also for one of no layout that is known.

    Raises: OSError where it cannot be read.
    """
    top, name = os.path.split(os.path.abspath(path))
    if os.path.isfile(path):
        found = judge_one(name, {name: os.stat(path).st_size}, reader_of(top))
    else:
        seen = _survey(path)
        files = {f"{name}/{inner}": stat.st_size for inner, stat in seen.items()}
        times = {f"{name}/{inner}": stat.st_mtime for inner, stat in seen.items()} if has_times else None
        found = judge_one(name, files, reader_of(top), times)
    if found is None or found.format is Format.UNKNOWN:
        return ()  # the script knows what it saved
    return found.problems


def path_of(directory: str | os.PathLike[str], found: Found) -> str:
    """Where a found checkpoint lies."""
    top = os.path.abspath(directory)
    return os.path.join(top, *found.root.split("/")) if found.root else top


def manifest_problems(manifest: Manifest, path: str, *, has_times: bool = False) -> tuple[str, ...]:
    """What keeps the files at `path` from being what the manifest vouches for: missing, empty, of another size.

    For roots that only the training side can see. has_times: the files were written here, not fetched from elsewhere:
    where some but not all were written long after the manifest, another save has begun in the same folder.
    """
    place = Path(path)
    if place.is_file():
        sizes: Mapping[str, int] = {ITSELF: place.stat().st_size}
    elif place.is_dir():
        sizes = {item.path: size for item in manifest.files if (size := _size(place / item.path)) is not None}
    else:
        return (f"{path} is not there",)
    problems = verify_listing(manifest, sizes)
    return problems if problems or not has_times else _written_since(manifest, place)


def _written_since(manifest: Manifest, place: Path) -> tuple[str, ...]:
    times = {item.path: time for item in manifest.files if (time := _time(place / item.path)) is not None}
    late = sorted(path for path, time in times.items() if time > manifest.saved_at.timestamp() + CLOCKS_APART_S)
    if not late or len(late) == len(times):
        return ()
    return (f"{late[0]} was written after its manifest and others were not: {LATE}",)


def _time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except (OSError, ValueError):
        return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None
