"""What a stop leaves: the checkpoint that it asked for, and nothing later that claims to be of that step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rekindle.protocol.manifests import SaveKind
from tests.sealed import check_files
from tests.train.integration_stage import Attempt, Launcher, plan
from tests.train.launcher import Nurseries

pytestmark = pytest.mark.process
STEPS = 60  # two ranks read 320 samples in 20 steps: three epochs


@pytest.fixture(scope="module")
def played() -> dict[str, dict[str, Any]]:
    return {}


@pytest.fixture
def launch(tmp_path: Path, played: dict[str, dict[str, Any]], nurseries: Nurseries) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, played, nurseries)
    yield launcher
    launcher.close()


def stopped(attempt: Attempt) -> Attempt:
    """After a few steps, by SIGTERM, in order."""
    attempt.until("its third step", lambda: attempt.step() >= 3)
    attempt.terminate()
    attempt.end()
    return attempt


@pytest.mark.parametrize("world", [1, 2])
def test_lightnings_own_checkpoint_at_the_end_does_not_replace_the_one_that_the_stop_asked_for(
    world: int, launch: Launcher
) -> None:
    """The default ModelCheckpoint saves when an epoch ends, and at a stop Lightning ends the epoch."""
    undisturbed = launch.undisturbed("lightning", world=world, steps=STEPS)
    first = stopped(launch("lightning", "stopped", world=world, steps=STEPS, pace_s=1.0))
    [manifest] = first.manifests(SaveKind.EMERGENCY).values()
    assert Path(manifest.root).parent.name == "checkpoints"
    check_files(first.home, manifest)
    assert set(first.manifests()) == {manifest.step}
    assert 3 <= manifest.step < 20, "a stop within the first epoch is what this is about"

    second = launch("lightning", "stopped", world=world, number=2, steps=STEPS, resume=plan(manifest))
    assert second.ended() == undisturbed

    [own] = (first.home / "default").glob(f"*step={manifest.step}.ckpt")
    third = launch("lightning", "stopped", world=world, number=3, steps=STEPS, env={"CKPT_PATH": str(own)})
    assert third.ended() == undisturbed


def test_lightning_stops_at_the_step_of_the_save_whatever_min_steps_says_and_without_an_evaluation(
    launch: Launcher,
) -> None:
    first = stopped(
        launch(
            "lightning", "stopped", world=2, steps=2000, pace_s=0.3, validates=True,
            arguments={"min_steps": 2000, "num_sanity_val_steps": 0, "check_val_every_n_epoch": None,
                       "val_check_interval": 1000},
        )
    )  # fmt: skip
    [manifest] = first.manifests(SaveKind.EMERGENCY).values()
    assert {notes[-1]["step"] for notes in first.notes("ended")} <= {manifest.step}
    assert not any(first.notes("validated"))


@pytest.mark.parametrize("framework", ["hf", "accelerate", "deepspeed"])
def test_a_run_that_was_stopped_goes_on_from_the_step_of_its_stop(framework: str, launch: Launcher) -> None:
    undisturbed = launch.undisturbed(framework, world=2, steps=STEPS)
    first = stopped(launch(framework, "stopped", world=2, steps=STEPS, pace_s=0.3))
    [manifest] = first.manifests(SaveKind.EMERGENCY).values()
    check_files(first.home, manifest)
    second = launch(framework, "stopped", world=2, number=2, steps=STEPS, resume=plan(manifest))
    assert second.ended() == undisturbed


def test_a_loop_state_that_was_kept_at_a_stop_does_not_change_with_the_loop(launch: Launcher) -> None:
    first = stopped(launch("lightning", "stopped", world=1, steps=STEPS, pace_s=0.3))
    [manifest] = first.manifests(SaveKind.EMERGENCY).values()
    [own] = (first.home / "default").glob(f"*step={manifest.step}.ckpt")
    saved, later = (torch.load(path, weights_only=False) for path in (manifest.root, own))
    assert saved["loops"]["fit_loop"] == later["loops"]["fit_loop"]
    assert (saved["epoch"], saved["global_step"]) == (later["epoch"], later["global_step"])
