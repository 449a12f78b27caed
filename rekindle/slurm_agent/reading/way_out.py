"""The word with which a job wants no protection. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rekindle.slurm_agent.reading import text

OUT: Final = "norekindle"
SHOWN: Final = ("AdminComment", "Extra")


def says_out(shown: Mapping[str, str]) -> bool:
    """Of a job whose comment asks for protection: an administrator may want none for it. shown: its record."""
    return any(is_out_word(text.value(shown.get(name))) for name in SHOWN)


def is_out_word(asked: str) -> bool:
    return asked.strip().strip("\"'").strip().split(",")[0].strip() == OUT
