"""Checkpoints in a directory: a run's own disk, or a mounted file system such as FSx. Reads a few bytes of few files.

For the training side and the CLI; the service sees only S3.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from rekindle.checkpoints.discover import discover, inner_steps_of, judge_declared, judge_one
from rekindle.checkpoints.families import of_one_run, pattern_of
from rekindle.checkpoints.found import Format, Found, Read, Stamp
from rekindle.checkpoints.names import PASSED_OVER, is_temporary
from rekindle.checkpoints.twins import with_twins
from rekindle.checkpoints.verdict import Evidence, Fault, Problem, verdict
from rekindle.protocol.manifests import ITSELF, Manifest

MAX_FILES = 300_000
MAX_DEPTH = 12
MAX_SIBLINGS = 4  # that are looked at


def listing_of(directory: str | os.PathLike[str]) -> dict[str, int]:
    """Relative path -> bytes, bounded. Links to files count as files, links to folders are not followed.

    Raises: OSError where the directory itself cannot be read; what lies in it and cannot be read is left out.
    """
    return {path: seen.st_size for path, seen in _survey(directory).items()}


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


def discover_in(directory: str | os.PathLike[str], *, like: Iterable[str] = ()) -> tuple[Found, ...]:
    """The checkpoints in a directory, newest first; those that are not the run's own have a problem that says so.

    like: absolute paths known to be the run's. Raises: OSError where the directory cannot be read.
    """
    found = discover(listing_of(directory), reader_of(directory))
    top = os.path.abspath(directory)
    roots = [os.path.relpath(path, top).replace(os.sep, "/") for path in like]
    return of_one_run(with_twins(found), [root for root in roots if not root.startswith("..")])


def newest_complete(
    directory: str | os.PathLike[str],
    *,
    at_most: int | None = None,
    is_barred: Callable[[str], bool] = lambda _: False,
    like: Iterable[str] = (),
) -> Found | None:
    """The newest complete checkpoint of the run, of known step, none beyond `at_most`; None where there is none.

    `is_barred` (quarantined, say) is asked with the checkpoint's absolute path. like: see `discover_in`.
    Raises: OSError where the directory cannot be read.
    """
    for found in discover_in(directory, like=like):
        fits = found.step is not None and (at_most is None or found.step <= at_most)
        if fits and found.is_complete and not is_barred(path_of(directory, found)):
            return found
    return None


def judged_at(path: str | os.PathLike[str]) -> Found | None:
    """The checkpoint at that path, None for one of no layout that is known. Raises: OSError where it cannot be read."""
    root, files, read = _contents(path)
    found = judge_one(root, files, read)
    return None if found is None or found.format is Format.UNKNOWN else found  # the script knows what it saved


def declared_at(path: str | os.PathLike[str], sizes: Mapping[str, int], *, elsewhere: Collection[str] = ()) -> Found:
    """The same of one that the script says is a checkpoint. See `judge_declared`.

    sizes: of its files, below `path`. elsewhere: those of them that cannot be read here.
    """
    top, root = os.path.split(os.path.abspath(path))
    files = {root if name == ITSELF else f"{root}/{name}": size for name, size in sizes.items()}
    return judge_declared(root, files, reader_of(top), elsewhere)


def files_beside(path: str | os.PathLike[str]) -> dict[str, tuple[str, ...]]:
    """The files of those that lie beside the checkpoint folder at `path`, of its family, by their names; the newest.

    Raises: OSError.
    """
    top, name = os.path.split(os.path.abspath(path))
    family = pattern_of(name)
    with os.scandir(top) as entries:
        beside = [
            entry.path
            for entry in entries
            if entry.name != name and not is_temporary(entry.name) and pattern_of(entry.name) == family
        ]
    folders = sorted((place for place in beside if os.path.isdir(place)), key=os.path.getmtime)[-MAX_SIBLINGS:]
    return {os.path.basename(place): tuple(listing_of(place)) for place in folders}


def steps_at(path: str | os.PathLike[str]) -> Mapping[str, tuple[int, ...]]:
    """By file, the numbers that the checkpoint at that path names as its step. Raises: OSError."""
    return inner_steps_of(*_contents(path))


def problems_at(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """What keeps the checkpoint at that path from being whole. Raises: OSError where it cannot be read."""
    found = judged_at(path)
    return () if found is None else found.problems


def _contents(path: str | os.PathLike[str]) -> tuple[str, dict[str, int], Read]:
    """(its name, its files below that name, how to read them)."""
    top, name = os.path.split(os.path.abspath(path))
    if os.path.isfile(path):
        return name, {name: os.stat(path).st_size}, reader_of(top)
    return name, {f"{name}/{inner}": size for inner, size in listing_of(path).items()}, reader_of(top)


def path_of(directory: str | os.PathLike[str], found: Found) -> str:
    """Where a found checkpoint lies."""
    top = os.path.abspath(directory)
    return os.path.join(top, *found.root.split("/")) if found.root else top


def sealed_at(
    manifest: Manifest, path: str | os.PathLike[str], *, since: int | None = None, looks_inside: bool = False
) -> tuple[Problem, ...]:
    """What keeps the files at `path` from being those that the manifest was written for.

    since: see `verdict.sealed_since`. looks_inside: also whether they are whole and finite by the rules of their
    format. Raises: OSError.
    """
    if not os.path.exists(path):
        return (Problem(Fault.INCOMPLETE, f"{os.fspath(path)} is not there"),)
    stamps = _stamps_of(manifest, path)
    evidence = Evidence(step=manifest.step, manifest=manifest, stamps=stamps, sealed_since=since)
    found = verdict(evidence)
    if not found and not looks_inside:
        return ()
    if any(problem.fault is Fault.NOT_SEALED for problem in found) or looks_inside:
        root, files, read = _contents(path)
        names = None if ITSELF in stamps else {f"{root}/{item.path}" for item in manifest.files}
        own = files if names is None else {name: size for name, size in files.items() if name in names}
        if looks_inside:
            whole = judge_declared(root, own, read)
            evidence = replace(evidence, inner_steps=whole.inner_steps, problems=whole.certain, nan=whole.nan)
        else:
            evidence = replace(evidence, inner_steps=inner_steps_of(root, own, read))
        found = verdict(evidence)
    return found


def _stamps_of(manifest: Manifest, path: str | os.PathLike[str]) -> dict[str, Stamp]:
    place = Path(path)
    if stat.S_ISREG(os.stat(place).st_mode):
        return {ITSELF: Stamp.of(place)}
    found = {}
    for item in manifest.files:
        try:
            found[item.path] = Stamp.of(place / item.path)
        except (OSError, ValueError):
            continue
    return found
