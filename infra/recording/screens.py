"""An asciicast as the few screens that tell its story."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyte

from infra.recording.terminal import COLUMNS, LINES, TerminalRecording

SETTLED_S: Final = 0.08  # without output: the screen is whole, not half redrawn
EVERY_S: Final = 3.0  # a screen at least so often, where only numbers move
MOST: Final = 70
_NUMBER: Final = re.compile(r"[0-9]+(?:[.,][0-9]+)*|[▁-█✗]")


@dataclass(frozen=True, slots=True)
class StyledRun:
    """A stretch of one row in one colour and weight. `column` counts from 0; `colour` is pyte's name of it."""

    column: int
    text: str
    colour: str
    is_bold: bool


Row = tuple[StyledRun, ...]


@dataclass(frozen=True, slots=True)
class Screen:
    """The whole terminal, `at` seconds after the start."""

    at: float
    rows: tuple[Row, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The text of each row, without what is blank at its end."""
        return tuple(_line(row) for row in self.rows)

    @property
    def words(self) -> tuple[str, ...]:
        """The same without numbers and bars: what it tells."""
        return tuple(_NUMBER.sub("#", line) for line in self.lines)


def screens_of(cast: TerminalRecording) -> tuple[Screen, ...]:
    """Those that show something new, some between them, and the last."""
    kept: list[Screen] = []
    for screen in _settled(cast):
        if not kept or screen.words != kept[-1].words or screen.at - kept[-1].at >= EVERY_S:
            kept.append(screen)
    while len(kept) > MOST:  # the one that stands the shortest goes; first and last stay
        shortest = min(range(1, len(kept) - 1), key=lambda n: kept[n + 1].at - kept[n].at)
        del kept[shortest]
    return tuple(kept)


def _settled(cast: TerminalRecording) -> Iterator[Screen]:
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.Stream(screen)
    ends = [one.at for one in cast.outputs[1:]] + [float("inf")]
    for output, until in zip(cast.outputs, ends, strict=True):
        stream.feed(output.text)
        if until - output.at >= SETTLED_S:
            yield Screen(output.at, tuple(_row(screen.buffer[n]) for n in range(LINES)))


def _row(cells: Any) -> Row:
    runs: list[StyledRun] = []
    looks = [(n, cells[n].data, cells[n].fg, cells[n].bold) for n in range(COLUMNS)]
    for (colour, is_bold), group in groupby(looks, key=lambda one: (one[2], one[3])):
        found: Sequence[tuple[int, str, str, bool]] = list(group)
        text = "".join(one[1] for one in found)
        if text.strip():
            column = found[0][0] + len(text) - len(text.lstrip())
            runs.append(StyledRun(column, text.strip(), colour, is_bold))
    return tuple(runs)


def _line(row: Row) -> str:
    line = ""
    for run in row:
        line = line.ljust(run.column) + run.text
    return line
