"""What sbatch will not take on a `#SBATCH` line: options that are not its own, values of another form. Pure.

Tried on sbatch 22.05: a word that is no option is an invalid directive; a word that begins with `:` is fatal. Not read:
the environment (SBATCH_…), the command line, plug-ins' own options (but for Pyxis').
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rekindle.doctor.base.findings import unfilled
from rekindle.sbatch.options import ParsedOption, Problem, is_option, longer, read_word
from rekindle.sbatch.table import OPTIONS, Known

AUTO_RESUME: Final = "auto-resume"  # srun's, from HyperPod's plug-in; without effect on an #SBATCH line
_SIGNAL: Final = re.compile(
    r"(?:[RB]{1,2}:)?(?:\d{1,2}|(?:SIG)?(?:HUP|INT|QUIT|ABRT|KILL|ALRM|TERM|USR1|USR2|URG|CONT|STOP|TSTP|TTIN|TTOU))"
    r"(?:@\d{1,5})?",
    re.IGNORECASE,
)
_TIMES: Final = (
    re.compile(r"(?P<m>\d+)"),
    re.compile(r"(?P<m>\d+):(?P<s>\d+)"),
    re.compile(r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)"),
    re.compile(r"(?P<d>\d+)-(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?"),
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option as sbatch understands it; `name` is its long name."""

    line: int
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """What sbatch will not take (`is_refused`), or perhaps not."""

    line: int
    message: str
    is_refused: bool = True


def parse(line: int, words: list[str]) -> tuple[list[Option], list[Trouble]]:
    """The options of one `#SBATCH` line, and what sbatch will not take."""
    options: list[Option] = []
    troubles: list[Trouble] = []
    at = 0
    while at < len(words):
        word, following = words[at], words[at + 1] if at + 1 < len(words) else None
        at += 1
        if word in ("hetjob", "packjob"):
            options.append(Option(line, "hetjob", None))
        elif word.startswith(":"):
            troubles.append(Trouble(line, f"sbatch stops at a word that begins with ':' ({word[:60]})"))
        elif not is_option(word):
            troubles.append(Trouble(line, f"'{word[:60]}' is no option: sbatch calls it an invalid directive"))
        else:
            read, taken = read_word(word, following)
            at += taken
            for option in read:
                if option.name == AUTO_RESUME or (
                    option.problem is None and OPTIONS[option.name].known is not Known.OLDER
                ):
                    options.append(Option(line, option.name, option.value))
                else:
                    troubles.append(_trouble(line, option, word))
    troubles += [trouble for option in options if (trouble := _unfilled(option) or _bad_value(option)) is not None]
    return options, troubles


def _trouble(line: int, read: ParsedOption, word: str) -> Trouble:
    name = read.name[:60] if read.name.startswith("-") else f"--{read.name[:60]}"
    match read.problem:
        case Problem.NEEDS_VALUE | Problem.TAKES_NONE:
            shown = name if word.startswith("--") else f"-{word[-1]}"
            return Trouble(line, f"{shown} {read.problem.value}")
        case Problem.AMBIGUOUS:
            some = ", ".join(f"--{name}" for name in sorted(longer(read.name))[:4])
            return Trouble(line, f"{name} may mean several options: {some}")
        case _ if read.name.startswith("-"):
            return Trouble(line, f"{name} is no option of sbatch")
        case _:
            return _unknown(line, read.name)


def _unknown(line: int, given: str) -> Trouble:
    current = [spec.name for spec in OPTIONS.values() if spec.known is not Known.OLDER]
    near = difflib.get_close_matches(given[:64], current, n=1, cutoff=0.8)
    if near:
        return Trouble(line, f"--{given[:60]} is no option of sbatch; did you mean --{near[0]}?")
    message = f"--{given[:60]} is not sbatch's own: unless a plug-in of the cluster brings it, sbatch refuses the job"
    return Trouble(line, message, is_refused=False)


def _unfilled(option: Option) -> Trouble | None:
    problem = unfilled(option.value or "")
    if problem is None:
        return None
    message = f"--{option.name}: {problem}: sbatch takes it as it stands here"
    return Trouble(option.line, message, is_refused=_bad_value(option) is not None)


def _bad_value(option: Option) -> Trouble | None:
    value = option.value or ""
    match option.name:
        case "open-mode" if value[:1].lower() not in ("a", "t"):
            return Trouble(option.line, f"--open-mode={value[:40]}: must be append or truncate")
        case "time" | "time-min" if not value or (minutes_of(value) is None and not is_unlimited(value)):
            return Trouble(option.line, f"--{option.name}={value[:40]}: is no time (minutes, h:m:s, days-hours)")
        case "signal" if _SIGNAL.fullmatch(value) is None:
            return Trouble(option.line, f"--signal={value[:40]}: is no signal ([R|B:]NAME[@seconds])")
        case "nodes" if not value[:1].isdigit():
            return Trouble(option.line, f"--nodes={value[:40]}: is no number of nodes")
        case _:
            return None


def is_unlimited(value: str) -> bool:
    """True for a time without end."""
    return value.upper() in ("UNLIMITED", "INFINITE", "-1")


def minutes_of(value: str) -> timedelta | None:
    """A time as Slurm writes it; None for none, or for one without end."""
    if len(value) > 20:
        return None
    for pattern in _TIMES:
        found = pattern.fullmatch(value)
        if found is not None and value.isascii():
            parts = {name: int(text) for name, text in found.groupdict().items() if text}
            whole = ((parts.get("d", 0) * 24 + parts.get("h", 0)) * 60 + parts.get("m", 0)) * 60 + parts.get("s", 0)
            return timedelta(seconds=whole) if whole < 10**12 else None
    return None
