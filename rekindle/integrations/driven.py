"""What the integrations share whose loop is the script's own: it calls `step`, `save` and `finish` itself."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from rekindle.integrations.guarded import Guarded, guarded
from rekindle.integrations.local import LocalWatch, StepLoss
from rekindle.integrations.rank_coordinator import RankCoordinator
from rekindle.integrations.torch_ranks import finish, start


class MonitorDriver(Guarded, ABC):
    """One per process, on every rank. `monitor` is the `rekindle.monitor.Monitor` beneath."""

    def __init__(self, folder: str | os.PathLike[str], **more: Any) -> None:
        self._folder = Path(folder)
        self._coordinator = RankCoordinator()
        self._made: Path | None = None  # the emergency checkpoint of the newest step, where there is one
        self._losses = StepLoss()
        self.monitor = start(save=self._emergency, **more)
        self._watch = LocalWatch(self.monitor)

    @guarded("step")
    def step(self, step: int, **values: Any) -> None:
        """`Monitor.step`, after each batch, on every rank; an emergency checkpoint happens in the last one of a step.

        loss: this rank's own of this batch, as the script computed it, not divided by the number of batches whose
        gradients are accumulated; the monitor is given the mean of these batches.
        """
        loss = values.pop("loss", None)
        self._watch.loss(loss)
        self._losses.add(loss)
        if self._has_updated():
            self._made = None
            self._watch.stepped(step)
            values.setdefault("lr", self._learning_rate())
            self.monitor.step(step, loss=self._losses.take(), **values)

    def save(self, step: int, kind: str = "periodic") -> Path:
        """A checkpoint of the script's own, on every rank; its manifest comes when all ranks have written.

        Where an emergency checkpoint of this very step was made, it is that one. Between two batches of a step nothing
        is written, for half a gradient is in no checkpoint: the call after the last of them writes. Raises:
        `SaveFailed` on all ranks where any rank's part failed; for a rank that is alone, what its save raised.
        """
        if not self._has_updated():
            return self._place(step)
        if self._made == self._place(step):  # the same on all ranks, for all have made it
            return self._made
        with self.monitor.phase("saving"):
            path = self._save(step)
        self.monitor.saved(path, step, kind=kind)
        return path

    @property
    def should_stop(self) -> bool:
        return self.monitor.should_stop

    def finish(self) -> None:
        self._watch.close()
        finish(self.monitor)

    def _emergency(self, step: int, kind: str) -> Path:  # noqa: ARG002 - a save function's arguments
        self._made = self._save(step)
        return self._made

    def _save(self, step: int) -> Path:
        """All ranks' parts of the state after `step`, or on all ranks an error."""
        path = self._place(step)
        with self._coordinator.folder(path) as beside:
            self._write(beside, step)
        return path

    def _place(self, step: int) -> Path:
        return self._folder / f"step-{step:09d}"

    @abstractmethod
    def _write(self, path: Path, step: int) -> None:
        """The framework's own save of the state after `step`."""

    @abstractmethod
    def _has_updated(self) -> bool:
        """False between two batches whose gradients are accumulated."""

    @abstractmethod
    def _learning_rate(self) -> Any:
        """The first parameter group's, as a number or a tensor; None where it is not known."""
