"""This attempt's resume point, checked on the machine that has the files.

The service sees S3, not this machine's disk: a checkpoint on a shared file system, or the local copy of one in S3, is
checked here before the script loads it. A damaged one is passed over for the newest whole one before it. An attempt
without a plan looks for the newest whole one of its run, as its script would, but never takes a quarantined one.

A plan predates its attempt. Where a launcher restarts the same attempt (torchrun after a crash, a requeue), the plan is
unchanged but the run has advanced: checkpoints that this attempt has sealed since are newer, of whichever of its lives,
but for those that a life sealed after a later one had begun. Checkpoints that an earlier attempt saved after the
planned step are not used: the plan may have gone back behind them deliberately.

All ranks reach the same answer, because all read the same shared directory and the same marks; where one cannot read
what the others can, rank 0's answer holds (see `sharing`). If the marks cannot be read, the plan is used as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from rekindle.checkpoints.counts import Counted, closest
from rekindle.checkpoints.folders import newest_complete, path_of, problems_at, sealed_at, steps_at
from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.listed import sealed_in_listing
from rekindle.checkpoints.marks import is_forensic, mark_key, quarantine_prefix
from rekindle.checkpoints.verdict import OF_ANOTHER, Evidence, Fault, Problem, sealed_since, texts
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.mail.boxes import Box, document
from rekindle.monitor.mail.holding import lives_in
from rekindle.monitor.mail.slurm import Unplanned
from rekindle.monitor.saving.saved import Upload, local_path
from rekindle.protocol.keys import fence_key, manifest_key, manifest_prefix, parse_key
from rekindle.protocol.launch_orders import ResumePlan
from rekindle.protocol.mailbox import Fence
from rekindle.protocol.manifests import ITSELF, Manifest, relative_path
from rekindle.protocol.wire import Place

LOOK_S = 4.0  # a start is not held up by slow storage
LOOK_AGAIN_S = 60.0  # unless it is known that there is something newer than the plan
UNREAD_COSTS = timedelta(hours=1)  # at most, to go back behind saves whose loss was not read; as `approvals.max_loss_s`
_UNREAD = "its loss could not be read, so an earlier one is taken if one of the last hour can be"
MAX_READ = 50  # manifests looked into, newest first: a run whose last fifty are all bad needs a person


@dataclass(frozen=True, slots=True)
class _Sealed:
    """What the box's manifests say: the newest that holds, local paths that must not be used, and the run's own."""

    newest: Manifest | None = None
    barred: Collection[str] = ()
    own: Collection[str] = field(default=())


def settled(
    plan: ResumePlan,
    *,
    directory: str | None,
    upload: Upload | None,
    box: Box | None,
    is_repeat: bool,
    attempt: str = "",
    unplanned: Unplanned | None = None,
    job_id: str = "",
    clients: Clients | None = None,
) -> ResumePlan:
    """The plan, or a newer resume point.

    directory: the run's own checkpoint folder. is_repeat: not the first attempt, so that there may be a checkpoint to
    resume from. attempt: this attempt's name; checkpoints that it has sealed are newer than its plan. unplanned: this
    start has no plan; manifests of `job_id` then count, from the last planned attempt on. `clients` list those in S3.
    Raises: OSError, MailboxError, and the box's own errors.
    """
    look = _SearchPlace(directory=directory, upload=upload, box=box, clients=clients or Clients())
    if unplanned is not None:
        plan = replace(plan, step=unplanned.base.step, uri=unplanned.base.uri, manifest_uri=unplanned.base.manifest_uri)

        def counts(manifest: Manifest) -> bool:
            is_ours = manifest.job_id in (job_id, manifest.attempt)
            return is_ours and manifest.attempt_number >= unplanned.since_attempt

        sealed = look.sealed(counts)
        if plan.uri is None:
            found = look.newest(plan, at_most=None, sealed=sealed) if directory else plan
            return _noted(plan, look.newer(found, sealed))
    else:
        sealed = look.sealed(lambda manifest: manifest.attempt == attempt, only=attempt) if attempt else _Sealed()
    newer = look.newer(plan, sealed)
    if newer != plan:
        return _noted(plan, newer)
    if plan.uri is None:
        return _noted(plan, look.newest(plan, at_most=None, sealed=sealed)) if directory and is_repeat else plan
    path = local_path(plan.uri, upload)
    if path is None or not os.path.exists(path):
        return plan  # in S3, and the script's own business
    problems = look.problems(plan, path)
    if not problems:
        return plan
    logger.warning("The checkpoint to resume from (%s) is not usable: %s", path, "; ".join(texts(problems)))
    before = replace(look, directory=directory or os.path.dirname(path))
    found = before.newest(plan, at_most=plan.step, sealed=sealed, but=(path,))
    if found.uri == plan.uri and any(problem.fault in OF_ANOTHER for problem in problems):
        logger.warning(
            "Nothing is resumed from: what lies at %s is another checkpoint than that of step %s", path, plan.step
        )
        return replace(plan, step=None, uri=None, manifest_uri=None)
    return _noted(plan, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchPlace:
    """Where there is to look."""

    directory: str | None
    upload: Upload | None
    box: Box | None
    clients: Clients

    def newest(self, plan: ResumePlan, *, at_most: int | None, sealed: _Sealed, but: Sequence[str] = ()) -> ResumePlan:
        """The plan with the newest whole checkpoint of the run's folder in it, as it was where there is none."""
        if self.directory is None or not os.path.isdir(self.directory):
            return plan
        is_marked = _quarantined(self.upload, self.box)
        planned = local_path(plan.uri, self.upload)
        found = newest_complete(
            self.directory,
            at_most=at_most,
            is_barred=lambda path: path in but or path in sealed.barred or is_marked(path),
            like=[*sealed.own, *([planned] if planned else [])],
        )
        if found is None:
            return plan
        return replace(plan, step=found.step, uri=path_of(self.directory, found), manifest_uri=None)

    def newer(self, plan: ResumePlan, sealed: _Sealed) -> ResumePlan:
        """The plan with the sealed checkpoint in it, where that is newer. The data to leave out stay left out."""
        manifest = sealed.newest
        if manifest is None or self.box is None or (plan.step is not None and plan.step > manifest.step):
            return plan
        if plan.step == manifest.step and plan.manifest_uri is not None:
            return plan
        manifest_uri = f"{self.box.uri.rstrip('/')}/{manifest.key}"
        return replace(plan, step=manifest.step, uri=manifest.root, manifest_uri=manifest_uri)

    def sealed(self, counts: Callable[[Manifest], bool], *, only: str | None = None) -> _Sealed:
        """The newest manifest that counts whose checkpoint is whole and neither quarantined nor forensic.

        One whose loss could not be read gives way to an earlier one whose loss was, if that is not much older.

        only: the one attempt whose manifests are worth reading. Those that a superseded attempt wrote late do not
        count. Newer ones that do not hold are barred, so that they are not found in the run's folder either.
        """
        if self.box is None:
            return _Sealed()
        barred: list[str] = []
        own: list[str] = []
        keys = self._keys(only)
        if not keys:  # most starts: one call, and no more
            return _Sealed()
        marks = frozenset(self.box.names(quarantine_prefix()))
        fence = document(self.box, fence_key(), Fence.from_json, "fence")
        fenced_at = self.box.written_at(fence_key()) if fence is not None and fence.superseded else None
        lives = lives_in(self.box)
        newer: list[Manifest] = []
        unread: Manifest | None = None
        passed: set[str] = set()  # attempts that do not count: what decides that is the same in all of their manifests
        for manifest in self._manifests(keys, passed):
            since = sealed_since(manifest, newer)
            newer.append(manifest)
            if not counts(manifest):
                passed.add(manifest.attempt)
                continue
            if unread is not None and unread.saved_at - manifest.saved_at > UNREAD_COSTS:
                break
            if unread is not None and manifest.loss_unread:
                continue
            path = local_path(manifest.root, self.upload)
            own += [path] if path else []
            is_superseded = fence is not None and manifest.attempt in fence.superseded
            is_late = is_superseded and _is_after(self.box, manifest.key, fenced_at)
            is_late = is_late or _is_after(self.box, manifest.key, lives.ended_at(manifest.attempt, manifest.life))
            is_marked = any(mark_key(root) in marks for root in (manifest.root, path) if root)
            if is_late or is_marked or is_forensic(manifest.request_id):
                barred += [path] if path else []
                continue
            problems = texts(problems_of(manifest, path, self.clients, since=since, looks_inside=True))
            if not problems and not manifest.loss_unread:
                return _Sealed(manifest, tuple(barred), tuple(own))
            barred += [path] if path else []
            if problems:
                logger.warning("The checkpoint of step %d is not usable: %s", manifest.step, "; ".join(problems[:3]))
            else:
                unread = manifest
                logger.warning("Whether the checkpoint of step %d is finite is not known: %s", manifest.step, _UNREAD)
        return _Sealed(unread, tuple(barred), tuple(own))

    def _keys(self, only: str | None) -> list[tuple[str, str]]:
        """Of the manifests in the box, each with its attempt, newest first."""
        names = () if self.box is None else self.box.names(manifest_prefix())
        parsed = ((key, parse_key(key)) for key in sorted(names, reverse=True))  # twelve digits sort as numbers do
        return [(key, of.name) for key, of in parsed if of is not None and (only is None or of.name == only)]

    def _manifests(self, keys: Sequence[tuple[str, str]], passed: Collection[str]) -> Iterator[Manifest]:
        """At most MAX_READ, beside one of each attempt that is passed over: such a one may have left very many.

        passed: those attempts, as the caller learns of them.
        """
        read = 0
        for key, attempt in keys:
            if attempt in passed:
                continue
            if read - len(passed) >= MAX_READ:
                return
            read += 1
            manifest = None if self.box is None else document(self.box, key, Manifest.from_json, f"manifest {key}")
            if manifest is not None and manifest.key == key:
                yield manifest

    def problems(self, plan: ResumePlan, path: str) -> tuple[Problem, ...]:
        """What keeps the plan's checkpoint from being the one that is to be resumed from."""
        manifest = _manifest(plan, self.box)
        if manifest is not None:
            return problems_of(manifest, path, self.clients, looks_inside=True)
        return tuple(Problem(Fault.INCOMPLETE, text) for text in problems_at(path))


