"""Slurm calls a node down whose ranks train on: nothing is done to the node or the run on Slurm's word alone."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.lab.processes import is_alive
from tests.slurm.stage import raised

STEPS = 200  # of a run that makes about ten a second


def test_a_node_that_does_not_respond_while_its_rank_trains_is_neither_repaired_nor_is_its_run_started_twice(
    tmp_path: Path,
) -> None:
    """slurmd is dead, slurmctld waits in vain: DOWN, "Not responding". The run has `--no-kill`, so Slurm leaves it."""
    with raised(tmp_path, sbatch=("--no-kill",), srun=("--no-kill",)) as stage:
        stage.wait_protected()
        lost = stage.lab.nodes_of(stage.job)[1]
        ranks = [pid for rank in (0, 1) for pid in stage.lab.rank_pids(stage.job, rank)]
        stage.lab.kill_slurmd(lost)
        stage.wait(lambda: stage.lab.node_states()[lost].startswith("down"), "Slurm to call the node down")
        assert all(map(is_alive, ranks))
        stage.wait_for_step(stage.last_step() + STEPS)
        assert all(map(is_alive, ranks))
        assert stage.lab.job_state(stage.job) == "RUNNING"
        assert not [*stage.orders()], stage.story()
        assert len(stage.attempts()) == len(stage.starts()) == 1
