"""Documents beside a run may hold anything: each reader of an observation answers, whatever lies there.

A good document of each kind is written, and one place of it is replaced: by what JSON allows and no writer means.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chalicelib.aws.s3.mailbox import S3Mailbox
from rekindle.checkpoints.discover import discover
from rekindle.checkpoints.marks import mark_key
from rekindle.protocol.keys import heartbeat_key, manifest_key, reply_key
from rekindle.protocol.reports import ReportKind, report_key
from tests.adapters.samples import T0, attempt, job
from tests.adapters.test_mailbox_contract import BUCKET, PREFIX, VIEW, S3Desk, s3_side
from tests.checkpoints.made import Shelf
from tests.sizes import examples

# In the text of a document: a value that json.dumps does not make.
RAW: Final = (
    "1e999",
    "-1e999",
    "NaN",
    "1" * 400,
    "1" * 5000,
    "0.1e-400",
    "[" * 5000 + "]" * 5000,
    '{"a":' * 5000 + "1" + "}" * 5000,
    '"' + "x" * 100_000 + '"',
    '"\\ud800"',
    '"\\u0000"',
    "null",
    "true",
    "[]",
    "{}",
    "-1",
    '"2026-13-45T99:99:99Z"',
    '"../../etc"',
)
RAWS: Final = st.sampled_from(RAW)


def spoilt(good: Any, data: st.DataObject) -> bytes:
    """`good` as JSON, one value of it, at any depth, replaced by one of RAW."""
    places = list(_places(good))
    place = data.draw(st.sampled_from(places))
    return json.dumps(_with(good, place, "@@here@@")).replace('"@@here@@"', data.draw(RAWS)).encode()


def _places(value: Any, at: tuple[Any, ...] = ()) -> Any:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _places(item, (*at, key))


def _with(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = _with(value[place[0]], place[1:], new)
    return copy


INDEX: Final = {"metadata": {"total_size": 4}, "weight_map": {"a": "model.safetensors"}}
STATE: Final = {"epoch": 1.0, "global_step": 9, "log_history": [{"loss": 0.5, "step": 9}]}


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_folder_with_hostile_documents_is_judged(data: st.DataObject) -> None:
    header = spoilt({"__metadata__": {}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, data)
    files = {
        "checkpoint-9/trainer_state.json": spoilt(STATE, data),
        "checkpoint-9/model.safetensors": len(header).to_bytes(8, "little") + header + b"abcd",
        "checkpoint-9/model.safetensors.index.json": spoilt(INDEX, data),
    }
    shelf = Shelf(files)
    for found in discover(shelf.listing, shelf.read):
        assert all(len(problem) <= 400 for problem in found.problems)


def test_an_index_that_claims_more_bytes_than_a_number_can_say_is_a_problem_of_its_checkpoint() -> None:
    body = b'{"metadata":{"total_size":1e999},"weight_map":{"a":"model.safetensors"}}'
    shelf = Shelf({"checkpoint-9/trainer_state.json": b'{"global_step": 9}', "checkpoint-9/model.safetensors": b"x"})
    shelf = Shelf({**shelf.files, "checkpoint-9/model.safetensors.index.json": body})
    (found,) = discover(shelf.listing, shelf.read)
    assert found.step == 9
    assert any("inf" in problem for problem in found.problems)


@dataclass(frozen=True)
class Reader:
    """Where a document lies, a good one, and who reads it."""

    key: str
    good: Callable[[S3Desk], bytes]
    read: Callable[[S3Mailbox], Any]


def _beat(desk: S3Desk) -> bytes:
    desk.heartbeat(step=120, first_step=1, heartbeat_at=T0)
    return _written(desk, heartbeat_key("lm-7b"))


def _reply(desk: S3Desk) -> bytes:
    desk.reply("inc-a.1", step=118)
    return _written(desk, reply_key("inc-a.1"))


def _manifest(desk: S3Desk) -> bytes:
    desk.checkpoint(100)
    return _written(desk, manifest_key(100, "lm-7b"))


def _written(desk: S3Desk, key: str) -> bytes:
    body: bytes = desk.client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}")["Body"].read()
    return body


def _report(_: S3Desk) -> bytes:
    return json.dumps({"v": 1, "rank": 0, "world_size": 2, "attempt": "lm-7b", "job_id": "lm-7b"}).encode()


def _mark(_: S3Desk) -> bytes:
    return json.dumps({"v": 1, "root": "x", "why": "died", "by": "inc-a", "at": T0.isoformat()}).encode()


READERS: Final = {
    "heartbeat": Reader(heartbeat_key("lm-7b"), _beat, lambda mailbox: mailbox.heartbeat(job(), VIEW)),
    "reply": Reader(reply_key("inc-a.1"), _reply, lambda mailbox: mailbox.reply(job(), "inc-a.1")),
    "manifest": Reader(manifest_key(100, "lm-7b"), _manifest, lambda mailbox: mailbox.checkpoints(job(), [attempt()])),
    "report": Reader(
        report_key("lm-7b", ReportKind.STALL, 0),
        _report,
        lambda mailbox: mailbox.reports(job(), "lm-7b", ReportKind.STALL),
    ),
    "mark": Reader(
        mark_key(f"s3://{BUCKET}/{PREFIX}/ckpt/step-100-lm-7b"),
        _mark,
        lambda mailbox: mailbox.checkpoints(job(), [attempt()]),
    ),
}


@pytest.mark.parametrize("name", sorted(READERS))
def test_each_reader_of_the_mailbox_answers_whatever_lies_there(aws: None, name: str) -> None:
    mailbox, desk = s3_side()
    desk.checkpoint(100)
    reader = READERS[name]
    good = json.loads(reader.good(desk))

    @given(st.data())
    @settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
    def play(data: st.DataObject) -> None:
        desk.put(reader.key, spoilt(good, data))
        reader.read(mailbox)

    play()
