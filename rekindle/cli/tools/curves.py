"""A training curve in a file, read row by row: columns step, loss, and where they are known seconds, iter_seconds,
eval_since_prev. CSV, TSV, or JSON in the forms of curve_json.py; columns.py lists other names of columns.

Every mistake is one `BadFile` that names the file, the row (counted from 0, without the header) and the column.
An empty cell is "not logged"; `nan`, `inf` and `-inf`, however written, are values.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Final

from rekindle.cli.tools import curve_json
from rekindle.cli.tools.columns import ChosenColumns, found_columns
from rekindle.client.errors import BadFile
from rekindle.client.table import clean, cut
from rekindle.detectors.points import Point

TRUTHS = {"": False, "0": False, "false": False, "0.0": False, "1": True, "true": True, "1.0": True}
MAX_STEP = 2**63  # beyond this it is no step
SHOWN_CHARS = 40
_EVENTS: Final = "tfevents"  # in the name of TensorBoard's own files
_TABS: Final = (".tsv", ".tab")


def points(path: str, chosen: ChosenColumns | None = None) -> Iterator[Point]:
    """The rows of a file, or of standard input for `-`, as they come (JSON: once it has been read whole)."""
    name = "standard input" if path == "-" else clean(path)
    if _EVENTS in PurePath(path).name:
        raise BadFile(f"{name}: is a file of TensorBoard's own; give its export (CSV or JSON, from its page)")
    try:
        if path == "-":
            if sys.stdin is None:
                raise BadFile(f"{name}: is closed")
            if isinstance(sys.stdin, io.TextIOWrapper):  # read as a file is, whatever the locale says
                sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline="")
            yield from parse(sys.stdin, name, chosen)
        else:
            with open(path, encoding="utf-8-sig", newline="") as lines:
                yield from parse(lines, name, chosen, suffix=PurePath(path).suffix.lower())
    except OSError as err:
        raise BadFile(f"{name}: cannot be read: {err.strerror or err}") from err
    except UnicodeDecodeError as err:
        raise BadFile(f"{name}: is not UTF-8 text (byte {err.start} of a block)") from err


def parse(lines: Iterable[str], name: str, chosen: ChosenColumns | None = None, *, suffix: str = "") -> Iterator[Point]:
    """The points of a file's lines; `name` is what errors call the file. Without a suffix the first character tells."""
    rows = _header_and_rows(lines, name, suffix)
    header = next(rows, None)
    if header is None:
        raise BadFile(f"{name}: is empty; a header with step, loss is needed")
    columns = found_columns(header, name, chosen or ChosenColumns())
    number = -1
    for number, cells in enumerate(rows):
        if len(cells) != len(header):
            raise BadFile(f"{name}: row {number}: {len(cells)} cells, where the header has {len(header)}")
        yield _point(_Row(name, number, columns, header, cells))
    if number < 0:
        raise BadFile(f"{name}: holds a header and no rows")


def _header_and_rows(lines: Iterable[str], name: str, suffix: str) -> Iterator[list[str]]:
    """The header and the rows, as text."""
    if suffix in curve_json.SUFFIXES:
        return curve_json.rows("".join(lines), name)
    if suffix in (".csv", *_TABS):
        return _rows(lines, name, "\t" if suffix in _TABS else ",")
    waiting = iter(lines)
    first = next((line for line in waiting if line.strip()), "")
    together = itertools.chain([first], waiting)
    if first.lstrip("\ufeff \t")[:1] in ("{", "["):
        return curve_json.rows("".join(together), name)
    return _rows(together, name, "\t" if "\t" in first and "," not in first else ",")


def _rows(lines: Iterable[str], name: str, delimiter: str) -> Iterator[list[str]]:
    """The rows that are not blank."""
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    number = -1  # of the header
    try:
        for cells in reader:
            if cells:
                yield cells
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
        elapsed_s=row.number_of("seconds"),
        step_s=row.number_of("iter_seconds"),
        is_after_evaluation=TRUTHS[flag],
    )
