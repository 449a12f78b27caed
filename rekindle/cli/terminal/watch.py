"""`--watch`: a command that looks, again and again. In place on a terminal; off one, appended whenever it has changed.

The service being away is shown and waited out, and so is, for APPEARS_WITHIN_S, a name that is not known yet: an
Incident opens some seconds after the fault. What can never come right by waiting (a name that is gone, no permission)
ends the watch with its own exit code, and so does Ctrl-C; the terminal is left as it was.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Final, TextIO

from rekindle.cli.service.target import connected
from rekindle.client.errors import Exit, NotFound, ServiceFailed, TryAgain, Unreachable
from rekindle.client.table import clean
from rekindle.compat import UTC

EVERY_S: Final = 5.0
MIN_EVERY_S: Final = 0.2
MAX_EVERY_S: Final = 3600.0
APPEARS_WITHIN_S: Final = 600.0

# Source: ECMA-48 (CUP, ED, EL) and xterm's control sequences (DECAWM, DECTCEM).
_HOME, _CLEAR, _REST_OF_LINE, _BELOW = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"
_NO_WRAP, _WRAP, _NO_CURSOR, _CURSOR = "\x1b[?7l", "\x1b[?7h", "\x1b[?25l", "\x1b[?25h"


class WatchFinished(Exception):
    """There is nothing more to see; `code` is how the command ends."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Picture(io.StringIO):
    """What a command prints, as it would have printed it to `real`."""

    def __init__(self, real: TextIO) -> None:
        super().__init__()
        self._real = real

    def isatty(self) -> bool:
        return self._real.isatty()


def watched(args: argparse.Namespace) -> int:
    """Run `args.run` every `args.watch` seconds until it says that it has finished, or Ctrl-C."""
    args.watching = True
    with connected(args, only_look=True) as client, _shown(sys.stdout) as show:
        # Found once: every look asks the same service, whatever stack or store it was found by.
        args.api, args.store, args.stack = client.url, None, None
        picture = ""
        appears_by = time.monotonic() + APPEARS_WITHIN_S
        while True:
            trouble, code, ended = "", int(Exit.OK), False
            try:
                picture, code, ended = _look(args)
            except NotFound as err:
                if picture or time.monotonic() >= appears_by:
                    raise
                trouble = clean(err)
            except (Unreachable, TryAgain, ServiceFailed) as err:
                trouble = clean(err)
            show(picture, trouble)
            if ended:
                return code
            time.sleep(args.watch)


def _look(args: argparse.Namespace) -> tuple[str, int, bool]:
    printed = _Picture(sys.stdout)
    with contextlib.redirect_stdout(printed):
        try:
            code, ended = int(args.run(args)), False
        except WatchFinished as end:
            code, ended = end.code, True
    return printed.getvalue().rstrip("\n"), code, ended


class _Display:
    """Draws pictures."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._in_place = stream.isatty()
        self._last: tuple[str, str] | None = None

    def __call__(self, picture: str, trouble: str) -> None:
        if self._in_place:
            self._draw(picture, trouble)
        elif self._last != (picture, trouble):
            if trouble:
                print(f"rekindle: {trouble}; looking again", file=sys.stderr, flush=True)
            elif self._last is None or picture != self._last[0] or self._last[1]:
                print(picture, file=self._stream, flush=True)
        self._last = (picture, trouble)

    def _draw(self, picture: str, trouble: str) -> None:
        """Over the last picture, line by line, so that nothing flickers; what finds no room is counted."""
        rows = max(shutil.get_terminal_size().lines, 4)
        at = f"{datetime.now(UTC):%H:%M:%S}Z"
        lines = [f"{at}  {trouble}; looking again" if trouble else f"{at}  Ctrl-C ends", "", *picture.split("\n")]
        if len(lines) > rows:
            lines = [*lines[: rows - 1], f"... {len(lines) - rows + 1} more lines: without --watch, or a taller window"]
        first = _CLEAR if self._last is None else ""
        body = "\n".join(f"{line}{_REST_OF_LINE}" for line in lines)
        self._stream.write(f"{first}{_HOME}{body}{_BELOW}")
        self._stream.flush()


@contextlib.contextmanager
def _shown(stream: TextIO) -> Iterator[_Display]:
    """A terminal that neither wraps nor blinks while pictures are drawn, and is itself again afterwards."""
    if not stream.isatty():
        yield _Display(stream)
        return
    stream.write(_NO_WRAP + _NO_CURSOR)
    try:
        yield _Display(stream)
    finally:
        stream.write(f"{_WRAP}{_CURSOR}\n")
        stream.flush()


def is_watching(args: argparse.Namespace) -> bool:
    """The command is run again and again."""
    return bool(getattr(args, "watching", False))


def finish_if(args: argparse.Namespace, over: bool) -> None:
    """End a watch whose subject has come to its end. Nothing without --watch."""
    if over and is_watching(args):
        raise WatchFinished(Exit.OK)
