"""The steps as the workers wrote them down: one file per attempt, one JSON line per step, read as they grow."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path

from localcloud.demo.story import StepSeen


class Trace:
    """All steps of all attempts so far, in the order they were read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.steps: list[StepSeen] = []

    def read(self) -> list[StepSeen]:
        """Read what was written since the last call; returns all steps. Half a line is left for later."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            self.steps.extend(_step(line, path.stem) for line in whole.splitlines())
        return self.steps

    def range_of(self, attempt: str) -> tuple[int, int] | None:
        """First and last step of an attempt; None while it has none."""
        steps = [item.step for item in self.steps if item.attempt == attempt]
        return (min(steps), max(steps)) if steps else None

    def last_good_step(self, attempt: str) -> int | None:
        """The last step of an attempt whose loss was finite."""
        return max(
            (item.step for item in self.steps if item.attempt == attempt and math.isfinite(item.loss)), default=None
        )


def _step(line: bytes, attempt: str) -> StepSeen:
    wire = json.loads(line)
    return StepSeen(
        attempt=attempt,
        number=int(wire["attempt_number"]),
        step=int(wire["step"]),
        exact=str(wire["loss"]),
        at=datetime.fromtimestamp(float(wire["at"]), UTC),
    )
