"""The checkpoints on a shared path, which only the head node's agent sees: its list of them, `found.json`.

Which of them are whole the agent has judged, by manifest or by format; who may have written them is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chalicelib.aws.s3.objects import S3Objects, insist
from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.observation import CheckpointView
from chalicelib.domain.resume.checkpoint_choice import attributed
from rekindle.protocol.cluster.documents import FoundDoc
from rekindle.protocol.cluster.names import cluster_prefix, found_key
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MailboxError, Place

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
