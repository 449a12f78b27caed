"""A policy's document: what is written can be read back, and what is wrong is refused with the name of its field."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings

from chalicelib.domain.model.errors import InvalidPolicy
from chalicelib.domain.policy.document import (
    DEFAULT_POLICY,
    NOT_ABOVE,
    Policy,
    contradictions,
    flat,
    overlaid,
)
from chalicelib.domain.policy.fields import FieldSpec, Group, specs
from tests.domain.policy_values import at, ends, every_field, records, values, wrong_values
from tests.sizes import examples

FIELDS = list(every_field())
BUILT_IN = flat(DEFAULT_POLICY.to_wire())
MOST_FIELDS = 20  # of one record


def read(document: Any) -> Policy:
    return Policy.from_wire(json.loads(json.dumps(document)))


def refused(document: Any) -> InvalidPolicy:
    with pytest.raises(InvalidPolicy) as caught:
        Policy.from_wire(document)
    return caught.value


def unbound(path: str, value: Any) -> dict[str, Any]:
    """The field's document, with the fields that bound it moved out of the way."""
    document = at(path, value)
    for low, high in NOT_ABOVE:
        kinds = dict(FIELDS)
        if path == low:
            document = overlaid(at(high, kinds[high].kind.high), document)  # type: ignore[attr-defined]
        if path == high:
            document = overlaid(at(low, kinds[low].kind.low), document)  # type: ignore[attr-defined]
    return document


@given(records(Policy))
def test_every_document_is_read_and_what_is_written_of_it_reads_the_same(document: dict[str, Any]) -> None:
    for low, high in NOT_ABOVE:  # only single fields are drawn at random
        document = overlaid(document, overlaid(at(low, 60), at(high, 60)))
    policy = read(document)
    wire = policy.to_wire()
    assert read(wire) == policy
    assert read(wire).to_wire() == wire
    given_fields = {path for path, value in flat(document).items() if value != {}}
    assert given_fields <= flat(wire).keys()


@pytest.mark.parametrize(("path", "spec"), FIELDS, ids=[path for path, _ in FIELDS])
def test_each_field_keeps_each_value_that_it_takes_and_changes_no_other(path: str, spec: FieldSpec) -> None:
    @settings(max_examples=examples(12))
    @given(values(spec.kind))
    def check(value: Any) -> None:
        document = unbound(path, value)
        policy = read(document)
        group, dot, _ = path.rpartition(".")
        held = getattr(getattr(policy, group) if dot else policy, spec.name)
        assert held == spec.kind.read(path, value)
        assert spec.kind.read(path, spec.kind.write(held)) == held
        others = {one for one, now in flat(policy.to_wire()).items() if now != BUILT_IN.get(one)}
        assert {one for one in others if not one.startswith("playbooks.")} <= {*flat(document), "version"}

    check()


@pytest.mark.parametrize(("path", "spec"), FIELDS, ids=[path for path, _ in FIELDS])
def test_each_range_is_kept_to_its_ends_and_what_is_beyond_is_refused_by_name(path: str, spec: FieldSpec) -> None:
    for value in ends(spec.kind) or ():
        read(unbound(path, value))
    wrong = list(wrong_values(spec))
    assert len(wrong) >= 2
    for value in wrong:
        err = refused(unbound(path, value))
        assert err.field.partition("[")[0] == path, value
        assert err.problem.startswith(("must be ", "is not known")), value
        for end in ends(spec.kind) or ():
            if isinstance(end, int | float) and not isinstance(value, list):
                assert f"{end:.15g}" in err.problem, "the range is named"


def test_a_number_that_is_none_is_no_number() -> None:
    for value in (float("nan"), float("inf"), 10**400):
        assert refused({"timing": {"stop_limit_s": value}}).field == "timing.stop_limit_s"
        assert refused({"breaker": {"percent": value}}).field == "breaker.percent"
    assert refused({"schema": True}).field == "schema"


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"max_attempts": 3}, "max_attempts"),
        ({"budgets": {"max_attemps": 3}}, "budgets.max_attemps"),
        ({"budgets": {"skip_steps": 3}}, "budgets.skip_steps"),
        ({"timing": {"stop_limit": 60}}, "timing.stop_limit"),
        (
            {"approvals": {"rules": [{"deadline_s": 60, "default": "deny", "when": {"nodes": 1}}]}},
            "approvals.rules[0].when.nodes",
        ),
        ({"windows": [{"from": "22:00", "to": "02:00", "begin": "22:00"}]}, "windows[0].begin"),
        ({"playbooks": {"hang": {"retries": 1}}}, "playbooks.hang.retries"),
    ],
)
def test_an_unknown_field_is_refused_with_those_that_are_known(document: dict[str, Any], field: str) -> None:
    err = refused(document)
    assert err.field == field
    assert err.problem.startswith("is not known; known are ")


