"""Which stage a stack is, and to which one a run belongs."""

from __future__ import annotations

import pytest

from chalicelib.domain.guards.stages import owner_of, stage_of
from infra.target_stack import stack_name


@pytest.mark.parametrize("stage", ["prod", "dev", "a-team", "rekindle"])
def test_a_stack_is_the_stage_that_it_was_deployed_as(stage: str) -> None:
    assert stage_of(stack_name(stage)) == stage


def test_every_run_belongs_to_exactly_one_stage() -> None:
    stages = ("prod", "dev", "staging")
    for tags in ({}, {"rekindle:stage": ""}, *({"rekindle:stage": stage} for stage in stages)):
        assert [stage for stage in stages if owner_of(tags) == stage] == [tags.get("rekindle:stage") or "prod"]
