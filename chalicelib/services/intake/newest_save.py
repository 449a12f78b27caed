"""What was saved is written down while it is there: a later start is weighed against it, whatever has become of it."""

from __future__ import annotations

from chalicelib.domain.model.job import Job, NewestSave
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import Mailbox


def note_newest(registry: JobRegistry, job: Job, step: int) -> None:
    """A manifest of the Job's current attempt for `step` was seen."""
    if job.newest_save is None or job.newest_save.is_older_than(job.current_attempt, step):
        registry.note_save(job.job_id, NewestSave(attempt=job.current_attempt, step=step))


def note_reply(registry: JobRegistry, mailbox: Mailbox, job: Job, signal: Signal) -> None:
    """A reply says that the Job's current attempt has saved. The event is a claim: the mailbox tells whether, and what.

    Raises:
        RecoveryError: the mailbox cannot be read now.
    """
    request = signal.evidence.get("request_id")
    is_save = signal.kind is SignalKind.CHECKPOINT_REPLY and signal.evidence.get("outcome") == "saved"
    if not is_save or signal.attempt != job.current_attempt or not isinstance(request, str) or not job.mailbox:
        return
    reply = mailbox.reply(job, request)
    view = reply.value if isinstance(reply, Known) else None
    newest = job.newest_save.step if job.newest_save is not None else -1
    if view is not None and view.outcome == "saved" and view.step is not None and view.step > newest:
        note_newest(registry, job, view.step)
