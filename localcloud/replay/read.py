"""Reads recordings: files and folders of events, each event with a name that identifies it in the output.

A file holds one event (a JSON object) or several (a JSON list, or one object per line). An event is an EventBridge
envelope, a CloudWatch Logs batch or an Incident as the API returns it (localcloud/replay/history.py). In a folder only
`*.json`, `*.jsonl` and `*.ndjson` are read, and a JSON object without any event member (a manifest, a list of sources)
is skipped; a file that is named explicitly is always read, so that its errors are reported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.replay.history import is_export

SUFFIXES = (".json", ".jsonl", ".ndjson")
# Members of EventBridge's envelope. Two of them make an event, so that a broken envelope is told and not passed over.
_ENVELOPE = frozenset({"source", "detail-type", "detail", "account", "region", "resources", "time"})


class Unreadable(Exception):
    """A path that does not exist or cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One event of a recording: `name` is the file, with `:line` or `[index]` where it holds several.

    `raw` is what the file holds, JSON already read where it could be; `problem` says why it could not.
    """

    name: str
    raw: Any = None
    problem: str | None = None


def read(paths: Sequence[Path]) -> list[Recorded]:
    """Every event, folders in order of their file names.

    Raises:
        Unreadable: names the path and the reason.
    """
    found: list[Recorded] = []
    for path in paths:
        try:
            if path.is_dir():
                for file in _files(path):
                    found += (
                        event for event in _events(file, file.relative_to(path).as_posix()) if _may_be_event(event)
                    )
            else:
                found += _events(path, path.name)
        except OSError as err:
            raise Unreadable(f"{path}: {err.strerror or err}") from err
    return found


def _files(folder: Path) -> Iterator[Path]:
    def refuse(err: OSError) -> None:
        raise err

    for here, folders, names in os.walk(folder, onerror=refuse):
        folders.sort()
        yield from (Path(here, name) for name in sorted(names) if name.endswith(SUFFIXES))


def _may_be_event(recorded: Recorded) -> bool:
    if recorded.problem is not None or not isinstance(recorded.raw, dict):
        return True
    return "awslogs" in recorded.raw or is_export(recorded.raw) or len(_ENVELOPE & recorded.raw.keys()) >= 2


def _events(file: Path, name: str) -> Iterator[Recorded]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        yield Recorded(name=name, problem="event: is not UTF-8 text")
        return
    whole, problem = _json(text)
    if problem is None:
        if isinstance(whole, list):
            yield from (Recorded(name=f"{name}[{index}]", raw=item) for index, item in enumerate(whole))
        else:
            yield Recorded(name=name, raw=whole)
        return
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if len(lines) < 2 or not any(_json(line)[1] is None for _, line in lines):
        yield Recorded(name=name, problem=problem)
        return
    for number, line in lines:
        item, problem = _json(line)
        yield Recorded(name=f"{name}:{number}", raw=item, problem=problem)


def _json(text: str) -> tuple[Any, str | None]:
    try:
        return json.loads(text), None
    except (ValueError, RecursionError):
        return None, "event: is not JSON"
