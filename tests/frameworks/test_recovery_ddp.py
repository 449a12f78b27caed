"""Real PyTorch DDP on the embedded cloud, under the whole service: harmed in every way, and back by itself.

Each test ends by comparing every step of every rank (exact loss, rows of data, hash of all weights) and the final
weights with a run that nothing happened to.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.ddp_train import STEPS_PER_EPOCH
from tests.frameworks.stage import SAVE_EVERY, raised

pytestmark = pytest.mark.process


def test_a_killed_rank_comes_back_and_the_final_weights_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    with raised(tmp_path, job_id="killed") as stage:
        stage.wait_for_step(SAVE_EVERY + 20)
        stage.processes.kill_rank("killed", 1)
        incident = stage.wait_recovered("software_crash")
        first, second = stage.attempts()
        assert incident.attempt == second.name
        assert stage.steps(second.name)[0].step % SAVE_EVERY == 1  # right after a checkpoint
        assert stage.steps(second.name)[0].step > 1
        stage.assert_as_undisturbed(stage.finish())
        assert stage.status(first.name) == "Failed"


@pytest.mark.parametrize("kind", ["freeze_in_all_reduce", "stuck_in_all_reduce"])
def test_a_rank_that_hangs_inside_an_all_reduce_is_named_and_the_run_comes_back(tmp_path: Path, kind: str) -> None:
    with raised(tmp_path, job_id="hung", fault={"kind": kind, "rank": 1, "step": SAVE_EVERY + 20}) as stage:
        stage.wait_recovered("hang")
        assert stage.steps(stage.attempts()[0].name)[-1].step == SAVE_EVERY + 19
        stage.assert_as_undisturbed(stage.finish())


def test_an_emergency_checkpoint_in_mid_epoch_is_answered_agreed_upon_and_resumed_from(tmp_path: Path) -> None:
    with raised(tmp_path, job_id="asked", environment={"DDP_SAVE_EVERY": "100000"}) as stage:
        stage.wait_for_step(30)
        stage.rekindle("checkpoint", "asked")
        (first,) = stage.wait(stage.checkpoints, "the checkpoint that was asked for")
        assert (first["kind"], first["attempt"]) == ("emergency", "asked")
        (answered,) = stage.wait(stage.replies, "the answer")
        assert (answered["outcome"], answered["step"]) == ("saved", first["step"])
        assert answered["bytes"] == sum(file["bytes"] for file in first["files"]) > 0
        for rank in range(2):
            assert stage.saves("asked", rank) == [{"step": first["step"], "kind": "emergency"}]
        stage.wait(lambda: not any(one.is_open for one in stage.incidents()), "the order to be closed")

        stage.wait_for_step(first["step"] + 10)
        stage.rekindle("resubmit", "asked", "--yes")
        stage.wait_recovered("operator_order")
        saved = stage.checkpoints()[-1]["step"]
        assert saved > first["step"]
        assert saved % STEPS_PER_EPOCH != 0
        assert stage.steps(stage.attempts()[1].name)[0].step == saved + 1
        assert stage.steps("asked")[-1].step >= saved
        stage.assert_as_undisturbed(stage.finish())
