"""Rekindle in the Hugging Face Trainer: one callback. Saves are the Trainer's own `checkpoint-N`.

    from rekindle.integrations.hf import RekindleCallback

    callback = RekindleCallback()
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume_path)

A step is a global step of the Trainer: one optimizer update, `gradient_accumulation_steps` batches of each rank. Steps
in a window to skip are counted, so that `checkpoint-N` still says how far the data were read.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from transformers import TrainerCallback

from rekindle.integrations.guarded import Guarded, guarded
from rekindle.integrations.hf_trainer import MARK, TrainerHooks, trainer_of_caller
from rekindle.integrations.hf_windows import Windows
from rekindle.integrations.local import LocalWatch
from rekindle.integrations.losses import learning_rate
from rekindle.integrations.resume import resume_path
from rekindle.integrations.rng import tell_of_draws
from rekindle.integrations.torch_ranks import finish, is_distributed, start
from rekindle.monitor import Monitor
from rekindle.monitor.base.settings import process_environment, rank_from_env
from rekindle.monitor.base.trouble import logger
from rekindle.protocol.mailbox import ResumePlan


class RekindleCallback(Guarded, TrainerCallback):
    """Watches the run, saves when a checkpoint is asked for, stops the run on SIGTERM, leaves out windows.

    resume_path: for `trainer.train(resume_from_checkpoint=...)`; None for a fresh run. more: further arguments of
    `rekindle.monitor.start`.

    It finds its Trainer when training begins. Where the Trainer does not call its callbacks itself, name it:
    `callback.attach(trainer)`. One callback watches one `train()` of one Trainer; a second callback does nothing.
    """

    def __init__(self, **more: Any) -> None:
        self._more = more
        self._plan: Monitor | None = None
        self.monitor = Monitor(ResumePlan())  # silent until training begins: only then are all ranks there
        self._hooks: TrainerHooks | None = None
        self._is_second = False
        self._step: int | None = None
        self._lr: Any = None
        self._logged: Any = None
        self._watch = LocalWatch(self.monitor)
        self._windows: Windows | None = None
        self._loading: AbstractContextManager[None] | None = None

    @property
    def resume_path(self) -> str | None:
        """Raises: ValueError where the checkpoint to go on from lies at no local path."""
        if self._plan is None and not is_distributed() and rank_from_env(process_environment())[1] > 1:
            return resume_path()  # the Trainer's arguments bring the ranks together, and do not exist yet
        return self._started().resume_path

    def attach(self, trainer: Any) -> None:
        """Take this Trainer's saves and losses from now on. Only where it is not found, as by a subclass of its own."""
        if self._is_second or (self._hooks is not None and self._hooks.trainer is trainer):
            return
        if getattr(trainer.training_step, MARK, False):
            self._is_second = True
            logger.warning("This Trainer has a RekindleCallback already: the second one does nothing")
            return
        self._hooks = TrainerHooks(trainer, self._started)

    def _started(self) -> Monitor:
        """The monitor; started at the first need, which is the same on all ranks."""
        if self._plan is None:
            self._plan = self.monitor = start(save=self._save, **self._more)
            self._watch = LocalWatch(self._plan)
        return self._plan

    # ---- the Trainer's events ----------------------------------------------------------------------------------

    @guarded("on_train_begin")
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        trainer = trainer_of_caller()
        if trainer is not None:
            self.attach(trainer)
        if self._is_second:
            return
        monitor = self._started()
        monitor.scaler(kwargs.get("optimizer"))  # Accelerate's, which holds the scaler where there is one
        if self._hooks is not None:
            self._hooks.begin()
        else:
            logger.warning(
                "RekindleCallback did not find its Trainer: call attach(trainer), or no save can be asked for"
            )
        tell_of_draws(kwargs.get("train_dataloader"))
        if monitor.resume.skip:
            self._windows = Windows.of(args, kwargs.get("train_dataloader"), monitor.resume)

    @guarded("on_epoch_begin")
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._windows is not None:
            self._windows.begin_epoch(state)
        if not self._is_second:
            self._load(begins=True)

    @guarded("on_step_begin")
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._load(begins=False)
        if self._windows is not None:
            self._windows.begin_step(state)

    @guarded("on_epoch_end")
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._load(begins=False)
        if self._windows is not None:
            self._windows.end_epoch(state)

    @guarded("on_pre_optimizer_step")
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._lr = learning_rate(kwargs.get("optimizer"))  # the scheduler moves it before the step's end

    @guarded("on_step_end")
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._is_second or state.global_step == self._step:  # the same callback may be there twice
            return
        self._step = state.global_step
        loss = self._hooks.step_loss() if self._hooks is not None else self._logged
        self._logged = None
        self._watch.loss(loss)
        self._watch.stepped(state.global_step)
        self.monitor.step(state.global_step, loss=loss, lr=self._lr)
        if self.monitor.should_stop:
            control.should_training_stop = True

    @guarded("on_log")
    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._logged = (kwargs.get("logs") or {}).get("loss")

    @guarded("on_prediction_step")
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.monitor.alive()

    @guarded("on_save")
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._hooks is not None and not self._is_second:
            self._hooks.seal(state.global_step)

    @guarded("on_train_end")
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._is_second:
            return
        self._load(begins=False)
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        self._watch.close()
        finish(self.monitor)

    # ---- saving, and the start of an epoch's data --------------------------------------------------------------

    def _save(self, step: int, kind: str) -> Any:  # noqa: ARG002 - a save function's arguments
        """All ranks are in `on_step_end` of the same step, and the Trainer's state is that after it."""
        if self._hooks is None:
            raise RuntimeError("RekindleCallback does not know its Trainer: call attach(trainer) before train()")
        return self._hooks.save_now()

    def _load(self, *, begins: bool) -> None:
        """An epoch's first batch may take minutes: workers start, a resumed run passes over what was read."""
        if self._loading is not None:
            self._loading.__exit__(None, None, None)
            self._loading = None
        if begins:
            self._loading = self.monitor.phase("startup")
            self._loading.__enter__()
