"""The Trainer's callback by public hooks alone, a second `train()`, and what a script asks after a stop."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rekindle.integrations import versions
from rekindle.protocol.keys import reply_key, request_key
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, ReplyOutcome
from rekindle.protocol.manifests import SaveKind
from tests.sealed import check_files
from tests.train.integration_stage import Launcher, plan
from tests.train.integrations.test_integration_parts import env_of, manifests, trainer_of
from tests.train.launcher import Nurseries

ROOT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in env_of(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def asked_for_a_checkpoint(home: Path, trainer: Any) -> CheckpointReply:
    """Train until the answer is there."""
    from transformers import TrainerCallback

    class EndsWhenAnswered(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = answer.exists()

    request = CheckpointRequest(request_id="please", job_id="job", attempt="run-1", deadline_s=3600.0, reason="a test")
    answer, path = home / reply_key("please"), home / request_key("please")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(request.to_json())
    trainer.add_callback(EndsWhenAnswered())
    trainer.train()
    return CheckpointReply.from_json(answer.read_bytes())


@pytest.mark.parametrize("why", ["not attached", "another version"])
def test_public_hooks_alone_make_a_whole_checkpoint_and_one_warning_says_what_is_lost(
    why: str, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rekindle.integrations.hf import RekindleCallback

    callback = RekindleCallback()
    trainer = trainer_of(home, [callback], max_steps=1_000_000, save_strategy="no", save_only_model=True)
    if why == "not attached":
        callback.attach(None)
    else:
        monkeypatch.setitem(versions.SEEN, "transformers", ("0.1",))
    reply = asked_for_a_checkpoint(home, trainer)
    assert reply.outcome is ReplyOutcome.SAVED, reply
    [manifest] = manifests(home).values()
    assert manifest.kind is SaveKind.EMERGENCY
    assert {"optimizer.pt", "trainer_state.json", "rng_state.pth"} <= {item.path for item in manifest.files}
    assert (trainer.args.save_only_model, trainer.args.push_to_hub) == (True, False)
    assert [record.message for record in caplog.records if "ends the run" in record.message] != []


def test_a_save_that_fails_removes_no_older_checkpoint_and_one_that_is_whole_keeps_the_limit(home: Path) -> None:
    from transformers import trainer as module

    from rekindle.integrations.hf import RekindleCallback

    class Full(module.Trainer):
        is_full = True

        def _save(self, *args: Any, **kwargs: Any) -> None:
            if self.is_full:
                raise OSError("no space left")
            super()._save(*args, **kwargs)

    callback = RekindleCallback()
    trainer = trainer_of(home, [callback], Full, max_steps=1_000_000, save_strategy="no", save_total_limit=1)
    (home / "checkpoints" / "checkpoint-0").mkdir(parents=True)
    before = module.save_fsdp_model, module.save_fsdp_optimizer, module.rotate_checkpoints
    reply = asked_for_a_checkpoint(home, trainer)
    assert reply.outcome is ReplyOutcome.CANNOT
    assert "no space left" in reply.why
    assert [path.name for path in (home / "checkpoints").iterdir()] == ["checkpoint-0"]
    assert (module.save_fsdp_model, module.save_fsdp_optimizer, module.rotate_checkpoints) == before
    trainer.is_full = False
    (home / request_key("please")).unlink()
    (home / reply_key("please")).unlink()
    assert asked_for_a_checkpoint(home, trainer).outcome is ReplyOutcome.SAVED
    [kept] = (home / "checkpoints").iterdir()
    assert kept.name != "checkpoint-0"


def test_a_second_train_is_watched_like_the_first(home: Path) -> None:
    from rekindle.integrations.hf import RekindleCallback

    callback = RekindleCallback()
    trainer = trainer_of(home, [callback], max_steps=2, save_steps=2)
    trainer.train(resume_from_checkpoint=callback.resume_path)
    assert sorted(manifests(home)) == [2]
    trainer.args.max_steps = trainer.args.save_steps = 3
    trainer.train(resume_from_checkpoint=callback.resume_path)
    assert sorted(manifests(home)) == [2, 3]
    assert not callback.should_stop


@pytest.fixture
def launch(tmp_path: Path, nurseries: Nurseries) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, {}, nurseries)
    yield launcher
    launcher.close()


@pytest.mark.process
@pytest.mark.parametrize("rank", [0, 1])
def test_by_public_hooks_alone_a_full_disk_of_one_rank_is_an_answer_on_all(rank: int, launch: Launcher) -> None:
    steps, alone = 60, {"attaches": False}
    undisturbed = launch.undisturbed("hf", world=2, steps=steps, **alone)
    attempt = launch("hf", "full", world=2, steps=steps, pace_s=0.2, full=[rank, 2, steps], **alone)
    reply = attempt.ask()
    attempt.hurry()
    assert reply.outcome is ReplyOutcome.CANNOT
    assert f"rank {rank}" in reply.why
    assert attempt.ended() == undisturbed
    assert attempt.manifests(SaveKind.EMERGENCY) == {}
    assert not any((attempt.home / "checkpoints").glob(".*rekindle*"))


@pytest.mark.process
def test_by_public_hooks_alone_a_stop_saves_on_all_ranks_and_the_run_goes_on_from_there(launch: Launcher) -> None:
    steps, alone = 60, {"attaches": False}
    undisturbed = launch.undisturbed("hf", world=2, steps=steps, **alone)
    first = launch("hf", "stopped", world=2, steps=steps, pace_s=0.3, **alone)
    first.until("its third step", lambda: first.step() >= 3)
    first.terminate()
    first.end()
    [manifest] = first.manifests(SaveKind.EMERGENCY).values()
    check_files(first.home, manifest)
    second = launch("hf", "stopped", world=2, number=2, steps=steps, resume=plan(manifest), **alone)
    assert second.ended() == undisturbed


SCRIPT = """
import os, signal, sys
from pathlib import Path
from transformers import TrainerCallback
from rekindle.integrations.hf import RekindleCallback
from tests.train.integrations.test_integration_parts import trainer_of

class Stops(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

home = Path(sys.argv[1])
callback = RekindleCallback()
trainer = trainer_of(home, [callback, Stops()], max_steps=1_000_000, save_strategy="no", eval_strategy="epoch")
trainer.evaluate = lambda *args, **kwargs: print("evaluated")
trainer.train(resume_from_checkpoint=callback.resume_path)
print("stopped" if callback.should_stop else "came to its end")
trainer.train()
print("again", trainer.state.global_step)
"""


def test_after_a_stop_the_script_can_ask_nothing_is_evaluated_and_a_second_train_ends_at_once(home: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(home)],
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    words = [line for line in run.stdout.splitlines() if line.split()[:1] in (["stopped"], ["again"], ["evaluated"])]
    assert words == ["stopped", "again 1"], run.stdout + run.stderr
    [manifest] = manifests(home).values()
    assert (manifest.kind, manifest.step >= 3) == (SaveKind.EMERGENCY, True)
