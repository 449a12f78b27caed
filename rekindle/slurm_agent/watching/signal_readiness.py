"""Whether a signal would be understood by a run.

On the head node it is not visible whether a process catches a signal. What can be seen: whether a step runs at all (a
signal without one is lost, with status 0), and, where the mailbox lies on a shared path, the monitor's heartbeat, which
is written after its handlers are installed.
"""

from __future__ import annotations

from typing import Final

from rekindle.protocol.keys import heartbeat_key
from rekindle.protocol.mailbox import Heartbeat, RunPhase
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MailboxError, Place
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.workers import Hangs
from rekindle.slurm_agent.watching.attempt_docs import ShownJob

_READY: Final = frozenset({RunPhase.TRAINING, RunPhase.EVALUATION, RunPhase.SAVING, RunPhase.STALLED})


def is_ready(shown: ShownJob, steps: int, files: UserFiles) -> bool | None:
    """None where steps run and nothing tells more. Raises: Hangs where the mailbox does not answer."""
    if steps == 0 and not shown.asked.signal_batch:
        return False
    heartbeat = heartbeat_of(shown, files)
    if heartbeat is None:
        return None
    return True if heartbeat.phase in _READY else None


def heartbeat_of(shown: ShownJob, files: UserFiles) -> Heartbeat | None:
    """The start's heartbeat in a mailbox on a shared path. Raises: Hangs."""
    try:
        place = Place.parse(shown.asked.mailbox) if shown.asked.mailbox else None
        if place is None or place.bucket is not None:
            return None
        path = place.join(heartbeat_key(shown.attempt.name)).path
        raw = files.read(shown.attempt.name, path, MAX_MESSAGE_BYTES, shown.job.uid, shown.job.gid)
        return Heartbeat.from_json(raw) if raw is not None else None
    except Hangs:
        raise
    except (MailboxError, OSError):
        return None
