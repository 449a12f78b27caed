"""What the agent asks about users' files, by processes that may hang in its place."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rekindle.protocol.cluster.documents import CauseDoc, FoundDoc
from rekindle.slurm_agent.base.ports import OutputVerdict
from rekindle.slurm_agent.files.messages import Stamp
from rekindle.slurm_agent.files.worker import WorkNotDone
from rekindle.slurm_agent.files.workers import Hangs, Workers

LOG_S: Final = 5.0  # for the end of a log, which is read once


class UserFiles:
    """What the agent asks about users' files. Each call names its Job, and costs at most a moment."""

    def __init__(self, workers: Any = None) -> None:
        self.workers: Any = workers or Workers()

    def failure(self, whose: str, paths: Sequence[str], uid: int | None, gid: int | None) -> OutputVerdict:
        """See `cause.of_files`; a sentence with the path where one does not answer. Never raises."""
        path = next((path for path in paths if path.startswith("/")), "/")
        try:
            asked = {"paths": list(paths)}
            done = self.workers.ask(
                (whose, "output"), path, "failure", asked, uid, gid, same=tuple(paths), for_good=True, soft_s=LOG_S
            )
            found = CauseDoc.from_wire(done["cause"]) if done["cause"] is not None else None
            return OutputVerdict(text=str(done["text"])[:4000], cause=found)
        except Hangs as err:
            return OutputVerdict(text=f"Its output could not be read: {err}."[:1000])
        except WorkNotDone:
            return OutputVerdict()

    def checkpoints(
        self, job_id: str, mailbox: str | None, place: str | None, uid: int | None, gid: int | None, now: datetime
    ) -> FoundDoc:
        """See `found.judge`. Raises: WorkPending, OSError, MailboxError."""
        asked = {"job_id": job_id, "mailbox": mailbox, "place": place, "now": now.isoformat()}
        path = place or mailbox or "/"
        done = self.workers.ask(
            (job_id, "checkpoints"), path, "checkpoints", asked, uid, gid, same=path, for_good=True, is_long=True
        )
        return FoundDoc.from_json(json.dumps(done))

    def changed(
        self,
        job_id: str,
        root: str,
        sent: Mapping[str, Stamp],
        uid: int | None,
        gid: int | None,
        *,
        most: int,
        most_bytes: int,
    ) -> Iterator[tuple[str, Stamp, bytes]]:
        """See `messages.changed`. Raises: OSError."""
        asked = {"root": root, "sent": sent, "most": most, "most_bytes": most_bytes}
        for key, stamp, body in self.workers.ask((job_id, "mailbox"), root, "changed", asked, uid, gid, same=root):
            yield key, (stamp[0], stamp[1], stamp[2]), base64.b64decode(body)

    def deliver(
        self, job_id: str, root: str, key: str, body: bytes, uid: int | None, gid: int | None, *, tag: str | None = None
    ) -> None:
        """See `messages.deliver`. `tag` tells the message from others under its key. Raises: OSError."""
        until = time.monotonic() + self.workers.patience_s  # one clock for all processes of a machine
        asked = {"root": root, "key": key, "body": base64.b64encode(body).decode(), "until": until}
        self.workers.ask((job_id, "mailbox"), root, "deliver", asked, uid, gid, same=(root, key, tag or body))

    def read(self, whose: str, path: str, limit: int, uid: int | None, gid: int | None) -> bytes | None:
        """See `userfs.read`. Raises: OSError."""
        done = self.workers.ask((whose, "heartbeat"), path, "read", {"path": path, "limit": limit}, uid, gid, same=path)
        return None if done is None else base64.b64decode(done)

    def is_folder(self, whose: str, path: str, uid: int | None, gid: int | None) -> bool:
        """Raises: OSError, also where it does not answer."""
        return bool(self.workers.ask((whose, "folder"), path, "answers", {"path": path}, uid, gid, same=path))

    def resolved_folder(self, whose: str, path: str, uid: int | None, gid: int | None) -> tuple[str, str]:
        """The real path, links followed as that user; and what it is on this machine now, whatever paths lead there:
        a folder that is mounted twice is one. Raises: OSError, also where it does not answer."""
        real, folder = self.workers.ask((whose, "folder"), path, "resolved", {"path": path}, uid, gid, same=path)
        return str(real), str(folder)
