"""Where the mailbox lies: a directory (one machine, or a shared file system such as FSx) or an S3 prefix.

Never called on the training thread. Errors are the transport's own (`OSError`, botocore's); the caller counts them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from rekindle.mailbox import MAX_MANIFEST_BYTES, Place
from rekindle.monitor.aws import Clients

MAX_LISTED = 10_000  # requests and files of one Job; beyond it something else is wrong


class Box(Protocol):
    """Keys are relative to the mailbox's prefix, as `rekindle.mailbox` makes them."""

    @property
    def uri(self) -> str: ...

    def get(self, key: str) -> bytes | None:
        """The bytes, or None where there is no such key."""
        ...

    def put(self, key: str, body: bytes) -> None:
        """Write or overwrite, whole or not at all."""
        ...

    def put_new(self, key: str, body: bytes) -> bool:
        """Write only where nothing is; False where something was."""
        ...

    def names(self, prefix: str) -> tuple[str, ...]:
        """Keys that start with `prefix`, sorted."""
        ...


class DirectoryBox:
    """Atomic by rename and by hard link, both of which FSx for Lustre and NFS keep."""

    def __init__(self, directory: str) -> None:
        self._root = Path(directory)

    @property
    def uri(self) -> str:
        return str(self._root)

    def get(self, key: str) -> bytes | None:
        try:
            with (self._root / key).open("rb") as file:
                return file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            return None

    def put(self, key: str, body: bytes) -> None:
        self._write_beside(self._root / key, body).replace(self._root / key)

    def put_new(self, key: str, body: bytes) -> bool:
        target = self._root / key
        beside = self._write_beside(target, body)
        try:
            os.link(beside, target)
        except FileExistsError:
            return False
        finally:
            beside.unlink()
        return True

    def names(self, prefix: str) -> tuple[str, ...]:
        folder, _, start = prefix.rpartition("/")
        try:
            found = sorted(os.listdir(self._root / folder))[:MAX_LISTED]
        except FileNotFoundError:
            return ()
        return tuple(f"{folder}/{name}" for name in found if name.startswith(start) and name.endswith(".json"))

    def _write_beside(self, target: Path, body: bytes) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}")
        with beside.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        return beside


class S3Box:
    """The client is made on first use, on the calling (background) thread."""

    def __init__(self, place: Place, clients: Clients) -> None:
        if place.bucket is None:
            raise ValueError("an S3 mailbox needs a bucket")
        self._place = place
        self._bucket = place.bucket
        self._clients = clients

    @property
    def uri(self) -> str:
        return self._place.uri

    def get(self, key: str) -> bytes | None:
        s3 = self._clients.get("s3")
        try:
            answer = s3.get_object(Bucket=self._bucket, Key=self._place.join(key).path)
        except s3.exceptions.NoSuchKey:
            return None
        body: bytes = answer["Body"].read(MAX_MANIFEST_BYTES + 1)
        return body

    def put(self, key: str, body: bytes) -> None:
        self._clients.get("s3").put_object(
            Bucket=self._bucket, Key=self._place.join(key).path, Body=body, ContentType="application/json"
        )

    def put_new(self, key: str, body: bytes) -> bool:
        s3 = self._clients.get("s3")
        try:
            s3.put_object(
                Bucket=self._bucket,
                Key=self._place.join(key).path,
                Body=body,
                ContentType="application/json",
                IfNoneMatch="*",
            )
        except s3.exceptions.ClientError as err:
            # 412 where the object is there, 409 where another conditional write of it is under way.
            # Source: S3 user guide, conditional-writes
            if err.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409"):
                return False
            raise
        return True

    def names(self, prefix: str) -> tuple[str, ...]:
        base = self._place.join("").path
        listed = list_objects(self._clients, self._bucket, base + prefix)
        return tuple(sorted(key[len(base) :] for key, _ in listed))


def list_objects(clients: Clients, bucket: str, prefix: str) -> Iterator[tuple[str, int]]:
    """(key, bytes) below a prefix, at most `MAX_LISTED`."""
    pages: Any = clients.get("s3").get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=bucket, Prefix=prefix, PaginationConfig={"MaxItems": MAX_LISTED}):
        for item in page.get("Contents", ()):
            yield item["Key"], item["Size"]


def open_box(uri: str, clients: Clients) -> Box:
    """Raises: MailboxError for a URI that is neither S3 nor a directory."""
    place = Place.parse(uri, "mailbox")
    return DirectoryBox(place.path) if place.bucket is None else S3Box(place, clients)
