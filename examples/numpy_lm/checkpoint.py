"""Whole-state checkpoints, in a directory or under an S3 prefix, that are either complete or not there.

One checkpoint is one folder with `state.npz` (parameters and both Adam vectors) and `position.json` (step,
updates, sampler). In a directory it is written beside its place, flushed and renamed; in S3 each object appears
whole, and `position.json`, without which nothing is loaded, goes last.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

STATE = "state.npz"
POSITION = "position.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything a run needs to go on as if it had never stopped."""

    parameters: np.ndarray[Any, Any]
    first: np.ndarray[Any, Any]
    second: np.ndarray[Any, Any]
    position: dict[str, Any]

    def files(self) -> dict[str, bytes]:
        """File name to content, in the order they are to be written."""
        buffer = io.BytesIO()
        np.savez(buffer, parameters=self.parameters, first=self.first, second=self.second)
        return {STATE: buffer.getvalue(), POSITION: json.dumps(self.position).encode()}

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> Checkpoint:
        """The checkpoint that `files` wrote."""
        with np.load(io.BytesIO(files[STATE]), allow_pickle=False) as state:
            return cls(
                parameters=state["parameters"],
                first=state["first"],
                second=state["second"],
                position=json.loads(files[POSITION]),
            )


def save(checkpoint: Checkpoint, uri: str) -> str:
    """Write `checkpoint` at `uri` (`s3://bucket/prefix`, `file:///folder` or a path). Returns `uri`."""
    files = checkpoint.files()
    if uri.startswith("s3://"):
        bucket, prefix = _bucket_and_prefix(uri)
        client = _s3()
        for name, content in files.items():
            client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=content)
        return uri
    place = local_path(uri)
    draft = place.with_name(f"{place.name}.draft-{os.getpid()}")
    draft.mkdir(parents=True)
    for name, content in files.items():
        with (draft / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    # A run that comes past the same step again writes the same bytes again.
    shutil.rmtree(place, ignore_errors=True)
    draft.rename(place)
    return uri


def load(uri: str) -> Checkpoint:
    """Read what `save` wrote at `uri`."""
    if uri.startswith("s3://"):
        bucket, prefix = _bucket_and_prefix(uri)
        client = _s3()
        return Checkpoint.from_files(
            {
                name: client.get_object(Bucket=bucket, Key=f"{prefix}/{name}")["Body"].read()
                for name in (STATE, POSITION)
            }
        )
    place = local_path(uri)
    return Checkpoint.from_files({name: (place / name).read_bytes() for name in (STATE, POSITION)})


def local_path(uri: str) -> Path:
    """The path that a `file://` URI or a plain path names."""
    return Path(unquote(urlsplit(uri).path)) if uri.startswith("file://") else Path(uri)


def _bucket_and_prefix(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    return parts.netloc, parts.path.strip("/")


def _s3() -> Any:
    import boto3  # only runs that save to S3 need it, and it is the slowest import here

    return boto3.session.Session().client("s3")
