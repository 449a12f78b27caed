"""Which lines of an Incident are addresses to open in a browser: those of AWS's own console. Pure."""

from __future__ import annotations

import re
from typing import Final

_CONSOLE: Final = re.compile(
    r"https://[a-z0-9-]{1,32}\.console\.(?:aws\.amazon\.com|amazonaws\.cn|amazonaws-us-gov\.com)/"
    r"[A-Za-z0-9/?#:=$%._~+-]{1,900}\Z"
)
_CONSOLE_LABEL: Final = re.compile(r"[A-Za-z ]{1,60}\Z")


def is_address(label: str, line: str) -> bool:
    """The line of an Incident is an address to open. All others are commands."""
    return _CONSOLE.match(line) is not None and _CONSOLE_LABEL.match(label) is not None
