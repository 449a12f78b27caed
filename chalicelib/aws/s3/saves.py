"""When a run completed its checkpoints: the manifests' own dates and steps, from a bounded listing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from chalicelib.aws.errors import call
from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from rekindle.protocol.keys import KeyKind, manifest_prefix, parse_key
from rekindle.protocol.wire import MailboxError, Place

KEPT: Final = 20
_MAX_PAGES: Final = 3  # of 1,000 keys: a run with more manifests than that saves often enough to be seen elsewhere


class S3Saves:
    """ports.Saves; `client` is a boto3 S3 client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def saves(self, job: Job) -> Maybe[tuple[tuple[datetime, int], ...]]:
        try:
            place = Place.parse(job.mailbox, "mailbox")
            if place.bucket is None:
                return Unknown("its mailbox is a directory, which the service cannot see")
            return self._listed(job, place.bucket, place.join(manifest_prefix()).path.rstrip("/") + "/")
        except (MailboxError, RecoveryError) as err:
            return Unknown(f"its manifests cannot be listed: {err}"[:200])

    def _listed(self, job: Job, bucket: str, prefix: str) -> Maybe[tuple[tuple[datetime, int], ...]]:
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "MaxKeys": 1000}
        found: list[tuple[datetime, int]] = []
        for _ in range(_MAX_PAGES):
            page = call(self._client.list_objects_v2, **request)
            for entry in page.get("Contents", ()):
                key = parse_key(entry["Key"])
                if key is None or key.kind is not KeyKind.MANIFEST or key.step is None:
                    continue
                if key.name == job.current_attempt:
                    found.append((entry["LastModified"].astimezone(UTC), key.step))
            if not page.get("IsTruncated"):
                return Known(tuple(sorted(found)[-KEPT:]))
            request["ContinuationToken"] = page["NextContinuationToken"]
        return Unknown(f"it has more than {_MAX_PAGES * 1000} manifests")
