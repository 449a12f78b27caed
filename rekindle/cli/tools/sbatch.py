"""An sbatch command line, read as sbatch reads it: options, then the script, then the script's own arguments.

An option counts where sbatch would take it from: the command line, else its variable, else the script's #SBATCH lines.
Source: sbatch manual, DESCRIPTION (order of precedence), OPTIONS and INPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rekindle.client.errors import UsageError
from rekindle.sbatch.options import Problem, is_option, of_script, read_word

MAX_SCRIPT_BYTES: Final = 4 * 1024 * 1024  # Source: slurm.conf, max_script_size, default 4 MB
VARIABLES: Final[Mapping[str, str]] = {
    "open-mode": "SBATCH_OPEN_MODE",
    "requeue": "SBATCH_REQUEUE",
    "no-requeue": "SBATCH_NO_REQUEUE",
    "export": "SBATCH_EXPORT",
    "array": "SBATCH_ARRAY_INX",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sbatch:
    """`options` and `in_script` map an option's long name to its value ("" without one); the last word wins."""

    words: tuple[str, ...]
    script_at: int
    options: Mapping[str, str]
    in_environment: Mapping[str, str]
    in_script: Mapping[str, str]

    def value(self, name: str) -> str | None:
        for source in (self.options, self.in_environment, self.in_script):
            if name in source:
                return source[name]
        return None

    def says(self, *names: str) -> bool:
        return any(self.value(name) is not None for name in names)

    def has_argument(self, name: str) -> bool:
        """Whether it stands on the command line."""
        return name in self.options

    def exporting(self, names: Sequence[str]) -> list[str]:
        """What makes those variables reach the job. Raises: UsageError where nothing is to reach it."""
        stated = self.value("export")
        words = [] if stated is None else [word.strip() for word in stated.split(",") if word.strip()]
        if not words or "ALL" in words:
            return []
        if words[0].upper() in ("NONE", "NIL"):
            raise UsageError(
                f"--export={words[0]} keeps {', '.join(names)} from the job: leave it out, or set them in the script "
                "and submit it with a comment of its own (docs/hyperpod-slurm.md)"
            )
        return [f"--export={','.join([*words, *(name for name in names if name not in words)])}"]

    def with_options(self, more: Sequence[str]) -> list[str]:
        """The command with options added where they win: after the others, before the script."""
        return [*self.words[: self.script_at], *more, *self.words[self.script_at :]]


def read_command(words: Sequence[str], env: Mapping[str, str]) -> Sbatch:
    """Raises: UsageError for a script that is not there."""
    options, end = _options(words, 1)
    script = words[end] if end < len(words) else None
    in_script: dict[str, str] = {}
    if script is not None and "wrap" not in options:
        in_script = _in_script(script)
    script_at = end - 1 if words[end - 1 : end] == ["--"] and end > 1 else end
    return Sbatch(
        words=tuple(words),
        script_at=script_at,
        options=options,
        in_environment={name: env[variable] for name, variable in VARIABLES.items() if variable in env},
        in_script=in_script,
    )


def _options(words: Sequence[str], start: int) -> tuple[dict[str, str], int]:
    """The options from `start` on, and where they end. As getopt with "+": the first other word ends them."""
    found: dict[str, str] = {}
    at = start
    while at < len(words) and is_option(words[at]):
        following = words[at + 1] if at + 1 < len(words) else None
        read, taken = read_word(words[at], following)
        last = read[-1]
        if last.problem is Problem.UNKNOWN and last.value is None and words[at].startswith("--"):
            # A plug-in's: that it has a value is the likelier case.
            read, taken = [replace(last, value=following)], 1
        found |= {option.name: option.value or "" for option in read}
        at += 1 + taken
    return found, min(at + (words[at : at + 1] == ["--"]), len(words))


def _in_script(path: str) -> dict[str, str]:
    """The script's #SBATCH lines, up to its first command. Raises: UsageError."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_SCRIPT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        if os.path.sep in path:
            raise UsageError(f"the batch script {path} is not there") from None
        return {}  # sbatch looks for it on the PATH too
    except OSError as err:
        raise UsageError(f"the batch script {path} cannot be read: {err.strerror}") from err
    return {name: value or "" for name, value in of_script(text).items()}
