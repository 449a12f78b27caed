"""Checkpoints without a manifest, found in S3 with few calls.

Folders are listed one level at a time, and one whose name holds a step is not entered: a bucket of a hundred thousand
objects costs a call for each thousand checkpoints, not for each thousand objects. Then only the newest are listed
whole and judged, and ever sparser older ones, for a resume point that must lie before an onset.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from chalicelib.domain.model.errors import NotAuthorized
from chalicelib.domain.model.observation import CheckpointView
from chalicelib.domain.resume.checkpoint_choice import attributed, wanted_of
from rekindle.checkpoints.discover import discover, latest_problem
from rekindle.checkpoints.families import of_one_run, side_state_words
from rekindle.checkpoints.formats import format_of
from rekindle.checkpoints.found import Folder, Format
from rekindle.checkpoints.megatron import joined_ranks, without_rank_folder
from rekindle.checkpoints.names import PASSED_OVER, is_numbered, is_one_file, is_temporary, plain, read_name
from rekindle.checkpoints.shapes import parts_beside
from rekindle.checkpoints.twins import with_twins
from rekindle.checkpoints.verdict import Evidence, texts, verdict
from rekindle.protocol.manifests import relative_path
from rekindle.protocol.wire import Place

if TYPE_CHECKING:
    from chalicelib.aws.s3.objects import Listed, S3Objects
    from chalicelib.domain.model.job import Attempt
    from rekindle.checkpoints.found import Found, Read

_LOG = logging.getLogger(__name__)

MAX_PAGES: Final = 120  # of the search for folders; with 1,000 names each
MAX_DEPTH: Final = 5
NEWEST: Final = 8
SPACED: Final = 6  # 8 + 6 reach back through 70 checkpoints; most runs keep fewer
MAX_FILES: Final = 20_000  # of one checkpoint
MAX_LATEST_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """What may be a checkpoint, going by its name. `listed`: the file, and its parts beside it; none for a folder."""

    place: Place
    number: int
    listed: tuple[Listed, ...] = ()


class S3Discovery:
    """Looks below a place."""

    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects

    def under(
        self,
        place: Place,
        attempts: Sequence[Attempt],
        *,
        near: Sequence[int] = (),
        skip_steps: frozenset[int],
        like: Sequence[str] = (),
    ) -> list[CheckpointView]:
        """The newest checkpoints of known step and layout, in no order. `skip_steps` are not worth a listing.

        like: roots that are known to be the Job's. What is not its own has a problem that says so.

        Raises:
            NotAuthorized: the place may not be listed.
        """
        candidates, stale = self._candidates(place)
        candidates = [item for item in candidates if item.number not in skip_steps]
        words = side_state_words(_below(place, item.place.path) for item in candidates)
        candidates = [item for item in candidates if words[_below(place, item.place.path)] is None]
        views = list(stale)
        judged: list[Found] = []
        times: dict[str, datetime] = {}
        for candidate in _worth_a_listing(candidates, near):
            for found, modified in self._judged(candidate, place):
                if found.step in skip_steps:
                    continue
                judged.append(found)
                times |= modified
        whole = of_one_run(
            with_twins(joined_ranks([found for found in judged if found.files])),
            [_below(place, Place.parse(root).path) for root in like],
        )
        for found in whole:
            if found.format is Format.UNKNOWN:
                continue
            root = place.join(found.root) if found.root else place
            views.append(_view(found, root, [times[path] for path in found.files], attempts))
        return views

    # ---- candidates ------------------------------------------------------------------------------------------------

    def _candidates(self, place: Place) -> tuple[list[_Candidate], list[CheckpointView]]:
        """Breadth first, so that what lies near is found whatever else there is."""
        found: list[_Candidate] = []
        stale: list[CheckpointView] = []
        waiting = [(place, 0)]
        pages = 0
        while waiting and pages < MAX_PAGES:
            folder, depth = waiting.pop(0)
            objects: list[Listed] = []
            names: list[str] = []
            token: str | None = None
            while pages < MAX_PAGES:
                page = self._objects.page(folder, token)
                pages += 1
                objects += page.objects
                names += page.folders
                token = page.token
                if token is None:
                    break
            own = _own(folder, objects, names)
            if own is not None and folder != place:
                found.append(own)
                continue
            numbered = dict.fromkeys(name for name in names if is_numbered(plain(name)))
            found += [_Candidate(place=folder.join(name), number=_number(name)) for name in numbered]
            found += _files_of(folder, objects)
            stale += self._stale(folder, objects, names)
            if depth < MAX_DEPTH:
                inner = [name for name in names if name not in numbered and name not in PASSED_OVER and name[:1] != "."]
                waiting += [(folder.join(name), depth + 1) for name in sorted(inner, key=_by_number, reverse=True)]
        if waiting:
            _LOG.warning("too many folders to look into all", extra={"place": place.uri, "left": len(waiting)})
        return found, stale

    def _stale(self, folder: Place, objects: Sequence[Listed], names: Sequence[str]) -> Iterator[CheckpointView]:
        """DeepSpeed's `latest`, where the tag that it names is not there."""
        latest = next((item for item in objects if _name(item) == "latest" and item.bytes <= MAX_LATEST_BYTES), None)
        if latest is None:
            return
        raw = self._objects.read(Place(bucket=folder.bucket, path=latest.key), MAX_LATEST_BYTES) or b""
        stated = latest_problem(raw, names, is_beside=any(name.startswith("global_step") for name in names))
        step = read_name(stated[0]).step if stated is not None else None
        if stated is not None and step is not None:
            yield CheckpointView(
                step=step,
                root=folder.join(stated[0]).uri,
                manifest="",
                attempt="",
                kind=Format.DEEPSPEED.value,
                saved_at=latest.modified_at,
                problems=(stated[1],),
                fenced=False,
            )

    # ---- one candidate ---------------------------------------------------------------------------------------------

    def _judged(self, candidate: _Candidate, place: Place) -> Iterator[tuple[Found, dict[str, datetime]]]:
        """The checkpoints in it as seen from `place`, each with the times of its files. One of no known step is left
        out: it could be no resume point.
        """
        files = self._files(candidate)
        folder, slash, _ = candidate.place.path.rpartition("/")
        base = folder + slash
        sizes = {key[len(base) :]: item.bytes for key, item in files.items()}
        for found in discover(sizes, self._reader(candidate.place, base)):
            if found.step is None:
                continue
            own = {_below(place, base + path): files[base + path] for path in found.files}
            archived = texts(verdict(Evidence(classes={path: item.storage for path, item in own.items()})))
            seen = replace(
                found,
                root=_below(place, base + found.root),
                files={path: item.bytes for path, item in own.items()},
                problems=(*found.problems, *archived),
            )
            yield seen, {path: item.modified_at for path, item in own.items()}

    def _files(self, candidate: _Candidate) -> dict[str, Listed]:
        """By key."""
        if candidate.listed:
            return {item.key: item for item in candidate.listed}
        return {item.key: item for item in islice(self._objects.below(candidate.place, folder=True), MAX_FILES)}

    def _reader(self, place: Place, base: str) -> Read:
        objects, bucket = self._objects, place.bucket

        def read(path: str, start: int, length: int) -> bytes | None:
            try:
                return objects.read_part(Place(bucket=bucket, path=base + path), start, length)
            except NotAuthorized:
                return None

        return read


