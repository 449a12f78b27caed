"""How many nodes a job asks for, and whether fewer would do. The records are of Slurm 22.05 and 23.11."""

from __future__ import annotations

import pytest

from rekindle.slurm_agent.reading import comment
from rekindle.slurm_agent.reading.sizes import asked_min, cannot_shrink, cpus_for, fewest_nodes

REQUEUED = {"NumNodes": "2", "NumCPUs": "4", "TRES": "cpu=4,mem=4M,node=4,billing=4", "NtasksPerN:B:S:C": "0:0:*:*"}


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("rekindle,min_nodes=2", 2),
        ("rekindle:night,mailbox=/fsx/a,min_nodes=12", 12),
        ("rekindle", None),
        ("rekindle,min_nodes=0", None),
        ("rekindle,min_nodes=-1", None),
        ("rekindle,min_nodes=two", None),
        ("rekindle,min_nodes=9999999", None),
    ],
)
def test_what_the_comment_says(text: str, least: int | None) -> None:
    said = comment.parse(text)
    assert said is not None
    assert asked_min(said) == least


def test_a_resubmission_of_ours_keeps_the_key() -> None:
    said = comment.parse("rekindle,min_nodes=2")
    assert said is not None
    assert "min_nodes=2" in comment.render(said.policy, {"job": "slurm.ml.7"}, said.others)


def test_what_a_requeued_job_asks_for_is_in_its_resources_not_in_its_number_of_nodes() -> None:
    assert fewest_nodes(REQUEUED) == 4
    assert fewest_nodes({"ReqTRES": "cpu=8,mem=1M,node=8,billing=8", "AllocTRES": "(null)"}) == 8
    assert fewest_nodes({"NumNodes": "2"}) is None
    assert fewest_nodes({"TRES": "(null)"}) is None


def test_the_cpus_go_with_the_nodes() -> None:
    assert cpus_for(REQUEUED, 2) == 2
    assert cpus_for({"NumCPUs": "8", "TRES": "cpu=8,node=4"}, 3) == 6
    assert cpus_for({"NumCPUs": "4-8", "TRES": "cpu=4,node=2"}, 4) == 8
    assert cpus_for({"NumCPUs": "8"}, 3) is None


def test_fixed_numbers_of_tasks_forbid_it() -> None:
    assert cannot_shrink(REQUEUED, {"PATH": "/bin"}) == ""
    assert "--ntasks-per-node" in cannot_shrink({**REQUEUED, "NtasksPerN:B:S:C": "8:0:*:*"}, {})
    assert "SLURM_NTASKS=4" in cannot_shrink(REQUEUED, {"SLURM_NTASKS": "4"})
    assert "cannot be read" in cannot_shrink(REQUEUED, None)
