"""Training curves in JSON, as rows of text like those of a CSV file.

trainer_state.json   {"log_history": [{"step": 10, "loss": 2.1, ...}, {"step": 10, "eval_loss": 2.3}, ...], ...}
TensorBoard          [[wall time, step, value], ...], what its page gives for download
a list of objects    [{"step": 10, "loss": 2.1}, ...]
JSON lines           one such object per line: the history of a Weights & Biases run, many scripts' own logs
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from rekindle.client.errors import BadFile

SUFFIXES: Final = (".json", ".jsonl", ".ndjson")
OF_EVALUATION: Final = "eval_"  # Hugging Face begins the names of what an evaluation logs so
EVALUATED: Final = "eval_since_prev"
_TENSORBOARD: Final = ["Wall time", "Step", "Value"]  # as the header of its CSV export


def rows(text: str, name: str) -> Iterator[list[str]]:
    """The header, then a row per object that is more than an evaluation's; a member that is missing is empty.

    Raises:
        BadFile: it is none of these; names the file, and the row or line.
    """
    entries = list(_entries(text, name))
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
        titles |= dict.fromkeys(entry)
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


def _entries(text: str, name: str) -> Iterator[Any]:
    try:
        whole = json.loads(text)
    except RecursionError as err:
        raise BadFile(f"{name}: is nested too deeply") from err
    except ValueError as err:
        yield from _lines(text, name, err)
        return
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        yield from whole["log_history"]
    elif isinstance(whole, list):
        yield from whole
    elif isinstance(whole, dict):
        yield whole  # a log with one line so far
    else:
        raise BadFile(f"{name}: holds no rows: neither a list, nor `log_history`, nor an object per line")


def _lines(text: str, name: str, why: ValueError) -> Iterator[Any]:
    """JSON lines. Text whose first line is not JSON is reported as one malformed document."""
    for number, line in enumerate(line for line in text.splitlines() if line.strip()):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as err:
            if number == 0:
                raise BadFile(f"{name}: cannot be read as JSON: {why}") from err
            raise BadFile(f"{name}: row {number}: cannot be read as JSON: {err}") from err


def _cell(value: Any, name: str, number: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**300:
        raise BadFile(f"{name}: row {number}: a number is too large")
    return str(value) if isinstance(value, int | float | str) else json.dumps(value)
