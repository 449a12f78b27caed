"""The parts that the examples are made of, one by one and in this process."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from rekindle.integrations import torch as integration
from rekindle.protocol.keys import manifest_prefix
from rekindle.protocol.launch_orders import ResumePlan, SkipWindow
from rekindle.protocol.manifests import Manifest
from rekindle.protocol.reports import RankReport, ReportKind, report_prefix
from tests.monitor.boxes import start_monitor

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


def env_of(home: Path, plan: ResumePlan | None = None) -> dict[str, str]:
    return {
        "REKINDLE_JOB_ID": "job",
        "TRAINING_JOB_NAME": "run-1",
        "REKINDLE_MAILBOX": str(home),
        "REKINDLE_METRICS": "off",
        "REKINDLE_POLL_S": "0.1",
    } | (plan or ResumePlan()).to_env()


def wait_for(what: str, is_there: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        if is_there():
            return
        pause.wait(0.05)
    pytest.fail(f"no {what} in {PATIENCE_S} s")


def skip(*windows: tuple[int, int]) -> tuple[SkipWindow, ...]:
    return tuple(SkipWindow(from_step=first, to_step=end) for first, end in windows)


# ---- the sampler ---------------------------------------------------------------------------------------------------


def read(sampler: integration.ResumableSampler, last: int) -> dict[int, list[list[int]]]:
    """Step → the batches of it that come out of a loader."""
    seen: dict[int, list[list[int]]] = {}
    for step, batch in sampler.steps(DataLoader(range(sampler.samples), batch_sampler=sampler), last):
        seen.setdefault(step, []).append(batch.tolist())
    return seen


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(12, 60),
    batch_size=st.integers(1, 3),
    world_size=st.integers(1, 2),
    accumulate=st.integers(1, 2),
    stop=st.integers(0, 40),
    windows=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), max_size=3),
    shuffle=st.booleans(),
)
def test_wherever_a_run_stops_and_whatever_it_skips_a_step_keeps_its_samples(
    samples: int,
    batch_size: int,
    world_size: int,
    accumulate: int,
    stop: int,
    windows: list[tuple[int, int]],
    shuffle: bool,
) -> None:
    def sampler(**more: Any) -> integration.ResumableSampler:
        return integration.ResumableSampler(
            range(samples), batch_size=batch_size, world_size=world_size, accumulate=accumulate, shuffle=shuffle, **more
        )

    last = 40
    whole = read(sampler(rank=0), last)
    assert list(whole) == list(range(1, last + 1))
    skipped = skip(*((first, first + length) for first, length in windows))
    resumed = sampler(rank=0, resume=ResumePlan(step=stop, skip=skipped))
    expected = {
        step: batches
        for step, batches in whole.items()
        if step > stop and not any(step in window for window in skipped)
    }
    assert read(resumed, last) == expected
    assert resumed.done == max(last, stop)


def test_the_ranks_share_an_epoch_without_overlap_and_the_next_epoch_has_another_order() -> None:
    ranks = [
        integration.ResumableSampler(range(48), batch_size=4, rank=rank, world_size=3, accumulate=2)
        for rank in range(3)
    ]
    assert ranks[0].steps_per_epoch == 2
    first, second = ([x for r in ranks for s in e for b in range(2) for x in r.batch(s, b)] for e in ((1, 2), (3, 4)))
    assert sorted(first) == sorted(second) == list(range(48))
    assert first != second


def test_a_saved_position_is_refused_by_a_run_whose_steps_mean_other_samples() -> None:
    saved = integration.ResumableSampler(range(48), batch_size=4, rank=0, world_size=2)
    saved.go_on_after(5)
    same = integration.ResumableSampler(range(48), batch_size=4, rank=1, world_size=2)
    same.load_state_dict(saved.state_dict())
    assert same.done == 5
    other = integration.ResumableSampler(range(48), batch_size=4, rank=0, world_size=2, seed=1)
    with pytest.raises(ValueError, match="seed: saved with 0, now 1"):
        other.load_state_dict(saved.state_dict())


def test_data_that_do_not_suffice_for_one_step_are_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="dataset: 7 samples are fewer than one step"):
        integration.ResumableSampler(range(7), batch_size=4, rank=0, world_size=2)


# ---- files ---------------------------------------------------------------------------------------------------------


def test_a_save_that_fails_half_way_leaves_the_file_before_it_and_nothing_beside(tmp_path: Path) -> None:
    path = integration.write_file(tmp_path / "state.pt", {"step": 1})
    with pytest.raises(Exception, match="pickle"):
        integration.write_file(path, {"step": 2, "not to be pickled": lambda: None})
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.pt"]


def test_the_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    model = nn.Linear(2, 2)
    integration.save_file(tmp_path / "state.pt", step=7, model=model, extra={"epoch": 3})
    expected = draw()
    draw()
    assert integration.load_file(tmp_path / "state.pt", model=model) == {"step": 7, "extra": {"epoch": 3}}
    assert draw() == expected


# ---- one rank's own bad value --------------------------------------------------------------------------------------


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("gang")
def test_a_gradient_that_is_not_finite_is_reported_by_its_own_rank_and_step_before_it_is_averaged(
    tmp_path: Path,
) -> None:
    mon = start_monitor(env=env_of(tmp_path))
    model = DistributedDataParallel(nn.Linear(4, 1))
    watch = integration.LocalWatch(mon)
    watch.gradients(model)
    for step in range(1, 6):
        model.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        if step == 4:
            loss = loss * torch.inf
        loss.backward()
        mon.step(step, loss=1.0, work_s=watch.stepped(step))
    watch.close()
    reports = tmp_path / report_prefix("run-1")
    wait_for("report", lambda: reports.is_dir() and any(reports.glob("*.json")))
    mon.finish()
    [report] = [RankReport.from_json(path.read_bytes()) for path in reports.glob("*.json")]
    assert (report.kind, report.rank, report.step, report.metric) == (ReportKind.NON_FINITE, 0, 4, "gradient")


@pytest.mark.usefixtures("gang")
def test_looking_at_gradients_changes_none_of_them() -> None:
    def trained(is_watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
        if is_watched:
            integration.LocalWatch(start_monitor(env={})).gradients(model)
        for _ in range(3):
            model(torch.randn(4, 8)).square().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for plain, watched in zip(trained(False), trained(True), strict=True):
        assert torch.equal(plain, watched)


# ---- windows in the frameworks' own loops --------------------------------------------------------------------------


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """Each sample is its own number, so that a batch says what was read."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor(float(index))}


