"""One rank's disk is full in the middle of a save: all ranks learn of it at once, and none waits for another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.mailbox import ReplyOutcome
from rekindle.protocol.manifests import SaveKind
from tests.sealed import check_files
from tests.train.integration_stage import Attempt, Launcher, plan
from tests.train.launcher import Nurseries

pytestmark = pytest.mark.process
# A rank that writes in each framework; the others wait for it in the framework's own barrier.
WRITERS = [("accelerate", 0), ("accelerate", 1), ("deepspeed", 0), ("deepspeed", 1), ("hf", 0), ("hf", 1),
           ("lightning", 0)]  # fmt: skip


@pytest.fixture(scope="module")
def played() -> dict[str, dict[str, Any]]:
    return {}


@pytest.fixture
def launch(tmp_path: Path, played: dict[str, dict[str, Any]], nurseries: Nurseries) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, played, nurseries)
    yield launcher
    launcher.close()


def leftovers(attempt: Attempt) -> list[str]:
    return [path.name for path in (attempt.home / "checkpoints").glob("*rekindle*")]


@pytest.mark.parametrize(("framework", "rank"), WRITERS)
def test_an_emergency_save_that_fails_on_one_rank_is_answered_and_training_goes_on_on_all(
    framework: str, rank: int, launch: Launcher
) -> None:
    steps = 60
    undisturbed = launch.undisturbed(framework, world=2, steps=steps)
    attempt = launch(framework, "full", world=2, steps=steps, pace_s=0.2, full=[rank, 2, steps], saves=False)
    reply = attempt.ask()
    attempt.hurry()
    assert reply.outcome is ReplyOutcome.CANNOT
    assert attempt.ended() == undisturbed
    assert attempt.manifests(SaveKind.EMERGENCY) == {}
    assert leftovers(attempt) == []


@pytest.mark.parametrize(
    ("framework", "rank"), [("accelerate", 0), ("deepspeed", 0), ("deepspeed", 1), ("hf", 0), ("lightning", 0)]
)
def test_a_disk_that_fills_in_the_middle_of_an_emergency_save_does_not_end_the_run(
    framework: str, rank: int, launch: Launcher
) -> None:
    """The small file before the save is taken, and the first large one of the save is not."""
    steps, large = 60, {"width": 1024}
    undisturbed = launch.undisturbed(framework, world=2, steps=steps, **large)
    attempt = launch(
        framework, "full", world=2, steps=steps, pace_s=0.2, full=[rank, 2, steps], full_kb=100, saves=False, **large
    )
    reply = attempt.ask()
    attempt.hurry()
    assert reply.outcome is ReplyOutcome.CANNOT
    assert attempt.ended() == undisturbed
    assert attempt.manifests(SaveKind.EMERGENCY) == {}
    assert leftovers(attempt) == []


# Where the ranks meet in the middle of what another framework within this one writes.
SHORT = [("hf", 0, {"fsdp": "FULL_STATE_DICT"})]
LONG = [("hf", 0, {"fsdp": "SHARDED_STATE_DICT"}), ("hf", 1, {"fsdp": "SHARDED_STATE_DICT"}), ("hf", 0, {"zero": 2}),
        ("hf", 1, {"zero": 2}), ("accelerate", 0, {"zero": 2}), ("accelerate", 1, {"zero": 2})]  # fmt: skip
WITHIN = [*SHORT, *(pytest.param(*row, marks=pytest.mark.long) for row in LONG)]


@pytest.mark.parametrize(("framework", "rank", "within"), WITHIN)
def test_a_disk_that_fills_in_the_middle_of_a_save_of_two_frameworks_does_not_end_the_run(
    framework: str, rank: int, within: dict[str, Any], launch: Launcher
) -> None:
    steps, more = 40, {"width": 1024, **within}
    undisturbed = launch.undisturbed(framework, world=2, steps=steps, **more)
    full = {"full": [rank, 2, steps], "full_kb": 100}
    attempt = launch(framework, "full", world=2, steps=steps, pace_s=0.2, saves=False, **full, **more)
    assert attempt.ask().outcome is ReplyOutcome.CANNOT
    attempt.hurry()
    assert attempt.ended() == undisturbed
    assert attempt.manifests(SaveKind.EMERGENCY) == {}
    assert leftovers(attempt) == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_a_disk_that_fills_in_the_middle_of_a_save_under_fsdp_does_not_end_the_run(
    kind: str, rank: int, launch: Launcher
) -> None:
    steps, more = 40, {"width": 4096, "fsdp": kind}
    undisturbed = launch.undisturbed("accelerate", world=2, steps=steps, **more)
    attempt = launch(
        "accelerate", "full", world=2, steps=steps, pace_s=0.2, full=[rank, 2, steps], full_kb=100, saves=False, **more
    )
    assert attempt.ask().outcome is ReplyOutcome.CANNOT
    attempt.hurry()
    attempt.until("the end of the full disk", lambda: attempt.step() > 30)
    assert attempt.ended() == undisturbed
    assert attempt.manifests(SaveKind.EMERGENCY) == {}


@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_a_checkpoint_under_fsdp_is_resumed_from_whatever_the_plugin_would_write(kind: str, launch: Launcher) -> None:
    steps = 40
    undisturbed = launch.undisturbed("accelerate", world=2, steps=steps, fsdp=kind)
    attempt = launch("accelerate", "sharded", world=2, steps=steps, pace_s=0.2, fsdp=kind)
    reply = attempt.ask()
    attempt.hurry()
    assert reply.outcome is ReplyOutcome.SAVED, reply
    assert attempt.ended() == undisturbed
    [saved] = attempt.manifests(SaveKind.EMERGENCY).values()
    check_files(attempt.home, saved)
    resumed = launch("accelerate", "sharded", world=2, number=2, steps=steps, fsdp=kind, resume=plan(saved))
    assert resumed.ended() == undisturbed


@pytest.mark.parametrize(("framework", "rank"), WRITERS)
def test_a_save_of_the_scripts_own_that_fails_on_one_rank_raises_on_all_with_the_reason(
    framework: str, rank: int, launch: Launcher
) -> None:
    attempt = launch(framework, "full", world=2, steps=20, save_every=5, full=[rank, 8, 20])
    assert attempt.end() != 0
    failed = attempt.notes("save failed")
    assert [[note["step"] for note in notes] for notes in failed] == [[10], [10]], attempt.output
    assert all(f"rank {rank}" in note["why"] for notes in failed for note in notes), failed
    assert leftovers(attempt) == []
    assert set(attempt.manifests()) <= {5}
    for manifest in attempt.manifests().values():
        check_files(attempt.home, manifest)


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed"])
def test_a_script_that_catches_a_failed_save_trains_on_and_saves_again(framework: str, launch: Launcher) -> None:
    undisturbed = launch.undisturbed(framework, world=2, steps=20)
    attempt = launch(framework, "full", world=2, steps=20, save_every=5, full=[1, 8, 4], catches=True)
    assert attempt.ended() == undisturbed
    assert [[note["step"] for note in notes] for notes in attempt.notes("save failed")] == [[10], [10]]
    assert set(attempt.manifests()) == {5, 15, 20}
    for manifest in attempt.manifests().values():
        check_files(attempt.home, manifest)


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed", "hf", "lightning"])
def test_an_emergency_at_a_step_that_the_script_saves_itself_is_one_whole_checkpoint(
    framework: str, launch: Launcher
) -> None:
    steps = 60
    undisturbed = launch.undisturbed(framework, world=2, steps=steps)
    attempt = launch(framework, "both", world=2, steps=steps, pace_s=0.2, save_every=1)
    reply = attempt.ask()
    attempt.hurry()
    assert reply.outcome is ReplyOutcome.SAVED, reply
    assert attempt.ended() == undisturbed
    # The script saves at each step: what the request is answered with may be its own save, sealed first, and the save
    # that the ranks had agreed on by then comes all the same.
    emergencies = attempt.manifests(SaveKind.EMERGENCY)
    assert len(emergencies) <= 1
    assert reply.step is not None
    answered = attempt.manifests()[reply.step]
    for manifest in (answered, *emergencies.values()):
        check_files(attempt.home, manifest)
    assert leftovers(attempt) == []
    resumed = launch(framework, "both", world=2, number=2, steps=steps, resume=plan(answered))
    assert resumed.ended() == undisturbed


def test_a_rank_that_leaves_a_save_in_the_middle_ends_the_run_with_the_reason(launch: Launcher) -> None:
    """The others are in DeepSpeed's last barrier by then, where nothing can reach them for half an hour."""
    attempt = launch("deepspeed", "odd", world=2, steps=200, pace_s=0.2, odd=1, by_torchrun=True)
    attempt.until("its third step", lambda: attempt.step() >= 3)
    attempt.request()
    assert attempt.end() != 0
    assert "Rekindle ends this process: its part of a save failed (rank 1: KeyError" in attempt.output
    assert attempt.manifests() == {}
