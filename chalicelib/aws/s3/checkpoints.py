"""A Job's checkpoints in S3: those with a manifest, those found without one, and the marks of the quarantined.

A manifest wins over what is found at the same place or of the same step: it knows who wrote the files and why. What is
found counts by the rules of its format (rekindle/checkpoints).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from chalicelib.aws.s3.objects import S3Objects, insist, lives_in
from chalicelib.domain.model.errors import DependencyUnavailable, NotAuthorized, Permanent
from chalicelib.domain.model.evidence import FORENSIC, is_forensic
from chalicelib.domain.model.observation import CheckpointView
from chalicelib.domain.resume.checkpoint_choice import attributed, wanted_of
from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.listed import sealed_in_listing
from rekindle.checkpoints.marks import MAX_MARK_BYTES, PROBLEM, QuarantineMark, mark_key, quarantine_prefix
from rekindle.checkpoints.verdict import Evidence, sealed_since, texts, verdict
from rekindle.protocol.cluster.documents import FoundDoc
from rekindle.protocol.cluster.names import cluster_prefix, found_key
from rekindle.protocol.keys import KeyKind, manifest_prefix, parse_key
from rekindle.protocol.manifests import ITSELF, MAX_MANIFEST_BYTES, OUTSIDE, Manifest, relative_path
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MailboxError, Place

if TYPE_CHECKING:
    from chalicelib.aws.s3.discovered import S3Discovery
    from chalicelib.aws.s3.objects import Listed, S3Objects
    from chalicelib.domain.model.job import Attempt, Job
    from rekindle.protocol.lives import LivesOfAttempts

_LOG = logging.getLogger(__name__)

# A resume point is wanted near the end of the run, or before an onset that may lie further back: the newest manifests
# are all read, then ever sparser ones. 16 + 8 reach back through 2,300 manifests in 24 reads.
NEWEST: Final = 16
SPACED: Final = 8
MAX_STRANGERS: Final = 4  # manifests of attempts that are not the Job's: shown as fenced, never worth more reads
MAX_MORE: Final = 64  # read beyond those, while all that were read are damaged
MAX_MANIFESTS: Final = 2500  # kept of a listing: all that the spacing can reach, and strangers between them


class S3Checkpoints:
    """Reads them; writes nothing. `bucket` is the stack's own, where an agent lists what lies on shared paths."""

    def __init__(self, objects: S3Objects, *, bucket: str) -> None:
        self._objects = objects
        self._found = FoundCheckpoints(objects, bucket)

    @cached_property
    def _discovery(self) -> S3Discovery:
        """The formats' rules are loaded by the first search: most functions never look for checkpoints."""
        from chalicelib.aws.s3.discovered import S3Discovery

        return S3Discovery(self._objects)

    def of(self, job: Job, attempts: Sequence[Attempt], *, near: Sequence[int] = ()) -> tuple[CheckpointView, ...]:
        """Newest first; where there are many, the older ones are left out but for a few at or below each `near` step.

        Fenced: written by an attempt after it was superseded, by one of its lives after the next one had begun, or
        under a name that is none of the Job's attempts.

        What an agent has found on a shared path wins over the copy of its manifest, whose files cannot be seen here.

        Raises:
            DependencyUnavailable: also where the manifests may not be listed, or an agent has not listed them.
        """
        seen = self._found.of(job, attempts)
        views: list[CheckpointView] = []
        steps: frozenset[int] = frozenset()
        mailbox = _place(job.mailbox)
        if mailbox is not None:
            listed = self._manifests(mailbox)
            by_name = {attempt.name: attempt for attempt in attempts}
            known = {(view.step, view.attempt) for view in seen if view.manifest}
            listed = [item for item in listed if _writer_of(item) not in known]
            views = self._read_chosen(job, mailbox, listed, by_name, near)
            steps = frozenset(key.step for item in listed if (key := parse_key(item.key)) and key.step is not None)
        taken = [view.root for view in views if view.root]
        found = self._discovered(job, attempts, near=near, taken=taken, steps=steps)
        both = sorted((*views, *found, *seen), key=lambda view: (view.step, view.saved_at), reverse=True)
        return self._marked(mailbox, both)

    # ---- with a manifest -------------------------------------------------------------------------------------------

    def _manifests(self, mailbox: Place) -> list[Listed]:
        """Newest first."""
        found = (
            item for item in self._objects.below(mailbox.join(manifest_prefix()), folder=True) if is_manifest(item)
        )
        try:
            kept = deque(found, maxlen=MAX_MANIFESTS)  # keys come oldest first; the newest stay
        except NotAuthorized as err:  # no list is not an empty list: the run may well have checkpoints
            raise DependencyUnavailable(f"the manifests cannot be listed: {err}") from err
        return list(reversed(kept))

    def _read_chosen(
        self, job: Job, mailbox: Place, listed: Sequence[Listed], attempts: Mapping[str, Attempt], near: Sequence[int]
    ) -> list[CheckpointView]:
        """Those worth reading. Where all that were read from the newest on, or from a `near` step on, are damaged, the
        next older ones are read as well until one is not: what is passed over unread would be lost progress.
        """
        manifests: dict[str, Manifest] = {}
        lives = lives_in(self._objects, mailbox)
        views = {
            item.key: self._checkpoint(job, mailbox, item, attempts, manifests, lives)
            for item in chosen(listed, attempts, near)
        }
        own = [item for item in listed if (key := parse_key(item.key)) is not None and key.name in attempts]
        more = MAX_MORE
        for limit in (None, *near):
            for item in own:
                if limit is not None and _step_of(item) > limit:
                    continue
                if item.key not in views and more:
                    more -= 1
                    views[item.key] = self._checkpoint(job, mailbox, item, attempts, manifests, lives)
                if item.key not in views or not (views[item.key].problems or views[item.key].fenced):
                    break
        for name, manifest in manifests.items():
            retired = verdict(Evidence(manifest=manifest, sealed_since=sealed_since(manifest, manifests.values())))
            views[name] = replace(views[name], problems=(*views[name].problems, *texts(retired)))
        return list(views.values())

    def _checkpoint(
        self,
        job: Job,
        root: Place,
        item: Listed,
        attempts: Mapping[str, Attempt],
        manifests: dict[str, Manifest],
        lives: LivesOfAttempts,
    ) -> CheckpointView:
        """manifests: where that of a checkpoint which may count is left, by its key."""
        key = parse_key(item.key)
        assert key is not None and key.step is not None  # noqa: S101, PT018 - is_manifest has checked it
        view = CheckpointView(
            step=key.step,
            root="",
            manifest=Place(bucket=root.bucket, path=item.key).uri,
            attempt=key.name,
            kind="unreadable",
            saved_at=item.modified_at,
            fenced=key.name not in attempts,
        )
        try:
            raw = self._objects.read(Place(bucket=root.bucket, path=item.key), MAX_MANIFEST_BYTES)
            manifest = Manifest.from_json(raw or b"")
            insist(manifest.step == key.step, "step", f"is {manifest.step}, not the name's")
            insist(manifest.attempt == key.name, "attempt", f"is {manifest.attempt}, not the name's")
            writer = attempts.get(manifest.attempt)
            is_writers = writer is not None and manifest.job_id == writer.job_id
            is_owned = is_writers or job.is_named(manifest.job_id, attempt=manifest.attempt)
            insist(is_owned, "job_id", f"is {manifest.job_id}")
        except MailboxError as err:
            return replace(view, problems=(f"the manifest cannot be used: {err}"[:200],))
        # By S3's clock, not by the training host's (`manifest.saved_at`), which may be minutes off.
        ends = [writer.superseded_at, lives.ended_at(writer.name, manifest.life)] if writer is not None else []
        late = any(at is not None and item.modified_at > at for at in ends)
        view = replace(
            view,
            root=manifest.root,
            kind=FORENSIC if is_forensic(manifest.request_id) else manifest.kind.value,
            fenced=view.fenced or late,
            loss_unread=manifest.loss_unread,
            life=manifest.life,
        )
        if view.fenced:
            return view  # never resumed from, so not worth a listing
        manifests[item.key] = manifest
        # A trainer may name its folder by the attempt, so that it lies beside the declared one. In another bucket lie
        # another owner's files, or files of no known owner.
        own = {place.bucket for place in (root, _place(job.checkpoints)) if place is not None}
        place = Place.parse(manifest.root)
        if place.bucket is not None and place.bucket not in own:
            return replace(view, problems=(OUTSIDE,))
        return replace(view, problems=self._problems(manifest))

    def _problems(self, manifest: Manifest) -> tuple[str, ...]:
        """What keeps the checkpoint from being verified, at most ten of it."""
        root = Place.parse(manifest.root)
        if root.bucket is None:
            return ("its files lie on a file system that the service cannot see",)
        try:
            listing = {item.key: item for item in self._objects.below(root, folder=False)}
        except (Permanent, NotAuthorized) as err:
            return (f"its files cannot be listed: {err}"[:200],)
        files = {path: item for key, item in listing.items() if (path := relative_path(root.path, key)) is not None}
        own = {item.path: files[item.path] for item in manifest.files if item.path in files}
        evidence = Evidence(
            step=manifest.step,
            manifest=manifest,
            stamps={path: Stamp(item.bytes, etag=item.etag) for path, item in own.items()},
            classes={path: item.storage for path, item in own.items()},
        )

        def read(path: str, start: int, length: int) -> bytes | None:
            try:
                return self._objects.read_part(root if path == ITSELF else root.join(path), start, length)
            except NotAuthorized:
                return None

        return texts(sealed_in_listing(evidence, read))

    # ---- without one -----------------------------------------------------------------------------------------------

    def _discovered(
        self,
        job: Job,
        attempts: Sequence[Attempt],
        *,
        near: Sequence[int],
        taken: Sequence[str],
        steps: frozenset[int],
    ) -> list[CheckpointView]:
        """What lies under the Job's checkpoint URI and under its mailbox's prefix and no manifest speaks for.

        A bucket that may not be listed has none that we know of: the trainer's own habit stays what it was.
        """
        found: dict[str, CheckpointView] = {}
        for place in _places(job):
            try:
                for view in self._discovery.under(place, attempts, near=near, skip_steps=steps, like=taken):
                    if not any(_touch(view.root, root) for root in taken):
                        found.setdefault(view.root, view)
            except (NotAuthorized, Permanent) as err:
                _LOG.warning("checkpoints cannot be looked for", extra={"place": place.uri, "why": str(err)[:200]})
        return list(found.values())

    # ---- marks -----------------------------------------------------------------------------------------------------

    def _marked(self, mailbox: Place | None, views: Sequence[CheckpointView]) -> tuple[CheckpointView, ...]:
        """The same, each quarantined one with its mark as a problem."""
        if mailbox is None or not views:
            return tuple(views)
        there = {item.key for item in self._objects.below(mailbox.join(quarantine_prefix()), folder=False)}
        marked = []
        for view in views:
            place = mailbox.join(mark_key(view.root)) if there and view.root else None
            if place is not None and place.path in there:
                view = replace(view, problems=(*view.problems, self._mark_at(place)))
            marked.append(view)
        return tuple(marked)

    def _mark_at(self, place: Place) -> str:
        try:
            return QuarantineMark.from_json(self._objects.read(place, MAX_MARK_BYTES) or b"").problem
        except MailboxError as err:  # a mark that cannot be read is still a mark
            return f"{PROBLEM}: {err}"[:200]


