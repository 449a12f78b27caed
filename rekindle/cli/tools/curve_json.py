"""Training curves in JSON, as rows of text like those of a CSV file.

trainer_state.json   {"log_history": [{"step": 10, "loss": 2.1, ...}, {"step": 10, "eval_loss": 2.3}, ...], ...}
TensorBoard          [[wall time, step, value], ...], what its page gives for download
a list of objects    [{"step": 10, "loss": 2.1}, ...]
JSON lines           one such object per line: the history of a Weights & Biases run, many scripts' own logs
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rekindle.cli.tools.line_shapes import no_curve
from rekindle.client.errors import BadFile

SUFFIXES: Final = (".json", ".jsonl", ".ndjson")
OF_EVALUATION: Final = "eval_"  # Hugging Face begins the names of what an evaluation logs so
EVALUATED: Final = "eval_since_prev"
MAX_CHARS: Final = 2**26  # of a document, which is read whole
MAX_NESTED: Final = 3
_HOLDERS: Final = frozenset({"metrics", "logs", "values"})
_TENSORBOARD: Final = ["Wall time", "Step", "Value"]  # as the header of its CSV export


def may_begin(line: str) -> bool:
    """Whether a file's first line is a JSON object or list, or the beginning of one."""
    text = line.strip()
    if text[:1] not in ("{", "["):
        return False
    try:
        json.JSONDecoder().raw_decode(text)
    except RecursionError:
        return True
    except json.JSONDecodeError as err:
        return err.pos >= len(text)
    return True


def rows(lines: Iterable[str], name: str) -> Iterator[list[str]]:
    """The header, then a row per object that is more than an evaluation's; a member that is missing is empty.

    Raises:
        BadFile: it is none of these; names the file, and the row.
    """
    entries = _entries(_whole(lines, name), name)
    if entries and all(isinstance(entry, list) for entry in entries):
        yield _TENSORBOARD
        for number, entry in enumerate(entries):
            if len(entry) != len(_TENSORBOARD):
                raise BadFile(f"{name}: row {number}: is not [wall time, step, value]")
            yield [_cell(value, name, number) for value in entry]
        return
    yield from _of_objects(entries, name)


def _of_objects(entries: list[Any], name: str) -> Iterator[list[str]]:
    titles: dict[str, None] = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise BadFile(f"{name}: row {number}: is not an object")
        entries[number] = _flat(entry)
        titles |= dict.fromkeys(entries[number])
    names = [title for title in titles if not title.startswith(OF_EVALUATION)]
    marks = EVALUATED not in titles
    names = [title for title in names if title != EVALUATED]
    yield [*names, EVALUATED]
    evaluated = False
    for number, entry in enumerate(entries):
        if marks and any(title.startswith(OF_EVALUATION) for title in entry):
            evaluated = True
            if all(title.startswith(OF_EVALUATION) or title in ("step", "epoch") for title in entry):
                continue
        mark = ("1" if evaluated else "0") if marks else _cell(entry.get(EVALUATED), name, number)
        yield [*(_cell(entry.get(title), name, number) for title in names), mark]
        evaluated = False


def _flat(entry: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Objects within it as `outer/inner`; one that only holds the metrics adds no name. The outer value counts."""
    found: dict[str, Any] = {key: value for key, value in entry.items() if not (isinstance(value, dict) and value)}
    for key, value in entry.items():
        if isinstance(value, dict) and depth < MAX_NESTED:
            for inner, held in _flat(value, depth + 1).items():
                found.setdefault(inner if key in _HOLDERS else f"{key}/{inner}", held)
    return found


def _whole(lines: Iterable[str], name: str) -> str:
    pieces, length = [], 0
    for piece in lines:
        pieces.append(piece)
        length += len(piece)
        if length > MAX_CHARS:
            raise BadFile(f"{name}: is larger than {MAX_CHARS // 2**20} MiB, which is the most that is read of JSON")
    return "".join(pieces)


def _entries(text: str, name: str) -> list[Any]:
    try:
        whole = json.loads(text)
    except RecursionError as err:
        raise BadFile(f"{name}: is nested too deeply") from err
    except ValueError:
        entries = list(_lines(text))
    else:
        if isinstance(whole, dict):  # without a history: a log with one line so far
            whole = whole.get("log_history", [whole])
        entries = whole if isinstance(whole, list) else []
    if not entries:
        raise no_curve(name)
    return entries


def _lines(text: str) -> Iterator[Any]:
    """JSON lines. What else a process wrote between them, or began and never ended, is passed over."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _cell(value: Any, name: str, number: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**300:
        raise BadFile(f"{name}: row {number}: a number is too large")
    return str(value) if isinstance(value, int | float | str) else json.dumps(value)
