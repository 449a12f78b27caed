"""The integrations' parts, in this process: what the frameworks do by themselves, and what a script may get wrong."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from rekindle.integrations import folder_save
from rekindle.integrations.folder_save import put_in_place, write_folder
from rekindle.integrations.rank_coordinator import RankCoordinator
from rekindle.protocol.keys import heartbeat_key, manifest_prefix, reply_key, request_key
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, Heartbeat, ReplyOutcome, RunPhase
from rekindle.protocol.manifests import Manifest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What `in_environment` sets ends with the test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def in_environment(env: dict[str, str]) -> dict[str, Any]:
    """Set what a launcher sets. Returns arguments of an integration that leave this process's signals alone."""
    os.environ.update(env)
    return {"signals": ()}


def env_of(home: Path) -> dict[str, str]:
    return {
        "REKINDLE_JOB_ID": "job",
        "TRAINING_JOB_NAME": "run-1",
        "REKINDLE_MAILBOX": str(home),
        "REKINDLE_METRICS": "off",
        "REKINDLE_POLL_S": "0.1",
        "REKINDLE_HEARTBEAT_S": "0.1",
    }


def wait_for(what: str, is_there: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if is_there():
            return
        pause.wait(0.02)
    pytest.fail(f"no {what} in {PATIENCE_S} s")


def manifests(home: Path) -> dict[int, Manifest]:
    found = (Manifest.from_json(path.read_bytes()) for path in (home / manifest_prefix()).glob("*.json"))
    return {manifest.step: manifest for manifest in found}


# ---- a folder that is written beside its name ----------------------------------------------------------------------


def test_a_save_that_fails_leaves_the_checkpoint_before_it_and_nothing_beside(tmp_path: Path) -> None:
    together, target = RankCoordinator(), tmp_path / "step-1"
    with together.folder(target) as beside:
        beside.mkdir()
        (beside / "a.bin").write_bytes(b"first")
    with pytest.raises(OSError, match="no space"), together.folder(target) as beside:  # noqa: PT012 - it fails midway
        beside.mkdir()
        (beside / "a.bin").write_bytes(b"second, in part")
        raise OSError("no space left")
    assert (target / "a.bin").read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


def test_what_a_killed_save_left_is_cleaned_and_what_it_was_about_to_replace_is_put_back(tmp_path: Path) -> None:
    killed = tmp_path / "step-1.tmp-rekindle-run-a1-0f-1"
    for name in (killed.name, ".step-2.rekindle-replaced", "step-3", ".step-3.rekindle-replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.bin").write_text(name)
    for path in (killed / "a.bin", killed):
        os.utime(path, (0, 0))  # before this process
    with RankCoordinator().folder(tmp_path / "step-4") as beside:
        beside.mkdir()
        (beside / "a.bin").write_text("whole")
    wait_for("removal of the killed save", lambda: not killed.exists())
    assert {entry.name: (entry / "a.bin").read_text() for entry in tmp_path.iterdir()} == {
        "step-2": ".step-2.rekindle-replaced",
        "step-3": "step-3",
        "step-4": "whole",
    }


def test_a_scripts_own_folder_that_a_kill_left_without_its_name_has_it_again_at_the_next_save(tmp_path: Path) -> None:
    with write_folder(tmp_path / "step-1") as beside:
        (beside / "a.bin").write_text("whole")
    (tmp_path / "step-1").rename(tmp_path / ".step-1.rekindle-replaced")  # killed between the two names
    folder_save._cleaned.clear()  # another process
    with write_folder(tmp_path / "step-2") as beside:
        (beside / "a.bin").write_text("next")
    assert {entry.name for entry in tmp_path.iterdir()} == {"step-1", "step-2"}
    assert (tmp_path / "step-1" / "a.bin").read_text() == "whole"


def test_what_a_killed_save_left_and_cannot_be_put_back_is_no_reason_not_to_save(tmp_path: Path) -> None:
    (tmp_path / ".step-1.rekindle-replaced").mkdir()
    (tmp_path / "step-1").symlink_to(tmp_path / "nowhere")  # no folder can take this name
    (tmp_path / ".step-2.rekindle-replaced").mkdir()
    with RankCoordinator().folder(tmp_path / "step-4") as beside:
        beside.mkdir()
    assert (tmp_path / "step-4").is_dir()
    assert (tmp_path / "step-2").is_dir()


def test_a_folder_that_cannot_be_put_in_place_leaves_the_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "a.bin").write_text("first")
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "missing", tmp_path / "step-1")
    assert (tmp_path / "step-1" / "a.bin").read_text() == "first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


def test_a_folder_that_takes_no_file_fails_the_save_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(FileExistsError), RankCoordinator().in_place(tmp_path / "checkpoints" / "step-1"):
        pytest.fail("the save has begun")


def test_a_save_that_is_larger_than_what_the_disk_has_free_does_not_begin(tmp_path: Path) -> None:
    together, more = RankCoordinator(), shutil.disk_usage(tmp_path).total + 1
    with together.in_place(tmp_path / "step-1"), (tmp_path / "step-1").open("wb") as sparse:
        sparse.truncate(more)  # it takes no space
    with pytest.raises(OSError, match=f"the last checkpoint took {more}"), together.in_place(tmp_path / "step-2"):
        pytest.fail("the save has begun")
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


