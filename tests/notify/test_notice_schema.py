"""Every notice is what docs/reference/notice.schema.json says, on the bus and as a webhook's body."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.channels.bus import DETAIL_TYPE, SOURCE, detail_of
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.ports.notices import Address, Notice, NoticeKind
from infra.site.reference_notice import PAGE
from localcloud.worlds.recoveries import Script, World, crash_at, freeze_at, world
from rekindle.protocol.signals import FaultClass
from tests.notify.made import notice

SCHEMA = json.loads((Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8"))
VALIDATE = fastjsonschema.compile(SCHEMA)
MOMENTS = st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
NOTICES = st.builds(
    Notice,
    token=st.text(min_size=1),
    severity=st.sampled_from(Severity),
    title=st.text(),
    text=st.text() | st.just("x" * 30_000),
    incident_id=st.text(),
    job_id=st.none() | st.text(),
    at=MOMENTS,
    kind=st.sampled_from(NoticeKind),
    approval_id=st.text(),
    fault=st.sampled_from(["", *(fault.value for fault in FaultClass)]),
    phase=st.sampled_from(["", *(phase.value for phase in Phase)]),
    cluster=st.text(),
    node=st.text(),
    paste=st.lists(st.tuples(st.text(), st.text())).map(tuple),
    sequence=st.text(),
    address=st.none() | st.builds(Address, url=st.text(), until=st.none() | MOMENTS, command=st.text()),
)


def _undescribed(value: Any, schema: dict[str, Any], at: str = "") -> list[str]:
    """Fields that are sent and that the schema does not name."""
    if not isinstance(value, dict):
        return []
    schemas = [schema, *schema.get("anyOf", ())]
    known: dict[str, Any] = {
        name: property_schema for part in schemas for name, property_schema in part.get("properties", {}).items()
    }
    found = [f"{at}{name}" for name in value if name not in known]
    for name in value.keys() & known.keys():
        found += _undescribed(value[name], known[name], f"{at}{name}.")
    return found


@given(NOTICES)
def test_whatever_a_notice_holds_it_is_valid_and_no_field_is_left_out(one: Notice) -> None:
    detail = json.loads(json.dumps(detail_of(one)))
    VALIDATE(detail)
    assert _undescribed(detail, SCHEMA) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("source",), "somebody"),
        (("data", "severity"), "loud"),
        (("data", "fault"), "bad_luck"),
        (("data", "phase"), "resting"),
        (("data", "job_id"), 7),
        (("data", "paste"), [["label"]]),
        (("data", "address"), {"url": "https://example.org"}),
        (("data",), None),
    ],
)
def test_what_is_no_notice_is_refused(path: tuple[str, ...], value: Any) -> None:
    detail: Any = json.loads(json.dumps(detail_of(notice())))
    place = detail
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        VALIDATE(detail)


@pytest.mark.long
def test_the_events_of_whole_recoveries_are_valid() -> None:
    with world() as w:
        seen = _noted(w)
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.submit("second", scripts=(Script(faults=(freeze_at(15),)), Script()))
        w.recover(count=2)
    assert {detail["data"]["kind"] for detail in seen} >= {NoticeKind.NEWS, NoticeKind.CHANGE}
    for detail in seen:
        VALIDATE(detail)
        assert _undescribed(detail, SCHEMA) == []


def _noted(w: World) -> list[dict[str, Any]]:
    """The details of all notices on the bus from now on."""
    seen: list[dict[str, Any]] = []
    handler = w.cloud.functions.handlers["notice_event"]

    def noted(event: Any, context: Any) -> Any:
        assert (event["source"], event["detail-type"]) == (SOURCE, DETAIL_TYPE)
        seen.append(event["detail"])
        return handler(event, context)

    w.cloud.functions.handlers["notice_event"] = noted
    return seen
