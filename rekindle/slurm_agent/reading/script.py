"""What a batch script says about itself: auto-resume, signals that it traps, `#SBATCH` options. Pure."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass
from typing import Final

_AUTO: Final = re.compile(r"(?<![\w-])--auto-resume(?:=|\s+)[\"']?1\b")
_TRAP: Final = re.compile(r"(?:^|[\s;&|{(])trap\s+(?P<rest>[^\n]*)")
_CAUGHT: Final = re.compile(r"\b(?:SIG)?(USR1|USR2|TERM)\b")
_OPTION: Final = re.compile(r"#SBATCH\s")
_WARNED: Final = re.compile(r"--signal[= ](?:(?P<flags>[BR]{1,2}):)?(?:SIG)?(?P<name>[A-Z0-9]+)")
# A script is a user's: up to 4 MiB of whatever he likes, read by one thread for the whole cluster. No line that says
# something is longer, and no script says more than this.
MAX_LINE_CHARS: Final = 4096
MAX_TRAPS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """`traps` are signals that the batch shell itself catches."""

    has_auto_resume: bool
    traps: frozenset[str] = frozenset()
    warned: str | None = None  # the signal that `#SBATCH --signal` asks for before the time limit
    warned_batch: bool = False


def read(script: str) -> ScriptFacts:
    """Total. Comments are left out: `# srun --auto-resume=1` is no auto-resume, and an #SBATCH line with it is none
    either (a SPANK option of srun, which sbatch does not know)."""
    lines = [line for line in script.split("\n") if len(line) <= MAX_LINE_CHARS]
    code = "\n".join(_code(line) for line in lines).replace("\\\n", " ")
    found_traps = itertools.islice(_TRAP.finditer(code), MAX_TRAPS)
    traps = {caught for trap in found_traps for caught in _CAUGHT.findall(_signals(trap["rest"][:MAX_LINE_CHARS]))}
    warned = next((found for line in lines if _OPTION.match(line) and (found := _WARNED.search(line))), None)
    return ScriptFacts(
        has_auto_resume=_AUTO.search(code) is not None,
        traps=frozenset(traps),
        warned=warned["name"] if warned else None,
        warned_batch=bool(warned and "B" in (warned["flags"] or "")),
    )


def _signals(rest: str) -> str:
    """What stands behind a trap's action: `trap 'kill -TERM $pid' USR1` catches USR1 alone."""
    try:
        words = shlex.split(rest.partition(" #")[0])
    except ValueError:
        return rest.rpartition("'")[2] or rest
    return " ".join(words[1:]) if words and words[0] not in ("", "-") else ""


def _code(line: str) -> str:
    """The line without its comment. A `#` inside quotes or a word begins none."""
    if "#" not in line:
        return line
    quote = ""
    for index, char in enumerate(line):
        if quote:
            if char == quote and line[index - 1] != "\\":
                quote = ""
        elif char in "\"'":
            quote = char
        elif char == "#" and (index == 0 or line[index - 1] in " \t;&|("):
            return line[:index]
    return line
