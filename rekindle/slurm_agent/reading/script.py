"""What a batch script says about itself: auto-resume, signals that it traps, `#SBATCH --signal`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rekindle.protocol.launch_orders import ENV_CHECKPOINT_DIR, ENV_CHECKPOINT_URI, ENV_MAILBOX
from rekindle.sbatch.options import of_script
from rekindle.sbatch.shell import Command, Shell, read_shell

PLACES: Final = (ENV_MAILBOX, ENV_CHECKPOINT_DIR, ENV_CHECKPOINT_URI)
_LITERAL: Final = re.compile(r"(?:s3://|file:///|/)[\w./:@%+=~-]{1,2000}")
# `srun --export=ALL,NAME=…` and `env -S "NAME=… "`; `env NAME=…` counts as an assignment.
_HANDED: Final = re.compile(rf"(?:^|[\s,=])({'|'.join(PLACES)})=([^\s,]+)")
_OF_ONE_JOB: Final = re.compile(r"SLURM_(?!SUBMIT_DIR|JOB_NAME).*")
_AUTO: Final = re.compile(r"(?<![\w-])--auto-resume(?:=|\s+)1\b")
_CAUGHT: Final = re.compile(r"(?:SIG)?(USR1|USR2|TERM)")
_WARNED: Final = re.compile(r"(?:(?P<flags>[BR]{1,2}):)?(?:SIG)?(?P<name>[A-Z0-9]+)")
# How a script asks Slurm for its own path or for the line that it was submitted by, which are other ones in a copy.
# Source: scontrol(1), squeue(1) "%o" and "Command", sacct(1) "SubmitLine".
# In another language its words stand in quotes, between commas.
_ASKS_FOR_JOB: Final = re.compile(
    r"\bscontrol\b[^\n|;]*\bshow[\s\"',]+(?:-[^\s\"',]+[\s\"',]+)*jobs?(?:id)?\b", re.IGNORECASE
)
_IN_ITS_RECORD: Final = re.compile(r"\b(?:Command|SubmitLine)=")
_BEHIND_IT: Final = re.compile(r"[^\n]*\b(?:command|submit_?line)\b", re.IGNORECASE)
_ASKS_FOR_IT: Final = re.compile(
    r"\bsqueue\b[^\n|;]*(?:%[.\d]*o\b|(?:-O|--Format)[=\s\"',]*[\w,:.#]*\bcommand\b|--json[^\n]*\bcommand\b)"
    r"|\bsacct\b(?:[^\n|;]*\bSubmitLine|[^\n|;]*--json[^\n]*\bsubmit_line)\b",
    re.IGNORECASE,
)
# A script is a user's: up to 4 MiB of any content, read by one thread for the whole cluster. Longer lines are passed
# over, and only so much of the rest is read.
MAX_LINE_CHARS: Final = 4096
MAX_SHELL_CHARS: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """`traps` are signals that the batch shell itself catches; `places` are variables of `PLACES` that it sets to one
    place, with the variables of its submission's environment in it."""

    has_auto_resume: bool
    traps: frozenset[str] = frozenset()
    warned: str | None = None  # the signal that `#SBATCH --signal` asks for before the time limit
    warned_batch: bool = False
    places: Mapping[str, str] = field(default_factory=dict)


def read(script: str, environment: Mapping[str, str] | None = None) -> ScriptFacts:
    """Total. environment: its submission's.

    `#SBATCH --auto-resume=1` is no auto-resume: it is a SPANK option of srun, which sbatch does not know.
    """
    text = "\n".join(line for line in script.split("\n") if len(line) <= MAX_LINE_CHARS)
    shell = read_shell(text[:MAX_SHELL_CHARS])
    lines = [" ".join(command.words) for command in shell.commands]
    lines += [value for values in shell.values.values() for value in values]
    warned = _WARNED.match(of_script(text).get("signal") or "")
    return ScriptFacts(
        has_auto_resume=any(_AUTO.search(line) for line in lines),
        traps=frozenset(name for command in shell.commands for name in _caught(command)),
        warned=warned["name"] if warned else None,
        warned_batch=bool(warned and "B" in (warned["flags"] or "")),
        places=_places(shell, environment or {}) if "REKINDLE_" in text else {},
    )


def _places(shell: Shell, environment: Mapping[str, str]) -> dict[str, str]:
    """Those that have one value, whatever way the script goes."""
    for command in shell.commands:
        for word in command.words:
            for handed in _HANDED.finditer(word[:MAX_LINE_CHARS]):
                shell.set(handed[1], handed[2], command.line)
    given = {name: [value] for name, value in environment.items() if _OF_ONE_JOB.fullmatch(name) is None}
    known = Shell(values=given | {name: given.get(name, []) + values for name, values in shell.values.items()})
    found = {}
    for name in PLACES:
        # `NAME=${NAME:-…}`: its default is a value of its own, for where its submission names none
        values = [
            value for value in shell.values.get(name, []) if f"${{{name}" not in value and f"${name}" not in value
        ]
        is_left = name in environment and len(values) < len(shell.values.get(name, []))
        places = {" ".join(known.expanded([value])) for value in values}
        if not is_left and len(places) == 1 and _LITERAL.fullmatch(place := places.pop()):
            found[name] = place
    return found


def reads_its_place(script: str) -> bool:
    """Whether it asks Slurm where it lies, or how it was submitted."""
    lines = re.sub(r"\\\n|\|\s*\n", "| ", "\n".join(line for line in script.split("\n") if len(line) <= MAX_LINE_CHARS))
    code = "\n".join(line for line in lines.split("\n") if not line.lstrip().startswith("#"))
    if _ASKS_FOR_IT.search(code) is not None:
        return True
    asked = _ASKS_FOR_JOB.search(code)
    if asked is None:
        return False
    return _IN_ITS_RECORD.search(code) is not None or _BEHIND_IT.match(code, asked.end()) is not None


def _caught(command: Command) -> list[str]:
    """The signals of a `trap` that has an action; `trap - USR1` and `trap '' USR1` have none."""
    if command.program != "trap" or command.is_inner:
        return []
    words = [word for word in command.words[1:] if word != "--"]
    if len(words) < 2 or words[0] in ("", "-"):
        return []
    return [found[1] for word in words[1:] if (found := _CAUGHT.fullmatch(word)) is not None]
