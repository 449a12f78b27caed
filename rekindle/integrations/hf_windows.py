"""Windows of steps left out between the Trainer's sampler and its batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rekindle.compat import Self
from rekindle.integrations.torch_ranks import rank_and_world
from rekindle.monitor.base.trouble import logger
from rekindle.protocol.launch_orders import ResumePlan


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
