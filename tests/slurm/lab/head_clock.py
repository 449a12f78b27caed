"""The clock of a lab's head node, to be set forward and back while slurmctld runs: libfaketime before it and before the
commands that an agent runs there. The nodes' clocks, munged's and all durations stay as they are.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from tests.slurm.lab.install import Installation

_LIBRARY: Final = "libfaketimeMT.so.1"


class HeadClock:
    def __init__(self, install: Installation, file: Path) -> None:
        self._library = install.beside(_LIBRARY)
        self._file = file
        self.set(timedelta(0))

    def set(self, off: timedelta) -> None:
        """By so much before (or after, where negative) the machine's own clock, at once."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{off.total_seconds():+.0f}\n")
        beside.replace(self._file)

    def environ(self) -> dict[str, str]:
        """What a process of Slurm's needs in order to have this clock. Source: libfaketime's README."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def before(self) -> str:
        """The same as the beginning of a shell's command."""
        return "env " + " ".join(f"{name}={value}" for name, value in self.environ().items())
