"""One expendable process for users' files, and its pipe."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rekindle.slurm_agent.files.worker_process import MAX_FRAME_BYTES, frame

START_S: Final = 30.0  # of a process that has touched nothing of a user's yet
# What Python needs to be found and to write UTF-8; nothing else of the agent's environment reaches the child.
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
_HERE: Final = str(Path(__file__).resolve().parents[3])  # the same code as the agent's, wherever that lies
_MAIN: Final = (
    f"import sys; sys.path.insert(0, {_HERE!r}); "
    "from rekindle.slurm_agent.files.worker_process import main; sys.exit(main())"
)
_CHILD: Final = (sys.executable, "-I", "-c", _MAIN)


class WorkNotDone(OSError):
    """The work was not finished: too slow, too large, or its process ended."""


class Worker:
    """One process. Never waits for its end."""

    def __init__(self) -> None:
        """Raises: WorkNotDone."""
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
            raise WorkNotDone(f"no process could be started for it: {err}"[:300]) from err
        assert self._process.stdin is not None  # noqa: S101  it was asked for
        assert self._process.stdout is not None  # noqa: S101
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._read = bytearray()
        self._left = b""
        if self.answer(time.monotonic() + START_S) is None:
            self.kill()
            raise WorkNotDone(f"its process did not start within {START_S:g} s")

    def begin(self, order: bytes) -> None:
        self._left = frame(order)

    def answer(self, until: float) -> bytes | None:
        """The whole answer, None where there is none by then. Raises: WorkNotDone where the process has ended."""
        while True:
            found = self._whole()
            if found is not None:
                return found
            ready = select.poll()
            ready.register(self._from, select.POLLIN)
            if self._left:
                ready.register(self._to, select.POLLOUT)
            events = [descriptor for descriptor, _ in ready.poll(1000 * max(0.0, until - time.monotonic()))]
            if not events:
                return None
            try:
                if self._to in events:
                    self._left = self._left[os.write(self._to, self._left) :]
                if self._from in events:
                    data = os.read(self._from, 1 << 20)
                    if not data:
                        raise WorkNotDone("its process ended without an answer")
                    self._read += data
            except (BlockingIOError, InterruptedError):
                continue
            except BrokenPipeError as err:
                raise WorkNotDone("its process ended without an answer") from err

    def _whole(self) -> bytes | None:
        if len(self._read) < 4:
            return None
        (length,) = struct.unpack(">I", self._read[:4])
        if length > MAX_FRAME_BYTES:
            raise WorkNotDone(f"its process answered {length} bytes")
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
