"""What looks cost is a matter of what has changed, not of how many jobs there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.agent_look import MOST_COMMANDS, play


@pytest.mark.parametrize("has_helper", [False, True])
def test_a_first_look_asks_of_all_jobs_at_once_and_rest_costs_little(tmp_path: Path, has_helper: bool) -> None:
    few, many = (play(tmp_path / str(n), nodes=8, jobs=2 * n, protected=n, has_helper=has_helper) for n in (10, 40))
    assert (few.followed, many.followed) == (10, 40)
    assert few.first == many.first <= 10
    assert few.rest == many.rest <= MOST_COMMANDS