def _noted(plan: ResumePlan, found: ResumePlan) -> ResumePlan:
    if found.uri != plan.uri:
        logger.warning("Resuming at step %s from %s, found here", found.step, found.uri)
    return found


def _is_after(box: Box, key: str, fenced_at: datetime | None) -> bool:
    """By the store's clock alone: those of the hosts that wrote the two may be minutes apart."""
    written_at = box.written_at(key)
    return written_at is not None and fenced_at is not None and written_at > fenced_at


def with_data(plan: ResumePlan, box: Box | None, world_size: int) -> tuple[ResumePlan, str]:
    """The plan with what its manifest says of the data; and what it does to them that another number of ranks saved
    what is resumed from, empty where it was the same. Raises: the box's own errors.
    """
    manifest = None if plan.step is None else _manifest(plan, box)
    if manifest is None:
        return plan, ""
    plan = replace(
        plan,
        world_size=manifest.world_size,
        samples=manifest.samples,
        samples_per_step=manifest.samples_per_step,
    )
    if manifest.world_size == world_size:
        return plan, ""
    return plan, (
        f"the checkpoint of step {plan.step} was saved by {manifest.world_size} ranks, and {world_size} go on from it: "
        "a step now uses another number of samples. ResumableSampler goes on after the last sample that was used; data "
        "that the script counts in steps are read twice or left out within this epoch, unless the batch of a rank is "
        "changed to match"
    )


