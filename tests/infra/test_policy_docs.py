"""The policy's reference has every field, and its schema accepts what the service does."""

from __future__ import annotations

import json
import re
from typing import Any

import fastjsonschema
import pytest

from chalicelib.domain.model.errors import InvalidPolicy
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.fields import specs
from chalicelib.domain.policy.guard_rules import ApprovalCondition, ApprovalRule, Window
from chalicelib.domain.policy.playbooks import Deadline, Response
from infra.package import ROOT
from infra.policy_docs import page_text, schema
from tests.domain.policy_values import at, every_field, wrong_values

BY_HAND = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
NO_FIELDS = {"nodes.json", "nodes.first", "budgets.py"}  # a file of the agent's, a rule, a module


def test_every_field_and_every_column_has_one_row() -> None:
    text = page_text()
    rows = re.findall(r"^\| `([a-z_.]+)` \|", text, flags=re.MULTILINE)
    for path, spec in every_field():
        assert spec.key in rows, path
    condition = [f"when.{spec.key}" for spec in specs(ApprovalCondition)]
    rule = [spec.key for spec in specs(ApprovalRule) if spec.key != "when"]
    window = [spec.key for spec in specs(Window)]
    for name, columns in (("Approval rules", condition + rule), ("Windows", window)):
        part = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `([a-z_.]+)` \|", part, flags=re.MULTILINE) == columns


def test_every_response_and_deadline_is_explained() -> None:
    responses = BY_HAND.partition("| response |")[2]
    assert re.findall(r"^\| `([a-z_]+)` \|", responses, flags=re.MULTILINE) == [response.value for response in Response]
    assert all(f"`{deadline}`" in page_text() for deadline in Deadline)


def test_every_example_on_the_page_is_a_policy_that_says_something() -> None:
    examples = re.findall(r"```json\n(.*?)```", BY_HAND, flags=re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        assert Policy.from_wire(json.loads(example)).version != Policy.from_wire({}).version


def test_every_field_that_other_pages_name_exists() -> None:
    groups = {path.partition(".")[0] for path, _ in every_field() if "." in path}
    paths = {path for path, _ in every_field()}
    named = re.compile(rf"`((?:{'|'.join(sorted(groups))})\.(?!py\b)[a-z_]+)`")
    found = 0
    for file in sorted((ROOT / "docs").rglob("*.md")):
        for name in named.findall(file.read_text(encoding="utf-8")):
            found += 1
            known = name in paths or f"{name}_s" in paths or name in NO_FIELDS
            assert known, f"{file.name} names {name}, which is no field of a policy"
    assert found > 50  # the pattern still finds them


def test_the_schema_takes_the_built_in_policy_and_refuses_what_the_service_refuses() -> None:
    validate = fastjsonschema.compile(schema())
    validate(DEFAULT_POLICY.to_wire())
    validate({})
    for example in re.findall(r"```json\n(.*?)```", BY_HAND, flags=re.DOTALL):
        validate(json.loads(example))
    refused: list[dict[str, Any]] = [{"misspelt": 1}, {"budgets": {"misspelt": 1}}, {"budgets": []}]
    refused += [at(path, value) for path, spec in every_field() for value in wrong_values(spec)]
    refused += [{"approvals": {"rules": [{"default": "deny"}]}}, {"windows": [{"from": "24:00", "to": "01:00"}]}]
    refused += [{"playbooks": {"hang": {"tries": -1}}}, {"playbooks": {"hangs": {}}}]
    for document in refused:
        with pytest.raises(InvalidPolicy):
            Policy.from_wire(document)
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            validate(document)
