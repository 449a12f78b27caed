"""A sealed checkpoint whose files are objects in S3."""

from __future__ import annotations

from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.listed import sealed_in_listing
from rekindle.checkpoints.verdict import Evidence, Problem
from rekindle.monitor.base.aws import Clients
from rekindle.protocol.mailbox import ITSELF, Manifest, Place, relative_path


def sealed_in_s3(manifest: Manifest, clients: Clients, since: int | None = None) -> tuple[Problem, ...]:
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
