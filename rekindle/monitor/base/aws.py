"""boto3 clients of the monitor: imported and made late, never on the training thread, with bounded calls."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

CONNECT_TIMEOUT_S = 3  # the monitor would rather miss a heartbeat than wait; the next one comes in seconds
READ_TIMEOUT_S = 5
ATTEMPTS = 2
MAX_LISTED = 300_000  # keys below one prefix, as the service lists them: a run saves less often than this
MAX_OBJECTS = 50_000  # files of one checkpoint: more than a manifest may name


class AwsUnavailable(Exception):
    """boto3 is not installed: only a directory mailbox works."""


class StoredObject(NamedTuple):
    """As S3 lists it."""

    key: str
    bytes: int
    etag: str
    storage: str


class Clients:
    """One client per AWS service, made on first use. Endpoint, region and credentials come from the environment.

    boto3 clients are thread-safe, making them is not: one lock around that.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler of the script may call the monitor inside itself
        self._made: dict[str, Any] = {}

    def get(self, service: str) -> Any:
        """Raises: AwsUnavailable; botocore's errors where region or credentials are missing."""
        client = self._made.get(service)
        if client is not None:
            return client
        with self._lock:
            if service not in self._made:
                self._made[service] = self._make(service)
            return self._made[service]

    def objects(self, bucket: str, prefix: str, limit: int = MAX_OBJECTS) -> Iterator[StoredObject]:
        """Those below a prefix, at most `limit`. Raises: AwsUnavailable; botocore's errors."""
        pages: Any = self.get("s3").get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=prefix, PaginationConfig={"MaxItems": limit}):
            for item in page.get("Contents", ()):
                etag = item.get("ETag", "").strip('"')
                yield StoredObject(item["Key"], item["Size"], etag, item.get("StorageClass", "STANDARD"))

    def read_part(self, bucket: str, key: str, start: int, length: int) -> bytes | None:
        """At most so many bytes from there; None where they cannot be read."""
        if length < 1:
            return b""
        client = self.get("s3")
        try:
            answer = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{start + length - 1}")
        except client.exceptions.ClientError:  # not there any more, not ours to read, or shorter than listed
            return None
        body: bytes = answer["Body"].read(length)
        return body

    def version(self, bucket: str, key: str) -> str | None:
        """Of an object whose bucket keeps versions; None of any other, and where it may not be read."""
        client = self.get("s3")
        try:
            found = client.head_object(Bucket=bucket, Key=key).get("VersionId")
        except client.exceptions.ClientError:
            return None
        return found if found != "null" else None  # written before its bucket kept any

    def _make(self, service: str) -> Any:
        try:
            boto3: Any = importlib.import_module("boto3")
            botocore_config: Any = importlib.import_module("botocore.config")
        except ImportError as err:
            raise AwsUnavailable("boto3 is not installed") from err
        config = botocore_config.Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
            user_agent_extra="rekindle-monitor",
        )
        return boto3.session.Session().client(service, config=config)
