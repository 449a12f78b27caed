"""The service's Markdown (the post-mortem) as blocks for a template: headings, lists, tables, paragraphs. Pure.

Only what the service itself writes is read (chalicelib/domain/reporting/postmortem.py): no inline markup, no links, no
HTML. Everything else is text: a block's text is escaped by the template, so that nothing in it is ever markup.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rekindle.compat import StrEnum

# CommonMark: a backslash before ASCII punctuation stands for that character alone.
_ESCAPED: Final = re.compile(r"\\([!-/:-@\[-`{-~])")
_CELL_END: Final = re.compile(r"(?<!\\)\|")
_JOINER: Final = "\u2060"  # parts addresses, so that no reader of Markdown links them


class BlockKind(StrEnum):
    """What a block is."""

    TITLE = "title"
    HEADING = "heading"
    LIST = "list"
    TABLE = "table"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block: a row of one cell, a list's items, or a table's rows, the header first."""

    kind: BlockKind
    rows: tuple[tuple[str, ...], ...]


def blocks_of(markdown: str) -> tuple[Block, ...]:
    """The document's blocks, in order."""
    return tuple(
        Block(kind=kind, rows=tuple(rows))
        for kind, group in groupby(_lines(markdown), key=lambda line: line[0])
        if kind is not None and (rows := [cells for _, cells in group])
    )


def _lines(markdown: str) -> Iterator[tuple[BlockKind | None, tuple[str, ...]]]:
    for line in markdown.split("\n"):
        if not line.strip():
            yield None, ()
        elif line.startswith("# "):
            yield BlockKind.TITLE, (_plain(line[2:]),)
        elif line.startswith("## "):
            yield BlockKind.HEADING, (_plain(line[3:]),)
        elif line.startswith("- "):
            yield BlockKind.LIST, (_plain(line[2:]),)
        elif line.startswith("|"):
            cells = [cell.strip() for cell in _CELL_END.split(line.strip().removeprefix("|").removesuffix("|"))]
            if not all(cell and set(cell) <= {"-", ":"} for cell in cells):  # the line under the header
                yield BlockKind.TABLE, tuple(_plain(cell) for cell in cells)
        else:
            yield BlockKind.TEXT, (_plain(line),)


def _plain(text: str) -> str:
    return html.unescape(_ESCAPED.sub(r"\1", text)).replace(_JOINER, "")
