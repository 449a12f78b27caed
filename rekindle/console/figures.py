"""Response bodies of the API as table rows, for figures whose names carry their unit. Pure.

The ledger, suspect hardware and clusters return figures by name (`mttr_s`, `gpu_hours_lost`, `dollars_saved`). A
figure's unit is read from the end of its name, so that a figure the console does not know is still shown correctly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.client.shapes import member, objects, word
from rekindle.console import words
from rekindle.console.words import NOTHING
from rekindle.protocol.quantities import NAMES, amount, between, heading, range_of

TIMES: Final = "Times"
COST: Final = "Lost and saved"
RUN: Final = "The run"

# Source: docs/ledger.md. Name on the wire -> what it is called; any other name is shown with spaces for underscores.
TITLES: Final[Mapping[str, str]] = {
    **{name: heading(name) for name in NAMES},
    "onset_at": "Began",
    "onset_from": "Began, according to",
    "step_s": "Time of one step",
    "instances": "Instances",
    "gpus": "GPUs",
    "began_at": "First attempt began",
    "wall_s": "Wall time",
    "ettr": "Effective training time ratio (ETTR)",
    "counterfactual": "Without Rekindle",
    "requeue": "An automatic requeue",
    "person": "A person",
    "assumes": "Assumed",
    "waiting_s": "Waiting",
    "recompute_s": "Training again",
    "lost_by_stage_s": "Training time lost, by stage",
    "lost_by_fault_s": "Training time lost, by fault",
    "lost_stages": "Training time lost, by stage",
    "stages": "Stages",
    "phase": "Stage",
    "at": "At",
    "after_s": "After its onset",
    "jobs": "Jobs",
    "is_builtin": "Built in",
    "modified_at": "Stored",
}

# Source: docs/ledger.md#one-incident, in its order.
HEADINGS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("onset_at", "onset_from", "mttd_s", "mttr_s", "elapsed_s"), TIMES),
    **dict.fromkeys(
        ("steps_lost", "steps_saved", "lost_s", "gpu_hours_lost", "gpu_hours_saved", "dollars_lost", "dollars_saved"),
        COST,
    ),
    **dict.fromkeys(("step_s", "instances", "gpus", "began_at", "wall_s"), RUN),
}


MAX_ROWS: Final = 500
MAX_DEPTH: Final = 3
_SMALL_WORDS: Final[Mapping[str, str]] = {
    "mttd": "time to detect",
    "mttr": "time to recover",
    "ettr": "ETTR",
    "gpu": "GPU",
    "gpus": "GPUs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One row: a name, its value as text; where it is not known, why. `inner` are the rows under a heading."""

    name: str
    text: str = ""
    why: str = ""
    inner: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Objects with like members."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_number: tuple[bool, ...] = ()
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure over several Incidents: its sum or its median, and of how many it is not known."""

    name: str
    text: str
    high: str
    counted: str
    not_counted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """One figure, part by part."""

    name: str
    parts: tuple[tuple[str, str], ...]


# Members that a page shows above its ledger.
SHOWN_ABOVE: Final = frozenset(
    [
        "incident_id",
        "job_id",
        "name",
        "fault",
        "phase",
        "outcome",
        "active",
        "attempts",
        "opened_at",
        "closed_at",
        "until",
        "since",
        "truncated",
        "at",
    ]
)


def measures(body: Any) -> tuple[Measure, ...]:
    """The figures over several Incidents, each with its own unit."""
    found = []
    for name, value in _members(body):
        if isinstance(value, Mapping) and "counted" in value:
            middle = "sum" if "sum" in value else "median"
            found.append(
                Measure(
                    name=title(name) + ("" if middle == "sum" else ", median"),
                    # None of them is known: a sum of nothing is no zero.
                    text=text_of(name, value.get(middle)) if value.get("counted") != 0 else NOTHING,
                    high=text_of(name, value["p90"]) if "p90" in value and value.get("counted") != 0 else NOTHING,
                    counted=text_of("counted", value.get("counted")),
                    not_counted=text_of("not_counted", value.get("not_counted")),
                )
            )
    return tuple(found)


def shares(body: Any) -> tuple[Shares, ...]:
    """Figures that come in parts: seconds by stage, counts by fault."""
    found = []
    for name, value in _members(body):
        parts = _parts(name, value)
        if parts:
            found.append(Shares(name=title(name), parts=parts))
    return tuple(found)


def _parts(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping) or not value or _is_figure(value) or "counted" in value:
        return ()
    if any(isinstance(member, bool) or not isinstance(member, int | float) for member in value.values()):
        return ()
    # What is lost by stage or fault is time, whatever the member is called.
    unit = f"{name}_s" if name.startswith("lost_by") else name
    called = words.fault if "fault" in name else words.plain
    return tuple((called(key), text_of(unit, member)) for key, member in value.items())


def texts(body: Any) -> tuple[str, ...]:
    """Sentences: assumptions, and notes about the figures."""
    found: list[str] = []
    for name, value in _members(body):
        if name == "text" and value:
            found.append(str(value))
        elif name == "prices" and isinstance(value, Mapping):
            found.append(f"Prices: {word(value, 'source')}, as of {word(value, 'as_of')}.")
        elif name == "assumptions" and isinstance(value, list):
            found += map(str, value)
    return tuple(found)


def _members(body: Any) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in body.items()] if isinstance(body, Mapping) else []


def facts(body: Any, *, without: Collection[str] = (), depth: int = 0) -> tuple[Fact, ...]:
    """The members of an object as rows; what the other functions here take out of it is left to them."""
    if not isinstance(body, Mapping):
        return ()
    found: list[Fact] = []
    headed: dict[str, list[Fact]] = {}
    under: list[Fact] = []
    for name, value in body.items():
        if name in without or _is_shown_elsewhere(str(name), value):
            continue
        if isinstance(value, Mapping) and not _is_figure(value):
            if depth < MAX_DEPTH:
                under.append(Fact(name=title(str(name)), inner=facts(value, depth=depth + 1)))
            continue
        why = str(value["unknown"]) if _is_maybe(value) and "unknown" in value else ""
        fact = Fact(name=title(str(name)), text=text_of(str(name), value), why=why)
        heading = HEADINGS.get(str(name)) if depth == 0 else None
        if heading is None:
            found.append(fact)
        else:
            headed.setdefault(heading, []).append(fact)
    return (*found, *(Fact(name=name, inner=tuple(rows)) for name, rows in headed.items()), *under)


def _is_shown_elsewhere(name: str, value: Any) -> bool:
    """The other functions here take it out, or nothing is told under this name."""
    if name in ("text", "assumptions", "prices", "spared_assumes") or _parts(name, value):
        return True
    if isinstance(value, Mapping):
        return "counted" in value or not value
    return value in ("", []) or (isinstance(value, list) and any(isinstance(item, Mapping) for item in value))


def unknown_figures(rows: Collection[Fact]) -> tuple[tuple[str, str], ...]:
    """What is not known: the names, and why; a reason that several names share is listed once."""
    found: dict[str, dict[str, None]] = {}
    waiting = list(rows)
    while waiting:
        fact = waiting.pop(0)
        if fact.why:
            found.setdefault(fact.why, {})[fact.name] = None
        waiting += fact.inner
    return tuple((", ".join(names), why) for why, names in found.items())


def table_of(rows: Any) -> Table:
    """A list of objects as a table; its columns are the members of all of them, in the order of their first sight."""
    listed = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    names = list(dict.fromkeys(str(key) for row in listed for key in row))
    drawn = [tuple(text_of(name, row.get(name)) for name in names) for row in listed[:MAX_ROWS]]
    return Table(
        columns=tuple(title(name) for name in names),
        rows=tuple(drawn),
        is_number=tuple(any(_is_number(row.get(name)) for row in listed) for name in names),
        is_cut=len(listed) > MAX_ROWS,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def title(name: str) -> str:
    """A member's name for people: without underscores, units in words."""
    if name in TITLES:
        return TITLES[name]
    for ending in ("_s", "_at", "_percent"):
        if name.endswith(ending) and len(name) > len(ending) + 1:
            name = name.removesuffix(ending)
            break
    text = " ".join(_SMALL_WORDS.get(part, part) for part in name.split("_"))
    return text[:1].upper() + text[1:]


