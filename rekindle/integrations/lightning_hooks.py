"""What the callback does, whichever of Lightning's two packages the script imports. See the module `lightning` here."""

from __future__ import annotations

import copy
import math
import re
import signal
from pathlib import Path
from typing import Any, cast

from rekindle.integrations.guarded import WatchingCallback, guarded
from rekindle.integrations.local import LocalWatch, StepLoss, learning_rate
from rekindle.integrations.rank_coordinator import RankCoordinator
from rekindle.integrations.rng import gathered_rng, restore_rng
from rekindle.integrations.torch_ranks import finish, rank_and_world, start
from rekindle.monitor import Monitor
from rekindle.monitor.base.trouble import logger

RNG_KEY = "rekindle_rng"  # in Lightning's checkpoint: one entry per rank


class WatchedWrites:
    """A `CheckpointIO` around the run's own, on the ranks that write; each of Lightning's packages adds its base."""

    def __init__(self, inner: Any, hooks: LightningHooks) -> None:
        self.inner, self._hooks = inner, hooks

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self._hooks.coordinator.keep(self.inner.save_checkpoint, checkpoint, path, storage_options=storage_options)
        self._hooks.written(checkpoint, path)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", self.inner.load_checkpoint(*args, **kwargs))

    def remove_checkpoint(self, path: Any) -> None:
        self.inner.remove_checkpoint(path)

    def teardown(self) -> None:
        self.inner.teardown()


