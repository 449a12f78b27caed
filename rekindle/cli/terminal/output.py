"""Where every command writes: text for people, or one JSON document with --json."""

from __future__ import annotations

import argparse
import json
from typing import Any


def out(text: str) -> None:
    """Print for people or machines; the one place where commands write."""
    print(text, flush=True)


def out_json(body: Any) -> None:
    """One JSON document. Everything beyond ASCII is escaped, so that no name can obey a terminal here either."""
    text = json.dumps(body, indent=2)
    out("".join(char if char != "\x7f" else "\\u007f" for char in text))  # ASCII's last control, which JSON leaves be


def wants_json(args: argparse.Namespace) -> bool:
    """`--json` was given."""
    return bool(getattr(args, "json", False))
