"""Expendable processes for users' files: asked with a deadline, and left behind when it is over.

A file system that never answers blocks every process that touches it, beyond SIGKILL where the kernel waits for it as
well. So no thread of the agent does: it asks a worker, waits for `SOFT_S`, and continues. The worker has `PATIENCE_S`;
then it is killed, and not waited for. While it lives, its path still hangs, and nothing more is tried there; afterwards
it is tried again, less and less often. Where `IN_A_ROW` have hung on one file system and nothing has answered there
since, the others that lie there are not tried either, but for one each `PROBE_S`: neither time nor processes grow with
the number of Jobs, and a file system that hangs in part serves the rest of them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rekindle.protocol.cluster.documents import FoundDoc
from rekindle.slurm_agent.files.messages import Stamp
from rekindle.slurm_agent.files.worker_process import MAX_FRAME_BYTES, frame

SOFT_S: Final = 2.0  # what a look, a relay's turn or an order waits for one path
LOG_S: Final = 5.0  # for the end of a log, which is read once
PATIENCE_S: Final = 20.0
START_S: Final = 30.0  # of a process that has touched nothing of a user's yet
AGAIN_S: Final = 60.0  # after a hang, and twice as long after each further one
AGAIN_AT_MOST_S: Final = 300.0
IN_A_ROW: Final = 4
PROBE_S: Final = 30.0
MOST_ON_A_MOUNT: Final = 32  # processes
MOST_AT_WORK: Final = 4  # that take long without hanging
MAX_IDLE: Final = 2
# What Python needs to be found and to write UTF-8; nothing else of the agent's environment reaches the child.
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
_HERE: Final = str(Path(__file__).resolve().parents[3])  # the same code as the agent's, wherever that lies
_MAIN: Final = (
    f"import sys; sys.path.insert(0, {_HERE!r}); "
    "from rekindle.slurm_agent.files.worker_process import main; sys.exit(main())"
)
_CHILD: Final = (sys.executable, "-I", "-c", _MAIN)


class NotDone(OSError):
    """The work was not finished: too slow, too large, or its process ended."""


class Hangs(NotDone):
    """A path does not answer."""


class Later(NotDone):
    """It takes its time, and is asked for again in the next turn; nothing is wrong."""


class _Worker:
    """One process. Never waits for its end."""

    def __init__(self) -> None:
        """Raises: NotDone."""
        try:
            self._process = subprocess.Popen(
                _CHILD,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(_ENVIRONMENT),
                cwd="/",
                start_new_session=True,
            )
        except OSError as err:
            raise NotDone(f"no process could be started for it: {err}"[:300]) from err
        assert self._process.stdin is not None  # noqa: S101  it was asked for
        assert self._process.stdout is not None  # noqa: S101
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._read = bytearray()
        self._left = b""
        if self.answer(time.monotonic() + START_S) is None:
            self.kill()
            raise NotDone(f"its process did not start within {START_S:g} s")

    def begin(self, order: bytes) -> None:
        self._left = frame(order)

    def answer(self, until: float) -> bytes | None:
        """The whole answer, None where there is none by then. Raises: NotDone where the process has ended."""
        while True:
            found = self._whole()
            if found is not None:
                return found
            ready = select.poll()
            ready.register(self._from, select.POLLIN)
            if self._left:
                ready.register(self._to, select.POLLOUT)
            events = [one for one, _ in ready.poll(1000 * max(0.0, until - time.monotonic()))]
            if not events:
                return None
            try:
                if self._to in events:
                    self._left = self._left[os.write(self._to, self._left) :]
                if self._from in events:
                    data = os.read(self._from, 1 << 20)
                    if not data:
                        raise NotDone("its process ended without an answer")
                    self._read += data
            except (BlockingIOError, InterruptedError):
                continue
            except BrokenPipeError as err:
                raise NotDone("its process ended without an answer") from err

    def _whole(self) -> bytes | None:
        if len(self._read) < 4:
            return None
        (length,) = struct.unpack(">I", self._read[:4])
        if length > MAX_FRAME_BYTES:
            raise NotDone(f"its process answered {length} bytes")
        if len(self._read) < 4 + length:
            return None
        found = bytes(self._read[4 : 4 + length])
        del self._read[: 4 + length]
        return found

    def kill(self) -> None:
        """What cannot be killed lives on, and blocks nothing else."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None  # noqa: S101
                pipe.close()

    def is_gone(self) -> bool:
        return self._process.poll() is not None


@dataclass(slots=True)
class _Waiting:
    """An order that has had no answer in time."""

    worker: _Worker
    path: str
    mount: str
    since: float
    for_good: bool
    is_long: bool
    same: Hashable
    is_killed: bool = False


