"""Text for terminals: aligned tables, a little colour, and nothing that a name from outside could forge.

Whatever comes from the server (job names, failure reasons) is untrusted: control characters, terminal escapes and
direction marks are shown as escapes, so that a name cannot move the cursor, hide a line or reverse a text.
"""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rekindle.compat import Self

_RESET = "\x1b[0m"
_CODES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m", "green": "\x1b[32m", "yellow": "\x1b[33m"}
MIN_LAST = 20  # characters that a last column keeps however narrow the terminal is
GAP = "  "

# Words of the service that deserve a colour, wherever they stand alone in a cell.
TONES = {
    "recovered": "green",
    "active": "green",
    "running": "green",
    "stopped": "yellow",
    "holding": "yellow",
    "handed_over": "red",
    "failed": "red",
    "paused": "yellow",
}


def clean(text: object) -> str:
    """The text on one line, with everything escaped that a terminal would obey, or not show as what it is.

    `isprintable` refuses controls, format marks (direction, zero width), surrogates, unassigned characters, line and
    paragraph marks, and every space but the plain one.
    """
    return "".join(char if char.isprintable() else _escaped(char) for char in str(text))


def _escaped(char: str) -> str:
    known = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    if char in known:
        return known[char]
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def width(text: str) -> int:
    """Columns that a cleaned text takes on a terminal."""
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def cut(text: str, limit: int) -> str:
    """At most `limit` columns of a cleaned text, with an ellipsis where something is missing."""
    if width(text) <= limit:
        return text
    kept, used = [], 0
    for char in text:
        used += _char_width(char)
        if used > limit - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What the output can show: colour, and its width in columns (None: no limit)."""

    colour: bool = False
    columns: int | None = None

    @classmethod
    def of(cls, stream: TextIO) -> Self:
        """Colour and a limited width on a terminal only; NO_COLOR (https://no-color.org) switches colour off."""
        is_terminal = stream.isatty()
        return cls(
            colour=is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
            columns=shutil.get_terminal_size().columns if is_terminal else None,
        )

    def paint(self, text: str, *tones: str) -> str:
        """The text in these tones, where colour is shown. The text must be clean already."""
        codes = "".join(_CODES[tone] for tone in tones) if self.colour else ""
        return f"{codes}{text}{_RESET}" if codes else text


@dataclass(frozen=True, slots=True)
class Column:
    """One column; numbers stand to the right."""

    title: str
    right: bool = False


def render(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], style: Style, *, last_may_shrink: bool = True
) -> str:
    """An aligned table. Only the last column is ever cut, and never below what a reader needs of it: never an id.

    On a terminal too narrow for that each row becomes a block of its own, every cell with its title.
    """
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max([width(column.title), *(width(row[index]) for row in cells)]) for index, column in enumerate(columns)]
    if style.columns is not None and last_may_shrink:
        others = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
        least = min(widths[-1], MIN_LAST)
        if others + least > style.columns and cells:
            return "\n".join(_block(row, columns, style) for row in cells)
        widths[-1] = min(widths[-1], max(style.columns - others, MIN_LAST))
    lines = [_line([column.title.upper() for column in columns], columns, widths, style, head=True)]
    lines += [_line(row, columns, widths, style, head=False) for row in cells]
    return "\n".join(lines)


def _block(cells: Sequence[str], columns: Sequence[Column], style: Style) -> str:
    """One row, its first cell as a heading, the others below it as many to a line as find room."""
    lines = [style.paint(cells[0], "bold")]
    line, used = "", 0
    for cell, column in zip(cells[1:], columns[1:], strict=True):
        if cell in ("", "-"):
            continue
        tone = TONES.get(cell, "")
        wide = width(column.title) + 1 + width(cell)
        shown = f"{style.paint(column.title, 'dim')} {style.paint(cell, tone) if tone else cell}"
        if line and used + len(GAP) + wide > (style.columns or wide):
            lines.append(line)
            line = ""
        line, used = (f"{line}{GAP}{shown}", used + len(GAP) + wide) if line else (f"  {shown}", 2 + wide)
    return "\n".join([*lines, line] if line else lines)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], style: Style, *, head: bool) -> str:
    parts: list[str] = []
    for index, (cell, column, wide) in enumerate(zip(cells, columns, widths, strict=True)):
        shown = cut(cell, wide)
        pad = " " * (wide - width(shown))
        tone = "bold" if head else TONES.get(shown, "")
        painted = style.paint(shown, tone) if tone else shown
        is_last = index == len(widths) - 1
        parts.append(pad + painted if column.right else painted + ("" if is_last else pad))
    return GAP.join(parts).rstrip()
