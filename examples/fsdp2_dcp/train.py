"""A sharded run under Rekindle's care: FSDP2 (`fully_shard`), checkpoints by torch.distributed.checkpoint (DCP).

    torchrun --standalone --nproc-per-node 2 examples/fsdp2_dcp/train.py

The lines marked >>> are Rekindle's. The environment is that of examples/pytorch_ddp/train.py.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from rekindle.integrations import torch as rekindle  # >>>

STEPS = int(os.environ.get("REKINDLE_EXAMPLE_STEPS", "60"))
SAVE_EVERY = int(os.environ.get("REKINDLE_EXAMPLE_SAVE_EVERY", "20"))
PACE_S = float(os.environ.get("REKINDLE_EXAMPLE_PACE_S", "0"))
FOLDER = Path(os.environ.get("REKINDLE_EXAMPLE_DIR", "checkpoints"))


class Net(nn.Module):
    """Two blocks; each is sharded by itself, as the layers of a large model are."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + self.drop(block(x))
        return self.head(x)


def dataset() -> TensorDataset:
    """A curve with noise: 320 samples, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(320, 16, generator=generator) * 2 - 1
    y = torch.sin(3 * x).sum(dim=1, keepdim=True) + 0.1 * torch.randn(320, 1, generator=generator)
    return TensorDataset(x, y)


def weights_hash(model: nn.Module) -> str:
    """Of the whole weights: gathered, so every rank calls it."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.full_tensor().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(1000 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    data = dataset()

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def save(step: int, kind: str) -> Path:  # noqa: ARG001 - an emergency checkpoint has to be there when this returns
        return rekindle.save_dcp(FOLDER / f"step-{step:06d}", step=step, **parts)

    mon = rekindle.start(save=save)  # >>>
    watch = rekindle.LocalWatch(mon)  # >>>
    watch.gradients(model)  # >>> who is slow
    if mon.resume_path is not None:  # >>>
        rekindle.load_dcp(mon.resume_path, **parts)  # >>>
    sampler = rekindle.ResumableSampler(data, batch_size=8, resume=mon.resume)  # >>> was: DistributedSampler
    loader = DataLoader(data, batch_sampler=sampler)

    for step, (x, y) in sampler.steps(loader, STEPS):
        began = time.monotonic()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        watch.loss(loss)  # >>> FSDP reduces gradients out of sight: the rank's own loss tells where a NaN began
        mon.step(step, loss=loss, work_s=watch.stepped(step))  # >>> an emergency checkpoint happens in here
        if step % SAVE_EVERY == 0:
            # Copied to host memory now, written in the background; rank 0 tells the monitor when all shards are there.
            rekindle.save_dcp(FOLDER / f"step-{step:06d}", step=step, on_done=mon.saved, **parts)  # >>> on_done
        if mon.should_stop:  # >>>
            break
        time.sleep(max(0.0, PACE_S - (time.monotonic() - began)))
    rekindle.wait_for_dcp()
    watch.close()  # >>>
    rekindle.finish(mon)  # >>> what was saved last is sealed first
    digest = weights_hash(model)
    if dist.get_rank() == 0:
        print(f"{'stopped' if mon.should_stop else 'finished'} at step {sampler.done}")
        print(f"weights {digest}", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
