"""How many examples a property is tried with: what a test names under HYPOTHESIS_PROFILE=ci, as in `make test-long`.

A quarter of that in `quick`, which `make test` uses; ten times as much in `deep`.
"""

from __future__ import annotations

import os

DEEP = "deep"
QUICK = "quick"


def examples(count: int) -> int:
    """`count`; a quarter of it, but five at least, in the quick profile; ten times as many in the deep one."""
    profile = os.environ.get("HYPOTHESIS_PROFILE")
    if profile == DEEP:
        return count * 10
    return max(5, count // 4) if profile == QUICK else count
