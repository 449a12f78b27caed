"""sbatch's options, and how it reads them from `#SBATCH` lines. Pure.

Source: sbatch(1) of Slurm 22.05 and 25.11 for the names; the reading was tried on sbatch 22.05: a line counts if it
begins with `#SBATCH` (letters may follow at once), up to the first line that is neither blank nor a comment; an
unescaped `#` ends the line's options, within a word too; quotes and backslashes work as in a shell; long names may be
shortened while they are unambiguous; a word that is no option is an invalid directive; a word that begins with `:` is
fatal. Not read: the environment (SBATCH_…), the command line, plug-ins' own options (a few known ones are named
here).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

MAGIC: Final = "#SBATCH"

_VALUE = """account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
 core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
 distribution error exclude export export-file extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
 gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type
 mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks
 ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer
 priority profile qos reservation signal sockets-per-node switches thread-spec threads-per-core time
 time-min tmp uid wait-all-nodes wckey wrap"""
_OPTIONAL = "exclusive get-user-env nice propagate no-kill resv-ports"
_FLAG = """contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot requeue
 spread-job test-only usage use-min-nodes verbose version wait"""
# Not in 22.05, so they make no shortened name of it ambiguous.
_NEWER_VALUE = "container-id extra segment tres-bind tres-per-task"
_NEWER_OPTIONAL = "oom-kill-step consolidate-segments"
_NEWER_FLAG = "external share stepmgr"
# Pyxis (container plug-in), which sbatch takes where it is installed. Source: NVIDIA/pyxis README, "Usage".
_PLUGIN_VALUE = "container-image container-mounts container-workdir container-name container-save container-env"
_PLUGIN_FLAG = """container-mount-home no-container-mount-home container-remap-root no-container-remap-root
 container-entrypoint no-container-entrypoint container-entrypoint-log container-writable
 container-readonly"""
AUTO_RESUME: Final = "auto-resume"  # srun's, from HyperPod's plug-in; on an #SBATCH line it is lost (aws-facts §4.2)

TAKES: Final = {
    **dict.fromkeys(f"{_VALUE} {_NEWER_VALUE} {_PLUGIN_VALUE}".split(), True),
    **dict.fromkeys(f"{_OPTIONAL} {_NEWER_OPTIONAL}".split(), None),
    **dict.fromkeys(f"{_FLAG} {_NEWER_FLAG} {_PLUGIN_FLAG}".split(), False),
}
"""By name: True takes a value, False takes none, None may take one (with `=`)."""

_CORE: Final = f"{_VALUE} {_OPTIONAL} {_FLAG}".split()

SHORT: Final = {
    "a": "array",
    "A": "account",
    "b": "begin",
    "B": "extra-node-info",
    "c": "cpus-per-task",
    "C": "constraint",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "h": "help",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "m": "distribution",
    "M": "clusters",
    "n": "ntasks",
    "N": "nodes",
    "o": "output",
    "O": "overcommit",
    "p": "partition",
    "q": "qos",
    "Q": "quiet",
    "s": "oversubscribe",
    "S": "core-spec",
    "t": "time",
    "v": "verbose",
    "V": "version",
    "w": "nodelist",
    "W": "wait",
    "x": "exclude",
}
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


def arguments(text: str) -> tuple[list[str], str | None]:
    """The words of one `#SBATCH` line, as sbatch cuts them, and the quote that is not closed (sbatch stops at it).

    An unescaped `#` ends them, and so does an empty word ("" stands for none). A backslash takes away the meaning of a
    quote and of `#`, not of a blank.
    """
    words: list[str] = []
    word: list[str] = []
    quote, escaped, begun = "", False, False
    for char in f"{text} ":
        if char.isspace() and not quote:
            if begun and not word:
                return words, None
            words += ["".join(word)] if begun else []
            word, begun, escaped = [], False, False
        elif escaped:
            word.append(char)
            escaped = False
        elif char == "\\":
            escaped = begun = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                word.append(char)
        elif char in "'\"":
            quote, begun = char, True
        elif char == "#":
            return [*words, "".join(word)] if word else words, None
        else:
            word.append(char)
            begun = True
    return words, quote or None


def parse(line: int, words: list[str]) -> tuple[list[Option], list[Trouble]]:
    """The options of one line."""
    options: list[Option] = []
    troubles: list[Trouble] = []
    index = 0
    while index < len(words):
        word = words[index]
        following = words[index + 1] if index + 1 < len(words) else None
        index += 1
        if word in ("hetjob", "packjob"):
            options.append(Option(line, "hetjob", None))
        elif word.startswith(":"):
            troubles.append(Trouble(line, f"sbatch stops at a word that begins with ':' ({word[:60]})"))
        elif word.startswith("--") and len(word) > 2:
            used = _long(line, word[2:], following, options, troubles)
            index += used
        elif word.startswith("-") and len(word) > 1:
            used = _shorts(line, word[1:], following, options, troubles)
            index += used
        else:
            troubles.append(Trouble(line, f"'{word[:60]}' is no option: sbatch calls it an invalid directive"))
    troubles += [trouble for option in options if (trouble := _bad_value(option)) is not None]
    return options, troubles


def _long(line: int, text: str, following: str | None, options: list[Option], troubles: list[Trouble]) -> int:
    """Read one long option; returns how many further words it took."""
    given, equals, value = text.partition("=")
    name = given
    if name not in TAKES and name != AUTO_RESUME:
        matching = [known for known in _CORE if known.startswith(given)]
        if len(matching) == 1:
            name = matching[0]
        elif matching:
            some = ", ".join(f"--{one}" for one in sorted(matching)[:4])
            troubles.append(Trouble(line, f"--{given[:60]} may mean several options: {some}"))
            return 0
        else:
            troubles.append(_unknown(line, given))
            return 0
    if name == AUTO_RESUME:
        options.append(Option(line, name, value if equals else None))
        return 0
    takes = TAKES[name]
    if takes is False and equals:
        troubles.append(Trouble(line, f"--{name} takes no value"))
        return 0
    if takes is True and not equals:
        if following is None:
            troubles.append(Trouble(line, f"--{name} needs a value"))
            return 0
        options.append(Option(line, name, following))
        return 1
    options.append(Option(line, name, value if equals else None))
    return 0


def _shorts(line: int, text: str, following: str | None, options: list[Option], troubles: list[Trouble]) -> int:
    for position, char in enumerate(text):
        name = SHORT.get(char)
        if name is None:
            troubles.append(Trouble(line, f"-{char} is no option of sbatch"))
            return 0
        rest = text[position + 1 :]
        if TAKES[name] is True:
            if rest:
                options.append(Option(line, name, rest.removeprefix("=") if name != "comment" else rest))
                return 0
            if following is None:
                troubles.append(Trouble(line, f"-{char} needs a value"))
                return 0
            options.append(Option(line, name, following))
            return 1
        options.append(Option(line, name, None))
        if TAKES[name] is None:
            return 0
    return 0


def _unknown(line: int, given: str) -> Trouble:
    near = difflib.get_close_matches(given[:64], TAKES, n=1, cutoff=0.8)
    if near:
        return Trouble(line, f"--{given[:60]} is no option of sbatch; did you mean --{near[0]}?")
    message = f"--{given[:60]} is not sbatch's own: unless a plug-in of the cluster brings it, sbatch refuses the job"
    return Trouble(line, message, is_refused=False)


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
