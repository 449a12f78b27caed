"""docs/ledger.md says what the code counts with."""

from __future__ import annotations

from pathlib import Path

from chalicelib.domain.reporting.counterfactual import (
    HUMAN_S,
    NCCL_TIMEOUT_S,
    NODE_REPAIR_S,
    NODE_REPLACE_S,
    RESTART_S,
)
from chalicelib.domain.reporting.windows import MAX_DAYS
from chalicelib.services.reporting.ledgers import MAX_INCIDENTS, MAX_OF_JOB
from tests.ledger.books import incident, ledger

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")


def test_the_page_has_the_waits_of_the_counterfactual() -> None:
    for name, seconds in (
        ("NCCL's time-out", NCCL_TIMEOUT_S),
        ("a person notices and acts", HUMAN_S),
        ("the node's repair", NODE_REPAIR_S),
        ("HyperPod replaces the node", NODE_REPLACE_S),
        ("starting again", RESTART_S),
    ):
        assert f"| {name} | {seconds:.0f} |" in PAGE


def test_the_page_names_the_bounds_and_every_quantity_of_a_ledger() -> None:
    assert f"{MAX_INCIDENTS:,}" in PAGE
    assert f"(1-{MAX_DAYS})" in PAGE
    assert f"newest {MAX_OF_JOB}" in PAGE
    for name in ledger(incident()).to_wire():
        if name.endswith("_s") or name.startswith(("steps_", "gpu_hours")):
            assert f"`{name}`" in PAGE or name == "step_s", name
