"""What the ledger's quantities are called and how they are written, the same in every face. Pure.

The service computes them (docs/ledger.md); a face shows a known one as `amount` writes it, and of an unknown one why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Member of the ledger -> its name. "Recovered after" and the like would hide from when on is counted.
NAMES: Final[Mapping[str, str]] = {
    "mttd_s": "time to detect (MTTD)",
    "mttr_s": "time to recover (MTTR)",
    "elapsed_s": "from its onset to its end",
    "open_s": "open for",  # from the first Signal's arrival to the end
    "seconds": "lasted",  # one stage
    "lost_s": "training time lost",
    "steps_lost": "steps lost",
    "steps_saved": "steps saved",  # by an emergency checkpoint; the two below alike
    "gpu_hours_lost": "GPU-hours lost",
    "gpu_hours_saved": "GPU-hours saved",
    "dollars_lost": "US dollars lost",
    "dollars_saved": "US dollars saved",
    # A range, from an automatic requeue to a person; a face shows the line of assumptions below it.
    "spared_s": "training time spared (estimate)",
    "spared_gpu_hours": "GPU-hours spared (estimate)",
    "spared_dollars": "US dollars spared (estimate)",
    "ettr": "ETTR",
    "ettr_at_most": "ETTR, at most",
}


def heading(name: str) -> str:
    """A quantity's name as a heading."""
    stated = NAMES[name]
    return stated[0].upper() + stated[1:]


def duration(seconds: float) -> str:
    """A span of time for people: 0.6 s, 12 s, 4 min 5 s, 2 h 10 min, 3 d 4 h; a minus sign before one below zero."""
    if seconds < 0:
        stated = duration(-seconds)
        return stated if stated == "0 s" else f"-{stated}"
    tenths = round(seconds, 1)
    if tenths < 10:
        return f"{tenths:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for unit, size, lower, small in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{whole} s"


def amount(name: str, value: float) -> str:
    """The known value of the quantity `name`, a member of NAMES, written the same in every face.

    Spans of time as `duration` has them, shares in percent, steps whole, GPU-hours and US dollars to a hundredth;
    of these, zero is written only for zero.
    """
    if name.endswith("_s") or name == "seconds":
        return duration(value)
    if name.startswith("ettr"):
        return f"{value:.1%}"
    if name.startswith("steps") or value == 0:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 0.005 else "under 0.01"


def between(name: str, low: float, high: float) -> str:
    """The range of the quantity `name`, once where both ends read the same."""
    ends = (amount(name, low), amount(name, high))
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def range_of(wire: object) -> tuple[float, float] | None:
    """(low, high) of a range in JSON form; None for everything else."""
    if not isinstance(wire, Mapping):
        return None
    low, high = wire.get("low"), wire.get("high")
    if isinstance(low, bool) or isinstance(high, bool):
        return None
    return (low, high) if isinstance(low, int | float) and isinstance(high, int | float) else None