def _view(found: Found, root: Place, times: Sequence[datetime], attempts: Sequence[Attempt]) -> CheckpointView:
    writer, fenced = attributed(found.step, times, attempts)
    return CheckpointView(
        step=found.step or 0,
        root=root.uri,
        manifest="",
        attempt=writer,
        kind=found.format.value,
        saved_at=max(times),
        problems=found.problems,
        fenced=fenced,
    )


def _files_of(folder: Place, objects: Sequence[Listed]) -> Iterator[_Candidate]:
    """Those of one file each."""
    by_name = {_name(item): item for item in objects}
    beside = parts_beside(by_name)
    for name, item in by_name.items():
        if is_one_file(name):
            parts = (by_name[part] for part in beside.get(name, ()))
            yield _Candidate(
                place=Place(bucket=folder.bucket, path=item.key), number=_number(name), listed=(item, *parts)
            )


def _own(folder: Place, objects: Sequence[Listed], names: Sequence[str]) -> _Candidate | None:
    """The folder itself, where its content is a checkpoint's though its name holds no step."""
    if not objects or any(is_numbered(plain(name)) for name in names):
        return None
    files = {_name(item): item.bytes for item in objects} | {f"{name}/": 0 for name in names}
    name = folder.path.rpartition("/")[2]
    layout = format_of(plain(name), Folder(name=name, files=files, read=lambda *_: None))
    return None if layout is None else _Candidate(place=folder, number=_number(name))


def _worth_a_listing(candidates: Sequence[_Candidate], near: Sequence[int]) -> list[_Candidate]:
    """Those whose files are of one checkpoint, one for each rank, count as one."""
    groups: dict[str, list[_Candidate]] = {}
    for item in sorted(candidates, key=lambda item: (item.number, item.place.path), reverse=True):
        groups.setdefault(without_rank_folder(item.place.path), []).append(item)
    indexes = wanted_of([items[0].number for items in groups.values()], newest=NEWEST, spaced=SPACED, near=near)
    return [item for index, items in enumerate(groups.values()) if index in indexes for item in items]


def _below(place: Place, path: str) -> str:
    """The path as seen from the place that is looked under."""
    inside = relative_path(place.path, path)
    return path if inside is None else inside


def _name(item: Listed) -> str:
    return item.key.rpartition("/")[2]


def _number(name: str) -> int:
    """For the order; a name without a number (`last.ckpt`) is the newest until it has been opened."""
    number = read_name(plain(name)).number
    return 10**12 if number is None and not is_temporary(name) else (number or 0)


def _by_number(name: str) -> tuple[int, str]:
    found = re.findall(r"\d{1,12}", name)
    return (int(found[-1]) if found else -1), name
