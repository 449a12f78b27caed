"""The mailbox in S3: heartbeats, requests, replies, manifests, the fence. Formats and limits: rekindle/mailbox.py.

Whatever lies in a mailbox was written by a training process and is untrusted: too large, half written, or lying. Each
reader answers Unknown or a problem with the reason; nothing in a bucket makes a look fail.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from chalicelib.adapters.errors import AwsRefusal, call
from chalicelib.domain.actions import ActionResult, Done, QuarantineCheckpoint, RequestCheckpoint, action_name
from chalicelib.domain.errors import DependencyUnavailable, NotAuthorized, Permanent, VersionConflict
from chalicelib.domain.evidence import FORENSIC, is_forensic
from chalicelib.domain.jobs import Attempt, Job
from chalicelib.domain.known import Known, Maybe, Unknown
from chalicelib.domain.observations import AttemptView, CheckpointView, ReplyView
from rekindle.checkpoints.marks import MAX_MARK_BYTES, PROBLEM, QuarantineMark, mark_key, quarantine_prefix
from rekindle.mailbox import (
    MAX_MANIFEST_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_TEXT_CHARS,
    Beat,
    CheckpointReply,
    CheckpointRequest,
    Fence,
    KeyKind,
    MailboxError,
    Manifest,
    Place,
    beat_key,
    fence_key,
    manifest_prefix,
    parse_key,
    relative_path,
    reply_key,
    request_key,
    verify_listing,
)
from rekindle.reports import (
    MAX_REPORT_BYTES,
    RankReport,
    ReportKind,
    parse_report_key,
    report_key,
    report_prefix,
)

_LOG = logging.getLogger(__name__)

# A resume point is wanted near the end of the run, or before an onset that may lie further back: the newest manifests
# are all read, then ever sparser ones. 16 + 8 reach back through 2,300 manifests in 24 reads.
NEWEST: Final = 16
SPACED: Final = 8
MAX_STRANGERS: Final = 4  # manifests of attempts that are not the Job's: shown as fenced, never worth more reads
MAX_MANIFESTS: Final = 2500  # kept of a listing: all that the spacing can reach, and strangers between them
MAX_LISTED: Final = 300_000  # keys; a checkpoint has at most 40,000 files, a run saves less often than this
MAX_REPORTS: Final = 1024  # ranks; more are not read in one look
REPORT_READERS: Final = 16
MAX_SUPERSEDED: Final = 1000  # the wire format's limit

_PAGE: Final = 1000  # Source: ListObjectsV2, MaxKeys
_MISSING: Final = ("NoSuchKey", "NoSuchBucket", "404")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """An object as listed."""

    key: str
    bytes: int
    modified_at: datetime


class S3Mailbox:
    """ports.Mailbox; `client` is a boto3 S3 client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    # ---- heartbeat and reply ---------------------------------------------------------------------------------------

    def beat(self, job: Job, attempt: AttemptView) -> AttemptView:
        """See ports.Mailbox. A heartbeat that cannot be read makes both steps Unknown, with the reason."""
        try:
            place = _root(job).join(beat_key(attempt.name))
            raw = self._read(place, MAX_MESSAGE_BYTES)
            if raw is None:
                return attempt
            beat = Beat.from_json(raw)
            _insist(beat.attempt == attempt.name, "attempt", f"is {beat.attempt}")
            # A clone made by hand may have been told no job id: its monitor then takes its own name for one.
            _insist(beat.job_id in (job.job_id, attempt.name), "job_id", f"is {beat.job_id}")
        except (MailboxError, NotAuthorized) as err:
            why = Unknown(f"the heartbeat cannot be read: {err}"[:200])
            return attempt if not job.mailbox else replace(attempt, first_step=why, last_step=why)
        return replace(
            attempt,
            first_step=_step(beat.first_step),
            last_step=_step(beat.step),
            beat_at=beat.at,
            loss_state=beat.loss_state.value,
            work=beat.phase.value,
            step_s=beat.step_s_median,
            loss_health=beat.loss_health,
            onset_step=beat.onset_step,
            healed_step=beat.healed_step,
            loss_baseline=beat.loss_baseline,
            judged_step=beat.judged_step,
        )

    def reports(self, job: Job, attempt: str, kind: ReportKind) -> Maybe[tuple[RankReport, ...]]:
        """See ports.Mailbox. A report that cannot be read is left out: its rank then counts as silent.

        Read side by side, because a hang of 512 ranks is 512 objects and every second of it costs as many GPUs.
        """
        try:
            root = _root(job)
            listed = (parse_report_key(item.key) for item in self._list(root.join(report_prefix(attempt)), folder=True))
            keys = [key for key in listed if key is not None and key.attempt == attempt]
            wanted = {key.rank: key for key in keys if key.kind is not kind} | {
                key.rank: key for key in keys if key.kind is kind
            }
            if len(wanted) > MAX_REPORTS:
                return Unknown(f"{len(wanted)} ranks have reported, more than the {MAX_REPORTS} of one look")
            places = [root.join(report_key(key.attempt, key.kind, key.rank)) for key in wanted.values()]
            with ThreadPoolExecutor(max_workers=REPORT_READERS) as readers:
                found = list(readers.map(lambda place: self._report(job, attempt, place), places))
        except (MailboxError, NotAuthorized) as err:
            return Unknown(f"the ranks' reports cannot be read: {err}"[:200])
        return Known(tuple(report for report in found if report is not None))

    def _report(self, job: Job, attempt: str, place: Place) -> RankReport | None:
        raw = self._read(place, MAX_REPORT_BYTES)
        try:
            report = RankReport.from_json(raw or b"")
            _insist(report.attempt == attempt, "attempt", f"is {report.attempt}")
            _insist(report.job_id in (job.job_id, attempt), "job_id", f"is {report.job_id}")
        except MailboxError as err:
            _LOG.warning("a rank's report cannot be used", extra={"key": place.path, "field": err.field})
            return None
        return report

    def reply(self, job: Job, request_id: str) -> Maybe[ReplyView | None]:
        """See ports.Mailbox."""
        try:
            raw = self._read(_root(job).join(reply_key(request_id)), MAX_MESSAGE_BYTES)
            if raw is None:
                return Known(None)
            reply = CheckpointReply.from_json(raw)
            _insist(reply.request_id == request_id, "request_id", f"is {reply.request_id}")
            _insist(reply.job_id == job.job_id, "job_id", f"is {reply.job_id}")
        except (MailboxError, NotAuthorized) as err:
            return Unknown(f"the reply cannot be read: {err}"[:200])
        return Known(
            ReplyView(request_id=reply.request_id, outcome=reply.outcome.value, step=reply.step, why=reply.why[:400])
        )

    # ---- request and fence -----------------------------------------------------------------------------------------

    def ask(self, job: Job, action: RequestCheckpoint, *, incident_id: str, now: datetime) -> ActionResult:  # noqa: ARG002 - the port's signature
        """See ports.Mailbox."""
        name = action_name(action)
        if not job.mailbox:
            return ActionResult(action=name, done=Done.REFUSED, detail="the run has no mailbox")
        try:
            place = _root(job).join(request_key(action.request_id))
            wanted = CheckpointRequest(
                request_id=action.request_id,
                job_id=job.job_id,
                attempt=action.attempt,
                deadline_at=action.deadline_at,
                reason=action.why[:MAX_TEXT_CHARS],
                incident_id=incident_id,
            )
            if self._create(place, wanted.to_json()):
                return ActionResult(action=name, done=Done.DONE, detail=action.request_id)
            there = CheckpointRequest.from_json(self._read(place, MAX_MESSAGE_BYTES) or b"")
        except MailboxError as err:
            return ActionResult(action=name, done=Done.REFUSED, detail=f"the mailbox cannot be used: {err}"[:400])
        same = (there.request_id, there.job_id, there.attempt) == (action.request_id, job.job_id, action.attempt)
        if same:
            return ActionResult(action=name, done=Done.ALREADY, detail=action.request_id)
        return ActionResult(action=name, done=Done.REFUSED, detail="another request has this id")

    def fence(self, job: Job, *, attempt: str, number: int, superseded: Sequence[str], now: datetime) -> None:
        """See ports.Mailbox.

        A fence never goes back: each write is conditional on the one that was read.

        Raises:
            VersionConflict: the fence names a newer attempt, or somebody else writes it now.
            Permanent: the mailbox or a name is not usable.
        """
        if not job.mailbox:
            return
        try:
            place = _root(job).join(fence_key())
            raw, etag = self._read_with_etag(place, MAX_MESSAGE_BYTES)
            there = _fence_of(raw)
            if there is not None and there.job_id == job.job_id:
                if there.attempt_number > number:
                    raise VersionConflict(f"the fence of {job.job_id} names {there.attempt}, newer than {attempt}")
                superseded = [*there.superseded, *(name for name in superseded if name not in there.superseded)]
                if there.attempt not in (attempt, *superseded):
                    superseded.append(there.attempt)
            others = tuple(name for name in superseded if name != attempt)[-MAX_SUPERSEDED:]
            stands = there is not None and (there.attempt, there.attempt_number) == (attempt, number)
            if stands and there is not None and set(others) <= set(there.superseded):
                return
            body = Fence(
                job_id=job.job_id, attempt=attempt, attempt_number=number, superseded=others, written_at=now
            ).to_json()
        except MailboxError as err:
            raise Permanent(f"the fence cannot be written: {err}") from err
        condition = {"IfMatch": etag} if etag is not None else {"IfNoneMatch": "*"}
        self._write(place, body, **condition)

    def quarantine(self, job: Job, action: QuarantineCheckpoint, *, by: str, now: datetime) -> ActionResult:
        """See ports.Mailbox."""
        name = action_name(action)
        if not job.mailbox:
            return ActionResult(action=name, done=Done.REFUSED, detail="the run has no mailbox")
        try:
            mark = QuarantineMark(root=action.root, why=action.why, by=by, at=now)
            is_new = self._create(_root(job).join(mark.key), mark.to_json())
        except MailboxError as err:
            return ActionResult(action=name, done=Done.REFUSED, detail=f"it cannot be marked: {err}"[:400])
        return ActionResult(action=name, done=Done.DONE if is_new else Done.ALREADY, detail=action.root[:400])

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoints(self, job: Job, attempts: Sequence[Attempt]) -> Known[tuple[CheckpointView, ...]]:
        """See ports.Mailbox.

        Fenced: of an attempt after it was superseded, or of a name that is none of the Job's attempts. The oldest
        checkpoints are left out where there are many.

        Raises:
            DependencyUnavailable: also where listing is not allowed.
        """
        try:
            root = _root(job)
        except MailboxError:
            return Known(())
        by_name = {attempt.name: attempt for attempt in attempts}
        found = (item for item in self._list(root.join(manifest_prefix()), folder=True) if _is_manifest(item.key))
        try:
            listed = deque(found, maxlen=MAX_MANIFESTS)  # keys come oldest first; the newest stay
        except NotAuthorized as err:  # no list is not an empty list: the run may well have checkpoints
            raise DependencyUnavailable(f"the manifests cannot be listed: {err}") from err
        chosen = _chosen(list(reversed(listed)), by_name)
        return Known(self._marked(root, [self._checkpoint(job, root, item, by_name) for item in chosen]))

    def _marked(self, root: Place, views: Sequence[CheckpointView]) -> tuple[CheckpointView, ...]:
        """The same, each quarantined one with its mark as a problem."""
        there = {item.key for item in self._list(root.join(quarantine_prefix()), folder=False)} if views else set()
        marked = []
        for view in views:
            place = root.join(mark_key(view.root)) if there and view.root else None
            if place is not None and place.path in there:
                view = replace(view, problems=(*view.problems, self._mark_at(place)))
            marked.append(view)
        return tuple(marked)

    def _mark_at(self, place: Place) -> str:
        try:
            return QuarantineMark.from_json(self._read(place, MAX_MARK_BYTES) or b"").problem
        except MailboxError as err:  # a mark that cannot be read is still a mark
            return f"{PROBLEM}: {err}"[:200]

    def _checkpoint(self, job: Job, root: Place, item: _Object, attempts: Mapping[str, Attempt]) -> CheckpointView:
        key = parse_key(item.key)
        assert key is not None and key.step is not None  # noqa: S101, PT018 - _is_manifest has checked it
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
            raw = self._read(Place(bucket=root.bucket, path=item.key), MAX_MANIFEST_BYTES)
            manifest = Manifest.from_json(raw or b"")
            _insist(manifest.step == key.step, "step", f"is {manifest.step}, not the name's")
            _insist(manifest.attempt == key.name, "attempt", f"is {manifest.attempt}, not the name's")
            _insist(manifest.job_id in (job.job_id, manifest.attempt), "job_id", f"is {manifest.job_id}")
        except MailboxError as err:
            return replace(view, problems=(f"the manifest cannot be used: {err}"[:200],))
        writer = attempts.get(manifest.attempt)
        late = writer is not None and writer.superseded_at is not None and manifest.saved_at > writer.superseded_at
        view = replace(
            view,
            root=manifest.root,
            kind=FORENSIC if is_forensic(manifest.request_id) else manifest.kind.value,
            saved_at=manifest.saved_at,
            fenced=view.fenced or late,
        )
        if view.fenced:
            return view  # never resumed from, so not worth a listing
        return replace(view, problems=self._problems(manifest))

    def _problems(self, manifest: Manifest) -> tuple[str, ...]:
        """What keeps the checkpoint from being verified, at most ten of it."""
        root = Place.parse(manifest.root)
        if root.bucket is None:
            return ("its files lie on a file system that the service cannot see",)
        try:
            listing = {item.key: item.bytes for item in self._list(root, folder=False)}
        except (Permanent, NotAuthorized) as err:
            return (f"its files cannot be listed: {err}"[:200],)
        sizes = {path: size for key, size in listing.items() if (path := relative_path(root.path, key)) is not None}
        problems = verify_listing(manifest, sizes)
        return problems if len(problems) <= 10 else (*problems[:10], f"and {len(problems) - 10} more")

    # ---- objects ---------------------------------------------------------------------------------------------------

    def _read(self, place: Place, limit: int) -> bytes | None:
        return self._read_with_etag(place, limit)[0]

    def _read_with_etag(self, place: Place, limit: int) -> tuple[bytes | None, str | None]:
        """The object, None if there is none; never more than `limit` + 1 bytes of it, which no parser accepts."""
        try:
            answer = call(
                self._client.get_object,
                expect=(*_MISSING, "InvalidRange"),
                Bucket=place.bucket,
                Key=place.path,
                Range=f"bytes=0-{limit}",
            )
        except AwsRefusal as refusal:
            if refusal.code != "InvalidRange":
                return None, None
            head = call(self._client.head_object, Bucket=place.bucket, Key=place.path)  # an empty object
            return b"", head.get("ETag")
        return answer["Body"].read(limit + 1), answer.get("ETag")

    def _create(self, place: Place, body: bytes) -> bool:
        """False if there is an object already."""
        try:
            call(
                self._client.put_object,
                expect=("PreconditionFailed", "412"),
                Bucket=place.bucket,
                Key=place.path,
                Body=body,
                ContentType="application/json",
                IfNoneMatch="*",
            )
        except AwsRefusal:
            return False
        return True

    def _write(self, place: Place, body: bytes, **condition: str) -> None:
        try:
            call(
                self._client.put_object,
                expect=("PreconditionFailed", "412"),
                Bucket=place.bucket,
                Key=place.path,
                Body=body,
                ContentType="application/json",
                **condition,
            )
        except AwsRefusal as refusal:
            raise VersionConflict(f"{place.uri} was written by somebody else") from refusal

    def _list(self, place: Place, *, folder: bool) -> Iterator[_Object]:
        """Objects below `place`, or `place` itself where it is no folder; in the order of their keys, bounded."""
        prefix = place.path.rstrip("/") + ("/" if folder else "") if place.path else ""
        request: dict[str, Any] = {"Bucket": place.bucket, "Prefix": prefix, "MaxKeys": _PAGE}
        seen = 0
        while True:
            try:
                page = call(self._client.list_objects_v2, expect=_MISSING, **request)
            except AwsRefusal:
                return  # no bucket, no objects
            for entry in page.get("Contents", ()):
                seen += 1
                yield _Object(key=entry["Key"], bytes=int(entry["Size"]), modified_at=entry["LastModified"])
            if not page.get("IsTruncated") or seen >= MAX_LISTED:
                return
            request["ContinuationToken"] = page["NextContinuationToken"]


