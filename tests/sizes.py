"""How many examples a property is tried with: what a test names, times ten under HYPOTHESIS_PROFILE=deep."""

from __future__ import annotations

import os

DEEP = "deep"


def examples(count: int) -> int:
    """`count`, or ten times as many in the deep profile."""
    return count * 10 if os.environ.get("HYPOTHESIS_PROFILE") == DEEP else count
