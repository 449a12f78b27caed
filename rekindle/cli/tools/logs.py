"""The rows of a log, by the shapes of `line_shapes`.

Any text may be given: lines are cut, and nothing is kept of a file but a few rows of each shape until one is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from rekindle.cli.tools.line_shapes import WRITERS, LogRow, ShapeReader
from rekindle.client.errors import BadFile
from rekindle.detectors.points import Point

MAX_LINE: Final = 16_384  # characters that are looked at; verl prints its 150 figures in 6,000
DECIDED_ROWS: Final = 8  # of one shape: the file is written in it. Detectors judge after ten
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,20}m")


def points(lines: Iterable[str], name: str) -> Iterator[Point]:
    """The rows of the shape that most lines have, as they come once it is known.

    Raises:
        BadFile: no line has a known shape.
    """
    for number, row in enumerate(_rows(_segments(lines), name)):
        yield Point(step=number if row.step is None else row.step, loss=row.loss)


def no_curve(name: str) -> BadFile:
    """What was looked for in a file and not found."""
    return BadFile(
        f"{name}: is no training curve in a known form: looked for a table (CSV, TSV, JSON, JSON lines) with a step "
        f"and a loss column, and for lines as printed by {WRITERS}"
    )


def _segments(lines: Iterable[str]) -> Iterator[str]:
    """Lines, and what a progress bar wrote over itself, without colours."""
    for line in lines:
        for segment in line.rstrip("\r\n").split("\r"):
            yield _COLOUR.sub("", segment[:MAX_LINE])


def _rows(segments: Iterator[str], name: str) -> Iterator[LogRow]:
    found: list[tuple[ShapeReader, list[LogRow]]] = [(reader, []) for reader in ShapeReader.of_all()]
    chosen = None
    for segment in segments:
        for reader, rows in found:
            row = reader.read(segment)
            if row is not None:
                rows.append(row)
        chosen = next((candidate for candidate in found if len(candidate[1]) == DECIDED_ROWS), None)
        if chosen is not None:
            break
    reader, rows = chosen or max(found, key=lambda candidate: len(candidate[1]))
    if not rows:
        raise no_curve(name)
    yield from rows
    for segment in segments:
        row = reader.read(segment)
        if row is not None:
            yield row
