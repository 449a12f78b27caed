"""A sealed checkpoint where it lies: whether it is still what was sealed."""

from __future__ import annotations

from rekindle.checkpoints.folders import sealed_at
from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.listed import sealed_in_listing
from rekindle.checkpoints.verdict import Evidence, Problem
from rekindle.monitor.base.aws import Clients
from rekindle.protocol.manifests import ITSELF, Manifest, relative_path
from rekindle.protocol.wire import Place


def problems_of(
    manifest: Manifest, path: str | None, clients: Clients, *, since: int | None = None, looks_inside: bool = False
) -> tuple[Problem, ...]:
    """What keeps it from being what was sealed: at `path`, or in S3. Raises: botocore's errors.

    since, looks_inside: see `sealed_at`.
    """
    if path is None:
        return _sealed_in_s3(manifest, clients, since)
    return sealed_at(manifest, path, since=since, looks_inside=looks_inside)


def _sealed_in_s3(manifest: Manifest, clients: Clients, since: int | None) -> tuple[Problem, ...]:
    """What keeps the objects at its root from being those that were sealed. Raises: botocore's errors.

    since: see `verdict.sealed_since`.
    """
    place = Place.parse(manifest.root, "root")
    bucket = place.bucket or ""
    own = {item.path for item in manifest.files}
    there = {
        path: item
        for item in clients.objects(bucket, place.path)
        if (path := relative_path(place.path, item.key)) is not None and path in own
    }
    evidence = Evidence(
        step=manifest.step,
        manifest=manifest,
        stamps={path: Stamp(item.bytes, etag=item.etag or None) for path, item in there.items()},
        sealed_since=since,
        classes={path: item.storage for path, item in there.items()},
    )

    def read(path: str, start: int, length: int) -> bytes | None:
        return clients.read_part(bucket, place.path if path == ITSELF else place.join(path).path, start, length)

    return sealed_in_listing(evidence, read)
