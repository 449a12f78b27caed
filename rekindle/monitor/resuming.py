"""Where this attempt goes on, seen from the machine that has the files.

The service sees S3, not this machine's disk: a checkpoint on a shared file system, or the local copy of one in S3, is
checked here, before the script loads it. One that is damaged is passed over for the newest whole one before it. An
attempt that was told no checkpoint finds the newest whole one by itself, as its script would, but never a quarantined.
A restart on Slurm that nobody planned also goes by the mailbox's manifests, whose checkpoints may lie in S3.

Every rank comes to the same answer, because all look at the same shared directory and the same marks; where one cannot
read what the others can, rank 0's answer holds (see `sharing`). Marks that cannot be read leave the plan as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from rekindle.checkpoints.discover import judge_one
from rekindle.checkpoints.marks import is_forensic, mark_key, quarantine_prefix
from rekindle.folders import listing_of, manifest_problems, newest_complete, path_of, reader_of
from rekindle.mailbox import (
    Fence,
    MailboxError,
    Manifest,
    Place,
    ResumePlan,
    fence_key,
    manifest_key,
    manifest_prefix,
    parse_key,
    relative_path,
    verify_listing,
)
from rekindle.monitor.aws import Clients
from rekindle.monitor.boxes import Box
from rekindle.monitor.saving import Upload, local_path
from rekindle.monitor.trouble import logger

MAX_READ = 50  # manifests looked into, newest first: a run whose last fifty are all bad needs a person


def settled(
    plan: ResumePlan,
    *,
    directory: str | None,
    upload: Upload | None,
    box: Box | None,
    is_repeat: bool,
    is_untold: bool = False,
    job_id: str = "",
    clients: Clients | None = None,
) -> ResumePlan:
    """The plan, or the next best one.

    directory: the run's own checkpoint folder. is_repeat: not the first attempt, so there may be something to go on
    from. is_untold: nobody planned this attempt, so the manifests of `job_id` in the box count too; `clients` list
    those in S3. Raises: OSError, MailboxError, and the box's own errors.
    """
    if is_untold and plan.uri is None:
        sealed, barred = (None, ()) if box is None else _newest_sealed(box, job_id, upload, clients or Clients())
        found = _newest(plan, directory, upload, box, at_most=None, but=barred) if directory else plan
        if sealed is not None and box is not None and (found.step is None or found.step <= sealed.step):
            manifest_uri = f"{box.uri.rstrip('/')}/{sealed.key}"
            found = replace(plan, step=sealed.step, uri=sealed.root, manifest_uri=manifest_uri)
        return _told(plan, found)
    path = local_path(plan.uri, upload)
    if plan.uri is None:
        if not directory or not is_repeat:
            return plan
        return _told(plan, _newest(plan, directory, upload, box, at_most=None))
    if path is None or not os.path.exists(path):
        return plan  # in S3, and the script's own business
    problems = _problems(plan, path, box)
    if not problems:
        return plan
    logger.warning("The checkpoint to resume from (%s) is not whole: %s", path, "; ".join(problems))
    folder = directory or os.path.dirname(path)
    return _told(plan, _newest(plan, folder, upload, box, at_most=plan.step, but=(path,)))


def _newest(
    plan: ResumePlan,
    directory: str,
    upload: Upload | None,
    box: Box | None,
    *,
    at_most: int | None,
    but: Sequence[str] = (),
) -> ResumePlan:
    if not os.path.isdir(directory):
        return plan
    is_marked = _quarantined(upload, box)
    found = newest_complete(directory, at_most=at_most, is_barred=lambda path: path in but or is_marked(path))
    if found is None:
        return plan
    return replace(plan, step=found.step, uri=path_of(directory, found), manifest_uri=None)


def _told(plan: ResumePlan, found: ResumePlan) -> ResumePlan:
    if found.uri != plan.uri:
        logger.warning("Resuming at step %s from %s, found here", found.step, found.uri)
    return found


def _newest_sealed(
    box: Box, job_id: str, upload: Upload | None, clients: Clients
) -> tuple[Manifest | None, tuple[str, ...]]:
    """The newest manifest whose checkpoint is whole, not quarantined, not forensic, and not a superseded attempt's.

    And the local paths of newer ones that are one of these: nobody is to find them in the run's folder either.
    """
    barred: list[str] = []
    marks = frozenset(box.names(quarantine_prefix()))
    fence = _fence(box)
    fenced_at = box.written_at(fence_key()) if fence is not None and fence.superseded else None
    for key in sorted(box.names(manifest_prefix()), reverse=True)[:MAX_READ]:  # twelve digits sort as numbers do
        parsed = parse_key(key)
        try:
            raw = box.get(key) if parsed is not None else None
            manifest = None if raw is None else Manifest.from_json(raw)
        except MailboxError as err:
            logger.warning("The manifest %s cannot be read: %s", key, err)
            continue
        if manifest is None or manifest.key != key or manifest.job_id not in (job_id, manifest.attempt):
            continue
        is_late = fence is not None and manifest.attempt in fence.superseded and _is_after(box, key, fenced_at)
        path = local_path(manifest.root, upload)
        is_marked = any(mark_key(root) in marks for root in (manifest.root, path) if root)
        if is_late or is_marked or is_forensic(manifest.request_id):
            barred += [path] if path else []
            continue
        problems = _problems_in_s3(manifest, clients) if path is None else manifest_problems(manifest, path)
        if not problems:
            return manifest, tuple(barred)
        barred += [path] if path else []
        logger.warning("The checkpoint of step %d is not whole: %s", manifest.step, "; ".join(problems[:3]))
    return None, tuple(barred)


def _is_after(box: Box, key: str, fenced_at: datetime | None) -> bool:
    """By the store's clock alone: those of the hosts that wrote the two may be minutes apart."""
    written_at = box.written_at(key)
    return written_at is not None and fenced_at is not None and written_at > fenced_at


