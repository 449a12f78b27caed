"""Rekindle in the Hugging Face Trainer: one callback. Saves are the Trainer's own `checkpoint-N`.

    from rekindle.integrations.hf import RekindleCallback

    callback = RekindleCallback()
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume_path)

A step is a global step of the Trainer: one optimizer update, `gradient_accumulation_steps` batches of each rank. Steps
in a window to skip are counted, so that `checkpoint-N` still says how far the data were read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from rekindle.integrations.gang import finish, rank_and_world, start
from rekindle.integrations.local import LocalWatch
from rekindle.integrations.resume import path_of
from rekindle.mailbox import ResumePlan
from rekindle.monitor import LATER, Monitor
from rekindle.monitor.saving import Later
from rekindle.monitor.trouble import logger


class WindowedSampler:
    """The Trainer's own sampler, without the samples of the steps to skip, in the order in which it gives them."""

    def __init__(self, sampler: Any, per_step: int, resume: ResumePlan) -> None:
        self._sampler = sampler
        self._per_step = per_step
        self._resume = resume
        self.steps_before = 0  # steps of all epochs before the one that is read next

    def __iter__(self) -> Iterator[Any]:
        before, after = self.steps_before, self._resume.step or 0
        for index, sample in enumerate(self._sampler):
            step = before + index // self._per_step + 1
            # Steps up to the resume point are passed over by the Trainer itself, which counts them.
            if step <= after or not self._resume.should_skip(step):
                yield sample

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        """`set_epoch`, `generator` and whatever else is asked of the sampler inside."""
        return getattr(self._sampler, name)


class RekindleCallback(TrainerCallback):
    """Watches the run, asks the Trainer to save when a checkpoint is asked for, stops it on SIGTERM, skips windows.

    resume_path: for `trainer.train(resume_from_checkpoint=...)`; None for a fresh run. more: further
    arguments of `rekindle.monitor.start`.
    """

    def __init__(self, **more: Any) -> None:
        self._more = more
        self._plan: Monitor | None = None
        self.monitor = Monitor(ResumePlan())  # silent until training begins: only then are all ranks there
        self._control: Any = None
        self._losses: list[Any] = []
        self._logged: Any = None
        self._hook: Any = None
        self._watch = LocalWatch(self.monitor)
        self._steps_per_epoch = 0
        self._sampler: WindowedSampler | None = None

    @property
    def resume_path(self) -> str | None:
        return path_of(self._started())

    def _started(self) -> Monitor:
        """The monitor; started at the first need, which is the same on all ranks."""
        if self._plan is None:
            self._plan = self.monitor = start(save=self._save, **self._more)
            self._watch = LocalWatch(self._plan)
        return self._plan

    # ---- the Trainer's events ----------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        monitor = self._started()
        model, loader = kwargs.get("model"), kwargs.get("train_dataloader")
        if model is not None and not monitor.is_silent:
            self._hook = model.register_forward_hook(self._see)
        if monitor.resume.skip:
            self._leave_out(args, loader, monitor.resume)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._sampler is not None:
            self._sampler.steps_before = state.global_step // self._steps_per_epoch * self._steps_per_epoch

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._sampler is not None:
            while self.monitor.should_skip(state.global_step + 1):
                state.global_step += 1

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._sampler is not None:
            end = self._sampler.steps_before + self._steps_per_epoch
            while state.global_step < end and self.monitor.should_skip(state.global_step + 1):
                state.global_step += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        loss = sum(self._losses) / len(self._losses) if self._losses else self._logged
        self._losses.clear()
        self._logged = None
        self._control = control
        self._watch.loss(loss)
        self._watch.stepped(state.global_step)
        self.monitor.step(state.global_step, loss=loss)
        if self.monitor.should_stop:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._logged = (kwargs.get("logs") or {}).get("loss")

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._losses.clear()  # of the evaluation
        self.monitor.alive()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self.monitor.saved(folder, state.global_step, by_all_ranks=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._hook is not None:
            self._hook.remove()
        self._watch.close()
        finish(self.monitor)

    # ---- saving, losses, windows -------------------------------------------------------------------------------

    def _save(self, step: int, kind: str) -> Later:  # noqa: ARG002 - a save function's arguments
        """All ranks are in `on_step_end` of the same step: the Trainer saves as soon as that returns."""
        self._control.should_save = True
        return LATER

    def _see(self, model: Any, inputs: Any, outputs: Any) -> None:  # noqa: ARG002 - a forward hook's arguments
        """The loss of this rank's own batch; the Trainer logs means over many steps, and by default hides NaN."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
        if loss is not None and model.training:
            self._losses.append(loss.detach())

    def _leave_out(self, args: Any, loader: Any, resume: ResumePlan) -> None:
        """Put the windows between the Trainer's sampler and its batches."""
        batches = getattr(loader, "batch_sampler", None)
        while batches is not None and hasattr(batches, "batch_sampler"):  # accelerate's shard of it, one per rank
            batches = batches.batch_sampler
        if batches is None or not hasattr(batches, "sampler"):
            logger.warning(
                "The Trainer's data have no batch sampler: Rekindle cannot leave out the windows it was told"
            )
            return
        accumulate = args.gradient_accumulation_steps
        self._steps_per_epoch = max(-(-len(loader) // accumulate), 1)
        per_step = batches.batch_size * rank_and_world()[1] * accumulate
        batches.sampler = self._sampler = WindowedSampler(batches.sampler, per_step, resume)
