"""The table of line shapes in docs/monitor.md, as CloudWatch metric definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rekindle.cli.tools.line_shapes import SHAPES

PAGE: Final = "docs/monitor.md"
_BEGIN: Final = "  <!-- written by python -m infra.site: begin -->\n"
_END: Final = "  <!-- end -->\n"


def page_text() -> str:
    """The page with its table brought up to date."""
    text = (Path(__file__).resolve().parents[2] / PAGE).read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    return before + _BEGIN + "\n" + _table() + "\n" + _END + rest.partition(_END)[2]


def _table() -> str:
    rows = ["  | trainer | line in the log | `Regex` of the loss | `Regex` of the step |", "  |---|---|---|---|"]
    for shape in SHAPES:
        step = _code(shape.step) if shape.has_plain_step else ""
        rows.append(f"  | {shape.writer} | {_code(shape.example)} | {_code(shape.cloudwatch_loss)} | {step} |")
    return "\n".join(rows) + "\n"


def _code(text: str) -> str:
    return "`" + " ".join(text.split()).replace("|", "\\|") + "`"