def _fence(box: Box) -> Fence | None:
    raw = box.get(fence_key())
    try:
        return None if raw is None else Fence.from_json(raw)
    except MailboxError as err:
        logger.warning("The mailbox's fence cannot be read (%s); it is ignored", err)
        return None


def _problems_in_s3(manifest: Manifest, clients: Clients) -> tuple[str, ...]:
    place = Place.parse(manifest.root, "root")
    found = {relative_path(place.path, key): size for key, size in clients.objects(place.bucket or "", place.path)}
    return verify_listing(manifest, {path: size for path, size in found.items() if path is not None})


def _problems(plan: ResumePlan, path: str, box: Box | None) -> tuple[str, ...]:
    manifest = _manifest(plan, box)
    if manifest is not None:
        return manifest_problems(manifest, path)
    top, name = os.path.split(path)
    if os.path.isfile(path):
        found = judge_one(name, {name: os.stat(path).st_size}, reader_of(top))
    else:
        files = {f"{name}/{inner}": size for inner, size in listing_of(path).items()}
        found = judge_one(name, files, reader_of(top))
    return () if found is None else found.problems  # of nobody's layout: the script knows what it saved


def _manifest(plan: ResumePlan, box: Box | None) -> Manifest | None:
    """The plan's manifest, where it lies in this mailbox and can be read."""
    if plan.manifest_uri is None or box is None:
        return None
    key = parse_key(Place.parse(plan.manifest_uri, "manifest").path)
    if key is None or key.step is None:
        return None
    raw = box.get(manifest_key(key.step, key.name))
    try:
        return None if raw is None else Manifest.from_json(raw)
    except MailboxError as err:
        logger.warning("The manifest of the checkpoint to resume from cannot be read: %s", err)
        return None


def _quarantined(upload: Upload | None, box: Box | None) -> Callable[[str], bool]:
    """Whether a path is marked, under its own name or under that of its copy in S3."""
    marks = frozenset(box.names(quarantine_prefix())) if box is not None else frozenset()

    def is_quarantined(path: str) -> bool:
        roots = {path} if upload is None else {path, upload.to_uri(path)}
        return any(mark_key(root) in marks for root in roots)

    return is_quarantined
