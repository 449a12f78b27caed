"""What of a batch script trains: its steps, or what the batch shell starts itself; and options of those. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rekindle.doctor.batch.script import Batch
from rekindle.sbatch.shell import Command

MAX_WORD: Final = 4096  # an option of a longer one is not looked at; PATH_MAX of Linux
MAX_NAME: Final = 64
LAUNCHERS: Final = re.compile(
    r"torchrun|torch\.distributed|accelerate|deepspeed|composer|python\d?(?:\.\d+)?|mpirun|mpiexec"
)
_STARTS: Final = re.compile(rf"{LAUNCHERS.pattern}|apptainer|singularity|docker|podman|horovodrun")


def left_behind(batch: Batch) -> bool:
    """Whether all steps are in the background, and nothing waits for one."""
    waits = any(command.program == "wait" for command in batch.shell.commands)
    return bool(batch.steps) and not waits and all(step.is_background for step in batch.steps)


def foreground(batch: Batch, behind: Command) -> list[Command]:
    """What the batch shell itself waits for, behind this command, that may train."""
    commands = batch.shell.commands
    return [
        command
        for command in commands[commands.index(behind) + 1 :]
        if (command.program == "srun" or LAUNCHERS.fullmatch(command.program))
        and not command.is_background
        and not command.is_inner
    ]


def payloads(batch: Batch) -> list[Command]:
    """What trains: the steps; without one, the launchers that the batch shell starts."""
    return batch.steps or [
        command
        for command in batch.shell.commands
        if not command.is_inner and LAUNCHERS.fullmatch(command.program) and "-c" not in command.words
    ]


def flags(words: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Options among words, with their value: `--name=value`, `--name value`, `name=value`; names are a_b."""
    every = [word for word in words if len(word) <= MAX_WORD]
    for index, word in enumerate(every):
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            following = every[index + 1] if index + 1 < len(every) and not every[index + 1].startswith("-") else None
            if len(name) <= MAX_NAME:
                yield name.lstrip("-").replace("-", "_").lower(), value if equals else following
        elif equals and len(name) <= MAX_NAME and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            yield name.lower(), value


def trains(batch: Batch) -> Callable[[tuple[str, ...]], bool]:
    """Whether a command's words start what trains: srun, in a script that has one; else what else may."""
    has_srun = any(re.search(r"(?<![\w/-])srun\b(?!-)", line.partition("#")[0]) for line in batch.lines)
    if left_behind(batch) and foreground(batch, batch.steps[-1]):
        has_srun = False  # Ray and the like: the steps are servers, and what trains is started beside them

    def is_one(words: tuple[str, ...]) -> bool:
        program = words[0].rpartition("/")[2]
        if has_srun:
            return program == "srun"
        return bool(_STARTS.fullmatch(program)) and "-c" not in words[1:2] and "-m venv" not in " ".join(words[1:3])

    return is_one
