"""What the callback does, whichever of Lightning's two packages the script imports. See the module `lightning` here."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

from rekindle.integrations.gang import finish, rank_and_world, start
from rekindle.integrations.local import LocalWatch
from rekindle.integrations.rng import gathered_rng, restore_rng
from rekindle.mailbox import ResumePlan
from rekindle.monitor import Monitor
from rekindle.monitor.trouble import logger

RNG_KEY = "rekindle_rng"  # in Lightning's checkpoint: one entry per rank


class LightningHooks:
    """The hooks of a Lightning callback; `RekindleCallback` adds the package's own base class.

    folder: where emergency checkpoints go; default `<default_root_dir>/rekindle`. sampler: the run's
    `ResumableSampler`, for exact resumes in mid-epoch and for windows to skip. more: further
    arguments of `rekindle.monitor.start`.
    """

    def __init__(self, *, folder: str | Path | None = None, sampler: Any = None, **more: Any) -> None:
        super().__init__()
        self._folder = Path(folder) if folder is not None else None
        self._sampler = sampler
        self._more = more
        self._evaluating: Any = None
        self._trainer: Any = None
        self._step = 0
        self._updates = 0
        self._started: Monitor | None = None
        self.monitor = Monitor(ResumePlan())  # silent until all ranks are there
        self._watch = LocalWatch(self.monitor)
        self._rng: list[Any] = []

    # ---- before training ---------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's hook
        if stage != "fit" or self._started is not None:
            return
        self._trainer = trainer
        self._started = self.monitor = start(save=self._save, **self._more)
        self._watch = LocalWatch(self.monitor)
        self._seal_all_saves_of(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Every rank comes here for every checkpoint. Lightning itself keeps no random generators."""
        checkpoint[RNG_KEY] = gathered_rng(trainer.global_step)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        self._rng = checkpoint.get(RNG_KEY, [])

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._step = int(state_dict["step"])

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        """The checkpoint, if any, is loaded by now, and the data are not yet."""
        if self._sampler is not None:
            self._sampler.go_on_after(self._step)
            self._sampler.leave_out(self.monitor.resume)
        elif self.monitor.resume.skip:
            logger.warning("RekindleCallback was given no sampler: it cannot leave out the windows that it was told")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        _take_sigterm_from(trainer)
        self._updates = trainer.global_step
        rank, world_size = rank_and_world()
        if len(self._rng) == world_size:  # now, for starting to read the data has used the generators already
            restore_rng(self._rng[rank])
        self._rng = []

    # ---- at each step ------------------------------------------------------------------------------------------

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if trainer.global_step == self._updates:  # the gradients of this batch are still being accumulated
            return
        self._updates = trainer.global_step
        if self._sampler is None:
            self._step = self._updates
        else:
            self._step = self._sampler.next_step(self._step)
            self._sampler.go_on_after(self._step)
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._watch.loss(loss)
        self._watch.stepped(self._step)
        self.monitor.step(self._step, loss=loss)
        if self.monitor.should_stop:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        if self._sampler is not None and not trainer.should_stop:
            self._sampler.end_epoch()
            self._step = self._sampler.done

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        self._evaluating = self.monitor.phase("evaluation")
        self._evaluating.__enter__()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        if self._evaluating is not None:
            self._evaluating.__exit__(None, None, None)

    # ---- saving ------------------------------------------------------------------------------------------------

    def _save(self, step: int, kind: str) -> Path:  # noqa: ARG002 - a save function's arguments
        folder = self._folder or Path(self._trainer.default_root_dir) / "rekindle"
        path = folder / f"step-{step:09d}.ckpt"
        self._write(path)
        return path

    def _seal_all_saves_of(self, trainer: Any) -> None:
        """ModelCheckpoint and the script save by `trainer.save_checkpoint`, which ends with a barrier of all ranks."""
        self._write = write = trainer.save_checkpoint

        def save_checkpoint(filepath: Any, weights_only: Any = None, storage_options: Any = None) -> None:
            with self.monitor.phase("saving"):
                write(filepath, weights_only, storage_options)
            # A name without the step, as `last.ckpt`, is written again by the next save: no manifest may vouch for it.
            if not weights_only and str(trainer.global_step) in re.findall("[0-9]+", Path(filepath).name):
                self.monitor.saved(filepath, self._step)

        trainer.save_checkpoint = save_checkpoint

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self.monitor.finish(f"died of {type(exception).__name__}")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's hook
        if stage == "fit":
            self._watch.close()
            finish(self.monitor)
            self._started = None


def _take_sigterm_from(trainer: Any) -> None:
    """Lightning's SIGTERM handler does a broadcast inside the handler, then ends the run at the next batch, unsaved.

    It calls the handlers that were there before it: they, the monitor's among them, are put back alone. Source:
    lightning 2.6, trainer/connectors/signal_connector.py
    """
    composed = signal.getsignal(signal.SIGTERM)
    connector = getattr(trainer, "_signal_connector", None)
    kept = [
        handler
        for handler in getattr(composed, "signal_handlers", ())
        if getattr(handler, "__self__", None) is not connector
    ]
    if connector is not None and hasattr(composed, "signal_handlers"):
        signal.signal(signal.SIGTERM, kept[0] if kept else signal.SIG_DFL)
