"""What a manifest vouches for, held against the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from rekindle.protocol.keys import hashes_key
from rekindle.protocol.manifests import Hashes, Manifest


def check_files(mailbox: Path, manifest: Manifest) -> None:
    """Every file that the manifest vouches for is there, whole, with the bytes it had where these were hashed."""
    hashes: Mapping[str, str] = {}
    path = mailbox / hashes_key(manifest.step, manifest.attempt)
    if path.exists() and (read := Hashes.from_json(path.read_bytes())).manifest == manifest.digest:
        hashes = read.files
    assert manifest.files
    for item in manifest.files:
        content = Path(manifest.place_of(item).path).read_bytes()
        assert len(content) == item.bytes, item.path
        assert hashes.get(item.path) in (None, hashlib.sha256(content).hexdigest()), item.path
