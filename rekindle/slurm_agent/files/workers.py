"""Expendable processes for users' files: asked with a deadline, and left behind when it is over.

A file system that never answers blocks every process that touches it, beyond SIGKILL where the kernel waits for it as
well. So no thread of the agent does: it asks a worker, waits for `SOFT_S`, and continues. The worker has `PATIENCE_S`;
then it is killed, and not waited for. While it lives, its path still hangs, and nothing more is tried there; afterwards
it is tried again, less and less often. Where `IN_A_ROW` have hung on one file system and nothing has answered there
since, the others that lie there are not tried either, but for one each `PROBE_S`: neither time nor processes grow with
the number of Jobs, and a file system that hangs in part serves the rest of them.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rekindle.slurm_agent.files.worker import Worker, WorkNotDone

SOFT_S: Final = 2.0  # what a look, a relay's pass or an order waits for one path
PATIENCE_S: Final = 20.0
AGAIN_S: Final = 60.0  # after a hang, and twice as long after each further one
AGAIN_AT_MOST_S: Final = 300.0
IN_A_ROW: Final = 4
PROBE_S: Final = 30.0
MOST_ON_A_MOUNT: Final = 32  # processes
MOST_AT_WORK: Final = 4  # that take long without hanging
MAX_IDLE: Final = 2


class Hangs(WorkNotDone):
    """A path does not answer."""


class WorkPending(WorkNotDone):
    """It takes its time, and is asked for again in the next pass; nothing is wrong."""


@dataclass(slots=True)
class _Waiting:
    """An order that has had no answer in time."""

    worker: Worker
    path: str
    mount: str
    since: float
    for_good: bool
    is_long: bool
    same: Hashable
    is_killed: bool = False


@dataclass(slots=True)
class _PathBackoff:
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
    _idle: list[Worker] = field(default_factory=list)
    _waiting: dict[Hashable, _Waiting] = field(default_factory=dict)
    _rests: dict[Hashable, _PathBackoff] = field(default_factory=dict)
    _left_behind: list[Worker] = field(default_factory=list)
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

        Raises: Hangs; WorkPending; WorkNotDone.
        """
        same = (work, same)
        late = self._late(whose, same)
        if late is not None:
            return _done(late)
        mount = mount_of(path)
        with self._lock:
            self._refuse(whose, path, mount, is_long=is_long)
            worker = self._idle.pop() if self._idle and not for_good else None
        worker = worker if worker is not None and not worker.is_gone() else Worker()
        order = {"work": work, "asked": asked, "uid": uid, "gid": gid, "for_good": for_good}
        worker.begin(json.dumps(order).encode())
        soft = self.soft_s if soft_s is None else soft_s
        began = self.now()
        try:
            answer = worker.answer(time.monotonic() + soft)
        except WorkNotDone:
            self._leave(worker)
            raise
        if answer is None:
            with self._lock:
                self._waiting[whose] = _Waiting(worker, path, mount, began, for_good, is_long, same)
            if is_long:
                raise WorkPending(f"{path} takes longer than {soft:g} s")
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
        """An answer to the same that came after its time. Raises: Hangs, WorkPending, WorkNotDone."""
        with self._lock:
            self._settle()
            pending = self._waiting.get(whose)
            if pending is None:
                return None
            age = self.now() - pending.since
            if pending.is_killed:
                raise Hangs(
                    f"{pending.path} does not answer for {age:.0f} s, and the process that waits cannot be ended"
                )
            try:
                answer = pending.worker.answer(time.monotonic())
            except WorkNotDone:
                del self._waiting[whose]
                self._leave(pending.worker)
                raise
            if answer is None:
                if pending.is_long:
                    raise WorkPending(f"{pending.path} takes longer than {age:.0f} s")
                raise Hangs(f"{pending.path} does not answer for {age:.0f} s")
            del self._waiting[whose]
            self._answered[pending.mount] = self.now()
        self._put_back(pending.worker, for_good=pending.for_good)
        return answer if pending.same == same else None

    def _settle(self) -> None:
        """End what has had its time, and forget what has ended. With the lock held."""
        self._left_behind = [worker for worker in self._left_behind if not worker.is_gone()]
        for whose, waiting in list(self._waiting.items()):
            if not waiting.is_killed and self.now() - waiting.since >= self.patience_s:
                waiting.worker.kill()
                waiting.is_killed = True
                times = self._rests[whose].times + 1 if whose in self._rests else 1
                rest = min(AGAIN_S * 2 ** min(times - 1, 8), AGAIN_AT_MOST_S)
                self._rests[whose] = _PathBackoff(waiting.path, self.now() + rest, times)
            if waiting.is_killed and waiting.worker.is_gone():
                del self._waiting[whose]
        for whose in [key for key, rest in self._rests.items() if self.now() - rest.until > 2 * AGAIN_AT_MOST_S]:
            del self._rests[whose]  # no request needs it any more

    def _refuse(self, whose: Hashable, path: str, mount: str, *, is_long: bool) -> None:
        """Raises: Hangs or WorkPending for what is not tried now. With the lock held."""
        rest = self._rests.get(whose)
        if rest is not None and self.now() < rest.until:
            raise Hangs(f"{path} did not answer, and is tried again in {rest.until - self.now():.0f} s")
        stuck = sorted(
            (waiting for waiting in self._waiting.values() if self._is_stuck(waiting, mount)),
            key=lambda waiting: waiting.since,
        )
        if len(stuck) >= MOST_ON_A_MOUNT or self._is_silent(mount, stuck):
            listed = ", ".join(waiting.path for waiting in stuck[:IN_A_ROW])
            raise Hangs(f"{path} is not tried: {mount} does not answer at {listed}")
        if is_long and sum(not self._is_stuck(waiting) for waiting in self._waiting.values()) >= MOST_AT_WORK:
            raise WorkPending(f"{path}: {MOST_AT_WORK} others are looked at")

    def _is_silent(self, mount: str, stuck: Sequence[_Waiting]) -> bool:
        """The last ones that were tried there hang, all in a row. Now and then one more is tried."""
        if len(stuck) < IN_A_ROW or self._answered.get(mount, -math.inf) >= stuck[-IN_A_ROW].since:
            self._probe.pop(mount, None)
            return False
        if self.now() < self._probe.setdefault(mount, self.now() + PROBE_S):
            return True
        self._probe[mount] = self.now() + PROBE_S
        return False

    def _is_stuck(self, pending: _Waiting, mount: str | None = None) -> bool:
        return (pending.is_killed or not pending.is_long) and mount in (None, pending.mount)

    # ---- processes

    def _put_back(self, worker: Worker, *, for_good: bool) -> None:
        with self._lock:
            if not for_good and len(self._idle) < MAX_IDLE:
                self._idle.append(worker)
                return
        self._leave(worker)

    def _leave(self, worker: Worker) -> None:
        worker.kill()
        with self._lock:
            self._left_behind.append(worker)


def _done(raw: bytes) -> Any:
    """Raises: WorkNotDone."""
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError) as err:
        raise WorkNotDone("its process answered no JSON") from err
    if not isinstance(answer, dict) or "error" in answer:
        raise WorkNotDone(str(answer.get("error") if isinstance(answer, dict) else "no answer")[:300])
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
