"""A data-parallel run in plain PyTorch under Rekindle's care: DDP, one file per checkpoint.

    torchrun --standalone --nproc-per-node 2 examples/pytorch_ddp/train.py

The lines marked >>> are Rekindle's. The environment, all optional:

    REKINDLE_EXAMPLE_DIR         where checkpoints go (checkpoints)
    REKINDLE_EXAMPLE_STEPS       steps to train (60); REKINDLE_EXAMPLE_SAVE_EVERY  steps between checkpoints (20)
    REKINDLE_EXAMPLE_PACE_S      the least time one step takes, so that a small model can be watched (0)
    REKINDLE_…                   what the service tells each attempt (docs/monitor.md)
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rekindle.integrations import torch as rekindle  # >>>

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
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same weights on every rank
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    torch.manual_seed(1000 + dist.get_rank())  # and other neurons to drop
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    data = dataset()

    def save(step: int, kind: str) -> Path:  # noqa: ARG001 - periodic and emergency checkpoints are the same here
        path = FOLDER / f"step-{step:06d}.pt"
        return rekindle.save_file(path, step=step, model=model, optimizer=optimizer, scheduler=scheduler)

    mon = rekindle.start(save=save)  # >>>
    watch = rekindle.LocalWatch(mon)  # >>> which rank a NaN comes from, and which rank is slow
    watch.gradients(model)  # >>>
    if mon.resume_path is not None:  # >>>
        rekindle.load_file(mon.resume_path, model=model, optimizer=optimizer, scheduler=scheduler)  # >>>
    sampler = rekindle.ResumableSampler(data, batch_size=8, resume=mon.resume)  # >>> was: DistributedSampler
    loader = DataLoader(data, batch_sampler=sampler)

    for step, (x, y) in sampler.steps(loader, STEPS):
        began = time.monotonic()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        mon.step(step, loss=loss, work_s=watch.stepped(step))  # >>> an emergency checkpoint happens in here
        if step % SAVE_EVERY == 0:
            with mon.phase("saving"):  # >>>
                path = save(step, "periodic")
            mon.saved(path, step)  # >>> measured and sealed with a manifest, off this thread
        if mon.should_stop:  # >>>
            break
        time.sleep(max(0.0, PACE_S - (time.monotonic() - began)))
    watch.close()  # >>>
    rekindle.finish(mon)  # >>> what was saved last is sealed first
    if dist.get_rank() == 0:
        print(f"{'stopped' if mon.should_stop else 'finished'} at step {sampler.done}")
        print(f"weights {weights_hash(net)}", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
