"""What a check says. Pure; standard library only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rekindle.compat import StrEnum

MAX_PER_CHECK: Final = 200  # findings of one kind; a cluster has at most 100 groups, and a person reads none of more
MAX_MESSAGE_CHARS: Final = 600  # a message is for a person; a hostile file may hold texts of megabytes

# As a shell, a template, and a guide write a value that someone has yet to give.
_UNFILLED: Final = re.compile(
    r"\$\{[A-Za-z_]\w{0,80}\}|\$[A-Z_][A-Z0-9_]{0,80}\b|\{\{[^{}\n]{1,80}\}\}|<[A-Za-z][\w .-]{0,80}>"
)


class Severity(StrEnum):
    """How much a finding weighs. Only an error makes the command fail."""

    ERROR = "error"  # will not work, or not as it is written
    WARNING = "warning"  # works, and will cost something when a fault comes
    UNKNOWN = "unknown"  # could not be looked at: neither right nor wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check found. `path` is `<file>:<field>`, `<file>:<line>` or `<cluster>:<field>`.

    `check` is the check's id: empty until the check yields it (base/checks.py).
    """

    check: str
    severity: Severity
    message: str
    path: str

    def to_json(self) -> dict[str, str]:
        """The form that machines read."""
        return {
            "check": self.check,
            "severity": self.severity.value,
            "message": self.message,
            "path": self.path,
        }


def error(path: str, message: str) -> Finding:
    """It will not work."""
    return _finding(Severity.ERROR, path, message)


def warning(path: str, message: str) -> Finding:
    """It works until something fails."""
    return _finding(Severity.WARNING, path, message)


def unknown(path: str, message: str) -> Finding:
    """It could not be looked at."""
    return _finding(Severity.UNKNOWN, path, message)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then what is unknown; each once, in the order of the checks, at most 200 of a kind."""
    weight = {severity: index for index, severity in enumerate(Severity)}
    reported: list[Finding] = []
    counted: Counter[tuple[str, Severity]] = Counter()
    for finding in dict.fromkeys(findings):
        counted[finding.check, finding.severity] += 1
        if counted[finding.check, finding.severity] <= MAX_PER_CHECK:
            reported.append(finding)
    for (check, severity), count in counted.items():
        if count > MAX_PER_CHECK:
            more = f"and {count - MAX_PER_CHECK} more of this kind, which are not listed"
            reported.append(Finding(check=check, severity=severity, message=more, path="..."))
    return sorted(reported, key=lambda finding: weight[finding.severity])


def has_errors(findings: Iterable[Finding]) -> bool:
    """True where the command must fail."""
    return any(finding.severity is Severity.ERROR for finding in findings)


def quoted(text: object, limit: int = 80) -> str:
    """A value from a file, short enough for a sentence."""
    shown = str(text)
    return f"'{shown if len(shown) <= limit else shown[: limit - 1] + '…'}'"


def unfilled(text: str) -> str | None:
    """What is wrong with a text in which a `${NAME}` still stands; None where none does."""
    found = _UNFILLED.search(text)
    return f"{found[0]} was not filled in" if found is not None else None


def counted(count: float, what: str) -> str:
    """So many of something that takes an s: "1 event", "3 events"."""
    return f"{count:,.0f} {what}{'' if count == 1 else 's'}"


def listed(items: Iterable[object], limit: int = 8) -> str:
    """Some of many, for a sentence."""
    every = [str(item) for item in items]
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(every[:limit]) + more


def _finding(severity: Severity, path: str, message: str) -> Finding:
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 1] + "…"
    return Finding(check="", severity=severity, message=message, path=path)
