"""What the integrations share whose loop is the script's own: it calls `step`, `save` and `finish` itself."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from rekindle.integrations.gang import finish, start
from rekindle.integrations.local import LocalWatch


class Driven(ABC):
    """One per process, on every rank. `monitor` is the `rekindle.monitor.Monitor` beneath."""

    def __init__(self, folder: str | os.PathLike[str], **more: Any) -> None:
        self._folder = Path(folder)
        self.monitor = start(save=self._save, **more)
        self._watch = LocalWatch(self.monitor)

    def step(self, step: int, **values: Any) -> None:
        """`Monitor.step`, after the optimizer's step, on every rank; an emergency checkpoint happens in here.

        loss: this rank's own. Between two batches whose gradients are accumulated nothing is saved: half a gradient is
        in no checkpoint.
        """
        self._watch.loss(values.get("loss"))
        if self._has_updated():
            self._watch.stepped(step)
            self.monitor.step(step, **values)

    def save(self, step: int, kind: str = "periodic") -> Path:
        """A checkpoint of the script's own, on every rank; its manifest comes when all ranks have written."""
        with self.monitor.phase("saving"):
            path = self._save(step, kind)
        self.monitor.saved(path, step, kind=kind, by_all_ranks=True)
        return path

    @property
    def should_stop(self) -> bool:
        return self.monitor.should_stop

    def finish(self) -> None:
        self._watch.close()
        finish(self.monitor)

    @abstractmethod
    def _save(self, step: int, kind: str) -> Path:
        """The framework's own save of the state after `step`; returns where it lies."""

    @abstractmethod
    def _has_updated(self) -> bool:
        """False between two batches whose gradients are accumulated."""
