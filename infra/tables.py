"""How a reference page writes facts down: cells, tables, and what stands above each page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

WRITTEN: Final = "<!-- written by python -m infra.site; a test holds it to the code -->"


def cell(text: object) -> str:
    """A text that fits into one cell of a table."""
    return " ".join(str(text).replace("|", "\\|").replace("<", "&lt;").split())


def code(text: object) -> str:
    """A text as code in a cell. A bar ends a cell even in code, so it is escaped."""
    return f"`{' '.join(str(text).replace('|', chr(92) + '|').split())}`" if str(text) else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, with an empty one behind; nothing at all where there is no row."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines, ""] if lines else []


def page(title: str, *parts: Iterable[str]) -> str:
    """A whole page."""
    return "\n".join([f"# {title}", "", WRITTEN, "", *(line for part in parts for line in part)]).rstrip() + "\n"
