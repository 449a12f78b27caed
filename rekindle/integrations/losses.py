"""The loss of a step whose gradients come from several batches, and the learning rate that it was made with."""

from __future__ import annotations

from typing import Any

import torch


class StepLoss:
    """Collects the losses of one step's batches. A value that is not finite stays so in what comes out."""

    def __init__(self) -> None:
        self._sum: Any = None
        self._count = 0

    def add(self, loss: Any) -> None:
        """A batch's loss: a number or a tensor, which is read as it is now. None is no loss."""
        if loss is None:
            return
        # A copy: scripts keep one tensor and add to it in place.
        value = loss.detach().clone() if isinstance(loss, torch.Tensor) else loss
        try:
            self._sum = value if self._count == 0 else self._sum + value
        except Exception:  # of another shape or device than the one before: the newest speaks for the step
            self._sum, self._count = value, 0
        self._count += 1

    def take(self, *, is_divided: bool = False) -> Any:
        """The mean of what was added since the last call, its sum where that was divided already; None for nothing."""
        value, count = self._sum, self._count
        self.clear()
        return value if is_divided or count < 2 else value / count

    def clear(self) -> None:
        self._sum, self._count = None, 0


def learning_rate(optimizer: Any) -> Any:
    """That of the first parameter group, as a number or a tensor; None where there is none."""
    try:
        rate = optimizer.param_groups[0]["lr"]
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
    return rate.detach().clone() if isinstance(rate, torch.Tensor) else rate
