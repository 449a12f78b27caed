"""The mailbox in S3: heartbeats, requests, replies, manifests, the fence.

Formats and limits: rekindle/protocol/mailbox.py.
Whatever lies in a mailbox was written by a training process and is untrusted: too large, half written, or lying. Each
reader answers Unknown or a problem with the reason; nothing in a bucket makes a look fail.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from chalicelib.aws.s3.objects import S3Objects, insist, lives_in
from chalicelib.domain.model.action import ActionResult, Done, QuarantineCheckpoint, RequestCheckpoint, action_name
from chalicelib.domain.model.errors import DependencyUnavailable, NotAuthorized, Permanent, VersionConflict
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView, ReplyView
from rekindle.checkpoints.marks import QuarantineMark
from rekindle.protocol.keys import (
    KeyKind,
    doorbell_key,
    fence_key,
    heartbeat_key,
    heartbeat_prefix,
    parse_key,
    plan_key,
    reply_key,
    request_key,
)
from rekindle.protocol.launch_orders import AttemptOrder, Plan
from rekindle.protocol.mailbox import MAX_DEADLINE_S, CheckpointReply, CheckpointRequest, Fence, Heartbeat
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MAX_TEXT_CHARS, MailboxError, Place

if TYPE_CHECKING:
    from chalicelib.aws.s3.checkpoints import S3Checkpoints
    from rekindle.protocol.reports import RankReport, ReportKind

_LOG = logging.getLogger(__name__)

FIRST_FENCED: Final = 2  # the number of the attempt with which most fences begin
MAX_SUPERSEDED: Final = 1000  # the wire format's limit


class S3Mailbox:
    """ports.Mailbox; `client` is a boto3 S3 client, `bucket` the stack's own (see S3Checkpoints)."""

    def __init__(self, client: Any, *, bucket: str) -> None:
        self._objects = S3Objects(client)
        self._bucket = bucket

    @cached_property
    def _checkpoints(self) -> S3Checkpoints:
        """The manifests' readers are loaded by the first search: an event needs none."""
        from chalicelib.aws.s3.checkpoints import S3Checkpoints

        return S3Checkpoints(self._objects, bucket=self._bucket)

    # ---- heartbeat and reply ---------------------------------------------------------------------------------------

    def heartbeat(self, job: Job, attempt: AttemptView) -> AttemptView:
        """See ports.Mailbox. A heartbeat that cannot be read makes both steps Unknown, with the reason."""
        try:
            newest = self._newest(job, attempt.name)
        except (MailboxError, NotAuthorized) as err:
            why = Unknown(f"the heartbeat cannot be read: {err}"[:200])
            if not job.mailbox:
                return attempt
            is_unread = isinstance(err, MailboxError)  # there is one, whatever it says
            return replace(attempt, first_step=why, last_step=why, is_heartbeat_unread=is_unread)
        if newest is None:
            has_completed = attempt.status is AttemptStatus.COMPLETED
            return replace(attempt, is_heartbeat_unread=has_completed and self._is_claimed(job, attempt.name))
        heartbeat, written_at = newest
        return replace(
            attempt,
            first_step=_step(heartbeat.first_step),
            last_step=_step(heartbeat.step),
            heartbeat_at=written_at or heartbeat.at,  # the store's clock: the training host's may be minutes off
            loss_state=heartbeat.loss_state.value,
            work=heartbeat.phase.value,
            step_s=heartbeat.step_s_median,
            loss_health=heartbeat.loss_health,
            onset_step=heartbeat.onset_step,
            healed_step=heartbeat.healed_step,
            loss_baseline=heartbeat.loss_baseline,
            judged_step=heartbeat.judged_step,
            is_heartbeat_last=heartbeat.is_last,
            life=heartbeat.life,
            died_of=heartbeat.died_of,
        )

    def _is_claimed(self, job: Job, attempt: str) -> bool:
        """A process holds the attempt, or has: its monitor writes heartbeats, and none that is found is no evidence."""
        if not job.mailbox:
            return False
        try:
            return any(lives_in(self._objects, _root(job)).claims(attempt))
        except (MailboxError, NotAuthorized):
            return False

    def _newest(self, job: Job, attempt: str) -> tuple[Heartbeat, datetime | None] | None:
        """The attempt's heartbeat, and when the store got it; None while there is none.

        Raises:
            MailboxError: it cannot be used, or is not the attempt's.
            NotAuthorized: it may not be read.
        """
        raw, written_at = self._objects.read_dated(_root(job).join(heartbeat_key(attempt)), MAX_MESSAGE_BYTES)
        if raw is None:
            return None
        heartbeat = Heartbeat.from_json(raw)
        insist(heartbeat.attempt == attempt, "attempt", f"is {heartbeat.attempt}")
        insist(job.is_named(heartbeat.job_id, attempt=attempt), "job_id", f"is {heartbeat.job_id}")
        return heartbeat, written_at

    def heartbeat_times(self, job: Job) -> Mapping[str, datetime]:
        """See ports.Mailbox: one listing, which dates each heartbeat by the store's clock."""
        if not job.mailbox:
            return {}
        try:
            folder = _root(job).join(heartbeat_prefix())
            listed = list(self._objects.below(folder, folder=True))
        except (MailboxError, NotAuthorized) as err:
            raise DependencyUnavailable(f"the heartbeats of {job.job_id} cannot be listed: {err}"[:300]) from err
        keys = ((parse_key(item.key), item.modified_at) for item in listed)
        return {key.name: at for key, at in keys if key is not None and key.kind is KeyKind.HEARTBEAT}

    def reports(self, job: Job, attempt: str, kind: ReportKind, *, life: int = 0) -> Maybe[tuple[RankReport, ...]]:
        """See ports.Mailbox, and S3Reports."""
        from chalicelib.aws.s3.reports import S3Reports  # loaded by the recoveries that ask the ranks

        try:
            return S3Reports(self._objects).of(job, _root(job), attempt, kind, life)
        except (MailboxError, NotAuthorized) as err:
            return Unknown(f"the ranks' reports cannot be read: {err}"[:200])

    def reply(self, job: Job, request_id: str) -> Maybe[ReplyView | None]:
        try:
            raw = self._objects.read(_root(job).join(reply_key(request_id)), MAX_MESSAGE_BYTES)
            if raw is None:
                return Known(None)
            reply = CheckpointReply.from_json(raw)
            insist(reply.request_id == request_id, "request_id", f"is {reply.request_id}")
            insist(job.is_named(reply.job_id, attempt=reply.attempt), "job_id", f"is {reply.job_id}")
        except (MailboxError, NotAuthorized) as err:
            return Unknown(f"the reply cannot be read: {err}"[:200])
        return Known(
            ReplyView(request_id=reply.request_id, outcome=reply.outcome.value, step=reply.step, why=reply.why[:400])
        )

    # ---- request and fence -----------------------------------------------------------------------------------------

    def ask(self, job: Job, action: RequestCheckpoint, *, incident_id: str, now: datetime) -> ActionResult:
        name = action_name(action)
        if not job.mailbox:
            return ActionResult(action=name, done=Done.REFUSED, detail="the run has no mailbox")
        try:
            place = _root(job).join(request_key(action.request_id))
            wanted = CheckpointRequest(
                request_id=action.request_id,
                job_id=self._signer(job, action.attempt),
                attempt=action.attempt,
                deadline_s=min(max((action.deadline_at - now).total_seconds(), 0.0), MAX_DEADLINE_S),
                reason=action.why[:MAX_TEXT_CHARS],
                incident_id=incident_id,
            )
            if self._objects.create(place, wanted.to_json()):
                self._ring(job, action.request_id)
                return ActionResult(action=name, done=Done.DONE, detail=action.request_id)
            there = CheckpointRequest.from_json(self._objects.read(place, MAX_MESSAGE_BYTES) or b"")
        except MailboxError as err:
            return ActionResult(action=name, done=Done.REFUSED, detail=f"the mailbox cannot be used: {err}"[:400])
        is_ours = job.is_named(there.job_id, attempt=action.attempt)
        if is_ours and (there.request_id, there.attempt) == (action.request_id, action.attempt):
            self._ring(job, action.request_id)  # its writer may have died before ringing
            return ActionResult(action=name, done=Done.ALREADY, detail=action.request_id)
        return ActionResult(action=name, done=Done.REFUSED, detail="another request has this id")

    def _signer(self, job: Job, attempt: str) -> str:
        """The Job's id as the attempt's monitor knows it, which obeys no other: one that was started by hand may have
        been given none (Job.is_named).
        """
        with suppress(MailboxError, NotAuthorized):
            if newest := self._newest(job, attempt):
                return newest[0].job_id
        return job.job_id

    def fence(self, job: Job, *, attempt: str, number: int, superseded: Sequence[str], now: datetime) -> None:
        """See ports.Mailbox.

        A fence never goes back: each write is conditional on the one that was read.

        Raises:
            VersionConflict: the fence names a newer attempt, or another writer is writing it now.
            Permanent: the mailbox or a name is not usable.
        """
        if not job.mailbox:
            return
        try:
            place = _root(job).join(fence_key())
            if number <= FIRST_FENCED and self._is_first_fence(place, job, attempt, number, superseded, now):
                self._ring(job, attempt)
                return
            raw, etag = self._objects.read_with_etag(place, MAX_MESSAGE_BYTES)
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
        self._objects.write(place, body, **condition)
        self._ring(job, attempt)

    def _is_first_fence(
        self, place: Place, job: Job, attempt: str, number: int, superseded: Sequence[str], now: datetime
    ) -> bool:
        """Whether it is written now. Most Jobs have no fence before their second attempt: that need not be read."""
        others = tuple(name for name in superseded if name != attempt)[-MAX_SUPERSEDED:]
        body = Fence(
            job_id=job.job_id, attempt=attempt, attempt_number=number, superseded=others, written_at=now
        ).to_json()
        return self._objects.create(place, body)

    def plan(self, job: Job, attempt: str, order: AttemptOrder, *, now: datetime) -> None:
        """See ports.Mailbox. The newest one counts: it is written again whenever its start is ordered again."""
        if not job.mailbox:
            return
        try:
            plan = Plan.of(attempt=attempt, order=order, written_at=now)
            self._objects.write(_root(job).join(plan_key(attempt)), plan.to_json())
        except MailboxError as err:
            raise Permanent(f"the plan of {attempt} cannot be written: {err}") from err

    def _ring(self, job: Job, news: str) -> None:
        """Change the doorbell's bytes: a monitor that finds them unchanged lists requests once a minute only.

        Best effort. A bell that did not ring costs that minute at most, so nothing is refused or repeated for it.
        """
        try:
            self._objects.write(_root(job).join(doorbell_key()), json.dumps({"news": news}).encode())
        except (DependencyUnavailable, NotAuthorized, Permanent, VersionConflict) as err:
            _LOG.warning("the mailbox's doorbell could not be rung: %s", err)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoints(
        self, job: Job, attempts: Sequence[Attempt], *, near: Sequence[int] = ()
    ) -> Known[tuple[CheckpointView, ...]]:
        """See ports.Mailbox.

        Raises:
            DependencyUnavailable: also where listing is not allowed.
        """
        return Known(self._checkpoints.of(job, attempts, near=near))

    def quarantine(self, job: Job, action: QuarantineCheckpoint, *, by: str, now: datetime) -> ActionResult:
        name = action_name(action)
        if not job.mailbox:
            return ActionResult(action=name, done=Done.REFUSED, detail="the run has no mailbox")
        try:
            mark = QuarantineMark(root=action.root, why=action.why, by=by, at=now)
            is_new = self._objects.create(_root(job).join(mark.key), mark.to_json())
        except MailboxError as err:
            return ActionResult(action=name, done=Done.REFUSED, detail=f"it cannot be marked: {err}"[:400])
        return ActionResult(action=name, done=Done.DONE if is_new else Done.ALREADY, detail=action.root[:400])


def _root(job: Job) -> Place:
    """Raises: MailboxError where the Job has no mailbox in S3."""
    if not job.mailbox:
        raise MailboxError("mailbox", "the run has none")
    place = Place.parse(job.mailbox, "mailbox")
    if place.bucket is None:
        raise MailboxError("mailbox", "is a directory, which the service cannot see")
    return place


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
