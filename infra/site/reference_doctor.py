"""docs/reference/doctor.md: every check of `rekindle doctor`, from its table."""

from __future__ import annotations

from typing import Final

from infra.tables import page
from rekindle.doctor.table import markdown

PAGE: Final = "docs/reference/doctor.md"


def page_text() -> str:
    return page("Checks of `rekindle doctor`", ["How to run them: [doctor.md](../doctor.md).", "", markdown()])
