"""The files below a folder or an S3 prefix, as `rekindle checkpoints` judges them: by manifest and by format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rekindle.checkpoints.discover import discover, judge_declared, order
from rekindle.checkpoints.families import of_one_run
from rekindle.checkpoints.folders import listing_of, reader_of
from rekindle.checkpoints.found import Format, Found, Read, Stamp
from rekindle.checkpoints.names import PASSED_OVER
from rekindle.checkpoints.twins import with_twins
from rekindle.checkpoints.verdict import Evidence, sealed_since, texts, verdict
from rekindle.client.errors import NotFound
from rekindle.client.table import clean
from rekindle.monitor.base.aws import Clients, StoredObject
from rekindle.protocol.manifests import ITSELF, Manifest, relative_path
from rekindle.protocol.wire import Place

MAX_KEYS: Final = 300_000
LARGE_BYTES: Final = 1_000_000_000  # all together: logs and samples are smaller, training states larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What lies below a place, by its path below it. classes: S3's storage classes."""

    stamps: Mapping[str, Stamp]
    read: Read
    classes: Mapping[str, str] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        return {path: stamp.bytes for path, stamp in self.stamps.items()}


def files_at(place: Place) -> Files:
    """Raises: OSError, NotFound, botocore's errors."""
    if place.bucket is None:
        path = Path(place.path or "/")
        top, names = (path.parent, [path.name]) if path.is_file() else (path, list(listing_of(path)))
        stamps = {name: stamp for name in names if (stamp := _stamp(top / name)) is not None}
        return Files(stamps=stamps, read=reader_of(top))
    objects = _Objects(clients=Clients(), place=place)
    listed = {item.key[len(objects.prefix) :]: item for item in objects.listing()}
    stamps = {path: Stamp(item.bytes, etag=item.etag or None) for path, item in listed.items()}
    classes = {path: item.storage for path, item in listed.items()}
    return Files(stamps=stamps, read=objects.read, classes=classes)


def judged(files: Files, place: Place, manifests: Sequence[Manifest]) -> tuple[Found, ...]:
    """The checkpoints in them, newest first. One that has a manifest is also judged by that, whatever its layout."""
    found = {item.root: _unarchived(item, files) for item in discover(files.sizes, files.read)}
    own: list[str] = []
    for manifest in manifests:
        root = _below(place, manifest)
        since = sealed_since(manifest, manifests)
        if root is not None and (since is None or root not in found):
            item = _by_manifest(found.get(root), root, manifest, files, since)
            own += [root] * (item is not None)
            found |= {} if item is None else {root: item}
    return of_one_run(sorted(with_twins(found.values()), key=order, reverse=True), own)


def unknown(files: Files, found: Sequence[Found]) -> list[Found]:
    """What is of no checkpoint that was found, the largest first, until what is left is small: it may well be one, of a
    layout that no rule knows.
    """
    known = {path for item in found for path in item.files}
    groups: dict[str, dict[str, int]] = {}
    for path, stamp in files.stamps.items():
        folders = path.split("/")[:-1]
        if path not in known and PASSED_OVER.isdisjoint(folders):
            groups.setdefault(folders[0] if folders else path, {})[path] = stamp.bytes
    left = sum(sum(own.values()) for own in groups.values())
    named = []
    for root, own in sorted(groups.items(), key=lambda group: (-sum(group[1].values()), group[0])):
        if left < LARGE_BYTES:
            break
        left -= sum(own.values())
        named.append(
            Found(format=Format.UNKNOWN, step=None, root=root, files=own, problems=("no rule knows what it is",))
        )
    return named


def _by_manifest(item: Found | None, root: str, manifest: Manifest, files: Files, since: int | None) -> Found | None:
    """The checkpoint of a manifest; None where nothing of it lies there."""
    paths = {file.path: root if file.path == ITSELF else f"{root}/{file.path}".lstrip("/") for file in manifest.files}
    stamps = {name: files.stamps[path] for name, path in paths.items() if path in files.stamps}
    if not stamps:
        return None
    sizes = {paths[name]: stamp.bytes for name, stamp in stamps.items()}
    by_format = judge_declared(root, sizes, files.read)
    evidence = Evidence(
        step=manifest.step,
        inner_steps=by_format.inner_steps,
        problems=by_format.certain,
        nan=by_format.nan,
        manifest=manifest,
        stamps=stamps,
        sealed_since=since,
        classes=_classes(sizes, files),
    )
    base = by_format if item is None else item
    return replace(base, step=manifest.step, problems=texts(verdict(evidence)), unsure=())


def _unarchived(item: Found, files: Files) -> Found:
    archived = texts(verdict(Evidence(classes=_classes(item.files, files))))
    return replace(item, problems=(*item.problems, *archived))


def _classes(paths: Iterable[str], files: Files) -> dict[str, str]:
    return {path: files.classes[path] for path in paths if path in files.classes}


def _below(place: Place, manifest: Manifest) -> str | None:
    """The manifest's root as seen from `place`; None where it lies elsewhere."""
    root = Place.parse(manifest.root, "root")
    if root.bucket != place.bucket:
        return None
    inside = relative_path(place.path, root.path)
    if inside == ITSELF:  # `place` is the checkpoint: a file by its name, a folder as the whole listing
        return Path(root.path).name if any(item.path == ITSELF for item in manifest.files) else ""
    return inside


def _stamp(path: Path) -> Stamp | None:
    try:
        return Stamp.of(path)
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objects:
    """Objects below an S3 prefix."""

    clients: Clients
    place: Place

    @property
    def prefix(self) -> str:
        return f"{self.place.path}/" if self.place.path else ""

    def listing(self) -> Iterator[StoredObject]:
        """Raises: NotFound where nothing lies there."""
        found = self.clients.objects(self.place.bucket or "", self.prefix, MAX_KEYS)
        first = next(found, None)
        if first is None:
            raise NotFound(f"{clean(self.place.uri)}: nothing lies there")
        yield first
        yield from found

    def read(self, path: str, start: int, length: int) -> bytes | None:
        return self.clients.read_part(self.place.bucket or "", self.prefix + path, start, length)
