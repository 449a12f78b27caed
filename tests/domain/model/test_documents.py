"""Documents and bounds: what the codec asks of a stranger's JSON, which error it gives, and the schema that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import pytest

from chalicelib.domain.model.known import Known, Maybe, Unknown
from rekindle.protocol.bounds import Identity, Items, Number, Required, Text, Via, Whole
from rekindle.protocol.codec import Document, read, schema_of, write
from rekindle.protocol.wire import MailboxError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    wire_row: ClassVar[bool] = True

    low: Annotated[int, Whole(0, 9)]
    high: Annotated[int, Whole(0, 9)]

    def check_fields(self) -> None:
        if self.low > self.high:
            raise MailboxError("high", "is below low")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Document):
    name: Annotated[str, Text(5, pattern="[a-z]+", problem="must be lower-case letters")]
    weight: Annotated[float, Number(0, 10)] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing(Document):
    part: Part
    owner: Identity
    colour: Colour = Colour.RED
    count: Annotated[int, Whole(1, 5), "how many there are"] = 2
    is_new: bool = True
    kind: Annotated[Literal["thing"], Required()] = "thing"
    parts: Annotated[tuple[Part, ...], Items(2)] = ()
    spans: tuple[Span, ...] = ()
    sizes: Annotated[Mapping[Annotated[str, Text(3)], Annotated[int, Whole(0, 9)]], Items(2)] | None = None
    upper: Annotated[str, Via(Annotated[str, Text(4)], read=str.upper, write=str.lower)] = "A"
    made_at: datetime | None = None
    lasts: Annotated[timedelta, Number(0, 60)] = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    size: Maybe[int]
    name: str = ""


WIRE: dict[str, Any] = {"part": {"name": "ab", "weight": 1}, "owner": "me", "kind": "thing"}


def test_null_is_an_absent_field_of_a_document_and_unknown_fields_are_ignored() -> None:
    thing = Thing.from_wire(
        WIRE | {"is_new": None, "colour": None, "of_a_newer": 1, "part": {"name": "ab", "more": {}}}
    )
    assert (thing.is_new, thing.colour, thing.part.weight) == (True, Colour.RED, None)
    assert Thing.from_wire(thing.to_wire()) == thing
    assert set(thing.to_wire()) == set(schema_of(Thing)["properties"])


def test_times_are_read_as_utc_and_numbers_as_floats() -> None:
    thing = Thing.from_wire(WIRE | {"made_at": "2026-01-01T02:00:00+02:00", "lasts": 5})
    assert thing.to_wire()["made_at"] == "2026-01-01T00:00:00+00:00"
    assert thing.made_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert thing.lasts == timedelta(seconds=5)
    assert isinstance(thing.part.weight, float)


def test_a_value_travels_in_the_form_of_another_type() -> None:
    thing = Thing.from_wire(WIRE | {"upper": "xy"})
    assert thing.upper == "XY"
    assert thing.to_wire()["upper"] == "xy"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"part": None}, "part"),
    ({"part": {"name": "AB"}}, "part.name"),
    ({"part": {"name": "abcdef"}}, "part.name"),
    ({"part": {"name": "ab", "weight": True}}, "part.weight"),
    ({"part": {"name": "ab", "weight": 10.5}}, "part.weight"),
    ({"part": {"name": "ab", "weight": 10**400}}, "part.weight"),
    ({"part": []}, "part"),
    ({"owner": ".."}, "owner"),
    ({"owner": None}, "owner"),
    ({"colour": "green"}, "colour"),
    ({"colour": ["red"]}, "colour"),
    ({"count": 0}, "count"),
    ({"count": 2.0}, "count"),
    ({"count": True}, "count"),
    ({"is_new": 1}, "is_new"),
    ({"kind": None}, "kind"),
    ({"kind": "other"}, "kind"),
    ({"parts": [{"name": "a"}] * 3}, "parts"),
    ({"parts": [{"name": "a"}, {"name": 1}]}, "parts.1.name"),
    ({"spans": [[1, 2], [3, 2]]}, "spans.1.high"),
    ({"spans": [[1]]}, "spans.0"),
    ({"sizes": {"a": 1, "b": 2, "c": 3}}, "sizes"),
    ({"sizes": {"abcd": 1}}, "sizes"),
    ({"sizes": {"abc": 10}}, "sizes.abc"),
    ({"made_at": "2026-01-01T00:00:00"}, "made_at"),
    ({"made_at": "0001-01-01T00:00:00+14:00"}, "made_at"),
    ({"lasts": 61}, "lasts"),
]


@pytest.mark.parametrize(("change", "field"), REFUSED, ids=[f"{change}"[:60] for change, _ in REFUSED])
def test_what_is_out_of_bounds_is_refused_by_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(MailboxError) as caught:
        Thing.from_wire(WIRE | change)
    assert caught.value.field == field


def test_a_record_reports_unknown_fields_and_takes_null_for_a_value() -> None:
    beyond: list[str] = []
    kept = read(Kept, {"size": {"known": 3}, "more": 1}, beyond=beyond)
    assert (kept, beyond) == (Kept(size=Known(3)), ["more"])
    assert write(Kept, kept) == {"size": {"known": 3}}
    assert read(Kept, {"size": {"unknown": "gone"}}) == Kept(size=Unknown("gone"))
    for wire, field in (({"size": {"known": 3}, "name": None}, "name"), ({"size": {"known": 3}, "more": 1}, "more")):
        with pytest.raises(MailboxError) as caught:
            read(Kept, wire)
        assert caught.value.field == field


def test_a_limit_that_does_not_fit_its_type_is_our_mistake() -> None:
    for kind in (Annotated[int, Text(5)], Annotated[str, Items(5)], Annotated[int, Whole(0, 5), Whole(1, 2)]):
        with pytest.raises(TypeError, match="limit"):
            read(kind, "x")


def test_a_schema_has_the_bounds_and_what_is_required() -> None:
    schema = schema_of(Thing)
    assert schema["required"] == ["part", "owner", "kind"]
    assert "additionalProperties" not in schema
    fields = schema["properties"]
    assert fields["count"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 5,
        "description": "how many there are",
        "default": 2,
    }
    assert fields["colour"] == {"enum": ["red", "blue"], "default": "red"}
    assert fields["part"]["properties"]["name"] == {"type": "string", "maxLength": 5, "pattern": "^(?:[a-z]+)$"}
    assert fields["parts"]["maxItems"] == 2
    assert fields["lasts"] == {"type": "number", "minimum": 0, "maximum": 60, "default": 0.0}
    assert fields["spans"]["items"]["prefixItems"][0] == {"type": "integer", "minimum": 0, "maximum": 9}
    assert schema_of(Kept)["additionalProperties"] is False
    assert schema_of(Kept, written=True)["required"] == ["size", "name"]
    assert [choice["required"] for choice in schema_of(Kept)["properties"]["size"]["oneOf"]] == [["known"], ["unknown"]]