class LightningHooks(WatchingCallback):
    """The hooks of a Lightning callback; `RekindleCallback` adds the package's own base class.

    folder: where emergency checkpoints go; default `<default_root_dir>/rekindle`. sampler: the run's
    `ResumableSampler`, for exact resumes in mid-epoch and for windows to skip. more: further arguments of
    `rekindle.monitor.start`.
    """

    writes: type  # `WatchedWrites` with the package's own base class

    def __init__(self, *, folder: str | Path | None = None, sampler: Any = None, **more: Any) -> None:
        super().__init__()
        self._folder = Path(folder) if folder is not None else None
        self._sampler = sampler
        self._more = more
        self.coordinator = RankCoordinator()
        self._losses = StepLoss()
        self._trainer: Any = None
        self._step = 0
        self._updates = 0
        self._sealed: dict[str, int] = {}  # path → the step that a manifest names it for
        self._is_emergency = False
        self._is_unwritten = False  # a save has begun, and no `CheckpointIO` has written it on this rank
        self._writes: Any = None
        self._term_before: Any = None  # SIGTERM's handler before Lightning's
        self._cut: Any = None  # the state of the loops where a stop cut the epoch short
        self._before_stop: tuple[Any, Any, Any] | None = None
        self._started: Monitor | None = None
        self._watch = LocalWatch(self.monitor)
        self._rng: list[Any] = []

    # ---- before training ---------------------------------------------------------------------------------------

    @guarded("setup")
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's hook
        if stage != "fit" or self._started is not None:
            return
        self._trainer = trainer
        self._cut = None
        self._started = self.monitor = start(save=self._save, **self._more)
        self._watch = LocalWatch(self.monitor)
        self._term_before = signal.getsignal(signal.SIGTERM)
        self._writes = self.writes(trainer.strategy.checkpoint_io, self)
        trainer.strategy.checkpoint_io = self._writes

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Every rank comes here for every checkpoint, before it is written. Raises: SaveFailed where one cannot write.

        Nothing is written, and nothing older is removed, where this raises.
        """
        if not self._is_emergency:
            for folder in _folders(trainer):
                self.coordinator.ready(folder)
            self._enter("saving")
            self._is_unwritten = True
        self._complete(trainer, checkpoint)

    @guarded("on_save_checkpoint")
    def _complete(self, trainer: Any, checkpoint: dict[str, Any]) -> None:
        """Lightning itself keeps no random generators."""
        if self._cut is not None:
            # At a stop Lightning counts the epoch as done, and a run that resumes there would leave out its rest.
            checkpoint["epoch"], checkpoint["loops"]["fit_loop"] = copy.deepcopy(self._cut)
        checkpoint[RNG_KEY] = gathered_rng(trainer.global_step)

    @guarded("on_load_checkpoint")
    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        self._rng = checkpoint.get(RNG_KEY, [])

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._step = int(state_dict["step"])

    @guarded("on_fit_start")
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        """The checkpoint, if any, is loaded by now, and the data are not yet."""
        if self._sampler is not None:
            self._sampler.go_on_after(self._step)
            self._sampler.leave_out(self.monitor.resume)
        elif self.monitor.resume.skip:
            logger.warning("RekindleCallback was given no sampler: it cannot leave out the windows that it was given")

    @guarded("on_train_start")
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        # Lightning's handler does a broadcast inside the handler, then ends the run at the next batch, unsaved; the one
        # before it, the monitor's, is put back. Source: lightning 2.6, trainer/connectors/signal_connector.py
        if self._term_before is not None:
            signal.signal(signal.SIGTERM, self._term_before)
        self.monitor.scaler(trainer)
        self._updates = trainer.global_step
        rank, world_size = rank_and_world()
        if len(self._rng) == world_size:  # now, for starting to read the data has used the generators already
            restore_rng(self._rng[rank])
        self._rng = []

    # ---- at each step ------------------------------------------------------------------------------------------

    @guarded("on_train_epoch_start")
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        self._enter("startup")  # an epoch's first batch may take minutes: workers start

    @guarded("on_train_batch_start")
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._leave()
        self._seal_unwritten(trainer)

    @guarded("on_train_batch_end")
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._stepped(trainer, pl_module, outputs)
        if trainer.enable_validation and (
            trainer.is_last_batch or (batch_idx + 1) % (trainer.val_check_batch or math.inf) == 0
        ):
            self._enter("evaluation")  # from before the workers of its data start

    def _stepped(self, trainer: Any, pl_module: Any, outputs: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and pl_module.automatic_optimization:
            batches = trainer.accumulate_grad_batches
            loss = loss * batches if batches > 1 else loss  # Lightning has divided it
        self._losses.add(loss)
        if trainer.global_step == self._updates:  # the gradients of this batch are still being accumulated
            return
        self._updates = trainer.global_step
        if self._sampler is None:
            self._step = self._updates
        else:
            self._step = self._sampler.next_step(self._step)
            self._sampler.go_on_after(self._step)
        loss = self._losses.take()
        self._watch.loss(loss)
        self._watch.stepped(self._step)
        rate = learning_rate(trainer.optimizers[0]) if trainer.optimizers else None
        self.monitor.step(self._step, loss=loss, lr=rate)
        if self.monitor.should_stop:
            self._stop(trainer)

    @guarded("on_train_epoch_end")
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        self._leave()
        if self._sampler is not None and not trainer.should_stop:
            self._sampler.end_epoch()
            self._step = self._sampler.done

    @guarded("on_validation_start")
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        self._enter("evaluation")

    @guarded("on_validation_end")
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's hook
        self._leave()

    on_sanity_check_start, on_sanity_check_end = on_validation_start, on_validation_end

    @guarded("on_validation_batch_end")
    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - Lightning's hook
        self.monitor.alive()

    # ---- saving and stopping -----------------------------------------------------------------------------------

    def _save(self, step: int, kind: str) -> Path:  # noqa: ARG002 - a save function's arguments
        folder = self._folder or Path(self._trainer.default_root_dir) / "rekindle"
        path = folder / f"step-{step:09d}.ckpt"
        self._is_emergency = True
        try:
            with self.coordinator.in_place(path):
                self._trainer.save_checkpoint(path)
        finally:
            self._is_emergency = False
        self._sealed[str(path)] = step
        return path

    @guarded("written")
    def written(self, checkpoint: dict[str, Any], path: Any) -> None:
        """A rank has written what the script or a ModelCheckpoint saves."""
        if self._is_emergency:
            return
        self._leave()
        self._is_unwritten = False
        if RNG_KEY in checkpoint:  # else it holds weights only
            self._seal(path)

    def _seal_unwritten(self, trainer: Any) -> None:
        """Some strategies write without a `CheckpointIO`: what a ModelCheckpoint says that it has saved is there."""
        if self._is_unwritten:
            self._is_unwritten = False
            for callback in trainer.checkpoint_callbacks:
                for path in {getattr(callback, "best_model_path", ""), *getattr(callback, "best_k_models", ())}:
                    if path and Path(path).exists():
                        self._seal(path)

    def _seal(self, path: Any) -> None:
        if self._is_whole(path):
            self._sealed[str(path)] = self._step
            self.monitor.saved(path, self._step)

    def _is_whole(self, filepath: Any) -> bool:
        """Whether a manifest may vouch for a file that the script or a ModelCheckpoint has saved.

        A name without the step, such as `last.ckpt`, is written again by the next save. After a stop Lightning tears
        down: what is saved then is no newer than the checkpoint that the stop asked for.
        """
        if self._cut is not None or str(filepath) in self._sealed:
            return False
        if self._step in self._sealed.values():  # one checkpoint of a step is enough
            return False
        numbers = {int(number) for number in re.findall("[0-9]+", Path(filepath).name)}
        return self._trainer.global_step in numbers

    def _stop(self, trainer: Any) -> None:
        """End the loop at this batch, whatever `min_steps` and `min_epochs` say, without an evaluation."""
        loop = trainer.fit_loop
        if self._cut is None:
            self._cut = copy.deepcopy((trainer.current_epoch, loop.state_dict()))
            self._before_stop = trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps
            trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps = 0, None, None
        trainer.should_stop = True

    @guarded("on_exception")
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self.monitor.finish(f"died of {type(exception).__name__}")

    @guarded("teardown")
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's hook
        if stage != "fit":
            return
        self._leave()
        if self._before_stop is not None:
            loop = trainer.fit_loop
            trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps = self._before_stop
            self._before_stop = None
        self._seal_unwritten(trainer)
        if self._writes is not None and trainer.strategy.checkpoint_io is self._writes:
            trainer.strategy.checkpoint_io = self._writes.inner
        self._watch.close()
        self._was_stopped |= self.monitor.should_stop
        self._started = None
        finish(self.monitor)


def _folders(trainer: Any) -> set[Path]:
    """Where the run's own checkpoints go, as far as that is on a disk."""
    named = [getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks]
    return {Path(folder) for folder in named if folder and "://" not in str(folder)}
