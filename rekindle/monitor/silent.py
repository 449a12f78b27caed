"""The monitor's face, as the training script sees it. The base class does nothing: it is the monitor switched off."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from rekindle.monitor.base.guard import guarded
from rekindle.monitor.base.trouble import Trouble
from rekindle.protocol.launch_orders import ENV_CHECKPOINT_DIR, ENV_CHECKPOINT_URI, ENV_RESUME_URI, ResumePlan

_Self = TypeVar("_Self", bound="Monitor")
_Batch = TypeVar("_Batch")
_END: Final = object()


class Monitor:
    """Watches one training process. Nothing here but `resume_path` raises, and no step waits for the network.

    resume: this attempt's resume point (`resume.step`, `resume.uri`), and which steps' batches it leaves out.
    """

    def __init__(self, resume: ResumePlan, resume_path: str | None = None) -> None:
        self.resume = resume
        self._local_path = resume_path
        self._trouble = Trouble()
        self._is_asleep = False

    @property
    def resume_path(self) -> str | None:
        """The checkpoint to load, as a local path; None for a fresh run.

        Raises: ValueError where the plan names a checkpoint that lies at no local path: such a run must not start from
        nothing.
        """
        if self._local_path is None and self.resume.uri is not None:
            raise ValueError(
                f"{ENV_RESUME_URI}: {self.resume.uri} is no local path: set {ENV_CHECKPOINT_DIR} and "
                f"{ENV_CHECKPOINT_URI} to a folder that mirrors it, or download it and load that"
            )
        return self._local_path

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """`finish`, with what the block raised as the reason."""
        self.finish("finished" if kind is None else f"died of {kind.__name__}")

    def _inner(self, where: str, err: BaseException) -> None:
        self._trouble.inner(where, err)

    def step(
        self,
        /,
        step: int,
        *,
        loss: object = None,
        grad_norm: object = None,
        tokens: object = None,
        work_s: float | None = None,
        **metrics: object,
    ) -> None:
        """Call after each step, on every rank, on the training thread.

        `step` is the number of the step just finished. Values may be numbers, NumPy scalars or tensors; a tensor is
        read on another thread, so that no step waits for the device. An emergency save happens inside this call.
        work_s: seconds of this step that were this rank's own work, without waiting for other ranks. Only these show a
        slow rank in synchronous training, where all ranks' steps take as long as the slowest one's.
        """

    def scaler(self, scaler: object) -> None:
        """A gradient scaler is at work: its skipped steps are no trouble, gradients before unscaling are not judged.

        scaler: a `torch.amp.GradScaler`, what holds one (Accelerator, its optimizer, Lightning's Trainer), a DeepSpeed
        engine, or a function that returns the scale. One that is off, or a holder without one, changes nothing.
        """

    def local_non_finite(self, step: int, metric: str, *, ranks: Sequence[int] | None = None) -> None:
        """Say that a value of this rank's own (its loss, its gradient before any exchange) is not finite.

        ranks: all ranks that have it at this step, where the script knows.
        """

    def expect(self, what: str, *, steps: int | None = None) -> None:
        """Say that something is about to change on purpose, such as the sequence length, the batch size, the weights of
        the loss, the data, or the learning rate. Call on every rank, before the step that it changes.

        For `steps` steps (500 by default, 20,000 at most) a loss that rises is watched, not acted on; then it is judged
        by the level it has by that time. A loss that is not finite, or goes far up and settles on no level, is acted on
        at all times. A learning rate given to `step` as `lr` or `learning_rate` announces its own restarts.
        """

    def phase(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002 - the face's argument
        """`with mon.phase("evaluation")`, `"saving"`, `"startup"` (an epoch's data): each has limits of its own."""
        return nullcontext()

    def alive(self) -> None:
        """Say that something moves, in a long stretch without steps."""

    def saved(
        self,
        path: str | os.PathLike[str],
        step: int,
        files: Sequence[str] | None = None,
        kind: str = "periodic",
        data: Mapping[str, Any] | None = None,
        took_s: float | None = None,
        by_all_ranks: bool = False,
    ) -> None:
        """The trainer's own save of `step` is complete, on all ranks: rank 0 measures it and writes its manifest.

        took_s: how long it took; by default what the last `phase("saving")` took.
        by_all_ranks: every rank calls this, each when its own part is written; the manifest is written when all have.
        No rank waits for another in here, so no barrier is needed before it.
        """

    @guarded("should_skip", failed=False)
    def should_skip(self, step: int) -> bool:
        """Whether the batch that `step` would use belongs to a window to leave out."""
        return self.resume.should_skip(step)

    def batches(
        self, loader: Iterable[_Batch], last_step: int, *, first_step: int | None = None
    ) -> Iterator[tuple[int, _Batch]]:
        """(step, batch) from `first_step` to `last_step`, without the steps to leave out.

        first_step: by default the one after the resume point.

        The batch of a step that is left out is read and dropped, so that every later step has its own. `loader` is read
        again from its beginning when it ends: an epoch. Its first batch is that of the first step here: a loader or a
        dataset that is resumed by its `state_dict` stands there, a list of batches is cut by the script, and
        map-style data have `ResumableSampler`. Ends early where `should_stop`. Raises what `loader` raises.
        """
        step, batches = (self.resume.step or 0) + 1 if first_step is None else first_step, iter(loader)
        while step <= last_step and not self.should_stop:
            batch = next(batches, _END)
            if batch is _END:
                batches = iter(loader)
                batch = next(batches, _END)
            if batch is _END:
                return
            if not self.should_skip(step):
                yield step, cast(_Batch, batch)
            step += 1

    @property
    def should_stop(self) -> bool:
        """Whether the loop should end now; the same on all ranks, at the same step."""
        return False

    @property
    def save_failure(self) -> str | None:
        """While this rank is in the save function: why another rank's part of that save has failed, if it has.

        For a save function that waits for other ranks, and may then stop waiting. None otherwise.
        """
        return None

    @property
    def superseded(self) -> bool:
        """Whether another attempt owns this Job's checkpoints now."""
        return False

    @property
    def is_silent(self) -> bool:
        return True

    def flush(self, timeout_s: float = 10.0) -> bool:  # noqa: ARG002 - the face's argument
        """Wait until all saves are sealed and all replies written; whether that was so in time. Not for the loop."""
        return True

    def health(self) -> dict[str, int]:
        """What went wrong or was dropped so far, as counts."""
        return {}

    def finish(self, why: str = "finished", timeout_s: float = 4.0) -> None:
        """The run is over: seal what was saved, send what waits, for at most `timeout_s`.

        Up to 20 s longer only while an emergency checkpoint has no manifest yet, or its answer is not written, and the
        mailbox answers in time.
        """
