"""Save functions of the frameworks themselves that do not do what they say: nothing of it is vouched for.

The files are harmed after the framework has written them, by the last rank; see `lying` in scripts/integration.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rekindle.protocol.mailbox import ReplyOutcome
from tests.train.integration_stage import Launcher
from tests.train.launcher import Nurseries

pytestmark = pytest.mark.process
FRAMEWORKS = ("accelerate", "deepspeed", "hf", "lightning")
LIES = ("NaN", "half", "lost", "none")
# Rank 0 alone writes Lightning's file: the last of two ranks has none. Each layout with each lie: test_lying_saves.
CASES = [(framework, lie, 1 if framework == "lightning" else 2) for framework in FRAMEWORKS for lie in LIES]
CASES += [("accelerate", "half", 1), ("hf", "half", 1)]


@pytest.fixture
def launch(tmp_path: Path, nurseries: Nurseries) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, {}, nurseries)
    yield launcher
    launcher.close()


@pytest.mark.parametrize(("framework", "lie", "world"), CASES)
def test_a_lie_of_the_frameworks_own_is_not_vouched_for(framework: str, lie: str, world: int, launch: Launcher) -> None:
    attempt = launch(framework, "lying", world=world, steps=60, pace_s=0.2, lie=lie, saves=False)
    reply = attempt.ask(within_s=3.0)
    attempt.hurry()
    assert reply.outcome is ReplyOutcome.CANNOT, reply
    assert attempt.end() == 0, attempt.output
    assert attempt.manifests() == {}
    assert any(note["files"] for notes in attempt.notes("lied") for note in notes), attempt.output
