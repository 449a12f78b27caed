"""Where the mailbox lies: a directory (one machine, or a shared file system such as FSx) or an S3 prefix.

Never called on the training thread. Errors are the transport's own (`OSError`, botocore's); the caller counts them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from rekindle.compat import UTC
from rekindle.monitor.base.aws import MAX_LISTED, Clients
from rekindle.monitor.base.trouble import Trouble, logger
from rekindle.protocol.manifests import MAX_MANIFEST_BYTES
from rekindle.protocol.store_clock import age_s
from rekindle.protocol.wire import MailboxError, Place

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Read = TypeVar("_Read")


class Box(Protocol):
    """Keys are relative to the mailbox's prefix, as `rekindle.protocol.mailbox` makes them."""

    @property
    def uri(self) -> str: ...

    @property
    def is_directory(self) -> bool:
        """On a file system, where a call costs nothing; else in S3."""
        ...

    def get(self, key: str) -> bytes | None:
        """The bytes, or None where there is no such key."""
        ...

    def get_aged(self, key: str) -> tuple[bytes | None, float]:
        """The same, and for how many seconds it has been there, by the store's own clock; 0 where it does not tell."""
        ...

    def written_at(self, key: str) -> datetime | None:
        """When it was written, by the store's own clock; None where there is no such key. For comparing two keys."""
        ...

    def put(self, key: str, body: bytes) -> None:
        """Write or overwrite, whole or not at all."""
        ...

    def put_new(self, key: str, body: bytes) -> bool:
        """Write only where nothing is; False where something was."""
        ...

    def replace(self, key: str, body: bytes, was: bytes) -> bool:
        """Overwrite only what is exactly `was`; False where something else is there."""
        ...

    def names(self, prefix: str) -> tuple[str, ...]:
        """Keys that start with `prefix`, sorted."""
        ...


class BoxAround:
    """A mailbox whose calls all go through one function, which returns or raises what the call does, or its own."""

    def __init__(self, box: Box, around: Callable[[Callable[[], Any]], Any]) -> None:
        def through(call: Callable[_P, _T]) -> Callable[_P, _T]:
            return lambda *args, **kwargs: cast(_T, around(lambda: call(*args, **kwargs)))

        self.uri, self.is_directory = box.uri, box.is_directory
        self.get, self.get_aged, self.written_at = through(box.get), through(box.get_aged), through(box.written_at)
        self.put, self.put_new, self.replace = through(box.put), through(box.put_new), through(box.replace)
        self.names = through(box.names)


class DirectoryBox:
    """Atomic by rename and by hard link, both of which FSx for Lustre and NFS keep."""

    def __init__(self, directory: str) -> None:
        self._root = Path(directory)
        self.uri, self.is_directory = str(self._root), True

    def get(self, key: str) -> bytes | None:
        try:
            with (self._root / key).open("rb") as file:
                return file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            return None

    def get_aged(self, key: str) -> tuple[bytes | None, float]:
        """Of unknown age: on a shared file system a file's date may come from the clock of the host that wrote it."""
        return self.get(key), 0.0

    def written_at(self, key: str) -> datetime | None:
        try:
            return datetime.fromtimestamp((self._root / key).stat().st_mtime, UTC)
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

    def replace(self, key: str, body: bytes, was: bytes) -> bool:
        """Not atomic: a directory has no conditional rename. Only rank 0 of an attempt writes its own keys."""
        if self.get(key) != was:
            return False
        self.put(key, body)
        return True

    def names(self, prefix: str) -> tuple[str, ...]:
        folder, _, start = prefix.rpartition("/")
        try:
            there = os.listdir(self._root / folder)
        except FileNotFoundError:
            return ()
        found = sorted(name for name in there if name.startswith(start) and name.endswith(".json"))
        return tuple(f"{folder}/{name}" for name in found[:MAX_LISTED])

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
        self.uri, self.is_directory = place.uri, False

    def get(self, key: str) -> bytes | None:
        return self._read(key)[0]

    def get_aged(self, key: str) -> tuple[bytes | None, float]:
        """By the dates of S3's answer: when the object was written, and when the answer was given."""
        body, answer = self._read(key)
        return body, age_s(answer)

    def written_at(self, key: str) -> datetime | None:
        return self._read(key)[1].get("LastModified")

    def _read(self, key: str) -> tuple[bytes | None, dict[str, Any]]:
        s3 = self._clients.get("s3")
        try:
            answer: dict[str, Any] = s3.get_object(Bucket=self._bucket, Key=self._place.join(key).path)
        except s3.exceptions.NoSuchKey:
            return None, {}
        body: bytes = answer["Body"].read(MAX_MANIFEST_BYTES + 1)
        return body, answer

    def put(self, key: str, body: bytes) -> None:
        self._clients.get("s3").put_object(
            Bucket=self._bucket, Key=self._place.join(key).path, Body=body, ContentType="application/json"
        )

    def put_new(self, key: str, body: bytes) -> bool:
        return self._put_if(key, body, IfNoneMatch="*")

    def replace(self, key: str, body: bytes, was: bytes) -> bool:
        there, answer = self._read(key)
        return there == was and self._put_if(key, body, IfMatch=answer["ETag"])

    def _put_if(self, key: str, body: bytes, **condition: str) -> bool:
        s3 = self._clients.get("s3")
        try:
            s3.put_object(
                Bucket=self._bucket,
                Key=self._place.join(key).path,
                Body=body,
                ContentType="application/json",
                **condition,
            )
        except s3.exceptions.ClientError as err:
            # 412 where the condition does not hold, 409 where another conditional write of it is under way, 404 where
            # what was to be replaced is gone. Source: S3 user guide, conditional-writes
            refused = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
            gone = ("NoSuchKey", "404") if "IfMatch" in condition else ()
            if err.response["Error"]["Code"] in refused + gone:
                return False
            raise
        return True

    def names(self, prefix: str) -> tuple[str, ...]:
        base = self._place.join("").path
        listed = self._clients.objects(self._bucket, base + prefix, MAX_LISTED)
        return tuple(sorted(item.key[len(base) :] for item in listed))


def document(
    box: Box, key: str, read: Callable[[bytes], _Read], what: str, trouble: Trouble | None = None
) -> _Read | None:
    """What lies under a key; None where nothing does, and, after a warning, where it cannot be read.

    trouble: which warns once. Raises: the box's own errors.
    """
    raw = box.get(key)
    try:
        return None if raw is None else read(raw)
    except MailboxError as err:
        text = "The %s in Rekindle's mailbox cannot be read, and is ignored: %s"
        if trouble is None:
            logger.warning(text, what, err)
        else:
            trouble.once(f"bad_{what}", text, what, err)
        return None


def mailbox_failed(trouble: Trouble, box: Box, doing: str, err: Exception) -> None:
    """Report it: AWS's failures by their own codes, a directory's once for each kind of error."""
    if box.is_directory:
        trouble.once(f"mailbox.{type(err).__name__}", "The mailbox failed in %s (%r); training continues", doing, err)
    else:
        trouble.aws(doing, err)


def open_box(uri: str, clients: Clients) -> Box:
    """Raises: MailboxError for a URI that is neither S3 nor a directory."""
    place = Place.parse(uri, "mailbox")
    return DirectoryBox(place.path) if place.bucket is None else S3Box(place, clients)