def is_manifest(item: Listed) -> bool:
    parsed = parse_key(item.key)
    return parsed is not None and parsed.kind is KeyKind.MANIFEST


def chosen(newest_first: Sequence[Listed], attempts: Mapping[str, Attempt], near: Sequence[int] = ()) -> list[Listed]:
    """The manifests worth reading, newest first: see NEWEST, SPACED and MAX_STRANGERS."""
    ours: list[Listed] = []
    strangers: list[Listed] = []
    for item in newest_first:
        key = parse_key(item.key)
        (ours if key is not None and key.name in attempts else strangers).append(item)
    indexes = wanted_of([_step_of(item) for item in ours], newest=NEWEST, spaced=SPACED, near=near)
    wanted = {item.key for index, item in enumerate(ours) if index in indexes}
    wanted |= {item.key for item in strangers[:MAX_STRANGERS]}
    return [item for item in newest_first if item.key in wanted]


def _writer_of(item: Listed) -> tuple[int | None, str]:
    """Step and attempt that a manifest's key names."""
    key = parse_key(item.key)
    return (key.step, key.name) if key is not None and key.name is not None else (None, "")


def _step_of(item: Listed) -> int:
    key = parse_key(item.key)
    return key.step if key is not None and key.step is not None else 0


def _place(uri: str) -> Place | None:
    """The place, None for what is none in S3."""
    try:
        place = Place.parse(uri) if uri else None
    except MailboxError:
        return None
    return place if place is not None and place.bucket is not None else None


