"""Rekindle in the Hugging Face Trainer: one callback. Saves are the Trainer's own `checkpoint-N`.

A step (see `rekindle.integrations`) is a global step of the Trainer. Steps in a window to skip are counted, so that
`checkpoint-N` still says how far the data were read.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import transformers.trainer as hf_trainer
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from rekindle.compat import Self
from rekindle.integrations.deepspeed import kept_writes
from rekindle.integrations.guarded import WatchingCallback, guarded, resume_path
from rekindle.integrations.local import LocalWatch, StepLoss, learning_rate
from rekindle.integrations.rank_coordinator import RankCoordinator
from rekindle.integrations.torch_ranks import finish, is_distributed, rank_and_world, start
from rekindle.integrations.versions import is_seen
from rekindle.monitor import Monitor
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.settings import process_environment, rank_from_env
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.saving.saved import LATER
from rekindle.protocol.launch_orders import ResumePlan

_newest: weakref.ref[RekindleCallback] | None = None  # the callback whose training began last


class RekindleCallback(WatchingCallback, TrainerCallback):
    """Watches the run, saves when a checkpoint is asked for, stops the run on SIGTERM, leaves out windows.

    resume_path: for `trainer.train(resume_from_checkpoint=...)`; None for a fresh run. more: further arguments of
    `rekindle.monitor.start`.

    Each `train()` is watched, and the plan to resume and to skip is the first one's. A second callback of one Trainer
    does nothing.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self._more = more
        self._plan: Monitor | None = None
        self._trainer: Any = None
        self._args: Any = None
        self._state: Any = None  # while it trains
        self._control: Any = None
        self._has_trained = False
        self._coordinator = RankCoordinator()
        self._losses = StepLoss()
        self._made: Path | None = None  # the newest emergency checkpoint
        self._is_telling = False
        self._before: tuple[Any, Any] | None = None  # arguments that have another value during a save
        self._step: int | None = None
        self._lr: Any = None
        self._watch = LocalWatch(self.monitor)
        self._windows: WindowedSampler | None = None

    @property
    def resume_path(self) -> str | None:
        """Raises: ValueError where the checkpoint to go on from lies at no local path."""
        if self._has_trained:
            return None
        if self._plan is None and not is_distributed() and rank_from_env(process_environment())[1] > 1:
            return resume_path()  # the Trainer's arguments bring the ranks together, and do not exist yet
        return self._started().resume_path

    def attach(self, trainer: Any) -> None:
        """Name the Trainer, which no callback is told. Before `train()`.

        Without it the loss is the one that is logged, and a save that fails in the Trainer ends the run.
        """
        self._trainer = trainer

    def _started(self) -> Monitor:
        """The monitor; started at the first need, which is the same on all ranks."""
        if self._plan is None:
            self._plan = self.monitor = start(save=self._emergency, **self._more)
            self._watch = LocalWatch(self._plan)
        return self._plan

    # ---- the Trainer's events ----------------------------------------------------------------------------------

    @guarded("on_train_begin")
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        global _newest
        other = None if _newest is None else _newest()
        if other is not None and other._state is state:
            if other is not self:
                logger.warning("This Trainer has a RekindleCallback already: the second one does nothing")
            return
        _newest = weakref.ref(self)
        self._args, self._state, self._control, self._step = args, state, control, None
        monitor = self._started()
        monitor.scaler(kwargs.get("optimizer"))  # Accelerate's, which holds the scaler where there is one
        self._losses.clear()
        if self._trainer is not None:
            self._see_losses_of(self._trainer)
        else:
            logger.warning(
                "RekindleCallback.attach(trainer) was not called: the loss is the one that is logged, and a save that "
                "fails in the Trainer ends the run"
            )
        if monitor.resume.skip and not self._has_trained:
            self._windows = WindowedSampler.put_into(kwargs.get("train_dataloader"), args, monitor.resume)
        if args.eval_on_start:
            self._enter("evaluation")

    @guarded("on_epoch_begin")
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._windows is not None:
            self._windows.begin_epoch(state)
        if self._state is not None:
            self._enter("startup")  # its first batch may take minutes: workers start, a resumed run passes over data

    @guarded("on_step_begin")
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._leave()
        self._restore()
        if self._windows is not None:
            self._windows.pass_over(state)

    @guarded("on_pre_optimizer_step")
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._lr = learning_rate(kwargs.get("optimizer"))  # the scheduler moves it before the step's end

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._state is None or state.global_step == self._step:  # the same callback may be there twice
            return
        self._step = state.global_step
        self._stepped(state, control)
        self._is_about_to_save(args, control)

    @guarded("on_step_end")
    def _stepped(self, state: Any, control: Any) -> None:
        self._control = control
        # The sum of what `training_step` returned: the Trainer divides each batch's loss by their number, or by the
        # tokens of all of them. Its log is the mean of such sums, without what is not finite.
        loss = self._losses.take(is_divided=True)
        self._watch.loss(loss)
        self._watch.stepped(state.global_step)
        self.monitor.step(state.global_step, loss=loss, lr=self._lr)
        if self.should_stop:
            self._was_stopped = control.should_training_stop = True

    @guarded("on_log")
    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._trainer is None:
            self._losses.clear()
            self._losses.add((kwargs.get("logs") or {}).get("loss"))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._state is None:
            return
        self._leave()
        if self._windows is not None:
            self._windows.end_epoch(state)
        self._is_about_to_save(args, control)

    @guarded("on_prediction_step")
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.monitor.alive()

    @guarded("on_evaluate")
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._leave()
        if self._state is not None and (control.should_save or args.save_strategy == SaveStrategy.BEST):
            self._enter("saving")

    @guarded("on_save")
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._state is None or self._is_telling:
            return
        self._leave()
        is_whole = not args.save_only_model
        self._restore()
        folder = _checkpoint(args, state)
        if state.is_hyper_param_search:
            return
        if is_whole:
            self.monitor.saved(folder, state.global_step)
        else:
            logger.warning("%s holds the model only: no run can resume from it, so it gets no manifest", folder)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Raises: SaveGivenUp; see `torch_ranks.finish`."""
        if self._state is None:
            return
        self._leave()
        self._state, self._has_trained, self._windows = None, True, None
        if self._trainer is not None:
            self._see_losses_of(None)
        self._watch.close()
        monitor, self._plan = self.monitor, None
        finish(monitor)

    # ---- around the Trainer's own --------------------------------------------------------------------------------

    def _see_losses_of(self, trainer: Any) -> None:
        """Replaces a method that is made for it, on the one object; None: it is its class's again."""
        with suppress(AttributeError):  # there where a train() raised
            del self._trainer.training_step
        if trainer is None:
            return
        inner = trainer.training_step

        @wraps(inner)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            loss = inner(*args, **kwargs)
            with suppress(Exception):  # a script's own training_step may return anything
                self._losses.add(loss)
            return loss

        trainer.training_step = training_step

    def _is_about_to_save(self, args: Any, control: Any) -> None:
        """What the Trainer will do now that its callbacks return. Raises: SaveFailed, where a rank cannot write."""
        if self._was_stopped:
            control.should_evaluate = False
        if self._made == _checkpoint(args, self._state) and not control.should_evaluate:
            control.should_save = False  # it is there
        if control.should_save or (control.should_evaluate and args.save_strategy == SaveStrategy.BEST):
            self._coordinator.ready(Path(args.output_dir))
        if control.should_evaluate:
            self._enter("evaluation")
        elif control.should_save:
            self._enter("saving")

    def _emergency(self, step: int, kind: str) -> Any:  # noqa: ARG002 - a save function's arguments
        """All ranks are in `on_step_end` of the same step, and the Trainer's state is that after it."""
        args, state, trainer = self._args, self._state, self._trainer
        if state is None or state.is_hyper_param_search:
            raise RuntimeError("only training is saved, and no trial of a hyperparameter search: it cannot be resumed")
        folder = _checkpoint(args, state)
        if trainer is None or not is_seen("transformers", "a save that fails in the Trainer ends the run"):
            self._coordinator.ready(folder.parent)
            self._make_whole()
            self._control.should_save = True
            return LATER
        self._make_whole()
        try:
            with (
                self._coordinator.in_place(folder, is_writer=args.should_save),
                self._kept(trainer, folder) as removals,
            ):
                trainer._save_checkpoint(trainer.model, None)
        finally:
            self._restore()
        for remove_older in removals:
            with suppress(OSError):
                remove_older()
        self._made, self._is_telling = folder, True
        try:  # some scripts complete a checkpoint in a callback of their own
            trainer.callback_handler.call_event("on_save", args, state, self._control)
        except BaseException as err:
            if must_pass(err):
                raise
            logger.warning("A callback failed after an emergency checkpoint; the checkpoint stands: %r", err)
        finally:
            self._is_telling = False
        return folder

    @contextmanager
    def _kept(self, trainer: Any, folder: Path) -> Iterator[list[Callable[[], None]]]:
        """Around the Trainer's save: what a rank writes before it meets the others fails at the save's end only.

        Of whatever state dicts: each of these gathers first, with all ranks, and writes then. Gives what is to be
        called once the save is whole: it removes older ones.
        """
        keep, removals = partial(self._coordinator.keep, frees=folder), list[Callable[[], None]]()
        own = vars(trainer).get("_save")
        model, optimizer, rotate = (
            hf_trainer.save_fsdp_model,
            hf_trainer.save_fsdp_optimizer,
            hf_trainer.rotate_checkpoints,
        )
        trainer._save = partial(keep, trainer._save)
        hf_trainer.save_fsdp_model, hf_trainer.save_fsdp_optimizer = partial(keep, model), partial(keep, optimizer)
        hf_trainer.rotate_checkpoints = lambda *args, **kwargs: removals.append(partial(rotate, *args, **kwargs))
        try:
            with kept_writes(trainer.model_wrapped, self._coordinator):
                yield removals
        finally:
            hf_trainer.save_fsdp_model, hf_trainer.save_fsdp_optimizer = model, optimizer
            hf_trainer.rotate_checkpoints = rotate
            del trainer._save
            if own is not None:
                trainer._save = own

    def _make_whole(self) -> None:
        """Until `_restore`: a save holds all that a run resumes from, and goes nowhere else."""
        self._restore()
        args = self._args
        self._before = args.save_only_model, args.push_to_hub
        args.save_only_model = args.push_to_hub = False

    def _restore(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            self._args.save_only_model, self._args.push_to_hub = before


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")


class WindowedSampler:
    """The Trainer's own sampler, without the samples of the steps to skip, in the order in which it gives them.

    The Trainer's `global_step` is moved over the windows, as their samples are left out.
    """

    def __init__(self, sampler: Any, per_step: int, steps_per_epoch: int, resume: ResumePlan) -> None:
        self._sampler, self._resume = sampler, resume
        self._per_step, self._steps_per_epoch = per_step, steps_per_epoch
        self._before = 0  # steps of all epochs before the one that is read next

    @classmethod
    def put_into(cls, loader: Any, args: Any, resume: ResumePlan) -> Self | None:
        """None, after one warning, where the data have no batch sampler."""
        batches = getattr(loader, "batch_sampler", None)
        while batches is not None and hasattr(batches, "batch_sampler"):  # accelerate's shard of it, one per rank
            batches = batches.batch_sampler
        if batches is None or not hasattr(batches, "sampler"):
            logger.warning(
                "The Trainer's data have no batch sampler: Rekindle cannot leave out the windows it was given"
            )
            return None
        accumulate = args.gradient_accumulation_steps
        per_step = batches.batch_size * rank_and_world()[1] * accumulate
        batches.sampler = own = cls(batches.sampler, per_step, max(-(-len(loader) // accumulate), 1), resume)
        return own

    def __iter__(self) -> Iterator[Any]:
        before, after = self._before, self._resume.step or 0
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

    def begin_epoch(self, state: Any) -> None:
        self._before = state.global_step // self._steps_per_epoch * self._steps_per_epoch

    def pass_over(self, state: Any, end: float = math.inf) -> None:
        """Count the steps of a window as if they had been done, up to `end`."""
        while state.global_step < end and self._resume.should_skip(state.global_step + 1):
            state.global_step += 1

    def end_epoch(self, state: Any) -> None:
        self.pass_over(state, self._before + self._steps_per_epoch)
