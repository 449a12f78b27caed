"""A command in a terminal of its own, written down as an asciicast.

Source: asciinema's documentation, asciicast v2: a header, then one `[seconds, "o", text]` per line.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COLUMNS: Final = 120
LINES: Final = 40
_LINK: Final = re.compile(r"/open/[A-Za-z0-9_-]+")  # the console's key, which ends with the demo
_SIZE: Final = 65_536


@dataclass(frozen=True, slots=True)
class Output:
    """What was written, `at` seconds after the start."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class TerminalRecording:
    """A whole recording, and how the command ended."""

    outputs: tuple[Output, ...]
    status: int

    def write(self, path: Path) -> None:
        """As an asciicast."""
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {"version": 2, "width": COLUMNS, "height": LINES, "env": {"TERM": "xterm-256color"}}
        lines = [json.dumps(header), *(json.dumps([round(one.at, 3), "o", one.text]) for one in self.outputs)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(path: Path) -> TerminalRecording:
    """An asciicast of ours. Raises: OSError, ValueError."""
    _, *lines = path.read_text(encoding="utf-8").splitlines()
    return TerminalRecording(tuple(Output(at, text) for at, _, text in map(json.loads, lines)), 0)


def record(command: Sequence[str], *, shown: str, environ: Mapping[str, str]) -> TerminalRecording:
    """Run the command to its end. `shown` is what a person types to run it."""
    pid, terminal = pty.fork()
    if pid == 0:  # the child: nothing but exec, and away where that fails
        try:
            os.execvpe(command[0], list(command), {**environ, "TERM": "xterm-256color", "COLORTERM": ""})  # noqa: S606
        finally:
            os._exit(127)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    began = time.monotonic()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    outputs = [Output(0.0, f"$ {shown}\r\n")]
    while True:
        select.select([terminal], [], [])
        try:
            data = os.read(terminal, _SIZE)
        except OSError:  # Linux: the last process has closed its side
            break
        if not data:
            break
        text = _LINK.sub("/open/…", decoder.decode(data))
        outputs.append(Output(time.monotonic() - began, text))
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return TerminalRecording(tuple(outputs), os.waitstatus_to_exitcode(status))
