"""Bodies of the API as rows: what a page shows of figures whose names carry their unit. Pure.

The ledger, lemons and clusters answer with figures by name (`mttr_s`, `gpu_hours_lost`, `dollars_saved`). They are read
by their ending, so that a figure that is new in the service is on the page, with its unit, before the console knows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rekindle.cli.shapes import member, objects, short_step, word
from rekindle.console import words

MAX_ROWS: Final = 500
MAX_DEPTH: Final = 3
_SMALL_WORDS: Final[Mapping[str, str]] = {
    "mttd": "time to detect",
    "mttr": "time to recover",
    "ettr": "effective training time (ETTR)",
    "gpu": "GPU",
    "id": "id",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One row: a name, its value as text, and whether it is unknown. `inner` are the rows of an object."""

    name: str
    text: str = ""
    is_unknown: bool = False
    inner: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Objects with like members."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_cut: bool = False


def facts(body: Any, *, without: Sequence[str] = (), depth: int = 0) -> tuple[Fact, ...]:
    """The members of an object as rows; lists of objects are left to `table_of`."""
    if not isinstance(body, Mapping):
        return ()
    found = []
    for name, value in body.items():
        if name in without or (isinstance(value, list) and any(isinstance(item, Mapping) for item in value)):
            continue
        if isinstance(value, Mapping) and not _is_maybe(value):
            if depth < MAX_DEPTH:
                found.append(Fact(name=title(str(name)), inner=facts(value, depth=depth + 1)))
            continue
        unknown = _is_maybe(value) and "unknown" in value
        found.append(Fact(name=title(str(name)), text=text_of(str(name), value), is_unknown=unknown))
    return tuple(found)


def table_of(rows: Any, *, without: Sequence[str] = ()) -> Table:
    """A list of objects as a table; its columns are the members of all of them, in the order of their first sight."""
    listed = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    names = [name for name in dict.fromkeys(str(key) for row in listed for key in row) if name not in without]
    drawn = [tuple(text_of(name, row.get(name)) for name in names) for row in listed[:MAX_ROWS]]
    return Table(columns=tuple(title(name) for name in names), rows=tuple(drawn), is_cut=len(listed) > MAX_ROWS)


def title(name: str) -> str:
    """A member's name for people: without underscores, units in words."""
    for ending in ("_s", "_at", "_percent"):
        if name.endswith(ending) and len(name) > len(ending) + 1:
            name = name.removesuffix(ending)
            break
    return " ".join(_SMALL_WORDS.get(part, part) for part in name.split("_"))


def text_of(name: str, value: Any) -> str:
    """A value by its name's unit."""
    plain = words.known(value) if _is_maybe(value) else value
    if plain is None:
        return words.unknown(value)
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    if isinstance(plain, int | float):
        return _number(name, plain)
    if isinstance(plain, str):
        return words.when(plain) if name.endswith("_at") else plain
    if isinstance(plain, list):
        return ", ".join(str(item) for item in plain) or "–"
    if isinstance(plain, Mapping):
        return ", ".join(f"{key} {text_of(str(key), one)}" for key, one in plain.items()) or "–"
    return str(plain)


def _number(name: str, value: float) -> str:
    if name.endswith("_s") or name == "seconds":
        return words.duration(value)
    if "dollars" in name:
        return words.dollars(value)
    if name == "ettr" or name.endswith(("_share", "_ettr")) or name.startswith("ettr"):
        return words.percent(value)
    if name.endswith("_percent"):
        return f"{value:.1f} %"
    return words.figure(value, 2) if isinstance(value, float) and not value.is_integer() else words.figure(value)


def _is_maybe(value: Any) -> bool:
    return isinstance(value, Mapping) and ("known" in value or "unknown" in value)


def seen(entry: Any) -> str:
    """What one look saw of the run, in a line; empty where it saw none."""
    attempt = member(entry, "facts", "attempt")
    if not isinstance(attempt, Mapping):
        return ""
    if "unknown" in attempt:
        return f"nothing, {attempt['unknown']}"
    parts = [f"{word(attempt, 'name')} {word(attempt, 'status')}"]
    if member(attempt, "last_step", "known") is not None:
        parts.append(f"at step {short_step(attempt, 'last_step')}")
    if word(attempt, "loss_state") in ("nan", "inf"):
        parts.append(f"loss {word(attempt, 'loss_state')}")
    if member(attempt, "loss_health") is not None:
        parts.append(f"loss {word(attempt, 'loss_health')}")
    reason = word(entry, "facts", "failure_reason")
    return ", ".join(parts) + (f"; failed: {reason}" if reason != "-" else "")


def answers_after(entry: Any, after: Any) -> list[tuple[str, str, str]]:
    """(Action, what came of it, detail) of one look; an Action's answer stands in the look after it."""
    results = objects(after, "facts", "results")
    actions = member(entry, "actions")
    found = []
    for index, action in enumerate(actions if isinstance(actions, list) else []):
        result = results[index] if index < len(results) and results[index].get("action") == action else None
        done = word(result, "done") if result is not None else ""
        detail = word(result, "detail") if result is not None else "-"
        found.append((str(action), done, "" if detail == "-" else detail))
    return found
