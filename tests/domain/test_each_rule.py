"""Each rule of the tuples is reached by a test that decides, and no decision is made by a rule that no tuple names.

The tables and the tests of single rules are played in a process of their own, which notes the rule of each decision.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from chalicelib.domain.rules.tuples import SECTIONS

ROOT: Final = Path(__file__).parents[2]
# Tables, and tests of single rules. Not those that walk through products of phases and observations, which are slower,
# and show no rule's case.
PLAYED: Final = (
    "tests/domain/model/test_newer.py",
    "tests/domain/tables/test_decision_tables.py",
    "tests/domain/tables/test_loss_tables.py",
    "tests/domain/tables/test_node_tables.py",
    "tests/domain/tables/test_order_tables.py",
    "tests/domain/tables/test_rare_rules.py",
    "tests/domain/tables/test_slurm_left_behind.py",
    "tests/domain/tables/test_slurm_tables.py",
    "tests/domain/test_lives.py",
    "tests/domain/test_cancelled.py",
    "tests/domain/test_left_out.py",
    "tests/domain/test_loss_adversary.py",
    "tests/domain/test_moves_again.py",
    "tests/domain/test_node_claims.py",
    "tests/domain/test_poison.py",
    "tests/domain/test_progress.py",
    "tests/domain/test_recovered.py",
    "tests/domain/test_restarts.py",
    "tests/domain/test_silence.py",
    "tests/domain/test_sizes.py",
    "tests/domain/test_two_live.py",
    "tests/guardrails/test_adversary.py",
    "tests/guardrails/test_alerts.py",
    "tests/guardrails/test_approvals.py",
    "tests/guardrails/test_windows_and_policy.py",
)


@pytest.mark.long  # it plays all these tables a second time
def test_each_rule_is_reached_by_a_case_and_every_decision_is_by_a_rule_of_the_tuples(tmp_path: Path) -> None:
    names = {name for section in SECTIONS for row in section.rules for name in row.names}
    written = tmp_path / "reached.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "not long",
            "-p",
            "tests.domain.reached",
            "-p",
            "no:cacheprovider",
            *PLAYED,
        ],
        cwd=ROOT,
        env=os.environ | {"REKINDLE_REACHED": str(written)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    reached = set(json.loads(written.read_text(encoding="utf-8")))
    assert sorted(names - reached) == []
    assert sorted(reached - names) == []


def test_each_row_says_what_it_decides() -> None:
    rows = [row for section in SECTIONS for row in section.rules]
    assert [row.decide.__name__ for row in rows if not row.text] == []
