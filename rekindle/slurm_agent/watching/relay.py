"""Carries mailboxes that lie on shared paths to S3 and back, and tells which checkpoints lie there.

From S3 to the path: what the service writes (requests, plans, the fence, quarantine marks, the doorbell last). From the
path to S3: what the run writes (heartbeats, replies, manifests, hashes, reports), each only as a whole message that its
own reader accepts. Other names are ignored and stay where they are; no link is followed inside the mailbox, and every
file is touched as the job's user (see userfs.py), in a process that may be left behind (see workers.py).

The doorbell says whether there is something new in S3: one GET a pass, and a LIST of each kind when it rang or once a
minute.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from rekindle.protocol.cluster.documents import FoundDoc
from rekindle.protocol.cluster.names import found_key, relay_prefix
from rekindle.protocol.keys import KeyKind, doorbell_key, parse_key
from rekindle.protocol.mailbox import CheckpointRequest
from rekindle.protocol.store_clock import age_s
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MailboxError, Place
from rekindle.slurm_agent.base.ports import LeaseHolder, Memory, NotHolder, Reading, SlurmUnavailable
from rekindle.slurm_agent.files.messages import FOR_THE_RUN, MAX_FILES, is_for_the_run
from rekindle.slurm_agent.files.time_spent import TimeSpent
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.workers import WorkPending
from rekindle.slurm_agent.watching.followed_jobs import FollowedJob, FollowedJobs

log = logging.getLogger(__name__)

LIST_EVERY: Final = timedelta(seconds=60)
# How often checkpoints are looked for: often enough to see the answer to a signal, and never a twentieth of the time.
FOUND_EVERY: Final = timedelta(seconds=10)
FOUND_AT_LEAST_EVERY: Final = timedelta(minutes=10)
JUDGE_AT_LEAST_EVERY_OF_MANY: Final = timedelta(hours=1)  # of a user whose folders take long
JUDGE_SHARE: Final = 20  # of the time, for one user
JUDGE_SHARE_OF_ALL: Final = 4
USER_S: Final = 5.0  # what one user's mailboxes may take in one pass; the others of his have the next
DELIVERY_S: Final = 30.0
MAX_OBJECTS: Final = 2000  # of one kind in one listing of a mailbox
# What one mailbox may bring in one pass; the rest comes with the next ones. A user who fills his must not fill the head
# node's memory, nor keep the others' waiting.
MAX_SENT: Final = 500
MAX_SENT_BYTES: Final = 16 * 1024 * 1024
SENT: Final = "relay/sent/"


@dataclass(slots=True)
class _Box:
    """What is known of one Job's mailbox. `sent` are stamps of files in S3, `taken` ETags of what was brought here."""

    sent: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    rang: str | None = None
    listed_at: datetime | None = None
    judged_at: datetime | None = None
    judge_every: timedelta = FOUND_EVERY
    judge_took: timedelta = timedelta(0)
    judging_since: float | None = None
    uid: int | None = None
    reported: str = ""


