"""A training curve in a CSV file, read row by row: `step,loss[,grad_norm][,seconds][,iter_seconds][,eval_since_prev]`.

Every mistake is one `CommandFailed` that names the file, the row (counted from 0, without the header) and the column.
An empty cell is "not logged"; `nan`, `inf` and `-inf`, however written, are values.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Iterator

from rekindle.cli.errors import CommandFailed
from rekindle.cli.table import clean, cut
from rekindle.detectors import Point

NEEDED = ("step", "loss")
OPTIONAL = ("grad_norm", "seconds", "iter_seconds", "eval_since_prev")
TRUTHS = {"": False, "0": False, "false": False, "0.0": False, "1": True, "true": True, "1.0": True}
MAX_STEP = 2**63  # beyond this it is no step
SHOWN_CHARS = 40


def points(path: str) -> Iterator[Point]:
    """The rows of a file, or of standard input for `-`, as they come."""
    name = "standard input" if path == "-" else clean(path)
    try:
        if path == "-":
            if sys.stdin is None:
                raise CommandFailed(f"{name}: is closed")
            if isinstance(sys.stdin, io.TextIOWrapper):  # read as a file is, whatever the locale says
                sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline="")
            yield from parse(sys.stdin, name)
        else:
            with open(path, encoding="utf-8-sig", newline="") as lines:
                yield from parse(lines, name)
    except OSError as err:
        raise CommandFailed(f"{name}: cannot be read: {err.strerror or err}") from err
    except UnicodeDecodeError as err:
        raise CommandFailed(f"{name}: is not UTF-8 text (byte {err.start} of a block)") from err


def parse(lines: Iterable[str], name: str) -> Iterator[Point]:
    """The points of CSV lines; `name` is what errors call the file."""
    rows = _rows(lines, name)
    header = next(rows, None)
    if header is None:
        raise CommandFailed(f"{name}: is empty; a header with {', '.join(NEEDED)} is needed")
    columns = _columns(header, name)
    number = -1
    for number, cells in enumerate(rows):
        if len(cells) != len(header):
            raise CommandFailed(f"{name}: row {number}: {len(cells)} cells, where the header has {len(header)}")
        yield _point(_Row(name, number, columns, cells))
    if number < 0:
        raise CommandFailed(f"{name}: holds a header and no rows")


def _rows(lines: Iterable[str], name: str) -> Iterator[list[str]]:
    """The rows that are not blank."""
    reader = csv.reader(lines, strict=True)
    number = -1  # of the header
    try:
        for cells in reader:
            if cells:
                yield cells
                number += 1
    except csv.Error as err:
        where = "header" if number < 0 else f"row {number}"
        raise CommandFailed(f"{name}: {where}: cannot be read as CSV: {clean(err)}") from err


def _columns(header: list[str], name: str) -> dict[str, int]:
    columns: dict[str, int] = {}
    for index, cell in enumerate(header):
        title = cell.strip().removeprefix("\ufeff")
        if title in columns and title in (*NEEDED, *OPTIONAL):
            raise CommandFailed(f"{name}: the column {title!r} is there twice")
        columns.setdefault(title, index)
    for title in NEEDED:
        if title not in columns:
            shown = cut(clean(", ".join(columns)), SHOWN_CHARS)
            raise CommandFailed(f"{name}: the column {title!r} is missing; the header has: {shown}")
    return columns


class _Row:
    """One row's cells by column, and errors that say where."""

    __slots__ = ("cells", "columns", "name", "number")

    def __init__(self, name: str, number: int, columns: dict[str, int], cells: list[str]) -> None:
        self.name = name
        self.number = number
        self.columns = columns
        self.cells = cells

    def number_of(self, column: str) -> float | None:
        """The column's number; None where the cell is empty or the column is not there."""
        index = self.columns.get(column)
        text = self.cells[index].strip() if index is not None else ""
        if not text:
            return None
        try:
            if "_" not in text:  # Python's own spelling of large numbers is text to everybody else
                return float(text)
        except ValueError:
            pass
        raise self.wrong(column, text, "a number")

    def wrong(self, column: str, text: str, wanted: str) -> CommandFailed:
        shown = cut(clean(text), SHOWN_CHARS)
        return CommandFailed(f"{self.name}: row {self.number}, column {column!r}: '{shown}' is not {wanted}")


def _point(row: _Row) -> Point:
    step = row.number_of("step")
    if step is None or not math.isfinite(step) or abs(step) > MAX_STEP or step != int(step):
        raise row.wrong("step", row.cells[row.columns["step"]], "a step")
    index = row.columns.get("eval_since_prev")
    flag = row.cells[index].strip().lower() if index is not None else ""
    if flag not in TRUTHS:
        raise row.wrong("eval_since_prev", flag, "0 or 1")
    return Point(
        step=int(step),
        loss=row.number_of("loss"),
        grad_norm=row.number_of("grad_norm"),
        elapsed_s=row.number_of("seconds"),
        step_s=row.number_of("iter_seconds"),
        is_after_evaluation=TRUTHS[flag],
    )
