"""What the integrations report of a step: the loss that was trained on, whatever the framework divides it by.

Each run saves at every step, and the manifests say which loss the monitor was given at that step. No request comes and
no rank is harmed: one process, in this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from rekindle.protocol.keys import manifest_prefix
from rekindle.protocol.manifests import Manifest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
PATIENCE_S = 120.0
STEPS = 4


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
    }


def reported(home: Path) -> dict[int, float | None]:
    """Step → the loss that the monitor was given at it."""
    manifests = (Manifest.from_json(path.read_bytes()) for path in (home / manifest_prefix()).glob("*.json"))
    return {manifest.step: manifest.loss for manifest in manifests}


# ---- the Trainer ---------------------------------------------------------------------------------------------------


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Of different lengths, so that a mean over batches is not one over tokens."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) * (index % 4 + 1) + index) % 64
        labels = tokens.clone()
        labels[2 + index % 13 :] = -100
        return {"input_ids": tokens, "labels": labels}


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )


class Tuples(nn.Module):
    """Returns (loss, logits), as models did before they returned dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(64, 16)
        self.head = nn.Linear(16, 64)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.embedding(input_ids))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100), logits


def own_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    logits = outputs["logits"][:, :-1].flatten(0, 1)
    total = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")
    return total / num_items_in_batch


CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "plain": (gpt2, {}, {}),
    "label smoothing": (gpt2, {"label_smoothing_factor": 0.1}, {}),
    "a loss function of the script's": (gpt2, {}, {"compute_loss_func": own_loss}),
    "a model that returns tuples": (Tuples, {}, {}),
}


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_the_trainers_loss_is_reported_as_it_logs_it(case: str, accumulate: int, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from rekindle.integrations.hf import RekindleCallback

    model, arguments, more = CASES[case]
    callback = RekindleCallback(**in_environment(env_of(tmp_path)))
    trainer = Trainer(
        model=model(),
        args=TrainingArguments(
            output_dir=str(tmp_path / "checkpoints"),
            max_steps=STEPS,
            save_steps=1,
            logging_steps=1,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=accumulate,
            remove_unused_columns=False,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=Sequences(),
        callbacks=[callback],
        **more,
    )
    callback.attach(trainer)
    trainer.train(resume_from_checkpoint=callback.resume_path)
    logged = {line["step"]: line["loss"] for line in trainer.state.log_history if "loss" in line}
    assert reported(tmp_path) == pytest.approx(logged, rel=1e-5)
    assert sorted(logged) == list(range(1, STEPS + 1))


def test_a_loss_that_is_not_finite_is_reported_although_the_trainer_does_not_log_it(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from rekindle.integrations.hf import RekindleCallback
    from rekindle.protocol.keys import heartbeat_key
    from rekindle.protocol.mailbox import Heartbeat, LossState

    class Poisoned(Tuples):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            loss, logits = super().forward(input_ids, labels)
            return loss * torch.nan, logits

    callback = RekindleCallback(**in_environment(env_of(tmp_path)))
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "checkpoints"), max_steps=2, save_strategy="no", logging_steps=1, use_cpu=True,
        gradient_accumulation_steps=2, remove_unused_columns=False, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=Poisoned(), args=arguments, train_dataset=Sequences(), callbacks=[callback])
    callback.attach(trainer)
    trainer.train()
    assert Heartbeat.from_json((tmp_path / heartbeat_key("run-1")).read_bytes()).loss_state is LossState.NAN


# ---- Lightning, Accelerate, DeepSpeed -----------------------------------------------------------------------------


def curve() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(72, 8, generator=generator)
    return TensorDataset(x, x.sum(dim=1, keepdim=True) + torch.arange(72)[:, None] / 10)


def of_steps(losses: list[float], accumulate: int) -> dict[int, float]:
    parts = [losses[first : first + accumulate] for first in range(0, len(losses), accumulate)]
    return {step: sum(part) / len(part) for step, part in enumerate(parts, start=1)}


@pytest.mark.parametrize(("accumulate", "automatic"), [(1, True), (4, True), (1, False)])
def test_lightnings_loss_is_reported_undivided(accumulate: int, automatic: bool, tmp_path: Path) -> None:
    """Nine batches: with four to a step the last step of the epoch has one."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from rekindle.integrations.lightning import RekindleCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 1)
            self.losses: list[float] = []
            self.automatic_optimization = automatic

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            callback.monitor.flush(PATIENCE_S)
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            if not automatic:
                optimizer: Any = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = RekindleCallback(**in_environment(env_of(tmp_path)))
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        callbacks=[
            callback,
            ModelCheckpoint(tmp_path / "checkpoints", filename="{step}", every_n_train_steps=1, save_top_k=-1),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(curve(), batch_size=8))
    assert reported(tmp_path) == pytest.approx(of_steps(module.losses, accumulate), rel=1e-5)


def test_accelerates_loss_is_the_mean_of_a_steps_batches(tmp_path: Path) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from rekindle.integrations.accelerate import Rekindle

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, losses = nn.Linear(8, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(curve(), batch_size=8))
    run = Rekindle(accelerator, tmp_path / "checkpoints", **in_environment(env_of(tmp_path)))
    for step, (x, y) in run.steps(loader, 3):
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
        losses.append(float(loss.detach()))
        run.step(step, loss=loss)
        run.save(step)
    run.finish()
    assert len(losses) == 9
    assert reported(tmp_path) == pytest.approx(of_steps(losses, 3), rel=1e-5)