def text_of(name: str, value: Any) -> str:
    """A value by its name's unit."""
    ends = range_of(value)
    if ends is not None and name in NAMES:
        return between(name, *ends)
    plain = words.known(value) if _is_maybe(value) else value
    if plain is None:
        return words.unknown(value)
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    if isinstance(plain, int | float):
        return _number(name, plain)
    if isinstance(plain, str):
        return words.when(plain) if name == "at" or name.endswith("_at") else plain
    if isinstance(plain, list):
        return ", ".join(_item(item) for item in plain) or NOTHING
    if isinstance(plain, Mapping):
        return ", ".join(f"{key} {text_of(str(key), member)}" for key, member in plain.items()) or NOTHING
    return str(plain)


def _item(item: Any) -> str:
    """One item of a list as text; a (name, count) pair reads "name × count"."""
    if isinstance(item, list) and len(item) == 2:
        return f"{item[1]} × {item[0]}"
    return str(item)


def _number(name: str, value: float) -> str:
    if name in NAMES:
        return amount(name, value)
    if name.endswith("_s") or name == "seconds":
        return _span(name, value)
    if "dollars" in name:
        return words.dollars(value)
    if name == "ettr" or name.endswith(("_share", "_ettr")):
        return words.percent(value)
    if name.endswith("_percent"):
        return f"{value:.1f} %"
    return words.figure(value, 2) if isinstance(value, float) and not value.is_integer() else words.figure(value)


def _span(name: str, value: float) -> str:
    """Of a step, which takes milliseconds or some seconds, three digits that tell."""
    return f"{value:.3g} s" if name == "step_s" and value < 100 else words.duration(value)


def _is_maybe(value: Any) -> bool:
    return isinstance(value, Mapping) and ("known" in value or "unknown" in value)


def _is_figure(value: Any) -> bool:
    return _is_maybe(value) or range_of(value) is not None


def has_rows(fact: Fact) -> bool:
    """Something under a heading is known: else the heading stands above nothing."""
    return any((not row.inner and not row.why) or has_rows(row) for row in fact.inner)


def answers_after(entry: Any, after: Any) -> list[tuple[str, str, str]]:
    """(Action, result, detail) of one observation's actions; the results are recorded by the following observation."""
    results = objects(after, "facts", "results")
    actions = member(entry, "actions")
    found = []
    for index, action in enumerate(actions if isinstance(actions, list) else []):
        result = results[index] if index < len(results) and results[index].get("action") == action else None
        done = word(result, "done") if result is not None else ""
        detail = word(result, "detail") if result is not None else "-"
        found.append((str(action), done, "" if detail == "-" else detail))
    return found
