"""A loss curve made of block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from localcloud.demo.story import StepSeen

_EIGHTHS = " ▁▂▃▄▅▆▇█"
BROKEN = "✗"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: the mean finite loss of its steps (None where there is none), the attempt that trained it last."""

    loss: float | None
    number: int
    is_broken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Rows from top to bottom, each as wide as `columns`; the scale they are drawn to, and the last step drawn."""

    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    low: float
    high: float
    last_step: int


def draw(steps: Sequence[StepSeen], *, width: int, height: int) -> Chart:
    """Draw the losses over the step axis; of steps trained twice the last counts, a broken one leaves its mark."""
    last_step = max((item.step for item in steps), default=1)
    per_column = max(1, math.ceil(last_step / width))
    sums: dict[int, dict[int, StepSeen]] = {}
    broken: set[int] = set()
    for item in steps:
        column = (item.step - 1) // per_column
        if math.isfinite(item.loss):
            sums.setdefault(column, {})[item.step] = item
        else:
            broken.add(column)
    columns = []
    for index in range(math.ceil(last_step / per_column)):
        losses = sums.get(index, {})
        mean = sum(item.loss for item in losses.values()) / len(losses) if losses else None
        number = max((item.number for item in losses.values()), default=0)
        columns.append(Column(loss=mean, number=number, is_broken=index in broken))
    known = [column.loss for column in columns if column.loss is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    floor = low - (high - low or 1.0) / height  # the lowest loss keeps a visible block
    rows = tuple(_row(columns, row, height, floor, high) for row in reversed(range(height)))
    return Chart(rows=rows, columns=tuple(columns), low=low, high=high, last_step=last_step)


def _row(columns: Sequence[Column], row: int, height: int, floor: float, high: float) -> str:
    cells = []
    for column in columns:
        if column.is_broken and row == height - 1:
            cells.append(BROKEN)
            continue
        if column.loss is None:
            cells.append(" ")
            continue
        eighths = round((column.loss - floor) / (high - floor) * height * 8) - row * 8
        cells.append(_EIGHTHS[max(0, min(8, eighths))])
    return "".join(cells)