def test_a_write_that_fails_before_a_barrier_fails_the_save_at_its_end(tmp_path: Path) -> None:
    together, seen = RankCoordinator(), []
    with pytest.raises(FileNotFoundError), together.save():  # noqa: PT012 - what comes after is the point
        together.keep((tmp_path / "no such folder" / "a.pt").write_bytes, b"")
        seen.append("after the failure")
    assert seen == ["after the failure"]


def test_what_ends_a_program_passes_through_a_save_at_once() -> None:
    for wish in (KeyboardInterrupt, SystemExit):
        with pytest.raises(wish), RankCoordinator().save():
            raise wish


# ---- Accelerate's own naming ---------------------------------------------------------------------------------------


def accelerate_run(project: Path, folder: Path, env: dict[str, str]) -> tuple[Any, Any]:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import ProjectConfiguration

    from rekindle.integrations.accelerate import Rekindle

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    configuration = ProjectConfiguration(project_dir=str(project), automatic_checkpoint_naming=True, total_limit=1)
    accelerator = Accelerator(cpu=True, project_config=configuration)
    model = nn.Linear(2, 1)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return accelerator, Rekindle(accelerator, folder, **in_environment(env))


def test_with_automatic_naming_rekindles_checkpoints_keep_their_names_and_the_scripts_keep_theirs(
    tmp_path: Path,
) -> None:
    accelerator, run = accelerate_run(tmp_path, tmp_path / "rekindle-checkpoints", env_of(tmp_path))
    for step in range(1, 4):
        run.step(step, loss=1.0)
        run.save(step)
        accelerator.save_state()
    run.finish()
    assert sorted(manifests(tmp_path)) == [1, 2, 3]
    for step, manifest in manifests(tmp_path).items():
        assert Path(manifest.root) == tmp_path / "rekindle-checkpoints" / f"step-{step:09d}"
        assert all(Path(manifest.place_of(item).path).stat().st_size == item.bytes for item in manifest.files)
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["checkpoint_2"], "total_limit is theirs"


def test_a_folder_in_which_accelerate_deletes_old_checkpoints_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder: with automatic_checkpoint_naming Accelerate numbers and deletes"):
        accelerate_run(tmp_path, tmp_path / "checkpoints", env_of(tmp_path))


# ---- the Trainer ---------------------------------------------------------------------------------------------------


class Numbers(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor(float(index))}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.weight * x.mean() / 100 - 1) ** 2, "x": x}


