"""Commands that start another command. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# Words that start the command behind them, and what of theirs stands between.
_WRAPPERS: Final = frozenset(
    ("command", "builtin", "nohup", "time", "timeout", "env", "nice", "stdbuf", "sudo", "numactl")
)
_OF_A_WRAPPER: Final = re.compile(r"-.*|\d+(?:\.\d+)?[smhd]?|[A-Za-z_]\w*=.*")


def without_wrappers(words: Sequence[str]) -> Sequence[str]:
    """`timeout 1h srun …` starts srun."""
    while len(words) > 1 and words[0] in _WRAPPERS and words[1] not in ("-v", "-V"):  # `command -v` asks
        words = words[1:]
        while len(words) > 1 and _OF_A_WRAPPER.fullmatch(words[0]):
            words = words[1:]
    return words