def counts_of(plan: ResumePlan, box: Box | None, path: str | None) -> tuple[Counted, ...]:
    """What the plan's checkpoint names as its step: as it was sealed, or as it lies at `path`.

    Raises: the box's own errors.
    """
    if plan.step is None:
        return ()
    manifest = _manifest(plan, box)
    if manifest is not None and any(item.step is not None for item in manifest.files):
        numbers = {item.step for item in manifest.files if item.step is not None}
    elif path is not None and os.path.exists(path):
        named = (closest(plan.step, steps) for steps in steps_at(path).values())
        numbers = {step for step in named if step is not None}
    else:
        return ()
    return tuple(Counted(plan.step, number) for number in sorted(numbers))


def _manifest(plan: ResumePlan, box: Box | None) -> Manifest | None:
    """The plan's manifest, where it lies in this mailbox and can be read."""
    if plan.manifest_uri is None or box is None:
        return None
    key = parse_key(Place.parse(plan.manifest_uri, "manifest").path)
    if key is None or key.step is None:
        return None
    where = manifest_key(key.step, key.name, key.life)
    return document(box, where, Manifest.from_json, "manifest of the checkpoint to resume from")


def _quarantined(upload: Upload | None, box: Box | None) -> Callable[[str], bool]:
    """Whether a path is marked, under its own name or under that of its copy in S3."""
    marks = frozenset(box.names(quarantine_prefix())) if box is not None else frozenset()

    def is_quarantined(path: str) -> bool:
        roots = {path} if upload is None else {path, upload.to_uri(path)}
        return any(mark_key(root) in marks for root in roots)

    return is_quarantined


def problems_of(
    manifest: Manifest, path: str | None, clients: Clients, *, since: int | None = None, looks_inside: bool = False
) -> tuple[Problem, ...]:
    """What keeps it from being what was sealed: at `path`, or in S3. Raises: botocore's errors.

    since, looks_inside: see `sealed_at`.
    """
    if path is None:
        return _sealed_in_s3(manifest, clients, since)
    return sealed_at(manifest, path, since=since, looks_inside=looks_inside)


def _sealed_in_s3(manifest: Manifest, clients: Clients, since: int | None) -> tuple[Problem, ...]:
    """What keeps the objects at its root from being those that were sealed. Raises: botocore's errors.

    since: see `verdict.sealed_since`.
    """
    place = Place.parse(manifest.root, "root")
    bucket = place.bucket or ""
    own = {item.path for item in manifest.files}
    there = {
        path: item
        for item in clients.objects(bucket, place.path)
        if (path := relative_path(place.path, item.key)) is not None and path in own
    }
    evidence = Evidence(
        step=manifest.step,
        manifest=manifest,
        stamps={path: Stamp(item.bytes, etag=item.etag or None) for path, item in there.items()},
        sealed_since=since,
        classes={path: item.storage for path, item in there.items()},
    )

    def read(path: str, start: int, length: int) -> bytes | None:
        return clients.read_part(bucket, place.path if path == ITSELF else place.join(path).path, start, length)

    return sealed_in_listing(evidence, read)
