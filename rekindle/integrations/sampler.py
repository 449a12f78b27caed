"""Which samples a step uses, from the step's number alone: so a run can go on anywhere, and leave steps out.

`torch.utils.data.DistributedSampler` knows epochs only: a run that resumes in mid-epoch reads the epoch's first batches
again. Here step 1 is the first batch of the first epoch, and no resume, skip window or prefetching loader ever shifts
the samples of a later step. A run with another batch or world size has other steps; it must not resume by step number.

Data that draw random numbers (augmentation) draw the same after a resume: in a DataLoader's workers each batch's draws
come from its step alone, in this process they go on from the generators that the checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import Sampler, get_worker_info

from rekindle.integrations.rng import quietly, seed_draws
from rekindle.protocol.mailbox import ResumePlan

_B = TypeVar("_B")
_ORDER = ("samples", "batch_size", "world_size", "accumulate", "seed", "shuffle")  # what the order depends on


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
    `Monitor.resume`; where to go on and which windows to leave out, both counted in steps.
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
        is_distributed = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if is_distributed else 0
        self.world_size = world_size if world_size is not None else dist.get_world_size() if is_distributed else 1
        self.samples, self.batch_size, self.accumulate = len(dataset), batch_size, accumulate
        self.seed, self.shuffle = seed, shuffle
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be 0 to {self.world_size - 1}, not {self.rank}")
        if batch_size < 1 or accumulate < 1:
            raise ValueError("batch_size and accumulate must be at least 1")
        self.steps_per_epoch = self.samples // (batch_size * self.world_size * accumulate)
        if self.steps_per_epoch < 1:
            raise ValueError(f"dataset: {self.samples} samples are fewer than one step of all ranks uses")
        self._resume = resume or ResumePlan()
        self._done = self._resume.step or 0
        self._epoch = -1
        self._order: Any = None

    @property
    def done(self) -> int:
        """The last step that was handed out whole, or passed over."""
        return self._done

    def go_on_after(self, step: int) -> None:
        """The next iteration begins with the batch of `step + 1`."""
        if step < 0:
            raise ValueError("step must not be negative")
        self._done = step

    def leave_out(self, resume: ResumePlan) -> None:
        """Take the windows of this plan, where the sampler is made before the plan is known."""
        self._resume = resume

    def next_step(self, step: int) -> int:
        """The first step after `step` that belongs to no window."""
        step += 1
        while self._resume.should_skip(step):
            step += 1
        return step

    def end_epoch(self) -> None:
        """Pass over what is left of the epoch of the last step handed out: windows, at its end."""
        self._done = -(-self._done // self.steps_per_epoch) * self.steps_per_epoch

    def batch(self, step: int, part: int = 0) -> list[int]:
        """The sample numbers of this rank in a step; `part` counts the accumulated batches."""
        epoch, at = divmod(step - 1, self.steps_per_epoch)
        first = ((at * self.accumulate + part) * self.world_size + self.rank) * self.batch_size
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
        while self._done < last:
            end = (self._done // self.steps_per_epoch + 1) * self.steps_per_epoch
            numbers = (step for step in self._rest() for _ in range(self.accumulate))
            for index, (step, batch) in enumerate(zip(numbers, quietly(loader), strict=False), start=1):
                if step > last:
                    self._done = last
                    return
                if index % self.accumulate == 0:
                    self._done = step
                yield step, batch
            self._done = min(end, last)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs: the position, and what the order depends on."""
        return {"step": self._done, **{name: getattr(self, name) for name in _ORDER}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the saved step. Raises: ValueError where its numbers would mean other samples here."""
        for name in _ORDER:
            if state[name] != getattr(self, name):
                raise ValueError(f"{name}: saved with {state[name]}, now {getattr(self, name)}: other samples")
        self.go_on_after(int(state["step"]))

    def _rest(self) -> Iterator[int]:
        end = (self._done // self.steps_per_epoch + 1) * self.steps_per_epoch
        rest = range(self._done + 1, end + 1)
        return (step for step in rest if not self._resume.should_skip(step))
