"""Why a start failed, from the end of what it printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rekindle.signatures import Classifier, Finding, Label, root_cause
from rekindle.slurm_agent.files import userfs

TAIL_BYTES: Final = 64 * 1024
MAX_LINE: Final = 500


def of_files(paths: Sequence[str], uid: int | None, gid: int | None) -> str:
    """The root cause that the files' ends show, in one line; "" for none, or where none can be read. Never raises."""
    findings: list[Finding] = []
    for path in dict.fromkeys(path for path in paths if path.startswith("/")):
        try:
            with userfs.as_user(uid, gid):
                printed = userfs.tail(path, TAIL_BYTES)
        except (OSError, ValueError):  # the latter for a path that the system cannot be given
            continue
        findings += _findings(printed, len(findings))
    return _summary(findings)


def of_text(printed: bytes) -> str:
    """The same, of what was printed."""
    return _summary(_findings(printed, 0))


def _findings(printed: bytes, start: int) -> list[Finding]:
    judge = Classifier()
    lines = [line for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
    return [
        Finding(verdict=judge.classify(line), at=float(start + number), text=line[:MAX_LINE])
        for number, line in enumerate(lines)
    ]


def _summary(findings: list[Finding]) -> str:
    found = root_cause(findings, is_one_log=True)
    if found.label is Label.BENIGN or found.finding is None:
        return ""
    return " ".join(f"{found.text} Its output says: {found.finding.text}".split())