def _places(job: Job) -> tuple[Place, ...]:
    """Where to look, none of them within another."""
    places: list[Place] = []
    for place in (_place(job.checkpoints), _place(job.mailbox)):
        if place is not None and not any(_touch(place.uri, other.uri) for other in places):
            places.append(place)
    return tuple(places)


def _touch(root: str, other: str) -> bool:
    """One lies within the other, or both are the same."""
    root, other = root.rstrip("/"), other.rstrip("/")
    return root == other or root.startswith(f"{other}/") or other.startswith(f"{root}/")


if TYPE_CHECKING:
    from chalicelib.domain.model.job import Attempt, Job
    from rekindle.protocol.cluster.documents import FoundCheckpoint


class FoundCheckpoints:
    """Reads them; `bucket` is the stack's own."""

    def __init__(self, objects: S3Objects, bucket: str) -> None:
        self._objects = objects
        self._bucket = bucket

    def is_for(self, job: Job) -> bool:
        """True for a Job on a cluster whose checkpoints (or mailbox, where nothing else tells) lie on a shared path."""
        if not job.cluster:
            return False
        if job.checkpoints:
            return _is_directory(job.checkpoints)
        return job.mailbox.startswith(f"s3://{self._bucket}/{cluster_prefix(job.cluster)}")

    def of(self, job: Job, attempts: Sequence[Attempt]) -> list[CheckpointView]:
        """In the agent's order; empty for a Job that this is not for.

        Raises:
            DependencyUnavailable: the agent has not looked yet, or its list cannot be used.
        """
        if not self.is_for(job):
            return []
        key = found_key(job.cluster, job.job_id)
        raw = self._objects.read(Place(bucket=self._bucket, path=key), MAX_MESSAGE_BYTES)
        if raw is None:
            raise DependencyUnavailable(f"the agent has not listed the checkpoints of {job.job_id} yet")
        try:
            doc = FoundDoc.from_json(raw)
            insist(doc.job_id == job.job_id, "job_id", f"is {doc.job_id}")
            return [_view(found, attempts) for found in doc.checkpoints]
        except MailboxError as err:
            raise DependencyUnavailable(f"the list of checkpoints cannot be used: {err}"[:300]) from err


def _view(found: FoundCheckpoint, attempts: Sequence[Attempt]) -> CheckpointView:
    """Raises: MailboxError for a root that is no place."""
    writer, fenced = found.attempt, False
    if writer:
        known = next((attempt for attempt in attempts if attempt.name == writer), None)
        fenced = known is None or (known.superseded_at is not None and found.saved_at > known.superseded_at)
    else:
        writer, fenced = attributed(found.step, [found.saved_at], attempts)
    return CheckpointView(
        step=found.step,
        root=Place.parse(found.root, "root").uri,
        manifest=Place.parse(found.manifest, "manifest").uri if found.manifest else "",
        attempt=writer,
        kind=found.kind,
        saved_at=found.saved_at,
        problems=found.problems,
        fenced=fenced,
        loss_unread=found.loss_unread,
    )


def _is_directory(uri: str) -> bool:
    try:
        return bool(uri) and Place.parse(uri).bucket is None
    except MailboxError:
        return False
