"""What looks cost is a matter of what has changed, not of how many jobs there are."""

from __future__ import annotations

from pathlib import Path

from benchmarks.agent_look import MOST_COMMANDS, play


def test_a_first_look_asks_of_all_jobs_at_once_and_rest_costs_little(tmp_path: Path) -> None:
    few, many = (play(tmp_path / str(n), nodes=8, jobs=2 * n, protected=n) for n in (10, 40))
    assert (few[2], many[2]) == (10, 40)
    assert few[1] == many[1] <= 8
    assert few[3] == many[3] <= MOST_COMMANDS
