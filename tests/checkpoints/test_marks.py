"""Quarantine marks: one name for one root, bounded, readable by both sides."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from rekindle.checkpoints.marks import MAX_WHY_CHARS, QuarantineMark, mark_key
from rekindle.protocol.wire import MailboxError

AT = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


def mark(**changes: Any) -> QuarantineMark:
    values: dict[str, Any] = {
        "root": "s3://lm-runs/run/checkpoint-5",
        "why": "died at load twice",
        "by": "inc-1",
        "at": AT,
    }
    return QuarantineMark(**(values | changes))


def test_a_mark_is_read_as_it_was_written() -> None:
    assert QuarantineMark.from_json(mark().to_json()) == mark()
    assert mark().problem == "quarantined: died at load twice (inc-1)"


def test_one_root_has_one_name_however_it_is_spelt() -> None:
    keys = {mark_key(root) for root in ("s3://lm-runs/run/checkpoint-5", "s3://lm-runs/run/checkpoint-5/")}
    assert keys == {mark().key}
    assert mark().key == "rekindle/quarantine/ee4a0ba5e077b33a7f32e60a614e671e278e247c.json"
    assert mark_key("/fsx/run/step-5") == mark_key("file:///fsx/run/step-5")


def test_long_texts_are_cut_and_not_refused() -> None:
    assert len(QuarantineMark.from_json(mark(why="x" * 99_999).to_json()).why) == MAX_WHY_CHARS


@pytest.mark.parametrize("root", ["", "relative/path", "s3://BAD_bucket/x", "s3://lm-runs/../x"])
def test_a_root_that_is_no_place_is_refused(root: str) -> None:
    with pytest.raises(MailboxError, match="root"):
        mark(root=root).to_json()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"v": 2}, "v"),
        ({"root": None}, "root"),
        ({"why": 3}, "why"),
        ({"by": "x" * 500}, "by"),
        ({"at": "2026-11-20"}, "at"),
        ({"at": "noon"}, "at"),
    ],
)
def test_a_mark_that_is_wrong_names_the_field(changes: dict[str, Any], field: str) -> None:
    wire = json.loads(mark().to_json()) | changes
    with pytest.raises(MailboxError) as caught:
        QuarantineMark.from_json(json.dumps(wire))
    assert caught.value.field == field
