"""Real PyTorch DDP on the embedded cloud, under the whole service: harmed in every way, and back by itself.

Each test ends by comparing every step of every rank (exact loss, rows of data, hash of all weights) and the final
weights with a run that nothing happened to.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from chalicelib.domain.model.incident import Incident
from tests.frameworks.ddp_train import STEPS_PER_EPOCH
from tests.frameworks.stage import SAVE_EVERY, Stage, raised

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore:IAMAuthorizer")]


def suspects(incident: Incident, kind: str) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    return [(item.ranks, item.hosts) for item in incident.evidence.suspicions if item.kind == kind]


def root_at(stage: Stage, step: int) -> str:
    """Where the first attempt's checkpoint of a step lies."""
    first = stage.attempts()[0].name
    return next(
        checkpoint["root"]
        for checkpoint in stage.checkpoints()
        if (checkpoint["step"], checkpoint["attempt"]) == (step, first)
    )


def resumed_at(stage: Stage, number: int) -> int:
    """The step after which an attempt took up, by its own first step; the first attempt is number 1."""
    return stage.steps(stage.attempts()[number - 1].name)[0].step - 1


def test_the_rank_that_hangs_inside_an_all_reduce_is_named_with_its_host_and_the_run_comes_back(tmp_path: Path) -> None:
    """Two ranks a host, launched by torchrun; each other kind of hang: test_hangs."""
    watchful = {"REKINDLE_STALL_FLOOR_S": "20"}
    rank, host = 2, "algo-2"
    fault = {"kind": "freeze_in_all_reduce", "rank": rank}
    with raised(tmp_path, job_id="hung", ranks=4, per_host=2, fault=fault, environment=watchful) as stage:
        stage.wait_for_checkpoints(1)
        stage.wait_for_reports("pace")  # a rank that is frozen cannot say any more where it is
        step = stage.harm()
        incident = stage.wait_recovered("hang")
        assert stage.steps("hung", rank)[-1].step == step - 1
        assert suspects(incident, "hang") == [((rank,), (host,))]
        assert resumed_at(stage, 2) == (step - 1) // SAVE_EVERY * SAVE_EVERY
        stage.assert_as_undisturbed(stage.finish())


def test_a_nan_gradient_on_one_rank_is_rolled_back_its_host_suspected_and_the_same_data_are_clean(
    tmp_path: Path,
) -> None:
    with raised(tmp_path, job_id="nan", fault={"kind": "nan_gradient", "rank": 1}) as stage:
        stage.wait_for_checkpoints(2)
        step = stage.harm()
        incident = stage.wait_recovered("non_finite")
        assert suspects(incident, "non_finite")[0] == ((1,), ("algo-2",))
        assert resumed_at(stage, 2) < step
        assert [attempt.skips for attempt in stage.attempts()] == [(), ()]
        assert "flaky hardware on algo-2" in incident.evidence.conclusion
        stage.assert_as_undisturbed(stage.finish(), bad=[step])


def test_a_poisoned_window_is_watched_rolled_back_and_exactly_its_batches_are_skipped(tmp_path: Path) -> None:
    window = range(4 * SAVE_EVERY + 20, 4 * SAVE_EVERY + 220)
    policy = {
        "loss": {
            "spike_heal_steps": 20,
            "spike_rewind_steps": 50,
            "skip_margin_steps": 0,
            "skip_steps": len(window),
        },
        "timing": {"tell_open_s": 600},
        # Where the machine is so slow that the spike has grown into a divergence before anybody looked.
        "playbooks": {"divergence": {"response": "watch_then_roll_back", "deadline": "full"}},
    }
    with raised(tmp_path, job_id="spiked", policy=policy, poison=window, environment={"DDP_PACE_S": "0.06"}) as stage:
        incident = stage.wait_recovered("loss_spike", "divergence")
        first, second = stage.attempts()
        # It was given the steps to heal, whether or not anybody looked meanwhile.
        assert {"spike.watching", "rollback.looking"} & set(stage.rules(incident))
        assert stage.steps(first.name)[-1].step > window.start + 20
        assert resumed_at(stage, 2) <= window.start - 50
        last = stage.finish()
        consumed = {step.step for step in stage.steps(second.name)}
        assert set(range(resumed_at(stage, 2) + 1, last + 1)) - consumed == set(window)
        assert [one.resume_root for one in incident.resubmission.tries] == [root_at(stage, resumed_at(stage, 2))]
        stage.assert_as_undisturbed(last, skip=[(window.start, window.stop)], bad=window)
        before = [float.fromhex(step.loss) for step in stage.steps(first.name) if step.step < window.start]
        after = [float.fromhex(step.loss) for step in stage.steps(second.name)]
        assert mean(after[-50:]) < 1.2 * mean(before[-50:])


def test_a_newest_checkpoint_cut_in_half_is_recognised_and_the_next_older_one_taken(tmp_path: Path) -> None:
    patient = {"REKINDLE_STALL_FLOOR_S": "600"}  # nobody shall call it a hang while the checkpoint is being cut
    fault = {"kind": "freeze_in_all_reduce", "rank": 1}
    with raised(tmp_path, job_id="cut", fault=fault, environment=patient) as stage:
        stage.wait_for_checkpoints(2)
        step = stage.harm()
        *_, older, newest = stage.wait_for_checkpoints((step - 1) // SAVE_EVERY)
        stage.truncate(newest["root"])
        stage.processes.kill_rank("cut", 1)
        stage.wait_recovered("software_crash")
        assert resumed_at(stage, 2) == older["step"] == newest["step"] - SAVE_EVERY
        stage.assert_as_undisturbed(stage.finish())


def test_an_emergency_checkpoint_in_mid_epoch_is_answered_agreed_upon_and_resumed_from(tmp_path: Path) -> None:
    with raised(tmp_path, job_id="asked", environment={"DDP_SAVE_EVERY": "100000"}) as stage:
        stage.wait_for_step(30)
        stage.rekindle("checkpoint", "asked", "--yes")
        (first,) = stage.wait(stage.checkpoints, "the checkpoint that was asked for")
        assert (first["kind"], first["attempt"]) == ("emergency", "asked")
        (answered,) = stage.wait(stage.replies, "the answer")
        assert (answered["outcome"], answered["step"]) == ("saved", first["step"])
        assert answered["bytes"] == sum(file["bytes"] for file in first["files"]) > 0
        for rank in range(2):
            saves = stage.wait(lambda rank=rank: stage.saves("asked", rank), f"rank {rank}'s own word on it")
            assert saves == [{"step": first["step"], "kind": "emergency"}]
        stage.wait(lambda: not any(incident.is_open for incident in stage.incidents()), "the order to be closed")

        stage.wait_for_step(first["step"] + 10)
        stage.rekindle("resubmit", "asked", "--yes")
        stage.wait_recovered("operator_order")
        saved = stage.checkpoints()[-1]["step"]
        assert saved > first["step"]
        assert any(step % STEPS_PER_EPOCH for step in (first["step"], saved))  # one may happen to end an epoch
        assert resumed_at(stage, 2) == saved
        stage.assert_as_undisturbed(stage.finish())
