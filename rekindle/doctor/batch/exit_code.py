"""Whether a script ends with what its run ended with. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rekindle.doctor.base.checks import Area, check
from rekindle.doctor.base.findings import Finding, warning
from rekindle.doctor.batch.ending import Ending, lost_failure
from rekindle.doctor.batch.payloads import trains
from rekindle.doctor.batch.script import Batch


@check("batch-exit-code", Area.SCRIPT, "bash(1)")
def exit_code(batch: Batch) -> Iterator[Finding]:
    """`set -e`; the script ends with what the run ended with: no `||`, pipe, bare `wait`, `exit 0` or last command.

    A failed run looks complete.
    """
    settings = [word for command in batch.shell.commands if command.program == "set" for word in command.words[1:]]
    shebang = batch.lines[0].split()[1:] if batch.lines else []
    short = [word for word in [*settings, *shebang] if re.fullmatch(r"-[A-Za-z]+", word)]
    stops = any("e" in word for word in short) or "errexit" in settings
    options = ["errexit"] if any(re.fullmatch(r"-[a-df-z]*e[a-z]*", word) for word in shebang) else []
    # `exit 0` as the last word: where `set -e` ends the script before it, it is a trap for who takes that out.
    is_told = batch.shell.commands[-1:] and batch.shell.commands[-1].words == ("exit", "0")
    found = lost_failure("\n".join(batch.lines), trains(batch), options=options, stops=not is_told)
    if found is not None:
        yield warning(batch.at(found.step if found.by in _AT_THE_STEP else found.decided), _lost(found))
    if not batch.steps:
        return
    ends_well = batch.shell.commands[-1].program in ("srun", "exit", "wait")
    if not stops and not (ends_well and batch.steps[0] is batch.shell.commands[0]):
        yield warning(batch.label, "no `set -e`: a step of the preparation may fail, and the run starts all the same")


# What a 0 comes from -> what is said of it.
_LOST: Final = {
    "|": "its exit code is lost in the pipe (no `set -o pipefail`)",
    "||": "`… ||` hides its exit code",
    "if": "the condition takes its exit code, and nothing gives it on",
    "!": "`!` turns its exit code around",
    "bare wait": "`wait` alone returns 0 whatever it ended with; keep $! and `wait $!` for each",
    "exit 0": "`exit 0` is the job's exit code, whatever it ended with; keep `rc=$?`",
}
_AT_THE_STEP: Final = ("|", "||", "if", "!")


def _lost(found: Ending) -> str:
    how = _LOST.get(found.by) or (
        f"`{found.by[:40]}` decides the job's exit code; keep `rc=$?` behind it and end with `exit $rc`"
    )
    return f"a failed run looks complete: when line {found.step} fails, {how}"
