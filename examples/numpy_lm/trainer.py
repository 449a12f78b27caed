"""The training itself: what one step does, what a checkpoint holds. Knows no processes, clouds or monitors.

A step's result depends only on the seed, the data and the windows that were skipped before it, never on how often
the run was resumed or on which worker computed a share: the same step gives the same loss, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint import Checkpoint
from corpus import VOCABULARY, Sampler
from gang import mean_in_rank_order
from lm import Adam, LanguageModel, Shape

Array = np.ndarray[Any, Any]
ROWS_PER_WORKER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What makes two runs the same run."""

    data: Path
    seed: int
    workers: int
    poisoned: tuple[int, ...] = ()
    shape: Shape = field(default_factory=lambda: Shape(vocabulary=VOCABULARY))


class Trainer:
    """One copy of the model, its optimiser and its place in the data.

    shares: which workers' rows of each batch this process computes: its own rank's in a gang; every rank's, in
        order, where one process stands for all of them.
    mean: averages the process's vector with its peers'; left out where one process computes all shares.
    """

    def __init__(self, setup: Setup, *, shares: Iterable[int], mean: Callable[[Array], Array] | None = None) -> None:
        self.setup = setup
        self.step = 0
        self.model = LanguageModel(setup.shape, seed=setup.seed)
        self.optimiser = Adam(self.model.flat.size)
        rows = ROWS_PER_WORKER * setup.workers
        self.sampler = Sampler(
            setup.data, rows=rows, window=setup.shape.window, seed=setup.seed, poisoned=setup.poisoned
        )
        self._shares = tuple(shares)
        self._mean = mean or (lambda vector: vector)

    def skip(self) -> None:
        """Move past the next batch without looking at it. Costs nothing and needs no peer."""
        self.sampler.next_batch()
        self.step += 1

    def train(self) -> float:
        """One step: this process's shares, the average over all workers, the update. Returns the mean loss in nats."""
        inputs, targets, weight = self.sampler.next_batch()
        parts = []
        for share in self._shares:
            rows = slice(share * ROWS_PER_WORKER, (share + 1) * ROWS_PER_WORKER)
            loss, gradient = self.model.loss_and_gradient(inputs[rows], targets[rows], weight)
            # The loss travels with the gradient: one exchange, and every rank knows the mean loss.
            parts.append(np.append(gradient, np.float32(loss)))
        average = self._mean(mean_in_rank_order(parts) if len(parts) > 1 else parts[0])
        self.optimiser.apply(self.model.flat, average[:-1])
        self.step += 1
        return float(average[-1])

    def checkpoint(self) -> Checkpoint:
        """Everything needed to go on after this step."""
        position = {"step": self.step, "updates": self.optimiser.updates, "sampler": self.sampler.state()}
        return Checkpoint(
            parameters=self.model.flat.copy(),
            first=self.optimiser.first.copy(),
            second=self.optimiser.second.copy(),
            position=position,
        )

    def restore(self, saved: Checkpoint) -> None:
        """Go on as if the run that saved had never stopped. Raises ValueError for another model's checkpoint."""
        if saved.parameters.shape != self.model.flat.shape:
            raise ValueError(f"checkpoint of {saved.parameters.size} parameters for a model of {self.model.flat.size}")
        self.model.flat[...] = saved.parameters
        self.optimiser.first[...] = saved.first
        self.optimiser.second[...] = saved.second
        self.optimiser.updates = int(saved.position["updates"])
        self.sampler.restore(saved.position["sampler"])
        self.step = int(saved.position["step"])
