"""Values for each declared field of a policy: any that it takes, and some that it must refuse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from chalicelib.domain.policy.document import Policy
from chalicelib.domain.policy.fields import FieldSpec, Group, Rows, member_path, specs
from chalicelib.domain.policy.kinds import (
    Count,
    Exactly,
    Flag,
    Kind,
    Number,
    OneOf,
    OrNone,
    Seconds,
    SecondsList,
    SomeOf,
    Text,
    TimeOfDay,
)
from chalicelib.domain.policy.playbooks import Deadline, PlaybookTable, Response
from rekindle.protocol.signals import FaultClass


def at(path: str, value: Any) -> dict[str, Any]:
    """A document in which one field is given."""
    group, dot, key = path.rpartition(".")
    return {group: {key: value}} if dot else {path: value}


def values(kind: Kind[Any]) -> st.SearchStrategy[Any]:
    """Any JSON value that a field of this kind takes."""
    match kind:
        case Exactly(only):
            return st.just(only)
        case Text(low, high):
            return st.text(min_size=low, max_size=high)
        case Flag():
            return st.booleans()
        case Count(low, high):
            return st.integers(low, high)
        case Number() | Seconds():
            whole = st.integers(math.ceil(kind.low), math.floor(kind.high))
            return whole | st.floats(kind.low, kind.high).map(lambda value: round(value, 3))
        case SecondsList(each):
            return st.lists(values(each), min_size=1, max_size=kind.longest)
        case OneOf(words):
            return st.sampled_from(list(words))
        case SomeOf(words, least):
            return st.lists(st.sampled_from(list(words)), min_size=least, unique=True)
        case TimeOfDay():
            return st.times().map(lambda time: f"{time:%H:%M}")
        case OrNone(inner):
            return st.none() | values(inner)
        case Rows(record):
            return st.lists(records(record), max_size=3)
        case PlaybookTable():
            row = st.fixed_dictionaries({"tries": st.none() | st.integers(0, 100)})
            told = st.just({"response": Response.TELL.value, "deadline": Deadline.FULL.value})
            return st.dictionaries(st.sampled_from([fault.value for fault in FaultClass]), row | told)
        case _:
            return records(kind.record)  # type: ignore[attr-defined]  # a Group


def records(record: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any document of a record: what may be left out may be missing."""
    needed = {spec.key: values(spec.kind) for spec in specs(record) if spec.is_required}
    free = {spec.key: values(spec.kind) for spec in specs(record) if not spec.is_required}
    return st.fixed_dictionaries(needed, optional=free)


def ends(kind: Kind[Any]) -> tuple[Any, Any] | None:
    """The smallest and the largest value of a range; None for a kind without one."""
    match kind:
        case Count() | Number() | Seconds():
            return kind.low, kind.high
        case Text(low, high):
            return "x" * low, "x" * high
        case SecondsList(each):
            return [each.low], [each.high] * kind.longest
        case _:
            return None


def wrong_values(spec: FieldSpec) -> Iterator[Any]:
    """Values of a wrong type, just beyond the range, and words that are not in the list."""
    kind = spec.kind
    if not isinstance(kind, PlaybookTable):
        yield {}
    if not isinstance(kind, OrNone):
        yield None
    match kind:
        case Exactly(only):
            yield from (only + 1, "1")
        case Text(low, high):
            yield from ("x" * (low - 1), "x" * (high + 1), 7)
        case Flag():
            yield from (0, 1, "true")
        case Count(low, high):
            yield from (low - 1, high + 1, "3", True, low + 0.5)
        case Number() | Seconds():
            yield from (kind.low - 1, kind.high + 1, "3", True, [kind.low])
        case SecondsList(each):
            yield from ([], [each.low] * (kind.longest + 1), [each.low - 1], [each.high + 1], ["3"], each.low)
        case OneOf(words):
            yield from ("perhaps", "", 1, [next(iter(words))])
        case Rows():
            yield from ("x", ["x"], [{"misspelt": 1}])
        case PlaybookTable():
            yield from ([], "x")
            return
    if not isinstance(kind, PlaybookTable | Rows | SecondsList):
        yield []


def every_field() -> Iterator[tuple[str, FieldSpec]]:
    """Every field of a document outside of its lists and tables, by its path there."""
    for spec in specs(Policy):
        if isinstance(spec.kind, Group):
            for inner in specs(spec.kind.record):
                yield member_path(spec.key, inner.key), inner
        else:
            yield spec.key, spec