def test_the_intervals_between_observations_are_shares_of_the_longest() -> None:
    for longest, shortest, of_a_node in ((60, 5, (30, 180)), (3600, 300, (1800, 10800)), (2, 1, (1, 6))):
        policy = read({"timing": {"look_max_s": longest}})
        seen = (policy.timing.look_min, policy.node_look_min, policy.node_look_max)
        assert [each.total_seconds() for each in seen] == [shortest, *of_a_node]


@pytest.mark.parametrize("value", ["", [], None, 3, True])
def test_what_should_be_an_object_and_is_none_is_refused(value: Any) -> None:
    assert refused(value).field == "policy"
    for spec in specs(Policy):
        if isinstance(spec.kind, Group):
            assert refused({spec.key: value}).field == spec.key


@pytest.mark.parametrize(("low", "high"), NOT_ABOVE)
def test_fields_that_bound_each_other_may_be_equal_and_not_cross(low: str, high: str) -> None:
    assert read(overlaid(at(low, 60), at(high, 60)))
    err = refused(overlaid(at(low, 61), at(high, 60)))
    assert (err.field, err.problem) == (low, f"is 61 and must not exceed {high}, which is 60")


def test_contradictions_are_all_told() -> None:
    timing = dataclasses.replace(DEFAULT_POLICY.timing, hang_deadline=DEFAULT_POLICY.timing.checkpoint_deadline * 2)
    told = [field for field, _ in contradictions(dataclasses.replace(DEFAULT_POLICY, timing=timing))]
    assert told == ["timing.hang_deadline_s"]
    assert list(contradictions(DEFAULT_POLICY)) == []


def test_a_long_wrong_value_is_told_in_short() -> None:
    assert len(refused({"nodes": {"repair": "x" * 5000}}).problem) < 200


def test_no_record_has_too_many_fields_and_each_field_has_a_line_for_people() -> None:
    records_of = [Policy, *(spec.kind.record for spec in specs(Policy) if isinstance(spec.kind, Group))]
    assert len(records_of) > 5
    for record in records_of:
        assert len(specs(record)) < MOST_FIELDS
    for path, spec in FIELDS:
        assert 5 < len(spec.says) < 250, path
        assert "\n" not in spec.says, path
        assert "|" not in spec.says + spec.whom, path
        assert spec.whom or isinstance(spec.kind, Group), f"{path}: who would set it?"


def test_one_document_is_laid_over_another_group_by_group() -> None:
    base = {
        "name": "a",
        "loss": {"skip_steps": 5, "skip_margin_steps": 1},
        "windows": [{"from": "22:00", "to": "02:00"}],
    }
    made = overlaid(base, {"name": "b", "loss": {"skip_steps": 7}, "windows": [], "nodes": {"repair": "tell"}})
    assert made == {
        "name": "b",
        "loss": {"skip_steps": 7, "skip_margin_steps": 1},
        "windows": [],
        "nodes": {"repair": "tell"},
    }
    assert base["loss"] == {"skip_steps": 5, "skip_margin_steps": 1}


def test_a_playbook_keeps_what_a_row_leaves_out_and_bad_pairs_are_refused() -> None:
    row = read({"playbooks": {"hang": {"tries": 2}}}).playbooks
    before = {playbook.fault: playbook for playbook in DEFAULT_POLICY.playbooks}
    changed = [one for one in row if one != before[one.fault]]
    assert [(row.fault, row.tries, row.source) for row in changed] == [("hang", 2, "policy document")]
    assert changed[0].response is before[changed[0].fault].response
    assert refused({"playbooks": {"hang": {"deadline": "none"}}}).field == "playbooks.hang.deadline"
    assert refused({"playbooks": {"hang": {"response": "watch_then_roll_back"}}}).field == "playbooks.hang.response"
    assert refused({"playbooks": {"hang": []}}).field == "playbooks.hang"
    assert "is not a fault; faults are node_hardware" in refused({"playbooks": {"hangs": {}}}).problem
