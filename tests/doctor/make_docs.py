"""Writes the tables of docs/doctor.md anew: `python -m tests.doctor.make_docs`."""

from __future__ import annotations

from pathlib import Path

from rekindle.doctor.table import markdown

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
BEGIN, END = "<!-- tables of rekindle/doctor/table.py: begin -->", "<!-- tables: end -->"


def page() -> str:
    """The page as it should be: its own text, and the tables as the code has them."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