@dataclass(slots=True)
class _Rest:
    """When a path that hung may be tried again, and how often it has hung."""

    path: str
    until: float
    times: int


@dataclass(slots=True)
class Workers:
    """All of one agent's. For several threads."""

    soft_s: float = SOFT_S
    patience_s: float = PATIENCE_S
    now: Callable[[], float] = time.monotonic
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _idle: list[_Worker] = field(default_factory=list)
    _waiting: dict[Hashable, _Waiting] = field(default_factory=dict)
    _rests: dict[Hashable, _Rest] = field(default_factory=dict)
    _left_behind: list[_Worker] = field(default_factory=list)
    _answered: dict[str, float] = field(default_factory=dict)  # mount -> when a path on it did last
    _probe: dict[str, float] = field(default_factory=dict)  # mount that does not answer -> when it is tried again

    def ask(
        self,
        whose: Hashable,
        path: str,
        work: str,
        asked: Mapping[str, Any],
        uid: int | None,
        gid: int | None,
        *,
        same: Hashable = None,
        for_good: bool = False,
        is_long: bool = False,
        soft_s: float | None = None,
    ) -> Any:
        """What the worker answers. `path` is where it may hang; `whose` names the Job and the kind of work. An answer
        that came late is given to who asks the `same` next; of work that `is_long` that is no sign of a hang.

        Raises: Hangs; Later; NotDone.
        """
        same = (work, same)
        late = self._late(whose, same)
        if late is not None:
            return _done(late)
        mount = mount_of(path)
        with self._lock:
            self._refuse(whose, path, mount, is_long=is_long)
            worker = self._idle.pop() if self._idle and not for_good else None
        worker = worker if worker is not None and not worker.is_gone() else _Worker()
        order = {"work": work, "asked": asked, "uid": uid, "gid": gid, "for_good": for_good}
        worker.begin(json.dumps(order).encode())
        soft = self.soft_s if soft_s is None else soft_s
        began = self.now()
        try:
            answer = worker.answer(time.monotonic() + soft)
        except NotDone:
            self._leave(worker)
            raise
        if answer is None:
            with self._lock:
                self._waiting[whose] = _Waiting(worker, path, mount, began, for_good, is_long, same)
            if is_long:
                raise Later(f"{path} takes longer than {soft:g} s")
            raise Hangs(f"{path} does not answer within {soft:g} s")
        self._put_back(worker, for_good=for_good)
        with self._lock:
            self._rests.pop(whose, None)
            self._answered[mount] = self.now()
        return _done(answer)

    def close(self) -> None:
        """End what is at rest."""
        with self._lock:
            while self._idle:
                self._idle.pop().kill()

    # ---- what waits

    def _late(self, whose: Hashable, same: Hashable) -> bytes | None:
        """An answer to the same that came after its time. Raises: Hangs, Later, NotDone."""
        with self._lock:
            self._settle()
            one = self._waiting.get(whose)
            if one is None:
                return None
            age = self.now() - one.since
            if one.is_killed:
                raise Hangs(f"{one.path} does not answer for {age:.0f} s, and the process that waits cannot be ended")
            try:
                answer = one.worker.answer(time.monotonic())
            except NotDone:
                del self._waiting[whose]
                self._leave(one.worker)
                raise
            if answer is None:
                if one.is_long:
                    raise Later(f"{one.path} takes longer than {age:.0f} s")
                raise Hangs(f"{one.path} does not answer for {age:.0f} s")
            del self._waiting[whose]
            self._answered[one.mount] = self.now()
        self._put_back(one.worker, for_good=one.for_good)
        return answer if one.same == same else None

    def _settle(self) -> None:
        """End what has had its time, and forget what has ended. With the lock held."""
        self._left_behind = [one for one in self._left_behind if not one.is_gone()]
        for whose, one in list(self._waiting.items()):
            if not one.is_killed and self.now() - one.since >= self.patience_s:
                one.worker.kill()
                one.is_killed = True
                times = self._rests[whose].times + 1 if whose in self._rests else 1
                rest = min(AGAIN_S * 2 ** min(times - 1, 8), AGAIN_AT_MOST_S)
                self._rests[whose] = _Rest(one.path, self.now() + rest, times)
            if one.is_killed and one.worker.is_gone():
                del self._waiting[whose]
        for whose in [key for key, one in self._rests.items() if self.now() - one.until > 2 * AGAIN_AT_MOST_S]:
            del self._rests[whose]  # nobody asks for it any more

    def _refuse(self, whose: Hashable, path: str, mount: str, *, is_long: bool) -> None:
        """Raises: Hangs or Later for what is not tried now. With the lock held."""
        rest = self._rests.get(whose)
        if rest is not None and self.now() < rest.until:
            raise Hangs(f"{path} did not answer, and is tried again in {rest.until - self.now():.0f} s")
        stuck = sorted((one for one in self._waiting.values() if self._is_stuck(one, mount)), key=lambda one: one.since)
        if len(stuck) >= MOST_ON_A_MOUNT or self._is_silent(mount, stuck):
            listed = ", ".join(one.path for one in stuck[:IN_A_ROW])
            raise Hangs(f"{path} is not tried: {mount} does not answer at {listed}")
        if is_long and sum(not self._is_stuck(one) for one in self._waiting.values()) >= MOST_AT_WORK:
            raise Later(f"{path}: {MOST_AT_WORK} others are looked at")

    def _is_silent(self, mount: str, stuck: Sequence[_Waiting]) -> bool:
        """The last ones that were tried there hang, all in a row. Now and then one more is tried."""
        if len(stuck) < IN_A_ROW or self._answered.get(mount, -math.inf) >= stuck[-IN_A_ROW].since:
            self._probe.pop(mount, None)
            return False
        if self.now() < self._probe.setdefault(mount, self.now() + PROBE_S):
            return True
        self._probe[mount] = self.now() + PROBE_S
        return False

    def _is_stuck(self, one: _Waiting, mount: str | None = None) -> bool:
        return (one.is_killed or not one.is_long) and mount in (None, one.mount)

    # ---- processes

    def _put_back(self, worker: _Worker, *, for_good: bool) -> None:
        with self._lock:
            if not for_good and len(self._idle) < MAX_IDLE:
                self._idle.append(worker)
                return
        self._leave(worker)

    def _leave(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            self._left_behind.append(worker)


class UserFiles:
    """What the agent asks about users' files. Each call names its Job, and costs at most a moment."""

    def __init__(self, workers: Workers | None = None) -> None:
        self.workers = workers or Workers()

    def failure(self, whose: str, paths: Sequence[str], uid: int | None, gid: int | None) -> str:
        """See `cause.of_files`; a sentence with the path where one does not answer. Never raises."""
        path = next((one for one in paths if one.startswith("/")), "/")
        try:
            asked = {"paths": list(paths)}
            return str(
                self.workers.ask(
                    (whose, "output"), path, "failure", asked, uid, gid, same=tuple(paths), for_good=True, soft_s=LOG_S
                )
            )[:4000]
        except Hangs as err:
            return f"Its output could not be read: {err}."[:1000]
        except NotDone:
            return ""

    def checkpoints(
        self, job_id: str, mailbox: str | None, place: str | None, uid: int | None, gid: int | None, now: datetime
    ) -> FoundDoc:
        """See `found.judge`. Raises: Later, OSError, MailboxError."""
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

    def bring(
        self, job_id: str, root: str, key: str, body: bytes, uid: int | None, gid: int | None, *, tag: str | None = None
    ) -> None:
        """See `messages.bring`. `tag` tells the message from others under its key. Raises: OSError."""
        until = time.monotonic() + self.workers.patience_s  # one clock for all processes of a machine
        asked = {"root": root, "key": key, "body": base64.b64encode(body).decode(), "until": until}
        self.workers.ask((job_id, "mailbox"), root, "bring", asked, uid, gid, same=(root, key, tag or body))

    def read(self, whose: str, path: str, limit: int, uid: int | None, gid: int | None) -> bytes | None:
        """See `userfs.read`. Raises: OSError."""
        done = self.workers.ask((whose, "beat"), path, "read", {"path": path, "limit": limit}, uid, gid, same=path)
        return None if done is None else base64.b64decode(done)

    def is_folder(self, whose: str, path: str, uid: int | None, gid: int | None) -> bool:
        """Raises: OSError, also where it does not answer."""
        return bool(self.workers.ask((whose, "folder"), path, "answers", {"path": path}, uid, gid, same=path))


def _done(raw: bytes) -> Any:
    """Raises: NotDone."""
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError) as err:
        raise NotDone("its process answered no JSON") from err
    if not isinstance(answer, dict) or "error" in answer:
        raise NotDone(str(answer.get("error") if isinstance(answer, dict) else "no answer")[:300])
    return answer.get("done")


def mount_of(path: str) -> str:
    """The file system that a path lies on, by the kernel's own list: the path is not touched. Never raises."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return "/"
    best = "/"
    for line in lines:
        fields = line.split(" ")
        point = fields[4].replace("\\040", " ") if len(fields) > 4 else "/"
        if (path == point or path.startswith(f"{point.rstrip('/')}/")) and len(point) > len(best):
            best = point
    return best