def trainer_of(home: Path, callbacks: list[Any], cls: Any = None, **arguments: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    given = {"max_steps": 6, "save_steps": 2, "per_device_train_batch_size": 4} | arguments
    trainer = (cls or Trainer)(
        model=Model(),
        args=TrainingArguments(
            output_dir=str(home / "checkpoints"),
            use_cpu=True,
            remove_unused_columns=False,
            report_to="none",
            disable_tqdm=True,
            **given,
        ),
        train_dataset=Numbers(),
        eval_dataset=Numbers(),
        callbacks=callbacks,
    )
    callbacks[0].attach(trainer)
    return trainer


def callback_of(home: Path, **more: Any) -> Any:
    from rekindle.integrations.hf import RekindleCallback

    return RekindleCallback(**in_environment(env_of(home)), **more)


@pytest.mark.parametrize("name", ["the same callback", "another callback"])
def test_a_callback_that_is_there_twice_works_once(name: str, tmp_path: Path) -> None:
    first = callback_of(tmp_path)
    second = first if name == "the same callback" else callback_of(tmp_path)
    trainer = trainer_of(tmp_path, [first, second])
    trainer.train(resume_from_checkpoint=first.resume_path)
    assert trainer.state.global_step == 6
    assert sorted(manifests(tmp_path)) == [2, 4, 6]


def test_the_phases_of_a_trainer_are_what_it_does(tmp_path: Path) -> None:
    from transformers import Trainer

    def wait_for_phase(phase: RunPhase) -> None:
        path = tmp_path / heartbeat_key("run-1")
        wait_for(phase.value, lambda: path.exists() and Heartbeat.from_json(path.read_bytes()).phase is phase)
        seen.append(phase)

    class Slow(Trainer):
        def _save_scaler(self, output_dir: str) -> None:
            wait_for_phase(RunPhase.SAVING)
            super()._save_scaler(output_dir)

        def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
            wait_for_phase(RunPhase.EVALUATION)
            return super().prediction_step(*args, **kwargs)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step > 0:
                wait_for_phase(RunPhase.TRAINING)
            return super().training_step(*args, **kwargs)

    seen: list[RunPhase] = []
    trainer = trainer_of(
        tmp_path,
        [callback_of(tmp_path)],
        Slow,
        max_steps=2,
        save_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=16,
    )
    trainer.train()
    assert seen == [RunPhase.SAVING, RunPhase.TRAINING, RunPhase.EVALUATION, RunPhase.SAVING]


def _phase(heartbeat: Path) -> RunPhase:
    return Heartbeat.from_json(heartbeat.read_bytes()).phase


def test_the_start_of_an_epochs_data_is_no_silent_step(tmp_path: Path) -> None:
    """A second epoch whose first sample comes late: workers that start, a large index that is shuffled."""
    from transformers import TrainerCallback

    class Late(Numbers):
        waits = False

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            if self.waits:
                self.waits = False
                path = tmp_path / heartbeat_key("run-1")
                wait_for("start-up", lambda: path.exists() and _phase(path) is RunPhase.STARTUP)
                seen.append(index)
            return super().__getitem__(index)

    class SecondEpoch(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            data.waits = state.global_step > 0

    data, seen = Late(), []
    trainer = trainer_of(tmp_path, [callback_of(tmp_path), SecondEpoch()], save_strategy="no")
    trainer.train_dataset = data
    trainer.train()
    assert len(seen) == 1
    assert Heartbeat.from_json((tmp_path / heartbeat_key("run-1")).read_bytes()).phase is RunPhase.FINISHED


def test_a_checkpoint_of_the_model_only_gets_no_manifest(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, [callback_of(tmp_path)], save_only_model=True)
    trainer.train()
    assert (tmp_path / "checkpoints" / "checkpoint-6").is_dir()
    assert manifests(tmp_path) == {}


class Full(OSError):
    """What a script's own save raises."""


@pytest.mark.parametrize("fails", [False, True])
def test_an_emergency_is_a_whole_checkpoint_or_an_answer_and_the_trainers_own_saves_stay_as_they_are(
    fails: bool, tmp_path: Path
) -> None:
    from transformers import Trainer, TrainerCallback

    class Failing(Trainer):
        def _save_rng_state(self, output_dir: str) -> None:
            if fails:
                raise Full("no space left on device")
            super()._save_rng_state(output_dir)

    class EndsWhenAnswered(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = answer.exists()

    request = CheckpointRequest(request_id="please", job_id="job", attempt="run-1", deadline_s=3600.0, reason="a test")
    answer, path = tmp_path / reply_key("please"), tmp_path / request_key("please")
    path.parent.mkdir(parents=True)
    path.write_bytes(request.to_json())
    trainer = trainer_of(
        tmp_path,
        [callback_of(tmp_path), EndsWhenAnswered()],
        Failing,
        max_steps=1_000_000,
        save_strategy="no",
        save_only_model=True,
    )
    trainer.train()
    reply = CheckpointReply.from_json(answer.read_bytes())
    if fails:
        assert reply.outcome is ReplyOutcome.CANNOT
        assert "no space left on device" in reply.why
        assert not list((tmp_path / "checkpoints").glob("*checkpoint*"))
        return
    assert reply.outcome is ReplyOutcome.SAVED
    [manifest] = manifests(tmp_path).values()
    assert {"optimizer.pt", "trainer_state.json", "rng_state.pth"} <= {item.path for item in manifest.files}
    assert trainer.args.save_only_model


def test_a_save_of_a_trainer_that_is_alone_raises_its_own_error(tmp_path: Path) -> None:
    from transformers import Trainer

    class Failing(Trainer):
        def _save_rng_state(self, output_dir: str) -> None:
            raise Full("no space left on device")

    callback = callback_of(tmp_path)
    with pytest.raises(Full):
        trainer_of(tmp_path, [callback], Failing).train()
    callback.monitor.finish()  # a Trainer calls no callback as it raises; the end of its script does this
    assert manifests(tmp_path) == {}


def test_a_trainers_methods_are_its_own_again_after_training(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, [callback_of(tmp_path)])
    before = set(vars(trainer))
    trainer.train()
    assert {name for name in set(vars(trainer)) - before if callable(vars(trainer)[name])} == set()
    assert trainer.evaluate()["eval_runtime"] >= 0


def test_a_resume_path_can_be_asked_for_before_the_ranks_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("REKINDLE_RESUME_STEP", "7")
    monkeypatch.setenv("REKINDLE_RESUME_URI", str(tmp_path / "checkpoint-7"))
    callback = callback_of(tmp_path)
    assert callback.resume_path == str(tmp_path / "checkpoint-7")
    assert callback.monitor.is_silent, "a monitor that starts now would have no other rank to agree with"


# ---- Lightning -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_written_again_under_its_name_gets_no_manifest(tmp_path: Path) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from rekindle.integrations.lightning import RekindleCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Model()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            callback.monitor.flush(PATIENCE_S)
            loss: torch.Tensor = self.net(batch["x"])["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = RekindleCallback(**in_environment(env_of(tmp_path)))
    saves = ModelCheckpoint(
        tmp_path / "checkpoints", filename="{epoch}-{step}", every_n_epochs=1, save_top_k=-1, save_last=True
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=3, callbacks=[callback, saves], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Numbers(), batch_size=4))
    roots = {step: Path(manifest.root).name for step, manifest in manifests(tmp_path).items()}
    assert roots == {4: "epoch=0-step=4.ckpt", 8: "epoch=1-step=8.ckpt", 12: "epoch=2-step=12.ckpt"}
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()
