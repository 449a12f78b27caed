"""Objects in S3, as the mailbox and the checkpoints need them: bounded reads, conditional writes, bounded listings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.domain.model.errors import VersionConflict
from rekindle.protocol.lives import ListedClaim, LivesOfAttempts, life_in, life_prefix
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MailboxError, Place

MAX_LISTED: Final = 300_000  # keys; a checkpoint has at most 40,000 files, a run saves less often than this

_PAGE: Final = 1000  # Source: ListObjectsV2, MaxKeys
_MISSING: Final = ("NoSuchKey", "NoSuchBucket", "404")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    key: str
    bytes: int
    modified_at: datetime
    etag: str | None = None
    storage: str = "STANDARD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a folder: what lies directly in it, and the names of the folders in it."""

    objects: tuple[Listed, ...]
    folders: tuple[str, ...]
    token: str | None


class S3Objects:
    """`client` is a boto3 S3 client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def read(self, place: Place, limit: int) -> bytes | None:
        """The object, None if there is none; never more than `limit` + 1 bytes of it, which no parser accepts."""
        return self._read_bytes(place, limit)[0]

    def read_part(self, place: Place, start: int, length: int) -> bytes | None:
        """At most `length` bytes from `start`; None where there is no such object, or nothing at that place."""
        if length < 1:
            return b""
        try:
            answer = call(
                self._client.get_object,
                expect=(*_MISSING, "InvalidRange"),
                Bucket=place.bucket,
                Key=place.path,
                Range=f"bytes={start}-{start + length - 1}",
            )
        except AwsRefusal:
            return None
        body: bytes = answer["Body"].read(length)
        return body

    def read_with_etag(self, place: Place, limit: int) -> tuple[bytes | None, str | None]:
        """Like `read`, with the version that was read, for a conditional write."""
        body, answer = self._read_bytes(place, limit)
        return body, answer.get("ETag")

    def read_dated(self, place: Place, limit: int) -> tuple[bytes | None, datetime | None]:
        """Like `read`, with when it was written by S3's own clock."""
        body, answer = self._read_bytes(place, limit)
        written_at: datetime | None = answer.get("LastModified")
        return body, None if written_at is None else written_at.astimezone(UTC)

    def _read_bytes(self, place: Place, limit: int) -> tuple[bytes | None, Mapping[str, Any]]:
        try:
            answer = call(
                self._client.get_object,
                expect=(*_MISSING, "InvalidRange"),
                Bucket=place.bucket,
                Key=place.path,
                Range=f"bytes=0-{limit}",
            )
        except AwsRefusal as refusal:
            if refusal.code != "InvalidRange":
                return None, {}
            return b"", call(self._client.head_object, Bucket=place.bucket, Key=place.path)  # an empty object
        return answer["Body"].read(limit + 1), answer

    def create(self, place: Place, body: bytes) -> bool:
        """False if there is an object already."""
        try:
            self.write(place, body, IfNoneMatch="*")
        except VersionConflict:
            return False
        return True

    def write(self, place: Place, body: bytes, **condition: str) -> None:
        """Raises: VersionConflict where the condition does not hold."""
        try:
            call(
                self._client.put_object,
                expect=("PreconditionFailed", "412"),
                Bucket=place.bucket,
                Key=place.path,
                Body=body,
                ContentType="application/json",
                **condition,
            )
        except AwsRefusal as refusal:
            raise VersionConflict(f"{place.uri} was written by someone else") from refusal

    def below(self, place: Place, *, folder: bool) -> Iterator[Listed]:
        """Objects below `place`, or `place` itself where it is no folder; in the order of their keys, bounded."""
        prefix = place.path.rstrip("/") + ("/" if folder else "") if place.path else ""
        request: dict[str, Any] = {"Bucket": place.bucket, "Prefix": prefix, "MaxKeys": _PAGE}
        seen = 0
        while True:
            try:
                page = call(self._client.list_objects_v2, expect=_MISSING, **request)
            except AwsRefusal:
                return  # no bucket, no objects
            for entry in page.get("Contents", ()):
                seen += 1
                yield _listed(entry)
            if not page.get("IsTruncated") or seen >= MAX_LISTED:
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def page(self, place: Place, token: str | None = None) -> Page:
        """One page of the folder `place`, not of the folders in it. Empty where there is no bucket."""
        prefix = f"{place.path.rstrip('/')}/" if place.path else ""
        request: dict[str, Any] = {"Bucket": place.bucket, "Prefix": prefix, "Delimiter": "/", "MaxKeys": _PAGE}
        if token is not None:
            request["ContinuationToken"] = token
        try:
            page = call(self._client.list_objects_v2, expect=_MISSING, **request)
        except AwsRefusal:
            return Page(objects=(), folders=(), token=None)
        return Page(
            objects=tuple(_listed(entry) for entry in page.get("Contents", ())),
            folders=tuple(entry["Prefix"][len(prefix) :].rstrip("/") for entry in page.get("CommonPrefixes", ())),
            token=page.get("NextContinuationToken") if page.get("IsTruncated") else None,
        )


def _listed(entry: dict[str, Any]) -> Listed:
    return Listed(
        key=entry["Key"],
        bytes=int(entry["Size"]),
        modified_at=entry["LastModified"],
        etag=entry.get("ETag", "").strip('"') or None,
        storage=entry.get("StorageClass", "STANDARD"),
    )


def insist(holds: bool, field: str, problem: str) -> None:
    """Raises: MailboxError, where it does not hold."""
    if not holds:
        raise MailboxError(field, problem)


def lives_in(objects: S3Objects, mailbox: Place) -> LivesOfAttempts:
    """The lives of a mailbox's attempts, by S3's clock. Raises as S3Objects does."""

    def claims(attempt: str) -> Iterator[ListedClaim]:
        for item in objects.below(mailbox.join(life_prefix(attempt, 0)), folder=True):
            life = life_in(item.key)
            if life is not None:
                place = Place(bucket=mailbox.bucket, path=item.key)
                read = partial(objects.read, place, MAX_MESSAGE_BYTES)
                yield ListedClaim(life, read, partial(attrgetter("modified_at"), item))

    return LivesOfAttempts(claims)
