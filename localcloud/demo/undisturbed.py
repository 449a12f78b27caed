"""The reference run, kept in one process of low priority beside the demo: what the losses would have been."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

Windows = Sequence[tuple[int, int]]


class Undisturbed:
    """Trains an undisturbed reference run in the background, up to the requested step, and returns its exact losses.

    Commands are queued; `losses` waits for all of them. The child process reads commands from a pipe and exits when the
    pipe closes, so that it never outlives the demo.
    """

    def __init__(self, script: Path, *, data: Path, seed: int, workers: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(data), str(seed), str(workers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,  # Ctrl-C is the demo's to handle
        )
        if self._process.stdin is None or self._process.stdout is None:  # for the type checker: both are pipes
            raise RuntimeError("the reference run has no pipes")
        self._commands, self._output = self._process.stdin, self._process.stdout
        with contextlib.suppress(OSError):  # the figures do not depend on it
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 10)  # it must not slow down what it is compared with
        self._losses: dict[int, str] = {}
        self._asked = 0
        self._answered = threading.Condition()
        self._answers = 0
        self._ended = False
        self._reader = threading.Thread(target=self._read_losses, name="reference", daemon=True)
        self._reader.start()

    def train_to(self, step: int, *, skip: Windows = ()) -> None:
        """Queue training up to `step`, leaving out `skip`."""
        command = json.dumps({"to": step, "skip": [list(window) for window in skip]})
        try:
            self._commands.write(command + "\n")
            self._commands.flush()
        except OSError as err:
            raise RuntimeError("the reference run has ended early") from err
        self._asked += 1

    def losses(self, *, limit_s: float) -> dict[int, str]:
        """All exact losses asked for so far, by step.

        Raises:
            RuntimeError: the reference run failed, or is not done within `limit_s`.
        """
        with self._answered:
            if not self._answered.wait_for(lambda: self._answers >= self._asked or self._ended, timeout=limit_s):
                raise RuntimeError(f"the reference run is not done after {limit_s:g} s")
            if self._answers < self._asked:
                raise RuntimeError("the reference run has ended early")
            return dict(self._losses)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):  # it has ended already
            self._commands.close()
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=5)
        self._output.close()

    def _read_losses(self) -> None:
        for line in self._output:
            losses = {int(step): exact for step, exact in json.loads(line)["losses"].items()}
            with self._answered:
                self._losses |= losses
                self._answers += 1
                self._answered.notify_all()
        with self._answered:
            self._ended = True
            self._answered.notify_all()
