"""docs/policy.md says what chalicelib/domain/policy.py does: every field, its default and its range."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chalicelib.domain.errors import InvalidPolicy
from chalicelib.domain.playbooks import Deadline, Response
from chalicelib.domain.policy import DEFAULT_POLICY, Policy

DOCUMENT = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
WIRE = DEFAULT_POLICY.to_wire()
# Fields that bound each other: what the other one must be for an extreme value to be allowed.
BESIDE: dict[str, dict[str, float]] = {
    "look_min_s": {"look_max_s": 3600},
    "look_max_s": {"look_min_s": 1},
    "hang_deadline_s": {"checkpoint_deadline_s": 86400},
    "checkpoint_deadline_s": {"hang_deadline_s": 1},
    "node_look_min_s": {"node_look_max_s": 3600},
    "node_look_max_s": {"node_look_min_s": 1},
}
ROWS_OF: dict[str, dict[str, Any]] = {
    "approvals": {"deadline_s": 60, "default": "deny"},
    "windows": {"from": "22:00", "to": "02:00"},
}
COLUMNS = {
    "approvals": {"actions", "faults", "min_nodes", "min_gpu_hours", "deadline_s", "default"},
    "windows": {"name", "from", "to", "days", "holds", "actions"},
}


def _rows(heading: str) -> list[list[str]]:
    section = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
    body = next(part for part in section if part.startswith(heading))
    lines = [line for line in body.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


FIELDS = {name: (default, limits) for name, default, limits, _ in _rows("Fields")}


def test_every_field_is_documented_and_no_other() -> None:
    assert list(FIELDS) == list(WIRE)


@pytest.mark.parametrize("name", [name for name in WIRE if name != "playbooks"])
def test_each_default_is_the_built_in_one(name: str) -> None:
    assert json.loads(FIELDS[name][0]) == WIRE[name]


@pytest.mark.parametrize("name", [name for name in WIRE if name != "playbooks" and not isinstance(WIRE[name], bool)])
def test_each_range_is_kept_to_its_ends_and_not_beyond(name: str) -> None:
    limits = FIELDS[name][1]
    if limits.startswith("one of "):
        for word in limits.removeprefix("one of ").split(", "):
            assert Policy.from_wire({name: word}).to_wire()[name] == word
        with pytest.raises(InvalidPolicy, match=f"{name}: must be {limits}"):
            Policy.from_wire({name: "perhaps"})
        return
    low, high = (int(end) for end in re.findall(r"(\d+) to (\d+)", limits)[-1])

    def accepts(value: Any) -> bool:
        try:
            Policy.from_wire({**BESIDE.get(name, {}), name: value})
        except InvalidPolicy as err:
            return err.field.split("[")[0] != name  # another field's refusal says nothing about this one
        return True

    if limits.endswith("rows"):
        given: list[Any] = [[ROWS_OF[name]] * low, [ROWS_OF[name]] * high, "x", [ROWS_OF[name]] * (high + 1)]
    elif limits.endswith("characters"):
        given = ["x" * low, "x" * high, "x" * (low - 1), "x" * (high + 1)]
    elif "numbers, each" in limits:
        given = [[low], [high] * 16, [low - 1], [high + 1]]
        assert not accepts([])
        assert not accepts([low] * 17)
    else:
        given = [low, high, low - 1, high + 1]
    assert [accepts(value) for value in given] == [True, True, False, False]


def test_the_playbook_table_is_the_built_in_one() -> None:
    rows = [row for row in _rows("Playbooks") if len(row) == 4]
    documented = {
        fault: {"response": response, "deadline": deadline, "tries": json.loads(tries)}
        for fault, response, deadline, tries in rows
    }
    assert documented == WIRE["playbooks"]
    assert list(documented) == list(WIRE["playbooks"])


def test_every_response_and_deadline_is_explained() -> None:
    assert [row[0] for row in _rows("Playbooks") if len(row) == 2] == [response.value for response in Response]
    for deadline in Deadline:
        assert f"`{deadline}`" in DOCUMENT


def test_the_example_is_a_policy() -> None:
    first, *others = re.findall(r"```json\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    assert Policy.from_wire(json.loads(first)).max_no_progress == 2
    for example in others:
        (field, rows) = json.loads(example).popitem()
        assert len(Policy.from_wire({field: rows}).to_wire()[field]) == len(rows)


@pytest.mark.parametrize("field", ROWS_OF)
def test_every_column_of_a_row_is_explained(field: str) -> None:
    documented = {name.rpartition(".")[2] for row in _rows(field.title()) for name in row[0].split("`, `")}
    assert documented == COLUMNS[field]
