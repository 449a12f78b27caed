"""A run of Lightning's Trainer.

python lightning_fit.py FOLDER STEPS SECONDS_PER_STEP
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rekindle.integrations.lightning import RekindleCallback, ResumableSampler, resume_path

folder, steps, pace_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
seed_everything(0)


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 1)

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        time.sleep(pace_s)
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        print(self.trainer.global_step + 1, loss.item(), flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


x = torch.randn(128, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = ResumableSampler(data, batch_size=8)
loader = DataLoader(data, batch_sampler=sampler)
saves = ModelCheckpoint(folder, "step-{step}", every_n_train_steps=20, save_top_k=-1, auto_insert_metric_name=False)
rekindle = RekindleCallback(folder=folder, sampler=sampler)
trainer = Trainer(max_steps=steps, enable_progress_bar=False, logger=False, callbacks=[saves, rekindle])
found = max(Path(folder).glob("step-*.ckpt"), key=lambda path: int(path.stem[5:]), default=None)
trainer.fit(Module(), loader, ckpt_path=resume_path() or found)
if rekindle.should_stop:
    sys.exit()
trainer.save_checkpoint(f"{folder}/final")
