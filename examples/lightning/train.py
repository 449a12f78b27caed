"""A Lightning run under Rekindle's care: two data-parallel processes, one callback.

    python examples/lightning/train.py

The lines marked >>> are Rekindle's. The environment is that of examples/pytorch_ddp/train.py, and
REKINDLE_EXAMPLE_DEVICES, how many processes (2).
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rekindle.integrations.lightning import RekindleCallback, resume_path  # >>>
from rekindle.integrations.sampler import ResumableSampler  # >>>

STEPS = int(os.environ.get("REKINDLE_EXAMPLE_STEPS", "60"))
SAVE_EVERY = int(os.environ.get("REKINDLE_EXAMPLE_SAVE_EVERY", "20"))
PACE_S = float(os.environ.get("REKINDLE_EXAMPLE_PACE_S", "0"))
FOLDER = Path(os.environ.get("REKINDLE_EXAMPLE_DIR", "checkpoints"))
DEVICES = int(os.environ.get("REKINDLE_EXAMPLE_DEVICES", "2"))


class Module(lightning.LightningModule):
    """A small regression."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002 - Lightning's hook
        time.sleep(PACE_S)
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def dataset() -> TensorDataset:
    """A curve with noise: 320 samples, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(320, 8, generator=generator) * 2 - 1
    y = torch.sin(3 * x).sum(dim=1, keepdim=True) + 0.1 * torch.randn(320, 1, generator=generator)
    return TensorDataset(x, y)


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", ".*dataloader is not resumable.*")  # its sampler is, which Lightning cannot know
    lightning.seed_everything(0, verbose=False)
    data = dataset()
    rank = int(os.environ.get("LOCAL_RANK", "0"))  # Lightning starts the other ranks with this set
    sampler = ResumableSampler(data, batch_size=8, rank=rank, world_size=DEVICES)  # >>> was: shuffle=True
    rekindle = RekindleCallback(folder=FOLDER, sampler=sampler)  # >>>
    periodic = ModelCheckpoint(FOLDER, filename="{step}", every_n_train_steps=SAVE_EVERY, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=DEVICES,
        strategy="ddp" if DEVICES > 1 else "auto",
        max_steps=STEPS,
        callbacks=[rekindle, periodic],  # >>> rekindle
        use_distributed_sampler=False,  # >>> the sampler is distributed already
        deterministic=True,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, DataLoader(data, batch_sampler=sampler), ckpt_path=resume_path())  # >>> ckpt_path
    if trainer.is_global_zero:
        print(f"{'finished' if trainer.global_step >= STEPS else 'stopped'} at step {trainer.global_step}")
        print(f"weights {weights_hash(module)}", flush=True)
    if rekindle.should_stop:  # >>> what follows is for a run that has come to its end
        return 0  # >>>
    trainer.save_checkpoint(FOLDER / "final.ckpt", weights_only=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
