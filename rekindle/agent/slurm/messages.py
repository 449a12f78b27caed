"""Messages in a mailbox on a shared path: which of the run's changed, and bringing one there. In a worker's process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rekindle.agent.slurm import userfs
from rekindle.mailbox import (
    FOLDER,
    MAX_MANIFEST_BYTES,
    MAX_MESSAGE_BYTES,
    Beat,
    CheckpointReply,
    Hashes,
    KeyKind,
    MailboxError,
    Manifest,
    parse_key,
)
from rekindle.reports import MAX_REPORT_BYTES, RankReport, parse_report_key

MAX_FILES: Final = 20_000  # of one mailbox in one turn
MAX_REPORTED: Final = 200  # attempts whose reports are looked at

Stamp = tuple[int, int, int]


def changed(root: str, sent: Mapping[str, Stamp], *, most: int, most_bytes: int) -> Iterator[tuple[str, Stamp, bytes]]:
    """The run's messages that are not as they were sent: key, stamp, body. A file that is no whole message is left for
    the next turn."""
    count = size = 0
    for key, limit, read in itertools.islice(_of_the_run(root), MAX_FILES):
        if count >= most or size >= most_bytes:
            return
        path = f"{root}/{key}"
        stamp = userfs.stamp(path)
        if stamp is None or sent.get(key) == stamp:
            continue
        body = userfs.read(path, limit)
        count, size = count + 1, size + len(body or b"")  # what is no message costs as much to look at
        if body is None:
            continue
        try:
            read(body)
        except MailboxError:
            continue
        yield key, stamp, body


def bring(root: str, key: str, body: bytes, still_wanted: Callable[[], None] = lambda: None) -> None:
    """See `userfs.write`. Raises: OSError."""
    *folders, name = key.split("/")
    at = root
    for one in folders:  # at most rekindle/ and one below; the last is made by `write`
        at = f"{at}/{one}"
        if one is not folders[-1]:
            userfs.folder(at)
    userfs.write(at, name, body, still_wanted)


def _of_the_run(root: str) -> Iterator[tuple[str, int, Callable[[bytes], object]]]:
    """Every name of a message of the run's in the mailbox, with its size limit and reader."""
    readers: dict[str, tuple[KeyKind, int, Callable[[bytes], object]]] = {
        "beats": (KeyKind.BEAT, MAX_MESSAGE_BYTES, Beat.from_json),
        "replies": (KeyKind.REPLY, MAX_MESSAGE_BYTES, CheckpointReply.from_json),
        "manifests": (KeyKind.MANIFEST, MAX_MANIFEST_BYTES, Manifest.from_json),
        "hashes": (KeyKind.HASHES, MAX_MANIFEST_BYTES, Hashes.from_json),
    }
    for folder, (kind, limit, read) in readers.items():
        for name in userfs.names(f"{root}/{FOLDER}/{folder}")[:MAX_FILES]:
            key = f"{FOLDER}/{folder}/{name}"
            parsed = parse_key(key)
            if parsed is not None and parsed.kind is kind:
                yield key, limit, read
    left = MAX_FILES  # of all attempts together
    for attempt in sorted(userfs.names(f"{root}/{FOLDER}/reports"), reverse=True)[:MAX_REPORTED]:
        if left <= 0:
            return
        for name in userfs.names(f"{root}/{FOLDER}/reports/{attempt}")[:left]:
            left -= 1
            key = f"{FOLDER}/reports/{attempt}/{name}"
            if parse_report_key(key) is not None:
                yield key, MAX_REPORT_BYTES, RankReport.from_json
