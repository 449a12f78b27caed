"""A store's S3 objects and training jobs, read from its file: what `localcloud.read_store` answers of S3 and SageMaker.

Objects are read one by one: a store holds whole checkpoints. Their time of writing is not in the file; each counts as
written when the file was, as in a cloud that was just started on it.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

_MAX_KEYS: Final = 1000  # Source: ListObjectsV2


class StoredObjects:
    """S3's reads: GetObject with a range, HeadObject, and ListObjectsV2. `own`: a bucket that is there without objects.

    refuse: called with the name of any other operation; it raises.
    """

    def __init__(self, file: Path, *, own: str, refuse: Callable[[str], Any]) -> None:
        self._file = file
        self._own = own
        self._refuse = refuse
        self._written_at = datetime.fromtimestamp(file.stat().st_mtime, UTC)

    def __getattr__(self, method: str) -> Any:
        return self._refuse(f"s3.{method}")

    def get_object(self, *, Bucket: str, Key: str, Range: str = "") -> dict[str, Any]:
        """One object, or the part of it that `bytes=FIRST-LAST` names."""
        etag, body = self._object("GetObject", Bucket, Key)
        if Range:
            first, _, last = Range.removeprefix("bytes=").partition("-")
            if int(first) >= len(body):
                raise _error("InvalidRange", "GetObject")
            body = body[int(first) : int(last) + 1]
        return {"Body": io.BytesIO(body), "ETag": etag, "LastModified": self._written_at, "ContentLength": len(body)}

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        """What GetObject answers, without the content."""
        etag, body = self._object("HeadObject", Bucket, Key)
        return {"ETag": etag, "LastModified": self._written_at, "ContentLength": len(body)}

    def list_objects_v2(
        self,
        *,
        Bucket: str,
        Prefix: str = "",
        Delimiter: str = "",
        MaxKeys: int = _MAX_KEYS,
        StartAfter: str = "",
        ContinuationToken: str = "",
    ) -> dict[str, Any]:
        """One page, in the order of the keys; a folder counts as one entry."""
        rows = self._rows(
            "SELECT key, etag, length(body) FROM objects WHERE bucket = ? AND substr(key, 1, ?) = ? ORDER BY key",
            (Bucket, len(Prefix), Prefix),
        )
        if not rows and Bucket != self._own and not self._rows("SELECT 1 FROM objects WHERE bucket = ?", (Bucket,)):
            raise _error("NoSuchBucket", "ListObjectsV2")
        after = ContinuationToken or StartAfter
        contents: list[dict[str, Any]] = []
        folders: dict[str, None] = {}
        last = ""
        for key, etag, size in rows:
            below = str(key)[len(Prefix) :]
            folder = Prefix + below.partition(Delimiter)[0] + Delimiter if Delimiter and Delimiter in below else ""
            entry = folder or str(key)
            if entry <= after or entry in folders:
                continue
            if len(contents) + len(folders) == MaxKeys:
                return self._page(contents, folders) | {"IsTruncated": True, "NextContinuationToken": last}
            last = entry
            if folder:
                folders[folder] = None
            else:
                contents.append({"Key": key, "ETag": etag, "Size": size, "LastModified": self._written_at})
        return self._page(contents, folders) | {"IsTruncated": False}

    @staticmethod
    def _page(contents: list[dict[str, Any]], folders: dict[str, None]) -> dict[str, Any]:
        answer: dict[str, Any] = {"Contents": contents} if contents else {}
        return answer | ({"CommonPrefixes": [{"Prefix": folder} for folder in folders]} if folders else {})

    def _object(self, operation: str, bucket: str, key: str) -> tuple[str, bytes]:
        rows = self._rows("SELECT etag, body FROM objects WHERE bucket = ? AND key = ?", (bucket, key))
        if not rows:
            raise _error("NoSuchKey" if operation == "GetObject" else "404", operation)
        return str(rows[0][0]), bytes(rows[0][1])

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return _rows(self._file, query, values, refuse=self._refuse)


class StoredTrainingJobs:
    """SageMaker's DescribeTrainingJob, of jobs that are over. One that is not may be another one by now: refused."""

    def __init__(self, file: Path, *, refuse: Callable[[str], Any]) -> None:
        self._file = file
        self._refuse = refuse

    def __getattr__(self, method: str) -> Any:
        return self._refuse(f"sagemaker.{method}")

    def describe_training_job(self, *, TrainingJobName: str) -> Any:
        """One job, as the embedded cloud describes it."""
        from localcloud.stored_jobs import job_from_wire  # loads botocore's models: only where a job is asked for

        rows = _rows(self._file, "SELECT job FROM jobs WHERE name = ?", (TrainingJobName,), refuse=self._refuse)
        if not rows:
            return self._refuse(f"sagemaker: {TrainingJobName}")
        job = job_from_wire(json.loads(rows[0][0]))
        return job.describe() if job.is_terminal else self._refuse(f"sagemaker: {TrainingJobName} is not over")


def _rows(file: Path, query: str, values: tuple[Any, ...], *, refuse: Callable[[str], Any]) -> list[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            return db.execute(query, values).fetchall()
    except sqlite3.Error as err:
        refuse(f"the store: {err}")
        raise


def _error(code: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, operation)