class Noting(nn.Module):
    """Learns nothing, and writes down what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append([int(value) for value in x])
        return {"loss": (self.weight * x.mean() / 100 - 1) ** 2}


WINDOWS = skip((6, 11))  # over the end of the first epoch: 8 steps an epoch, 16 in all


def train_hf(home: Path, plan: ResumePlan, accumulate: int) -> list[list[int]]:
    from transformers import Trainer, TrainingArguments

    from rekindle.integrations.hf import RekindleCallback

    model = Noting()
    arguments = TrainingArguments(
        output_dir=str(home / "checkpoints"),
        max_steps=16,
        save_steps=1,
        per_device_train_batch_size=4 // accumulate,
        gradient_accumulation_steps=accumulate,
        use_cpu=True,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
    )
    callback = RekindleCallback(**in_environment(env_of(home, plan)))
    trainer = Trainer(model=model, args=arguments, train_dataset=Numbers(), callbacks=[callback])
    callback.attach(trainer)
    trainer.train(resume_from_checkpoint=callback.resume_path)
    assert trainer.state.global_step == 16
    return model.seen


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_trainer_leaves_out_exactly_the_windows_and_counts_them(tmp_path: Path, accumulate: int) -> None:
    def batches(steps: range) -> list[list[int]]:
        return [batch for step in steps for batch in whole[(step - 1) * accumulate : step * accumulate]]

    whole = train_hf(tmp_path / "whole", ResumePlan(), accumulate)
    assert len(whole) == 16 * accumulate
    home = tmp_path / "skipping"
    after_window = batches(range(11, 17))
    assert train_hf(home, ResumePlan(skip=WINDOWS), accumulate) == batches(range(1, 6)) + after_window
    names = sorted(int(path.name.split("-")[1]) for path in (home / "checkpoints").glob("checkpoint-*"))
    assert names == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15, 16]
    for step, rest in ((3, batches(range(4, 6)) + after_window), (5, after_window), (12, batches(range(13, 17)))):
        # As if the run had died after that step: what it saved later is not there.
        plan = ResumePlan(step=step, uri=str(home / "checkpoints" / f"checkpoint-{step}"), skip=WINDOWS)
        assert train_hf(tmp_path / f"from-{step}", plan, accumulate) == rest


def train_lightning(home: Path, plan: ResumePlan, ckpt_path: Path | None) -> list[list[int]]:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from rekindle.integrations.lightning import RekindleCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Noting()

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            callback.monitor.flush(PATIENCE_S)  # saves at every step are more than the sealing thread lets wait
            loss: torch.Tensor = self.net(batch["x"])["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    sampler = integration.ResumableSampler(Numbers(), batch_size=4)
    every_step = ModelCheckpoint(home / "checkpoints", filename="{step}", every_n_train_steps=1, save_top_k=-1)
    callback = RekindleCallback(sampler=sampler, **in_environment(env_of(home, plan)))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        callbacks=[callback, every_step],
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, DataLoader(Numbers(), batch_sampler=sampler), ckpt_path=ckpt_path)
    return module.net.seen


def test_lightning_leaves_out_exactly_the_windows_and_its_manifests_count_them(tmp_path: Path) -> None:
    whole = train_lightning(tmp_path / "whole", ResumePlan(), None)
    assert len(whole) == 16
    home = tmp_path / "skipping"
    assert train_lightning(home, ResumePlan(skip=WINDOWS), None) == whole[:5] + whole[10:]
    manifests = [Manifest.from_json(path.read_bytes()) for path in (home / manifest_prefix()).iterdir()]
    roots = {manifest.step: Path(manifest.root) for manifest in manifests}
    assert sorted(roots) == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15, 16]
    for step, rest in ((3, whole[3:5] + whole[10:]), (5, whole[10:]), (12, whole[12:])):
        plan = ResumePlan(step=step, uri=str(roots[step]), skip=WINDOWS)
        assert train_lightning(tmp_path / f"from-{step}", plan, roots[step]) == rest


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_loader_of_accelerates_whose_order_is_lost_at_a_resume_is_named(
    is_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.state import AcceleratorState, GradientState

    from rekindle.integrations.accelerate import _tell_of_order

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=is_kept))
    for is_shuffled in (False, True):
        _tell_of_order(accelerator.prepare(DataLoader(Numbers(), batch_size=4, shuffle=is_shuffled)))
    assert ("order of its samples anew" in caplog.text) is not is_kept
    assert len(caplog.records) == (not is_kept)


@pytest.mark.parametrize("parts", [1, 2])
def test_accelerate_leaves_out_exactly_the_windows(tmp_path: Path, parts: int) -> None:
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.state import AcceleratorState, GradientState

    from rekindle.integrations.accelerate import Rekindle

    def train(home: Path, plan: ResumePlan) -> list[list[int]]:
        config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True, dataloader_config=config, gradient_accumulation_steps=parts)
        model = Noting()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(
            model, optimizer, DataLoader(Numbers(), batch_size=4, shuffle=True)
        )
        run = Rekindle(accelerator, home / "checkpoints", **in_environment(env_of(home, plan)))
        run.resume()
        for step, batch in run.steps(loader, 16):
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = model(batch["x"])["loss"]
                accelerator.backward(loss)
                optimizer.step()
            run.step(step, loss=loss)
            run.save(step)
        run.finish()
        return list(accelerator.unwrap_model(model).seen)

    whole = train(tmp_path / "whole", ResumePlan())
    assert len(whole) == 16 * parts
    home = tmp_path / "skipping"
    assert train(home, ResumePlan(skip=WINDOWS)) == whole[: 5 * parts] + whole[10 * parts :]
    for step, rest in ((5, whole[10 * parts :]), (12, whole[12 * parts :])):
        uri = str(home / "checkpoints" / f"step-{step:09d}")
        assert train(tmp_path / f"from-{step}", ResumePlan(step=step, uri=uri, skip=WINDOWS)) == rest


def test_a_run_that_was_told_to_go_on_from_where_it_cannot_reach_does_not_start_from_nothing(tmp_path: Path) -> None:
    from rekindle.integrations.hf import RekindleCallback

    plan = ResumePlan(step=7, uri="s3://bucket/run/checkpoint-7")
    callback = RekindleCallback(**in_environment(env_of(tmp_path, plan)))
    with pytest.raises(ValueError, match="REKINDLE_RESUME_URI: s3://bucket/run/checkpoint-7 is no local path"):
        _ = callback.resume_path
    callback.monitor.finish()
    mirrored = env_of(tmp_path, plan) | {
        "REKINDLE_CHECKPOINT_DIR": str(tmp_path),
        "REKINDLE_CHECKPOINT_URI": "s3://bucket/run",
    }
    callback = RekindleCallback(**in_environment(mirrored))
    assert callback.resume_path == str(tmp_path / "checkpoint-7")
    callback.monitor.finish()


def test_importing_the_monitor_imports_no_framework() -> None:
    import subprocess
    import sys

    code = (
        "import sys, rekindle.monitor, rekindle.integrations\n"
        "print(sorted({'torch', 'transformers', 'lightning', 'accelerate', 'deepspeed'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, env=dict(os.environ)
    )
    assert said.stdout.strip() == "[]"
