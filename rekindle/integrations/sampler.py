"""Which samples a step uses, from the step's number alone: so a run can go on anywhere, and leave steps out.

`torch.utils.data.DistributedSampler` knows epochs only: a run that resumes in mid-epoch reads the epoch's first batches
again. Here step 1 is the first batch of the first epoch, and no resume, skip window or prefetching loader ever shifts
the samples of a later step. A run that goes on with another batch or world size has other steps: it goes on after the
last sample that was used, not at the step's number.

Data that draw random numbers (augmentation) draw the same after a resume: in a DataLoader's workers each batch's draws
come from its step alone, in this process they go on from the generators that the checkpoint holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler, get_worker_info

from rekindle.integrations.rng import quietly, seed_draws
from rekindle.integrations.torch_ranks import rank_and_world
from rekindle.monitor.saving.saved import watch_samples
from rekindle.protocol.launch_orders import ResumePlan, SkipWindow

_B = TypeVar("_B")
_ORDER = ("samples", "seed", "shuffle")  # what the order of the samples depends on
_STEP = ("batch_size", "world_size", "accumulate")  # and how many of them a step uses


@dataclass(frozen=True, slots=True)
class _Begin:
    """After `step`, so many samples of that epoch have been used. From there on each step uses the same number."""

    step: int = 0
    epoch: int = 0
    used: int = 0


class Batch(list[int]):
    """The sample numbers of one batch. In a DataLoader's worker, reading them seeds the worker's generators.

    A worker's own seed is new at each start, and how far its generators are depends on all that it has read since: both
    differ after a resume. Source: torch/utils/data/_utils/worker.py, fetch.py (a dataset's items are fetched one by
    one, in the order of this list).
    """

    def __init__(self, numbers: Iterable[int], seed: tuple[int, ...] = ()) -> None:
        super().__init__(numbers)
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        if self.seed and get_worker_info() is not None:
            seed_draws(*self.seed)
        return super().__iter__()

    def __reduce__(self) -> tuple[type[Batch], tuple[list[int], tuple[int, ...]]]:
        return Batch, (list(self), self.seed)


class ResumableSampler(Sampler):
    """A batch sampler: `DataLoader(data, batch_sampler=ResumableSampler(data, batch_size=8, resume=mon.resume))`.

    batch_size: of one rank, in samples. accumulate: batches of one rank per step (see `rekindle.integrations`). An
    epoch's last, incomplete step is left out. rank, world_size: from torch.distributed where it is initialised. resume:
    `Monitor.resume`; where to go on and which windows to leave out, both counted in steps as the run had them before.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        batch_size: int,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        accumulate: int = 1,
        resume: ResumePlan | None = None,
    ) -> None:
        """Raises: ValueError where the data do not suffice for one step, or the rank is not below the world size."""
        own_rank, ranks = rank_and_world()
        self.rank = own_rank if rank is None else rank
        self.world_size = ranks if world_size is None else world_size
        self.samples, self.batch_size, self.accumulate = len(dataset), batch_size, accumulate
        self.seed, self.shuffle = seed, shuffle
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be 0 to {self.world_size - 1}, not {self.rank}")
        if batch_size < 1 or accumulate < 1:
            raise ValueError("batch_size and accumulate must be at least 1")
        self.used_by_step = batch_size * self.world_size * accumulate  # samples, by all ranks
        self.steps_per_epoch = self.samples // self.used_by_step
        if self.steps_per_epoch < 1:
            raise ValueError(f"dataset: {self.samples} samples are fewer than one step of all ranks uses")
        self._begin = _Begin()
        self._resume = ResumePlan()
        if resume is not None:
            self.leave_out(resume)
        self.done = self._resume.step or 0  # the last step that was handed out whole, or passed over
        self._epoch = -1
        self._order: Any = None

    def go_on_after(self, step: int) -> None:
        """The next iteration begins with the batch of `step + 1`."""
        if step < 0:
            raise ValueError("step must not be negative")
        if step < self._begin.step:
            self._begin = self._begun(step, self._resume.samples_per_step or self.used_by_step)
        self.done = step

    def leave_out(self, resume: ResumePlan) -> None:
        """Take the windows of this plan, where the sampler is made before the plan is known."""
        before = resume.samples_per_step
        if before is None and resume.world_size is not None:
            before = self.used_by_step // self.world_size * resume.world_size  # with the same batch of a rank
        if resume.step is not None and resume.samples is not None:
            self._begin = _Begin(resume.step, *divmod(resume.samples, self.samples))
        elif resume.step is not None and before is not None:
            self._begin = self._begun(resume.step, before)
        if before is not None and before != self.used_by_step:
            resume = replace(
                resume, skip=tuple(self._window(window, resume.step or 0, before) for window in resume.skip)
            )
        self._resume = resume
        watch_samples(self.used, self.used_by_step)

    def _begun(self, step: int, used_by_step: int) -> _Begin:
        """After so many steps of so many samples each."""
        epoch, at = divmod(step, max(self.samples // used_by_step, 1))
        return _Begin(step, epoch, at * used_by_step)

    def _window(self, window: SkipWindow, after: int, before: int) -> SkipWindow:
        """The steps that use, in what goes on after a step, the samples that the window's used: `before` each."""
        first, last = (max(edge - after, 0) * before for edge in (window.from_step - 1, window.to_step - 1))
        return SkipWindow(
            from_step=after + first // self.used_by_step + 1, to_step=after - -last // self.used_by_step + 1
        )

    def used(self, step: int) -> int | None:
        """The samples that were used up to a step, with all of each earlier epoch; None where that is not known."""
        if step < self._begin.step:
            return None
        if step == self._begin.step:
            return self._begin.epoch * self.samples + self._begin.used
        epoch, at = self._position_of(step)
        return epoch * self.samples + at + self.used_by_step

    def _position_of(self, step: int) -> tuple[int, int]:
        """(epoch, how many of its samples were used before the step)."""
        begin = self._begin
        number, rest = step - begin.step - 1, (self.samples - begin.used) // self.used_by_step
        if number < rest:
            return begin.epoch, begin.used + number * self.used_by_step
        epochs, at = divmod(number - rest, self.steps_per_epoch)
        return begin.epoch + 1 + epochs, at * self.used_by_step

    def _last_of_epoch(self, step: int) -> int:
        """The last step of the epoch that this step is in."""
        begin = self._begin
        end = begin.step + (self.samples - begin.used) // self.used_by_step
        return end if step <= end else end - -(step - end) // self.steps_per_epoch * self.steps_per_epoch

    def next_step(self, step: int) -> int:
        """The first step after `step` that belongs to no window."""
        step += 1
        while self._resume.should_skip(step):
            step += 1
        return step

    def end_epoch(self) -> None:
        """Pass over what is left of the epoch of the last step handed out: windows, at its end."""
        self.done = self._last_of_epoch(self.done) if self.done else 0

    def batch(self, step: int, part: int = 0) -> list[int]:
        """The sample numbers of this rank in a step; `part` counts the accumulated batches."""
        epoch, at = self._position_of(step)
        first = at + (part * self.world_size + self.rank) * self.batch_size
        if not self.shuffle:
            return Batch(range(first, first + self.batch_size), self._seed_of(step, part))
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self._order, self._epoch = torch.randperm(self.samples, generator=generator), epoch
        return Batch(self._order[first : first + self.batch_size].tolist(), self._seed_of(step, part))

    def _seed_of(self, step: int, part: int) -> tuple[int, ...]:
        return self.seed, step, part, self.rank

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of the current epoch, without the windows. Its begin is settled now, not at the first batch."""
        return (self.batch(step, part) for step in self._rest() for part in range(self.accumulate))

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self.steps_per_epoch * self.accumulate

    def steps(self, loader: Iterable[_B], last: int) -> Iterator[tuple[int, _B]]:
        """(step, batch) from where the run stands to step `last`, over all epochs. `loader` reads this sampler."""
        while self.done < last:
            end = self._last_of_epoch(self.done + 1)
            numbers = (step for step in self._rest() for _ in range(self.accumulate))
            for index, (step, batch) in enumerate(zip(numbers, quietly(loader), strict=False), start=1):
                if step > last:
                    self.done = last
                    return
                if index % self.accumulate == 0:
                    self.done = step
                yield step, batch
            self.done = min(end, last)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs: the position, and what the order depends on."""
        used = {"used": self.used(self.done)}
        return {"step": self.done, **used, **{name: getattr(self, name) for name in (*_ORDER, *_STEP)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the saved step, and the last sample that was used by then.

        Raises: ValueError where its numbers would mean other samples here.
        """
        for name in _ORDER:
            if state[name] != getattr(self, name):
                raise ValueError(f"{name}: saved with {state[name]}, now {getattr(self, name)}: other samples")
        step, used = int(state["step"]), state.get("used")
        self.go_on_after(step)
        if used is not None:
            self._begin = _Begin(step, *divmod(int(used), self.samples))
        elif any(state[name] != getattr(self, name) for name in _STEP):
            self._begin = self._begun(step, math.prod(int(state[name]) for name in _STEP))

    def _rest(self) -> Iterator[int]:
        end = self._last_of_epoch(self.done + 1)
        rest = range(self.done + 1, end + 1)
        return (step for step in rest if not self._resume.should_skip(step))
