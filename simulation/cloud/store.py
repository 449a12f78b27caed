"""S3 in memory, with boto3's own calls, for the service's adapters and the simulated training side.

Objects that change every second (a run's heartbeat) are made when they are read. Each caller has a client of its own:
the service's raises errors while the story says that S3 is away for it.
"""

from __future__ import annotations

import io
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from botocore.exceptions import ClientError

from localcloud.aws.clock import Clock

Maker = Callable[[], tuple[bytes, datetime] | None]
"""Makes an object when it is read: its body and the time of writing; None while there is none."""


REFUSED: Final = "as the story has it"


def refused(operation: str, code: str, message: str = REFUSED, status: int = 400) -> ClientError:
    """The error that boto3 raises for an answer with this code."""
    answer: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    etag: str
    written_at: datetime


@dataclass(slots=True)
class MemoryObjects:
    """The objects of one bucket. `on_put` is called after each write with the key. `living`: objects that are made when
    they are read, by key.
    """

    clock: Clock
    bucket: str
    on_put: Callable[[str], None] = lambda key: None  # noqa: ARG005
    objects: dict[str, _Object] = field(default_factory=dict)
    living: dict[str, Maker] = field(default_factory=dict)
    _keys: list[str] = field(default_factory=list)
    _versions: int = 0

    def put(self, key: str, body: bytes, *, ago: timedelta = timedelta(0)) -> str:
        """Write an object, dated `ago` before now. Returns the ETag of the new version."""
        self._versions += 1
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = _Object(body, f'"{self._versions}"', self.clock.now() - ago)
        self.on_put(key)
        return self.objects[key].etag

    def get(self, key: str) -> _Object | None:
        """The object as it is now; None where there is none."""
        maker = self.living.get(key)
        if maker is None:
            return self.objects.get(key)
        made = maker()
        return _Object(made[0], f'"{made[1].isoformat()}"', made[1]) if made is not None else None

    def keys(self, prefix: str) -> list[str]:
        """Keys with the prefix, sorted; those of `living` too, for which `get` may still give None."""
        start = bisect_left(self._keys, prefix)
        end = start
        while end < len(self._keys) and self._keys[end].startswith(prefix):
            end += 1
        living = [key for key in self.living if key.startswith(prefix)]
        return sorted({*self._keys[start:end], *living}) if living else self._keys[start:end]

    def remove(self, key: str) -> None:
        """As if it had never been written."""
        if self.objects.pop(key, None) is not None:
            self._keys.remove(key)


def _pass(operation: str, key: str) -> None:
    """Nothing is refused."""


class MemoryS3:
    """A boto3 S3 client over `objects`. `check` is called with each operation's name and key, and may raise."""

    def __init__(self, objects: MemoryObjects, check: Callable[[str, str], None] | None = None) -> None:
        self._objects = objects
        self._check = check or _pass

    def get_object(self, *, Bucket: str, Key: str, Range: str | None = None) -> dict[str, Any]:
        """See boto3. Raises: ClientError NoSuchKey, InvalidRange."""
        found = self._find("GetObject", Bucket, Key)
        body = found.body
        if Range is not None:
            start, _, end = Range.removeprefix("bytes=").partition("-")
            if int(start) >= len(body):
                raise refused("GetObject", "InvalidRange", status=416)
            body = body[int(start) : int(end) + 1]
        return {"Body": io.BytesIO(body), "ETag": found.etag, "LastModified": found.written_at}

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        """See boto3. Raises: ClientError 404."""
        found = self._find("HeadObject", Bucket, Key, missing="404")
        return {"ContentLength": len(found.body), "ETag": found.etag, "LastModified": found.written_at}

    def put_object(
        self,
        *,
        Bucket: str,
        Key: str,
        Body: bytes,
        ContentType: str = "",  # noqa: ARG002
        IfMatch: str | None = None,
        IfNoneMatch: str | None = None,
    ) -> dict[str, Any]:
        """See boto3. Raises: ClientError PreconditionFailed."""
        self._check("PutObject", Key)
        self._check_bucket(Bucket, "PutObject")
        there = self._objects.objects.get(Key)
        if (IfNoneMatch == "*" and there is not None) or (
            IfMatch is not None and (there is None or there.etag != IfMatch)
        ):
            raise refused("PutObject", "PreconditionFailed", status=412)
        return {"ETag": self._objects.put(Key, Body)}

    def list_objects_v2(
        self,
        *,
        Bucket: str,
        Prefix: str = "",
        Delimiter: str = "",
        MaxKeys: int = 1000,
        ContinuationToken: str | None = None,
    ) -> dict[str, Any]:
        """See boto3. The token is the last key or folder of the page before."""
        self._check("ListObjectsV2", Prefix)
        self._check_bucket(Bucket, "ListObjectsV2")
        contents: list[dict[str, Any]] = []
        folders: list[str] = []
        last = ""
        for key in self._objects.keys(Prefix):
            found = self._objects.get(key)
            if found is None:
                continue
            rest = key[len(Prefix) :]
            folder = Prefix + rest.partition(Delimiter)[0] + Delimiter if Delimiter and Delimiter in rest else None
            name = folder or key
            if (ContinuationToken is not None and name <= ContinuationToken) or (folder and folders[-1:] == [folder]):
                continue
            if len(contents) + len(folders) >= MaxKeys:
                return self._page(contents, folders, last)
            last = name
            if folder is not None:
                folders.append(folder)
            else:
                contents.append(
                    {"Key": key, "Size": len(found.body), "LastModified": found.written_at, "ETag": found.etag}
                )
        return self._page(contents, folders, None)

    @staticmethod
    def _page(contents: list[dict[str, Any]], folders: list[str], token: str | None) -> dict[str, Any]:
        page: dict[str, Any] = {
            "Contents": contents,
            "CommonPrefixes": [{"Prefix": folder} for folder in folders],
            "IsTruncated": token is not None,
        }
        return page if token is None else page | {"NextContinuationToken": token}

    def _find(self, operation: str, bucket: str, key: str, *, missing: str = "NoSuchKey") -> _Object:
        self._check(operation, key)
        self._check_bucket(bucket, operation)
        found = self._objects.get(key)
        if found is None:
            raise refused(operation, missing, status=404)
        return found

    def _check_bucket(self, bucket: str, operation: str) -> None:
        if bucket != self._objects.bucket:
            raise refused(operation, "NoSuchBucket", status=404)
