"""A batch script: the options that sbatch takes from it, and its commands. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from rekindle.doctor.batch.options import Option, Trouble, minutes_of, parse
from rekindle.sbatch.options import MAGIC, arguments
from rekindle.sbatch.shell import Command, Shell, read_shell
from rekindle.slurm_agent.reading.comment import Comment
from rekindle.slurm_agent.reading.comment import parse as parse_comment

MAX_SHELL_BYTES: Final = 256 * 1024  # of a larger script only the options are read
MAX_COMMANDS: Final = 5000  # likewise; people's scripts have fifty
_COUNT: Final = re.compile(r"(\d{1,9})([kKmM]?)(?:-\d+[kKmM]?)?")
_SHELL: Final = re.compile(r"[/ ](?:ba|da|z|k)?sh(?:\s|$)")
_UNIT: Final = {"": 1, "k": 1024, "m": 1024 * 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One script. `late` are lines with options that sbatch does not see any more."""

    label: str
    content: bytes
    lines: tuple[str, ...]
    options: tuple[Option, ...]
    troubles: tuple[Trouble, ...]
    late: tuple[int, ...]
    shell: Shell = field(default_factory=Shell)
    _expanded: dict[Command, list[str]] = field(default_factory=dict)  # every rule asks for the same ones
    is_shell: bool = True
    is_read: bool = True  # False: too large for its commands to be read, or another language

    def at(self, line: int | None = None) -> str:
        """Where in the script."""
        return self.label if line is None else f"{self.label}:{line}"

    def option(self, name: str) -> Option | None:
        """The option as it counts: the last one does."""
        found = [option for option in self.options if option.name == name]
        return found[-1] if found else None

    @property
    def comment(self) -> Comment | None:
        """What the comment tells Rekindle's agent; None for no comment, or one that is not for it."""
        option = self.option("comment")
        return parse_comment(option.value or "") if option is not None else None

    @property
    def nodes(self) -> int | None:
        """At least so many nodes; None: the script does not say (the command line may)."""
        option = self.option("nodes")
        found = _COUNT.match(option.value or "") if option is not None else None
        return int(found[1]) * _UNIT[found[2].lower()] if found is not None else None

    @property
    def time_limit(self) -> timedelta | None:
        """The script's own time limit."""
        option = self.option("time")
        return minutes_of(option.value or "") if option is not None else None

    @property
    def steps(self) -> list[Command]:
        """The sruns that are steps of the run, not those whose output the script asks for."""
        return [command for command in self.shell.commands if command.program == "srun" and not command.is_inner]

    def words(self, command: Command) -> list[str]:
        """A command's words with the variables in them expanded."""
        if command not in self._expanded:
            self._expanded[command] = self.shell.expanded(command.words)
        return self._expanded[command]


def read_batch(content: bytes, label: str) -> Batch:
    """Whatever the bytes are: what cannot be read is not in the result."""
    text = content.decode("utf-8", "replace").replace("\r\n", "\n")
    lines = text.split("\n")
    options: list[Option] = []
    troubles: list[Trouble] = []
    end = len(lines)
    for number, line in enumerate(lines, start=1):
        if line.startswith(MAGIC):
            words, quote = arguments(line[len(MAGIC) :])
            if quote is not None:
                troubles.append(Trouble(number, f"a {quote} is not closed: sbatch stops at it"))
            found, wrong = parse(number, words)
            options += found
            troubles += wrong
        elif line.strip() and not line.lstrip().startswith("#"):
            end = number
            break
    is_shell = not lines[0].startswith("#!") or _SHELL.search(lines[0]) is not None or not lines[0][2:].strip()
    can_read = is_shell and len(content) <= MAX_SHELL_BYTES
    shell = read_shell(text) if can_read else Shell()
    is_read = can_read and len(shell.commands) <= MAX_COMMANDS
    return Batch(
        label=label,
        content=content,
        lines=tuple(lines),
        options=tuple(options),
        troubles=tuple(troubles),
        late=tuple(_late(lines, end)),
        shell=shell if is_read else Shell(),
        is_shell=is_shell,
        is_read=is_read,
    )


def _late(lines: list[str], end: int) -> list[int]:
    """Lines with options after the first command, but for those in a here-document: they are another script's."""
    found: list[int] = []
    until: str | None = None
    for number, line in enumerate(lines[end - 1 :], start=end):
        if until is not None:
            if line.strip("\t") == until:
                until = None
            continue
        if line.startswith(f"{MAGIC} "):
            found.append(number)
        if not line.lstrip().startswith("#"):
            here = re.search(r"<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1", line)
            until = here[2] if here is not None else None
    return found
