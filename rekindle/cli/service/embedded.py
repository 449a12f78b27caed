"""The embedded cloud's store as a service for one command: start it, talk to it, end it."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rekindle.cli.service.files import service_root
from rekindle.client.errors import Unreachable, UsageError
from rekindle.client.table import clean

START_LIMIT_S = 90.0  # importing moto and reading a store takes a few seconds; a loaded machine needs many more
STOP_LIMIT_S = 15.0
FACTS = "cloud.sqlite"  # what every store holds


@contextmanager
def serving(store: Path, *, only_look: bool) -> Iterator[str]:
    """The API's URL, for as long as the block lasts. `only_look`: nothing in the store is taken up or changed.

    Raises:
        Unreachable: there is no such store, or it does not come up.
        UsageError: the embedded cloud is not installed.
    """
    if not store.is_dir():
        raise Unreachable(f"{store}: no such store (rekindle demo leaves one in build/demo)")
    if not (store / FACTS).exists() and any(store.iterdir()):
        raise Unreachable(f"{store}: is no store, it holds no {FACTS}")  # nothing is written among other files
    root = service_root()
    if root is None or importlib.util.find_spec("moto") is None:
        raise UsageError("the embedded cloud is not installed: pip install 'rekindle[local]', or name an --api")
    # -P: the folder in which the reader stands may hold an app.py of its own.
    command = [sys.executable, "-P", "-m", "localcloud", "serve", "--store", str(store.resolve()), "--attached"]
    if only_look:
        command.append("--still")
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # it ends when this is closed, even if we are killed
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environ(root),
        )
        try:
            yield _ready(process, errors)
        finally:
            _end(process)


def _environ(root: Path) -> dict[str, str]:
    """Ours, with the folder that holds `localcloud` and `app.py` on the path, wherever the command was called."""
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else str(root)}


def _ready(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    lines: queue.Queue[bytes] = queue.Queue()
    stdout = process.stdout
    assert stdout is not None  # noqa: S101  stdout=PIPE was given; this tells the type checker

    def drain() -> None:
        # Read to the end, or a talkative process would block once the pipe is full.
        for line in stdout:
            lines.put(line)
        lines.put(b"")

    threading.Thread(target=drain, name="embedded-cloud", daemon=True).start()
    try:
        line = lines.get(timeout=START_LIMIT_S)
    except queue.Empty:
        raise Unreachable(f"the embedded cloud did not come up within {START_LIMIT_S:.0f} s") from None
    try:
        answer: Any = json.loads(line)
        return str(answer["api"])
    except (ValueError, TypeError, KeyError):
        raise Unreachable(f"the embedded cloud did not come up: {_ended_and_last_error(process, errors)}") from None


def _ended_and_last_error(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    _end(process)
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return clean(lines[-1])[:300] if lines else f"it ended with {process.returncode}"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
    try:
        process.wait(timeout=STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