def _root(job: Job) -> Place:
    """Raises: MailboxError where the Job has no mailbox in S3."""
    if not job.mailbox:
        raise MailboxError("mailbox", "the run has none")
    place = Place.parse(job.mailbox, "mailbox")
    if place.bucket is None:
        raise MailboxError("mailbox", "is a directory, which the service cannot see")
    return place


def _is_manifest(key: str) -> bool:
    parsed = parse_key(key)
    return parsed is not None and parsed.kind is KeyKind.MANIFEST


def _chosen(newest_first: Sequence[_Object], attempts: Mapping[str, Attempt]) -> list[_Object]:
    """The manifests worth reading, newest first: see NEWEST, SPACED and MAX_STRANGERS."""
    ours: list[_Object] = []
    strangers: list[_Object] = []
    for item in newest_first:
        key = parse_key(item.key)
        (ours if key is not None and key.name in attempts else strangers).append(item)
    spaced = [NEWEST - 1 + 2**power for power in range(SPACED + 1)]
    wanted = {item.key for index, item in enumerate(ours) if index < NEWEST or index in spaced}
    wanted |= {item.key for item in strangers[:MAX_STRANGERS]}
    return [item for item in newest_first if item.key in wanted]


def _fence_of(raw: bytes | None) -> Fence | None:
    """The fence there, None for none or for one that cannot be read, which is written over."""
    if raw is None:
        return None
    try:
        return Fence.from_json(raw)
    except MailboxError as err:
        _LOG.warning("an unreadable fence is written over", extra={"field": err.field})
        return None


def _step(step: int | None) -> Maybe[int]:
    return Unknown("no step seen yet") if step is None else Known(step)


def _insist(holds: bool, field: str, problem: str) -> None:
    if not holds:
        raise MailboxError(field, problem)
