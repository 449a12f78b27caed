"""The options of a submission's command line, and what becomes of them when the job is submitted again. Pure.

sbatch reads a script's own lines again. What stood on the command line does not come again: most of it shows in Slurm's
record, some of it nowhere else (`--signal`), and some is no option of sbatch's own but a SPANK plug-in's. Slurm keeps
the line joined with blanks: a value with a blank in it cannot be distinguished from two words, and is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rekindle.sbatch.options import is_option, of_words
from rekindle.sbatch.table import OPTIONS, Kind

MAX_LINE_CHARS: Final = 128 * 1024
SPANK: Final = "_SLURM_SPANK_OPTION_"  # Source: slurm src/common/plugstack.c, SPANK_OPTION_ENV_PREFIX


def of_line(line: str, words: Sequence[str]) -> dict[str, str | None]:
    """The options before the script. words: the script's path and its arguments, which the line ends with."""
    tail = " ".join([words[0].rpartition("/")[2], *words[1:]]).rstrip() if words else ""
    before = line[:MAX_LINE_CHARS].rstrip().removesuffix(tail)
    return of_words([*_joined(before[: before.rfind(" ") + 1].split() if tail else before.split())])


def _joined(words: Sequence[str]) -> Iterator[str]:
    """The words of a line that was joined with blanks: what follows an option up to the next one is its value, blanks
    and all, unless the option takes none."""
    group: list[str] = []
    for word in [*words, "--"]:
        if (is_option(word) or word == "--") and group:
            head, rest = group[0], " ".join(group[1:])
            if rest and "=" in head and head.startswith("--"):
                yield f"{head} {rest}"
            else:
                yield from (head, rest) if rest else (head,)
            group = []
        if group or is_option(word):
            group.append(word)


def options_to_repeat(line: Mapping[str, str | None], environment: Mapping[str, str]) -> dict[str, str | None]:
    """What to give again as it stood on the line: options that nothing else shows, and a SPANK plug-in's, whose value
    the environment has whole."""
    found: dict[str, str | None] = {}
    plugins = {name: given for name, given in environment.items() if name.startswith(SPANK)}
    for name, given in line.items():
        kind = _kind(name)
        is_plain = kind is Kind.CARRIED and " " not in (given or "")
        is_confirmed = kind is Kind.PLUGIN and any(
            is_of(plugin, name) and plugins[plugin] == (given or "") for plugin in plugins
        )
        if is_plain or is_confirmed:
            found[name] = given
    return found


def _kind(name: str) -> Kind:
    """An option that sbatch does not know is a plug-in's."""
    spec = OPTIONS.get(name)
    return Kind.PLUGIN if spec is None else spec.kind


def is_of(variable: str, option: str) -> bool:
    """Whether a variable of SPANK's holds that option: `_SLURM_SPANK_OPTION_pyxis_container_image`."""
    plain = "".join(char if char.isalnum() else "_" for char in option)
    return variable.startswith(SPANK) and variable.endswith(f"_{plain}")


def options_lost(
    line: Mapping[str, str | None], script: Mapping[str, str | None], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """The options that a resubmission would be without: on the line or in SPANK's variables, not in the script, and not
    carried."""
    kept = options_to_repeat(line, environment)
    found = [
        f"--{name.lstrip('-')}"
        for name in line
        if name not in kept and name not in script and _kind(name) in (Kind.CARRIED, Kind.PLUGIN)
    ]
    named = (*line, *script)
    found += [
        variable.removeprefix(SPANK)
        for variable in environment
        if variable.startswith(SPANK) and not any(is_of(variable, name) for name in named if _kind(name) is Kind.PLUGIN)
    ]
    return tuple(dict.fromkeys(found))
