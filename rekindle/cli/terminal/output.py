"""Where every command writes: text for people, or one JSON document with --json."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from rekindle.client.errors import Exit
from rekindle.client.table import Column, Style, render


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


def answer(args: argparse.Namespace, body: Any, text: str) -> int:
    """What the service has said: as it is with --json, else as text for people."""
    if wants_json(args):
        out_json(body)
    else:
        out(text)
    return Exit.OK


def table(
    args: argparse.Namespace, body: Any, columns: Sequence[Column], rows: Sequence[Sequence[object]], nothing: str
) -> int:
    """What the service has said, as a table; `nothing` is said where it has no row."""
    return answer(args, body, render(columns, rows, Style.of(sys.stdout)) if rows else nothing)
