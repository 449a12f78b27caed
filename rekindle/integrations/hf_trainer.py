"""What Rekindle does around a Trainer's own methods: it sees each batch's loss, and makes a save safe for all ranks.

The methods are replaced on the one Trainer object, so that a subclass's own are the ones that are called. Source:
transformers 5.23, trainer.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from rekindle.integrations.losses import StepLoss
from rekindle.integrations.rank_coordinator import RankCoordinator
from rekindle.monitor import Monitor
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.trouble import logger

MARK = "is_rekindles"
_MAX_FRAMES = 12  # from a callback up to the Trainer that calls it
_PARTS = ("save_model", "_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state")  # of one checkpoint


def trainer_of_caller() -> Any:
    """The Trainer whose callback is running, which the Trainer itself does not pass on; None where there is none."""
    frame: Any = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    return None


class TrainerHooks:
    """One Trainer under watch, until `remove`."""

    def __init__(self, trainer: Any, monitor: Callable[[], Monitor]) -> None:
        self.trainer = trainer
        self._monitor = monitor
        self._together = RankCoordinator()
        self._losses = StepLoss()
        self._made: Path | None = None  # the newest emergency checkpoint
        self._unsealed: Path | None = None  # what the Trainer has saved by itself, until it says so to its callbacks
        self._save_checkpoint = trainer._save_checkpoint
        self._hooked: list[str] = []
        self._hook("training_step", self._see_loss)
        self._hook("_save_checkpoint", self._own_save)
        for name in ("evaluate", "predict"):
            self._hook(name, self._evaluate)
        for name in _PARTS:
            setattr(trainer, name, self._together.collective(getattr(trainer, name)))
            self._hooked.append(name)

    def begin(self) -> None:
        """Training begins: the engine, if any, exists now."""
        self._losses.clear()
        scaler = getattr(self.trainer.accelerator, "scaler", None)
        if scaler is not None:
            self._monitor().scaler(scaler)
        if hasattr(self.trainer.model_wrapped, "checkpoint_engine"):  # DeepSpeed's engine
            self._together.keeps_writes_of(self.trainer.model_wrapped)

    def remove(self) -> None:
        for name in self._hooked:
            with suppress(AttributeError):
                delattr(self.trainer, name)
        self._hooked.clear()

    def step_loss(self) -> Any:
        """This rank's own loss of the step: the sum of what `training_step` returned for its batches.

        The Trainer divides each batch's loss by their number, or by the tokens of all of them; its own log is the mean
        over ranks and logged steps of the same sums, without what is not finite (`logging_nan_inf_filter`).
        """
        return self._losses.take_sum()

    def save_now(self) -> Path:
        """An emergency checkpoint: whole on all ranks, or an error on all of them and nothing left behind."""
        trainer = self.trainer
        if trainer.state.is_hyper_param_search:
            raise RuntimeError("a trial of a hyperparameter search cannot be resumed from a checkpoint")
        folder = self._folder(None)
        with _settings(trainer.args, save_only_model=False, push_to_hub=False):
            self._write(folder, trainer.model, None)
        self._made = folder
        try:  # some scripts complete a checkpoint in a callback of their own
            trainer.callback_handler.call_event("on_save", trainer.args, trainer.state, trainer.control)
        except BaseException as err:
            if must_pass(err):
                raise
            logger.warning("A callback failed after an emergency checkpoint; the checkpoint stands: %r", err)
        return folder

    def seal(self, step: int) -> None:
        """The Trainer tells its callbacks that it has saved."""
        folder, self._unsealed = self._unsealed, None
        if folder is None:
            return
        if self.trainer.args.save_only_model:
            logger.warning("%s holds the model only: no run can resume from it, so it gets no manifest", folder)
            return
        self._monitor().saved(folder, step)

    # ---- around the Trainer's methods --------------------------------------------------------------------------

    def _hook(self, name: str, around: Callable[..., Any]) -> None:
        inner = getattr(self.trainer, name)

        @wraps(inner)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            return around(inner, *args, **kwargs)

        setattr(hooked, MARK, True)
        setattr(self.trainer, name, hooked)
        self._hooked.append(name)

    def _see_loss(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loss = inner(*args, **kwargs)
        with suppress(Exception):  # a script's own training_step may return anything
            self._losses.add(loss)
        return loss

    def _evaluate(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._monitor().phase("evaluation"):
            return inner(*args, **kwargs)

    def _own_save(self, inner: Callable[..., Any], model: Any, trial: Any) -> None:  # noqa: ARG002 - kept by the hook
        """The Trainer's own, periodic save: what fails in it is the script's, on all ranks."""
        folder = self._folder(trial)
        with self._monitor().phase("saving"):
            if folder != self._made:
                self._write(folder, model, trial)
                self._unsealed = folder
            elif self._has_become_best(folder):
                self._unsealed = folder

    def _write(self, folder: Path, model: Any, trial: Any) -> None:
        """All ranks' parts, in place, for the Trainer reads and deletes checkpoints by their names."""
        with self._together.in_place(folder, is_writer=self.trainer.args.should_save):
            self._save_checkpoint(model, trial)

    def _has_become_best(self, folder: Path) -> bool:
        """An evaluation came between the emergency checkpoint of this step and the Trainer's own save of it."""
        state = self.trainer.state
        if state.best_global_step != state.global_step:
            return False
        state.best_model_checkpoint = str(folder)
        if self.trainer.args.should_save:
            beside = folder / f".{TRAINER_STATE_NAME}"
            state.save_to_json(str(beside))
            beside.replace(folder / TRAINER_STATE_NAME)
        return True

    def _folder(self, trial: Any) -> Path:
        return Path(self.trainer._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{self.trainer.state.global_step}")


@contextmanager
def _settings(args: Any, **values: Any) -> Iterator[None]:
    """The Trainer's arguments with other values for a while."""
    before = {name: getattr(args, name) for name in values}
    for name, value in values.items():
        object.__setattr__(args, name, value)  # they refuse ordinary assignment where they are frozen
    try:
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(args, name, value)