class MailboxRelay:
    """`files` touches the users' paths; no thread of the agent does. `holding`: see `ports.AgentContext`. `observes`:
    nothing is brought to a run now."""

    def __init__(
        self,
        *,
        cluster: str,
        bucket: str,
        s3: Any,
        memory: Memory,
        followed_jobs: FollowedJobs,
        files: UserFiles | None = None,
        holding: LeaseHolder | None = None,
        observes: Callable[[], bool] = lambda: False,
    ) -> None:
        self._observes = observes
        self._files = files or UserFiles()
        self._holding = holding
        self._cluster = cluster
        self._bucket = bucket
        self._s3 = s3
        self._followed_jobs = followed_jobs
        self._boxes: dict[str, _Box] = {}
        self._later: set[str] = set()  # that wait for the next pass
        self._carrying = threading.Lock()  # of `_down`, which the orders' thread may need at once
        for key, raw in memory.items(SENT).items():
            self._boxes[key[len(SENT) :]] = _Box(sent=_stamps(raw))

    def run_once(self, now: datetime) -> Reading:
        documents: dict[str, bytes] = {}
        memory: dict[str, bytes | None] = {}
        problems: list[str] = []
        spent = TimeSpent(USER_S)
        later: set[str] = set()
        for member in sorted(self._followed_jobs.members(), key=lambda member: member.job_id not in self._later):
            if spent.is_over(member.uid):
                later.add(member.job_id)
                continue
            with spent.by(member.uid):
                try:
                    self._carry(member, now, documents, memory, problems)
                except WorkPending:
                    continue
                except NotHolder:
                    break
                except (OSError, MailboxError) as err:
                    problems.append(_problem(member, err))
                except Exception as err:  # a defect of ours that one mailbox brings out must not keep all others
                    log.exception("part=relay job=%s", member.job_id)
                    problems.append(_problem(member, err))
        self._later = later
        return Reading(documents=documents, memory=memory, problems=tuple(problems[:20]))

    def deliver(self, slurm_job: int, timeout_s: float = DELIVERY_S) -> None:
        """Bring now what the service wrote for that job's run: its next start reads its plan once, at its beginning.

        Raises: SlurmUnavailable where that cannot be done at present; starting without the plan would be worse.
        """
        for member in self._followed_jobs.members():
            root = shared_path(member.mailbox)
            if member.slurm_job != slurm_job or root is None:
                continue
            failed: list[Exception] = []
            # A thread of its own: S3 that does not answer must not hold up all other orders.
            work = threading.Thread(target=self._bring_all, args=(member, root, failed), daemon=True)
            work.start()
            work.join(timeout_s)
            if work.is_alive() or failed:
                why = f"{type(failed[0]).__name__}: {failed[0]}" if failed else f"no answer within {timeout_s:.0f} s"
                raise SlurmUnavailable(f"the plan cannot be brought to the mailbox of {member.job_id}: {why}"[:400])

    def _bring_all(self, member: FollowedJob, root: str, failed: list[Exception]) -> None:
        try:
            with self._carrying:
                box = self._boxes.setdefault(member.job_id, _Box())
                self._bring_new(member, root, box)
        except Exception as err:  # whatever it is, the plan is not there
            failed.append(err)

    def _carry(
        self,
        member: FollowedJob,
        now: datetime,
        documents: dict[str, bytes],
        memory: dict[str, bytes | None],
        problems: list[str],
    ) -> None:
        root = shared_path(member.mailbox)
        checkpoints = shared_path(member.checkpoints)
        if root is None and checkpoints is None:
            return
        box = self._boxes.setdefault(member.job_id, _Box())
        if not member.is_running and not _is_due(box.listed_at, now, LIST_EVERY):
            return  # nothing runs that would write or read
        if root is not None:
            try:
                with self._carrying:
                    self._down(member, root, box, now)
            except (OSError, MailboxError, ClientError, BotoCoreError) as err:  # the way up needs no S3 now
                problems.append(_problem(member, err))
            sent = dict(box.sent)
            news = self._files.changed(
                member.job_id, root, sent, member.uid, member.gid, most=MAX_SENT, most_bytes=MAX_SENT_BYTES
            )
            for key, stamp, body in news:
                documents[f"{relay_prefix(self._cluster, member.job_id)}/{key}"] = body
                sent[key] = stamp
            if sent != box.sent:
                if any("/manifests/" in key for key in sent.keys() - box.sent.keys()):
                    box.judged_at = None
                box.sent = sent
                memory[f"{SENT}{member.job_id}"] = _packed(sent)
        if _is_due(box.judged_at, now, box.judge_every):
            doc = self._judged(member, root, checkpoints, box, now)
            reported = json.dumps([checkpoint.to_wire() for checkpoint in doc.checkpoints])
            if reported != box.reported:
                box.reported = reported
                documents[found_key(self._cluster, member.job_id)] = doc.to_json()

    def _judged(
        self, member: FollowedJob, root: str | None, checkpoints: str | None, box: _Box, now: datetime
    ) -> FoundDoc:
        """Which checkpoints lie there. How often that is asked depends on how long it takes, for all Jobs of the user.

        Raises: WorkPending, OSError, MailboxError.
        """
        box.judging_since = began = box.judging_since or time.monotonic()
        is_over = True
        try:
            return self._files.checkpoints(member.job_id, root, checkpoints, member.uid, member.gid, now)
        except WorkPending:
            is_over = False
            raise
        finally:
            if is_over:
                self._judge_again(member, box, now, time.monotonic() - began)

    def _judge_again(self, member: FollowedJob, box: _Box, now: datetime, took_s: float) -> None:
        box.judged_at, box.uid, box.judging_since = now, member.uid, None
        box.judge_took = timedelta(seconds=took_s)
        own = sum((other.judge_took for other in self._boxes.values() if other.uid == member.uid), timedelta(0))
        whole = sum((other.judge_took for other in self._boxes.values()), timedelta(0))
        most = FOUND_AT_LEAST_EVERY if JUDGE_SHARE * own <= FOUND_AT_LEAST_EVERY else JUDGE_AT_LEAST_EVERY_OF_MANY
        box.judge_every = min(max(FOUND_EVERY, JUDGE_SHARE * own, JUDGE_SHARE_OF_ALL * whole), most)

    # ---- from S3 to the path

    def _down(self, member: FollowedJob, root: str, box: _Box, now: datetime) -> None:
        prefix = f"{relay_prefix(self._cluster, member.job_id)}/"
        bell = self._tag(prefix + doorbell_key())
        if bell == box.rang and not _is_due(box.listed_at, now, LIST_EVERY):
            return
        self._bring_new(member, root, box)
        if self._observes():
            return
        if bell is not None and bell != box.rang:  # rung here last, when all that it announces is there
            self._bring(member, root, doorbell_key(), self._get(prefix + doorbell_key())[0], bell)
        box.rang, box.listed_at = bell, now

    def _bring_new(self, member: FollowedJob, root: str, box: _Box) -> None:
        prefix = f"{relay_prefix(self._cluster, member.job_id)}/"
        for key, tag in self._listed(prefix):
            if box.taken.get(key) != tag and not self._observes():
                body, has_waited_s = self._get(prefix + key)
                self._bring(member, root, key, _less(key, body, has_waited_s), tag)
                box.taken[key] = tag

    def _bring(self, member: FollowedJob, root: str, key: str, body: bytes | None, tag: str) -> None:
        if body is None:
            return
        if self._holding is not None and self._holding.left_s() <= 0:  # its fence or plan may be older than another's
            raise NotHolder(f"{key} was not brought to the mailbox of {member.job_id}")
        self._files.deliver(member.job_id, root, key, body, member.uid, member.gid, tag=tag)

    def _listed(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Keys relative to the mailbox, with what changes when they do; only what the service writes.

        What the run writes lies beside it, and grows with each save: it is not listed.
        """
        for below in FOR_THE_RUN:
            more: dict[str, str] = {}
            count = 0
            while count < MAX_OBJECTS:
                page = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=f"{prefix}{below}", **more)
                for item in page.get("Contents", []):
                    count += 1
                    key = item["Key"][len(prefix) :]
                    if is_for_the_run(key) and item.get("Size", 0) <= MAX_MESSAGE_BYTES:
                        yield key, item.get("ETag", "")
                if not page.get("IsTruncated"):
                    break
                more = {"ContinuationToken": page["NextContinuationToken"]}

    def _tag(self, key: str) -> str | None:
        try:
            tag: str = self._s3.head_object(Bucket=self._bucket, Key=key)["ETag"]
        except ClientError as err:
            if err.response.get("Error", {}).get("Code") in ("404", "NoSuchKey", "NotFound", "403"):
                return None
            raise
        return tag

    def _get(self, key: str) -> tuple[bytes | None, float]:
        """The object, and for how many seconds it has been there."""
        try:
            answer = self._s3.get_object(Bucket=self._bucket, Key=key)
        except ClientError as err:
            if err.response.get("Error", {}).get("Code") in ("404", "NoSuchKey"):
                return None, 0.0
            raise
        raw: bytes = answer["Body"].read(MAX_MESSAGE_BYTES + 1)
        return (raw if len(raw) <= MAX_MESSAGE_BYTES else None), age_s(answer)


def _is_due(last: datetime | None, now: datetime, every: timedelta) -> bool:
    """Also after the clock was set back."""
    return last is None or not timedelta(0) <= now - last < every


def _less(key: str, body: bytes | None, has_waited_s: float) -> bytes | None:
    """A request with the seconds that are left of its deadline: a reader on the path sees no date of S3's."""
    parsed = parse_key(key)
    if body is None or parsed is None or parsed.kind is not KeyKind.REQUEST:
        return body
    try:
        request = CheckpointRequest.from_json(body)
    except MailboxError:
        return body
    return replace(request, deadline_s=max(0.0, request.deadline_s - has_waited_s)).to_json()


def _problem(member: FollowedJob, err: Exception) -> str:
    return f"mailbox of {member.job_id}: {type(err).__name__}: {err}"[:300]


def shared_path(uri: str) -> str | None:
    """The directory, where the URI names one on a file system; None for S3, for nothing, and for what is wrong."""
    if not uri:
        return None
    try:
        place = Place.parse(uri)
    except MailboxError:
        return None
    return place.path if place.bucket is None and len(place.path) > 1 else None


def _packed(sent: Mapping[str, tuple[int, int, int]]) -> bytes:
    newest = sorted(sent.items(), key=lambda item: item[1][0])[-MAX_FILES:]
    return json.dumps(dict(newest), separators=(",", ":")).encode()


def _stamps(raw: bytes) -> dict[str, tuple[int, int, int]]:
    try:
        kept = json.loads(raw)
        return {str(key): (int(stamp[0]), int(stamp[1]), int(stamp[2])) for key, stamp in kept.items()}
    except (ValueError, TypeError, AttributeError, IndexError):
        return {}
