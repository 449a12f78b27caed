"""Which checkpoints lie on a shared path: by manifest, else by their format's own rules."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote

from rekindle.checkpoints.folders import discover_in, path_of, sealed_at
from rekindle.checkpoints.found import Found
from rekindle.checkpoints.marks import FORENSIC, is_forensic
from rekindle.checkpoints.verdict import sealed_since, texts
from rekindle.compat import UTC
from rekindle.protocol.cluster.documents import FoundCheckpoint, FoundDoc
from rekindle.protocol.keys import KeyKind, parse_key
from rekindle.protocol.manifests import MAX_MANIFEST_BYTES, OUTSIDE, Manifest, is_below
from rekindle.protocol.wire import FOLDER, MailboxError, Place, is_text
from rekindle.slurm_agent.files import userfs

MAX_FOUND: Final = 100  # with their problems far below a message's 256 KiB
MAX_MANIFESTS: Final = MAX_FOUND  # the newest; a folder whose manifest is not read would be judged by its looks
MAX_PROBLEM_CHARS: Final = 200


def manifests_in(mailbox: str) -> dict[str, Manifest]:
    """The newest manifests in a mailbox, by their URIs. Never raises."""
    folder = f"{mailbox}/{FOLDER}/manifests"
    keys = []
    for name in userfs.names(folder):
        parsed = parse_key(f"{FOLDER}/manifests/{name}")
        if parsed is not None and parsed.kind is KeyKind.MANIFEST:
            keys.append((parsed.step or 0, name))
    found = {}
    for _, name in sorted(keys, reverse=True)[:MAX_MANIFESTS]:
        raw = userfs.read(f"{folder}/{name}", MAX_MANIFEST_BYTES)
        if raw is not None:
            try:
                found[uri_of(f"{folder}/{name}")] = Manifest.from_json(raw)
            except MailboxError:
                continue
    return found


def judge(
    job_id: str,
    checkpoints: str | None,
    manifests: Mapping[str, Manifest],
    now: datetime,
    *,
    mailbox: str | None = None,
) -> FoundDoc:
    """All checkpoints of a Job that lie on paths, newest first. One with a manifest is judged by that, and counts only
    where it lies below the Job's own mailbox or its checkpoints' folder.

    Raises: OSError where the folder cannot be looked at: a file system that is not mounted holds no empty list.
    """
    found: dict[str, FoundCheckpoint] = {}
    for uri, manifest in manifests.items():
        since = sealed_since(manifest, manifests.values())
        sealed = _by_manifest(uri, manifest, [place for place in (mailbox, checkpoints) if place], since)
        if sealed is not None:
            found.setdefault(sealed.root, sealed)
    if checkpoints is not None:
        own = [Place.parse(checkpoint.root).path for checkpoint in found.values()]
        for other in _discovered(checkpoints, own):
            unsealed = _by_format(checkpoints, other)
            if unsealed is not None and not any(
                unsealed.root == root or unsealed.root.startswith(f"{root}/") for root in found
            ):
                found[unsealed.root] = unsealed
    newest = sorted(found.values(), key=lambda checkpoint: (checkpoint.step, checkpoint.saved_at), reverse=True)
    return FoundDoc(job_id=job_id, seen_at=now, checkpoints=tuple(newest[:MAX_FOUND]))


def _by_manifest(uri: str, manifest: Manifest, own: Sequence[str], since: int | None) -> FoundCheckpoint | None:
    """None for one whose files lie in S3: the service sees those itself. since: see `sealed_since`."""
    try:
        place = Place.parse(manifest.root)
    except MailboxError:
        return None
    if place.bucket is not None:
        return None
    problems: tuple[str, ...]
    if own and not is_below(place, [Place(bucket=None, path=path.rstrip("/")) for path in own]):
        problems = (OUTSIDE,)
    else:
        try:
            problems = texts(sealed_at(manifest, place.path, since=since))
        except OSError as err:
            problems = (f"it cannot be read: {err.strerror or err}",)
    return FoundCheckpoint(
        step=manifest.step,
        root=uri_of(place.path),
        kind=FORENSIC if is_forensic(manifest.request_id) else manifest.kind.value,
        saved_at=manifest.saved_at,
        attempt=manifest.attempt,
        manifest=uri,
        problems=_clipped(problems),
        loss_unread=manifest.loss_unread,
    )


def _discovered(checkpoints: str, own: Sequence[str]) -> tuple[Found, ...]:
    """`own` are paths known to be the run's. Raises: OSError; a folder that is only not made yet holds nothing."""
    try:
        return discover_in(checkpoints, like=own)
    except FileNotFoundError:
        os.scandir(os.path.dirname(checkpoints)).close()
        return ()


def _by_format(checkpoints: str, checkpoint: Found) -> FoundCheckpoint | None:
    """None for one of unknown step: it cannot be resumed from by number."""
    if checkpoint.step is None:
        return None
    saved = 0.0
    for path in list(checkpoint.files)[:5000]:
        try:
            saved = max(saved, os.stat(os.path.join(checkpoints, *path.split("/"))).st_mtime)
        except (OSError, ValueError):
            continue
    path = path_of(checkpoints, checkpoint)
    root = uri_of(path)
    if not 0 < saved < 32_503_680_000 or len(root) > 2048 or not is_text(path) or not path.isprintable():
        return None
    return FoundCheckpoint(
        step=checkpoint.step,
        root=root,
        kind=checkpoint.format.value,
        saved_at=datetime.fromtimestamp(saved, UTC),
        problems=_clipped(checkpoint.problems),
    )


def uri_of(path: str) -> str:
    """`file:///fsx/run/checkpoint-100`"""
    return f"file://{quote(path, errors='backslashreplace')}"


def _clipped(problems: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(problem[:MAX_PROBLEM_CHARS] for problem in problems[:4])
