"""A sealed checkpoint whose files are objects in S3."""

from __future__ import annotations

from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.verdict import Evidence, Problem, verdict
from rekindle.monitor.base.aws import Clients
from rekindle.protocol.mailbox import Manifest, Place, relative_path


def sealed_in_s3(manifest: Manifest, clients: Clients, since: int | None = None) -> tuple[Problem, ...]:
    """What keeps the objects at its root from being those that were sealed. Raises: botocore's errors.

    since: see `verdict.sealed_since`.
    """
    place = Place.parse(manifest.root, "root")
    stamps = {
        path: Stamp(size, etag=etag or None)
        for key, size, etag in clients.objects(place.bucket or "", place.path)
        if (path := relative_path(place.path, key)) is not None
    }
    return verdict(Evidence(step=manifest.step, manifest=manifest, stamps=stamps, sealed_since=since))
