"""Messages in a mailbox on a shared path: which of the run's changed, and bringing one there. In a worker's process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rekindle.checkpoints.marks import quarantine_prefix
from rekindle.protocol.keys import KeyKind, fence_key, parse_key, plan_prefix, request_prefix
from rekindle.protocol.mailbox import CheckpointReply, Heartbeat
from rekindle.protocol.manifests import MAX_MANIFEST_BYTES, Hashes, Manifest
from rekindle.protocol.reports import MAX_REPORT_BYTES, RankReport, ReportKey, ReportKind, parse_report_key
from rekindle.protocol.summaries import SUMMARISED, HostSummary, SummaryName, parse_summary_name, ranks_in_summary
from rekindle.protocol.wire import FOLDER, MAX_MESSAGE_BYTES, MailboxError
from rekindle.slurm_agent.files import userfs

MAX_FILES: Final = 20_000  # of one mailbox in one pass
MAX_REPORTED: Final = 200  # attempts whose reports are looked at
_DOWN: Final = frozenset({KeyKind.FENCE, KeyKind.REQUEST, KeyKind.PLAN})
_MARKS: Final = quarantine_prefix()
FOR_THE_RUN: Final = (fence_key(), plan_prefix(), _MARKS, request_prefix())  # where what the service writes lies

Stamp = tuple[int, int, int]


def changed(root: str, sent: Mapping[str, Stamp], *, most: int, most_bytes: int) -> Iterator[tuple[str, Stamp, bytes]]:
    """The run's messages that are not as they were sent: key, stamp, body. A file that is no whole message is left for
    the next pass."""
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


def deliver(root: str, key: str, body: bytes, still_wanted: Callable[[], None] = lambda: None) -> None:
    """See `userfs.write`. Raises: OSError."""
    *folders, name = key.split("/")
    at = root
    for folder in folders:  # at most rekindle/ and one below; the last is made by `write`
        at = f"{at}/{folder}"
        if folder is not folders[-1]:
            userfs.folder(at)
    userfs.write(at, name, body, still_wanted)


def _of_the_run(root: str) -> Iterator[tuple[str, int, Callable[[bytes], object]]]:
    """Every name of a message of the run's in the mailbox, with its size limit and reader."""
    readers: dict[str, tuple[KeyKind, int, Callable[[bytes], object]]] = {
        "heartbeats": (KeyKind.HEARTBEAT, MAX_MESSAGE_BYTES, Heartbeat.from_json),
        "replies": (KeyKind.REPLY, MAX_MESSAGE_BYTES, CheckpointReply.from_json),
        "manifests": (KeyKind.MANIFEST, MAX_MANIFEST_BYTES, Manifest.from_json),
        "hashes": (KeyKind.HASHES, MAX_MANIFEST_BYTES, Hashes.from_json),
    }
    for folder, (kind, limit, read) in readers.items():
        # Those of the newest steps, which are written with leading zeros; the oldest went up long ago.
        for name in sorted(userfs.names(f"{root}/{FOLDER}/{folder}"), reverse=True)[: MAX_FILES // 4]:
            key = f"{FOLDER}/{folder}/{name}"
            parsed = parse_key(key)
            if parsed is not None and parsed.kind is kind:
                yield key, limit, read
    left = MAX_FILES  # of all attempts together
    for attempt in sorted(userfs.names(f"{root}/{FOLDER}/reports"), reverse=True)[:MAX_REPORTED]:
        if left <= 0:
            return
        for key, reads in itertools.islice(_reports(root, f"{FOLDER}/reports/{attempt}"), left):
            left -= 1
            yield key, MAX_REPORT_BYTES, reads


def _reports(root: str, folder: str) -> Iterator[tuple[str, Callable[[bytes], object]]]:
    """An attempt's reports: key and reader. The hosts' summaries of a large run come first; of single ranks only what
    no summary tells."""
    names = userfs.names(f"{root}/{folder}")
    summaries = {name: parsed for name in names if (parsed := parse_summary_name(name)) is not None}
    for name in sorted(summaries):
        yield f"{folder}/{name}", HostSummary.from_json
    span = next((span for name in summaries if (span := _span(f"{root}/{folder}/{name}"))), 0)
    reported = {rank: userfs.stamp(f"{root}/{folder}/{name}") for name, rank in summaries.items()}
    for name in names:
        key = parse_report_key(f"{folder}/{name}")
        if key is not None and not (span and _is_summarised(f"{root}/{folder}/{name}", key, span, reported)):
            yield f"{folder}/{name}", RankReport.from_json


def _is_summarised(path: str, key: ReportKey, span: int, reported: Mapping[SummaryName, Stamp | None]) -> bool:
    """Whether the summary of that rank's host was written after the rank's report."""
    first = key.rank - key.rank % span
    if key.kind is ReportKind.PACE:  # it is asked only for where the rank runs, which never changes
        return any(SummaryName(kind=kind, first_rank=first) in reported for kind in SUMMARISED)
    summary, own = reported.get(SummaryName(kind=key.kind, first_rank=first)), userfs.stamp(path)
    return summary is not None and own is not None and own[0] < summary[0]


def _span(path: str) -> int:
    """Over how many ranks the summary goes; 0 for what is none."""
    try:
        return ranks_in_summary(HostSummary.from_json(userfs.read(path, MAX_REPORT_BYTES) or b"").world_size)
    except MailboxError:
        return 0


def is_for_the_run(key: str) -> bool:
    """Whether the service writes objects of that name, for the run to read."""
    parsed = parse_key(key)
    if parsed is not None:
        return parsed.prefix == "" and parsed.kind in _DOWN
    name = key[len(_MARKS) :]
    return key.startswith(_MARKS) and len(name) == 45 and name.endswith(".json") and name[:40].isalnum()
