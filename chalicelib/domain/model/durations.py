"""Spans of time as people read them. Pure."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """12 s, 4 min 5 s, 2 h 10 min, 3 d 4 h."""
    whole = round(seconds)
    for unit, size, lower, small in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{whole} s"
