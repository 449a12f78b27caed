"""Commands that start another command. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# Words that start the command behind them, and what of theirs stands between.
_WRAPPERS: Final = frozenset(
    ("command", "builtin", "nohup", "time", "timeout", "env", "nice", "stdbuf", "sudo", "numactl", "xargs", "parallel")
)
# Those whose second word is `run`, and their options that take a word of their own.
_RUNNERS: Final = frozenset(("conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pixi"))
_WITH_A_WORD: Final = frozenset(
    ("-n", "--name", "-p", "--prefix", "--cwd", "-e", "--environment", "--with", "--python")
)
_OF_A_WRAPPER: Final = re.compile(r"-.*|\d+(?:\.\d+)?[smhd]?|[A-Za-z_]\w*=.*")


def without_wrappers(words: Sequence[str]) -> Sequence[str]:
    """`timeout 1h srun …` starts srun."""
    while len(words) > 1 and words[1] not in ("-v", "-V"):  # `command -v` asks
        is_runner = len(words) > 2 and words[0] in _RUNNERS and words[1] == "run"
        if not is_runner and words[0] not in _WRAPPERS:
            break
        words = words[2:] if is_runner else words[1:]
        while len(words) > 1 and _OF_A_WRAPPER.fullmatch(words[0]):
            words = words[2:] if is_runner and len(words) > 2 and words[0] in _WITH_A_WORD else words[1:]
    return words
