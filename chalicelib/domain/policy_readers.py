"""Readers of the fields of a policy document: each takes the field's path and its value, and names what is wrong.

All raise InvalidPolicy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from chalicelib.domain.errors import InvalidPolicy
from chalicelib.domain.evidence import LOSS_FAULTS
from chalicelib.domain.faults import FaultClass
from chalicelib.domain.playbooks import PLAYBOOKS, Deadline, Playbook, Response


def text(key: str, value: Any) -> str:
    """A short text."""
    if not isinstance(value, str) or not 1 <= len(value) <= 64:
        raise InvalidPolicy(key, "must be a text of 1 to 64 characters")
    return value


def flag(key: str, value: Any) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise InvalidPolicy(key, "must be true or false")
    return value


def word(kind: type[StrEnum]) -> Callable[[str, Any], StrEnum]:
    """A reader of one of a few words."""

    def read(key: str, value: Any) -> StrEnum:
        if value not in list(kind):
            raise InvalidPolicy(key, f"must be one of {', '.join(kind)}")
        return kind(value)

    return read


def count(low: int, high: int) -> Callable[[str, Any], int]:
    """A reader of whole numbers."""

    def read(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidPolicy(key, f"must be a whole number from {low} to {high}, not {value!r}")
        return value

    return read


def number(low: float, high: float) -> Callable[[str, Any], float]:
    """A reader of numbers."""

    def read(key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidPolicy(key, f"must be a number from {low:.15g} to {high:.15g}, not {value!r}")
        return float(value)

    return read


def duration(low_s: float, high_s: float) -> Callable[[str, Any], timedelta]:
    """A reader of seconds."""

    def read(key: str, value: Any) -> timedelta:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low_s <= value <= high_s:
            raise InvalidPolicy(key, f"must be a number of seconds from {low_s:.15g} to {high_s:.15g}, not {value!r}")
        return timedelta(seconds=float(value))

    return read


def durations(low_s: float, high_s: float) -> Callable[[str, Any], tuple[timedelta, ...]]:
    """A reader of lists of seconds."""
    one = duration(low_s, high_s)

    def read(key: str, value: Any) -> tuple[timedelta, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= 16:
            raise InvalidPolicy(key, "must be a list of 1 to 16 numbers of seconds")
        return tuple(one(f"{key}[{index}]", item) for index, item in enumerate(value))

    return read


def rows(key: str, value: Any) -> tuple[Playbook, ...]:
    """The playbook table with the given rows and columns replaced."""
    if not isinstance(value, Mapping):
        raise InvalidPolicy(key, "must be an object of fault -> row")
    table = {row.fault: row for row in PLAYBOOKS}
    for name, row in value.items():
        path = f"{key}.{name}"
        if name not in FaultClass.__members__.values():
            raise InvalidPolicy(path, "is not a fault class")
        if not isinstance(row, Mapping):
            raise InvalidPolicy(path, "must be an object")
        fault = FaultClass(name)
        table[fault] = _row(path, table[fault], row)
    return tuple(table[row.fault] for row in PLAYBOOKS)


def _row(path: str, base: Playbook, given: Mapping[str, Any]) -> Playbook:
    unknown = sorted(set(given) - {"response", "deadline", "tries"})
    if unknown:
        raise InvalidPolicy(f"{path}.{unknown[0]}", "is not a playbook column")
    response, deadline, tries = base.response, base.deadline, base.tries
    if "response" in given:
        if given["response"] not in Response.__members__.values():
            raise InvalidPolicy(f"{path}.response", f"must be one of {', '.join(Response)}")
        response = Response(given["response"])
    if "deadline" in given:
        if given["deadline"] not in Deadline.__members__.values():
            raise InvalidPolicy(f"{path}.deadline", f"must be one of {', '.join(Deadline)}")
        deadline = Deadline(given["deadline"])
    if "tries" in given:
        tries = None if given["tries"] is None else count(0, 100)(f"{path}.tries", given["tries"])
    asks = response in (Response.CHECKPOINT_THEN_RESTART, Response.CHECKPOINT_THEN_HAND_OVER)
    if asks and deadline is Deadline.NONE:
        raise InvalidPolicy(f"{path}.deadline", f"must be short or full, because the response is {response}")
    if response is Response.WATCH_THEN_ROLL_BACK and base.fault not in LOSS_FAULTS:
        raise InvalidPolicy(f"{path}.response", "can be watched only for loss_spike and divergence")
    changed = (response, deadline, tries) != (base.response, base.deadline, base.tries)
    return dataclasses.replace(
        base, response=response, deadline=deadline, tries=tries, source="policy document" if changed else base.source
    )
