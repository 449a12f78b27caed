"""Options as they were given: on the command line of a submission, and on a script's `#SBATCH` lines. Pure.

sbatch reads a script's own lines again. What stood on the command line does not come again by itself: most of it shows
in Slurm's record, some of it nowhere else (`--signal`), and some is no option of sbatch's own but a SPANK plug-in's.
Slurm keeps the line joined with blanks: a value with a blank in it cannot be told from two words, and is not used.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from rekindle.compat import StrEnum

MAX_LINE_CHARS: Final = 128 * 1024
SPANK: Final = "_SLURM_SPANK_OPTION_"  # Source: slurm src/common/plugstack.c, SPANK_OPTION_ENV_PREFIX


class Kind(StrEnum):
    SHOWN = "shown"  # Slurm's record or the environment of the submission shows it; the comparison sees its loss
    CARRIED = "carried"  # given again as it stood on the line
    ONCE = "once"  # about that one submission, or done anew for each


# Every long option of sbatch's own from 22.05 to 26.05. Source: sbatch(1) of each; slurm src/common/slurm_opt.c.
_NAMES: Final = {
    Kind.SHOWN: """
        account array bb bbf burst-buffer chdir comment constraint container contiguous core-spec cores-per-socket
        cpus-per-gpu cpus-per-task dependency distribution error exclude exclusive export gid gpu-bind gpu-freq
        gpus gpus-per-node gpus-per-socket gpus-per-task gres hint input job-name licenses mail-type mail-user mem
        mem-per-cpu mem-per-gpu network nice no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
        ntasks-per-node ntasks-per-socket output oversubscribe partition power prefer profile qos reboot
        requeue reservation share sockets-per-node switches thread-spec threads-per-core time time-min tmp tres-per-task
        uid workdir""",
    Kind.CARRIED: """
        acctg-freq consolidate-segments container-id cpu-freq delay-boot extra extra-node-info gres-flags
        kill-on-invalid-dep mcs-label mem-bind mincpus no-kill oom-kill-step overcommit resv-ports segment signal
        spread-job spread-segments stepmgr tres-bind use-min-nodes wait-all-nodes wckey""",
    Kind.ONCE: """
        async begin cluster cluster-constraint clusters deadline export-file get-user-env help hold ignore-pbs immediate
        open-mode parsable priority propagate quiet test-only usage verbose version wait wrap""",
}
OPTIONS: Final[Mapping[str, Kind]] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_LONG: Final = """
    account extra-node-info constraint chdir nodefile gpus job-name licenses clusters nodes core-spec array begin
    cpus-per-task dependency error input distribution ntasks output partition qos time nodelist exclude"""
_SHORT: Final = dict(zip("ABCDFGJLMNSabcdeimnopqtwx", _LONG.split(), strict=True))
_SHORT_FLAGS: Final = {
    "H": "hold", "I": "immediate", "O": "overcommit", "Q": "quiet", "V": "version", "W": "wait", "h": "help",
    "k": "no-kill", "s": "oversubscribe", "u": "usage", "v": "verbose",
}  # fmt: skip


def of_line(line: str, words: Sequence[str]) -> dict[str, str | None]:
    """The options before the script. words: the script's path and its arguments, which the line ends with."""
    tail = " ".join([words[0].rpartition("/")[2], *words[1:]]).rstrip() if words else ""
    before = line[:MAX_LINE_CHARS].rstrip().removesuffix(tail)
    return _parsed(before[: before.rfind(" ") + 1].split() if tail else before.split(), is_joined=True)


def of_script(script: str) -> dict[str, str | None]:
    """The options of the `#SBATCH` lines before the script's first command, as sbatch reads them."""
    found: dict[str, str | None] = {}
    for line in script.splitlines()[:2000]:
        if line.startswith("#SBATCH") and len(line) <= MAX_LINE_CHARS:
            try:
                found |= _parsed(["", *shlex.split(line[7:], comments=True)], is_joined=False)
            except ValueError:  # a quote that does not end; sbatch refuses such a script
                continue
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def _parsed(words: Sequence[str], *, is_joined: bool) -> dict[str, str | None]:
    """By their whole long names; a value that goes on over several words keeps its blanks."""
    found: dict[str, str | None] = {}
    last = ""
    for word in words[1:]:
        if word.startswith("--") and len(word) > 2:
            name, equals, given = word[2:].partition("=")
            last = _whole(name)
            found[last] = given if equals else None
        elif word.startswith("-") and len(word) > 1 and word[1].isalpha():
            last = _short(word[1:], found)
        elif last and (is_joined or found[last] is None):
            before = found[last]
            found[last] = word if before is None else f"{before} {word}"
    return found


def _short(letters: str, found: dict[str, str | None]) -> str:
    """`N2`, `HN2`, `O`. Returns the last one's long name."""
    last = ""
    for index, letter in enumerate(letters):
        if letter in _SHORT:
            found[_SHORT[letter]] = letters[index + 1 :] or None
            return _SHORT[letter]
        last = _SHORT_FLAGS.get(letter, f"-{letter}")
        found[last] = None
    return last


def _whole(name: str) -> str:
    """sbatch takes an option's beginning where it is no other's."""
    if name in OPTIONS:
        return name
    longer = [one for one in OPTIONS if one.startswith(name)]
    return longer[0] if len(longer) == 1 else name


def carried(line: Mapping[str, str | None], environment: Mapping[str, str]) -> dict[str, str | None]:
    """What to give again as it stood on the line: options that nothing else shows, and a SPANK plug-in's, whose value
    the environment has whole."""
    found: dict[str, str | None] = {}
    plugins = {name: given for name, given in environment.items() if name.startswith(SPANK)}
    for name, given in line.items():
        is_plain = OPTIONS.get(name) is Kind.CARRIED and " " not in (given or "")
        if is_plain or (
            name not in OPTIONS and any(is_of(one, name) and plugins[one] == (given or "") for one in plugins)
        ):
            found[name] = given
    return found


def is_of(variable: str, option: str) -> bool:
    """Whether a variable of SPANK's holds that option: `_SLURM_SPANK_OPTION_pyxis_container_image`."""
    plain = "".join(char if char.isalnum() else "_" for char in option)
    return variable.startswith(SPANK) and variable.endswith(f"_{plain}")


def lost(
    line: Mapping[str, str | None], script: Mapping[str, str | None], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """The options that a resubmission would be without: on the line or in SPANK's variables, not in the script, and not
    carried."""
    kept = carried(line, environment)
    found = [
        f"--{name.lstrip('-')}"
        for name in line
        if name not in kept and name not in script and OPTIONS.get(name, Kind.CARRIED) is Kind.CARRIED
    ]
    named = (*line, *script)
    found += [
        one.removeprefix(SPANK)
        for one in environment
        if one.startswith(SPANK) and not any(is_of(one, name) for name in named if name not in OPTIONS)
    ]
    return tuple(dict.fromkeys(found))
