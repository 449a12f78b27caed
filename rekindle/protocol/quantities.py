"""What the ledger's quantities are called, the same in every face. The service computes them (docs/ledger.md)."""

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
    "spared_s": "training time spared",  # against a time-out and a person; the two below alike
    "spared_gpu_hours": "GPU-hours spared",
    "spared_dollars": "US dollars spared",
    "ettr": "ETTR",
    "ettr_at_most": "ETTR, at most",
    "ettr_by_steps": "ETTR, by steps",
}


def heading(name: str) -> str:
    """A quantity's name as a heading."""
    said = NAMES[name]
    return said[0].upper() + said[1:]
