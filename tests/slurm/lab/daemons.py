"""The daemons of a lab: all of them descend from one keeper (localcloud/keeper.py), and end with it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcloud.keeper import KEEPER
from tests.slurm.lab.commands import LabError


class Daemons:
    """`pids`: each daemon's latest process. `keeper_pid`: from which all descends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self.pids: dict[str, int] = {}
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C at the terminal is not its business
        )
        if self._keeper.stdin is None or self._keeper.stdout is None:  # for the type checker: both are pipes
            raise LabError("the keeper has no pipes")
        self._orders, self._answers = self._keeper.stdin, self._keeper.stdout
        self.keeper_pid = self._keeper.pid

    def close(self) -> None:
        """End the keeper, and all that descends from it."""
        self._orders.close()
        self._keeper.wait()
        self._answers.close()

    def start(self, daemon: str, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Raises: LabError."""
        what = {
            "argv": list(argv),
            "env": dict(environ),
            "cwd": str(self._folder / "work"),
            "log": str(self._folder / f"log/{daemon}.out"),
        }
        with self._lock:
            self._orders.write(json.dumps({"start": what}) + "\n")
            self._orders.flush()
            answer = {"ended": 0}  # of daemons that ended meanwhile: `wait` sees those itself
            while "ended" in answer:
                answer = json.loads(self._answers.readline() or '{"why": "the keeper has ended"}')
            if "pid" not in answer:
                raise LabError(f"{daemon} did not start: {answer['why']}")
            self.pids[daemon] = answer["pid"]
