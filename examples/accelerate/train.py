"""A run in Hugging Face Accelerate under Rekindle's care.

    torchrun --standalone --nproc-per-node 2 examples/accelerate/train.py     (or: accelerate launch --cpu …)

The lines marked >>> are Rekindle's. The environment is that of examples/pytorch_ddp/train.py.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rekindle.integrations.accelerate import Rekindle  # >>>

STEPS = int(os.environ.get("REKINDLE_EXAMPLE_STEPS", "60"))
SAVE_EVERY = int(os.environ.get("REKINDLE_EXAMPLE_SAVE_EVERY", "20"))
PACE_S = float(os.environ.get("REKINDLE_EXAMPLE_PACE_S", "0"))
FOLDER = Path(os.environ.get("REKINDLE_EXAMPLE_DIR", "checkpoints"))


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
    torch.use_deterministic_algorithms(True)
    # With this sampler an epoch's order depends on its number, not on what else drew random numbers before it.
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    torch.manual_seed(1000 + accelerator.process_index)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS * accelerator.num_processes)
    loader = DataLoader(dataset(), batch_size=8, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    run = Rekindle(accelerator, FOLDER, optimizer=optimizer)  # >>>
    run.resume()  # >>>
    step = 0
    for step, (x, y) in run.steps(loader, STEPS):  # >>> was: two loops, over epochs and batches
        began = time.monotonic()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        run.step(step, loss=loss)  # >>> an emergency checkpoint happens in here
        if step % SAVE_EVERY == 0:
            run.save(step)  # >>> was: accelerator.save_state(...)
        if run.should_stop:  # >>>
            break
        time.sleep(max(0.0, PACE_S - (time.monotonic() - began)))
    run.finish()  # >>>
    if accelerator.is_main_process:
        print(f"{'stopped' if run.should_stop else 'finished'} at step {step}")
        print(f"weights {weights_hash(accelerator.unwrap_model(model))}", flush=True)
    accelerator.end_training()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
