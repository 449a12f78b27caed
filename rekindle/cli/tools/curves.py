"""A training curve in a file, read row by row: columns step, loss, and where they are known seconds, iter_seconds,
eval_since_prev. CSV, TSV, JSON in the forms of curve_json.py, logs in those of line_shapes.py, and the files that
TensorBoard and MLflow keep (curve_stores.py); columns.py lists other names of columns.

Every mistake is one `BadFile` that names the file, the row (counted from 0, without the header) and the column.
An empty cell is "not logged"; `nan`, `inf` and `-inf`, however written, are values. Any bytes may be given: what is
kept of a file is bounded.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TextIO

from rekindle.cli.tools import curve_json, curve_stores, line_shapes
from rekindle.cli.tools.columns import ChosenColumns, found_columns, is_counted
from rekindle.client.errors import BadFile
from rekindle.client.table import clean, cut
from rekindle.detectors.points import Point

TRUTHS = {"": False, "0": False, "false": False, "0.0": False, "1": True, "true": True, "1.0": True}
MAX_STEP = 2**63  # beyond this it is no step
SHOWN_CHARS = 40
MAX_PIECE: Final = 2**20  # characters that are read at once: a longer line comes in pieces
_TABS: Final = (".tsv", ".tab")


def points(path: str, chosen: ChosenColumns | None = None) -> Iterator[Point]:
    """The rows of a file, or of standard input for `-`, as they come (JSON: once it has been read whole)."""
    name = "standard input" if path == "-" else clean(path)
    chosen = chosen or ChosenColumns()
    try:
        if path == "-":
            if sys.stdin is None:
                raise BadFile(f"{name}: is closed")
            if isinstance(sys.stdin, io.TextIOWrapper):  # read as a file is, whatever the locale says
                sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline="")
            yield from parse(_pieces(sys.stdin), name, chosen)
            return
        place = Path(path)
        if place.is_dir():
            place = curve_stores.in_folder(place, name, chosen)
        if curve_stores.is_events(place):
            yield from curve_stores.events(place, name, chosen)
            return
        with open(place, encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            yield from parse(_pieces(lines), name, chosen, suffix=place.suffix.lower())
    except OSError as err:
        raise BadFile(f"{name}: cannot be read: {err.strerror or err}") from err


def _pieces(lines: TextIO) -> Iterator[str]:
    return iter(lambda: lines.readline(MAX_PIECE), "")


def parse(lines: Iterable[str], name: str, chosen: ChosenColumns | None = None, *, suffix: str = "") -> Iterator[Point]:
    """The points of a file's lines; `name` is what errors call the file. Without a suffix the first line tells."""
    chosen = chosen or ChosenColumns()
    waiting = iter(lines)
    first = next((line for line in waiting if line.strip()), "")
    together = itertools.chain([first], waiting)
    if suffix in (".csv", *_TABS):
        return _points(_rows(together, name, "\t" if suffix in _TABS else _delimiter(first)), name, chosen)
    if not first:
        raise BadFile(f"{name}: is empty")
    if suffix in curve_json.SUFFIXES or curve_json.may_begin(first):
        return _points(curve_json.rows(together, name), name, chosen, passes_over=True)
    if curve_stores.is_metric(first):
        return _points(itertools.chain([curve_stores.METRIC], _rows(together, name, " ")), name, chosen)
    delimiter = _delimiter(first)
    if chosen.any_named or _is_header(first.rstrip("\r\n").split(delimiter), name):
        return _points(_rows(together, name, delimiter), name, chosen)
    return line_shapes.points(together, name)


def _is_header(cells: list[str], name: str) -> bool:
    try:
        return bool(found_columns(cells, name, ChosenColumns()))
    except BadFile:
        return False


def _points(
    rows: Iterator[list[str]], name: str, chosen: ChosenColumns, *, passes_over: bool = False
) -> Iterator[Point]:
    """The points of a table whose first row is its header.

    passes_over: an entry without a loss is none; else only one that has no step either.
    """
    header = next(rows, None)
    if header is None:
        raise BadFile(f"{name}: is empty; a header with step, loss is needed")
    columns = found_columns(header, name, chosen)
    counts = is_counted(header[columns["step"]])
    number = -1
    for number, cells in enumerate(rows):
        if len(cells) != len(header):
            raise BadFile(f"{name}: row {number}: {len(cells)} cells, where the header has {len(header)}")
        row = _Row(name, number, columns, header, cells)
        if row.is_empty("loss") and (passes_over or row.is_empty("step")):
            continue
        yield _point(row, counts=counts)
    if number < 0:
        raise BadFile(f"{name}: holds a header and no rows")


def _delimiter(header: str) -> str:
    """A comma, unless the header has none of it: spreadsheets write `;` where a comma stands in numbers."""
    return next((other for other in ("\t", ";") if other in header and "," not in header), ",")


def _rows(lines: Iterable[str], name: str, delimiter: str) -> Iterator[list[str]]:
    """The rows that are not blank."""
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    number = -1  # of the header
    try:
        for cells in reader:
            if cells:
                yield [cell.replace(",", ".") for cell in cells] if delimiter == ";" else cells
                number += 1
    except csv.Error as err:
        where = "header" if number < 0 else f"row {number}"
        raise BadFile(f"{name}: {where}: cannot be read as CSV: {clean(err)}") from err


class _Row:
    """One row's cells by column, and errors that say where."""

    __slots__ = ("cells", "columns", "header", "name", "number")

    def __init__(self, name: str, number: int, columns: dict[str, int], header: list[str], cells: list[str]) -> None:
        self.name = name
        self.header = header
        self.number = number
        self.columns = columns
        self.cells = cells

    def is_empty(self, column: str) -> bool:
        return not self.cells[self.columns[column]].strip()

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

    def wrong(self, column: str, text: str, wanted: str) -> BadFile:
        shown = cut(clean(text), SHOWN_CHARS)
        title = clean(self.header[self.columns[column]].strip().removeprefix("\ufeff"))  # as the file calls it
        return BadFile(f"{self.name}: row {self.number}, column {title!r}: '{shown}' is not {wanted}")


def _point(row: _Row, *, counts: bool) -> Point:
    step = row.number if counts else row.number_of("step")
    if step is None or not math.isfinite(step) or abs(step) > MAX_STEP or step != int(step):
        raise row.wrong("step", row.cells[row.columns["step"]], "a step")
    index = row.columns.get("eval_since_prev")
    flag = row.cells[index].strip().lower() if index is not None else ""
    if flag not in TRUTHS:
        raise row.wrong("eval_since_prev", flag, "0 or 1")
    return Point(
        step=int(step),
        loss=row.number_of("loss"),
        elapsed_s=row.number_of("seconds"),
        step_s=row.number_of("iter_seconds"),
        is_after_evaluation=TRUTHS[flag],
    )
