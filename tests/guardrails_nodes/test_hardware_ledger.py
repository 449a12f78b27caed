"""What is kept of hardware: bounded, once per Incident, and never of hardware that nobody has told apart."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto import mock_aws

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.hardware_ledger import KEPT_FOR, DynamoHardwareLedger
from chalicelib.domain.model.hardware_ledger import (
    MAX_FAULTS,
    HardwareFault,
    HardwareRecord,
    is_serial,
    marks_in,
    marks_of,
    reported_marks,
    suspect_among,
)
from chalicelib.ports.operator import HardwareLedger
from localcloud.aws.template import create_table
from tests.adapters.conftest import make_client
from tests.fakes.hardware import FakeHardwareLedger

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)
GPU = "GPU-5c89b0a6-2d1e-6a23-9a4b-0123456789ab"
OTHER = "GPU-5c89b0a6-2d1e-6a23-9a4b-0123456789ac"
MARK = f"gpu:{GPU}"


def fault(number: int, *, ago: timedelta = DAY, **more: Any) -> HardwareFault:
    base: dict[str, Any] = {
        "at": NOW - ago,
        "incident_id": f"inc-{number}",
        "cluster": f"c{number % 2}",
        "node": f"n{number}",
        "instance_id": f"i-{number:017x}",
        "kind": "xid_reboot",
        "text": "Xid 79",
    }
    return HardwareFault(**(base | more))


@pytest.fixture(params=["dynamodb", "memory"])
def ledger(request: pytest.FixtureRequest) -> Iterator[HardwareLedger]:
    if request.param == "memory":
        yield FakeHardwareLedger()
        return
    with mock_aws():
        client = make_client("dynamodb")
        create_table(client, "rekindle")
        yield DynamoHardwareLedger(client, table="rekindle")


def test_faults_of_one_piece_add_up_over_clusters_and_come_back_as_they_were(ledger: HardwareLedger) -> None:
    for number in (1, 2, 3):
        ledger.add(MARK, fault(number, ago=number * DAY, named=number == 1, done="reboot"))
    (record,) = ledger.read([MARK, f"gpu:{OTHER}", MARK])
    assert record.total == 3
    assert [fault.incident_id for fault in record.faults] == ["inc-3", "inc-2", "inc-1"]
    assert {fault.cluster for fault in record.faults} == {"c0", "c1"}
    assert record.faults[-1].named
    assert HardwareRecord.from_wire(record.to_wire()) == record


def test_an_incident_that_is_told_again_counts_once(ledger: HardwareLedger) -> None:
    for _ in range(3):
        assert ledger.add(MARK, fault(1)).total == 1
    assert ledger.add(MARK, fault(2)).total == 2


def test_a_record_never_grows_beyond_its_bound(ledger: HardwareLedger) -> None:
    for number in range(MAX_FAULTS + 5):
        ledger.add(MARK, fault(number, ago=timedelta(hours=100 - number), text="x" * 1000))
    (record,) = ledger.read([MARK])
    assert len(record.faults) == MAX_FAULTS
    assert record.total == MAX_FAULTS + 5
    assert record.faults[-1].incident_id == f"inc-{MAX_FAULTS + 4}"


def test_a_listing_shows_repeaters_first_and_ends_at_its_limit(ledger: HardwareLedger) -> None:
    for number in range(5):
        ledger.add(f"serial:once-{number}", fault(number))
    for number in range(2):
        ledger.add(MARK, fault(number, ago=9 * DAY - number * DAY))
    assert [record.mark for record in ledger.listing(limit=10, repeated_only=True)] == [MARK]
    listed = ledger.listing(limit=3, repeated_only=False)
    assert len(listed) == 3
    assert listed[0].mark == MARK
    assert ledger.listing(limit=0, repeated_only=False) == ()


def test_an_item_is_small_ends_by_itself_and_a_broken_one_stops_nobody() -> None:
    with mock_aws():
        client = make_client("dynamodb")
        create_table(client, "rekindle")
        ledger = DynamoHardwareLedger(client, table="rekindle")
        for number in range(MAX_FAULTS):
            ledger.add(MARK, fault(number, ago=timedelta(hours=number), text="".join(random.choices("abc", k=300))))
        stored = items.get(client, "rekindle", items.key(f"HARDWARE#{MARK}"))
        assert stored is not None
        assert items.packed_bytes(stored["record"]) < 6 * 1024
        assert items.read_number(stored, items.TTL_ATTRIBUTE) == int((NOW + KEPT_FOR).timestamp())
        client.put_item(TableName="rekindle", Item=items.key("HARDWARE#gpu:x") | {"record": {"S": "{"}})
        assert [one.mark for one in ledger.read(["gpu:x", MARK])] == [MARK]


# ---- the judgement ---------------------------------------------------------------------------------------------------


def kept(*agos: timedelta) -> HardwareRecord:
    record = HardwareRecord(mark=MARK)
    for number, ago in enumerate(agos):
        record = record.with_fault(fault(number, ago=ago))
    return record


def said(*records: HardwareRecord, **more: Any) -> str | None:
    return suspect_among(records, **({"faults": 3, "window": 28 * DAY, "now": NOW} | more))


def test_as_many_faults_as_the_policy_says_within_its_window_make_suspect_hardware() -> None:
    assert said(kept(DAY, 2 * DAY)) is None
    assert said(kept(DAY, 2 * DAY, 27 * DAY)) is not None
    assert said(kept(DAY, 2 * DAY, 28 * DAY)) is None  # the window ends
    assert said(kept(DAY, 2 * DAY), fresh=True) is not None
    assert said(kept(DAY, 2 * DAY, 3 * DAY), faults=4) is None
    assert said() is None


def test_the_incident_at_hand_is_not_counted_twice() -> None:
    record = kept(DAY, 2 * DAY).with_fault(fault(9, ago=timedelta(0)))
    assert said(record, incident_id="inc-9") is None
    assert said(record, incident_id="inc-9", fresh=True) is not None


def test_two_pieces_with_two_faults_each_are_no_suspect_hardware() -> None:
    assert said(kept(DAY, 2 * DAY), dataclasses.replace(kept(DAY, 2 * DAY), mark=f"gpu:{OTHER}")) is None


# ---- whose hardware it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("1650923033211", True),
        ("J10F7TC", True),
        ("ec2e1916-9099-7caf-fd21-012345abcdef", False),  # the instance's own UUID, which goes with it
        ("45E12AEC-DCD1-B213-94ED-012345ABCDEF", False),  # the same, in the other byte order
        ("Default string", False),
        ("To Be Filled By O.E.M.", False),
        ("0000000000", False),
        ("None", False),
        ("", False),
        ("x" * 65, False),
        ("a\nb" * 3, False),
    ],
)
def test_what_is_no_serial_number_is_not_taken_for_one(text: str, is_one: bool) -> None:
    assert is_serial(text) is is_one
    assert bool(marks_of(serial=text)) is is_one


def test_only_lines_that_name_a_piece_by_itself_tell_it_apart() -> None:
    lines = f"NVRM: GPU at PCI:0000:65:00: {GPU}\nNVRM: GPU Board Serial Number: 1650923033211"
    assert marks_in(lines) == (MARK, "board:1650923033211")
    assert marks_in("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.") == ()
    assert marks_in("GPU-5c89b0a6 GPU-zzzzzzzz-2d1e-6a23-9a4b-0123456789ab") == ()


@pytest.mark.parametrize("told", [None, "gpu:x", [1, {}], ["nothing", ":", "gpu:"], {"gpu": "x"}])
def test_marks_in_evidence_that_are_none_are_passed_over(told: object) -> None:
    assert reported_marks({"marks": told}) == ()


def test_nothing_is_made_up_of_a_list_of_strangers() -> None:
    assert marks_of(gpus=["0", "GPU-", GPU, GPU, "MIG-5c89b0a6"], serial=None) == (MARK,)
