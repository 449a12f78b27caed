"""A step is one update in every integration, however many batches its gradients come from (`rekindle.integrations`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sealed import check_files
from tests.train.integration_stage import Launcher, plan
from tests.train.launcher import Nurseries

pytestmark = pytest.mark.process
STEPS = 10  # an epoch has 20 batches of each rank, so 6 or 7 steps: the second one begins in between


@pytest.fixture
def launch(tmp_path: Path, nurseries: Nurseries) -> Iterator[Launcher]:
    played: dict[str, dict[str, Any]] = {}
    launcher = Launcher(tmp_path, played, nurseries)
    yield launcher
    launcher.close()


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed", "hf", "lightning"])
def test_steps_of_three_batches_are_counted_saved_and_resumed_as_updates(framework: str, launch: Launcher) -> None:
    """The loops call `save` after every batch of a step, and only the last of them writes."""
    whole = launch(framework, "whole", world=2, steps=STEPS, save_every=4, accumulate=3)
    ended = whole.ended()
    assert {note["step"] for note in whole.notes("ended")[0]} == {STEPS}
    manifests = whole.manifests()
    assert {4, 8} <= set(manifests) <= {4, 8, STEPS}, "the Trainer saves the last one, too"
    for step in (4, 8):
        check_files(whole.home, manifests[step])
        resumed = launch(
            framework, "whole", world=2, number=step, steps=STEPS, accumulate=3, resume=plan(manifests[step])
        )
        assert resumed.ended() == ended
