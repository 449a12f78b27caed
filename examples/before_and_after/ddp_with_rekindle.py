"""Two ranks of DistributedDataParallel with the script's own code around torch.distributed.checkpoint.

torchrun --nproc-per-node 2 ddp.py FOLDER STEPS SECONDS_PER_STEP
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rekindle.integrations import torch as rekindle

folder, steps, pace_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def batches(first: int) -> Iterator[torch.Tensor]:
    for number in range(first, steps + 1):
        yield torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * number + rank))


def train(batch: torch.Tensor) -> torch.Tensor:
    time.sleep(pace_s)
    loss = nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def state() -> dict[str, dict[str, object]]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def save(step: int) -> Path:
    path = folder / f"step-{step}"
    dcp.save(state(), checkpoint_id=path)
    return path


def load(path: str | Path) -> int:
    train(next(batches(1)))  # gives the optimizer its state, so that there is something to load into
    loaded = state()
    dcp.load(loaded, checkpoint_id=path)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    return int(Path(path).name[5:])


def newest() -> Path | None:
    complete = (path.parent for path in folder.glob("step-*/.metadata"))
    return max(complete, key=lambda path: int(path.name[5:]), default=None)


mon = rekindle.start(save=lambda step, _kind: save(step))
path = mon.resume_path or newest()
first = load(path) + 1 if path else 1
for step, batch in mon.batches(batches(first), steps, first_step=first):
    loss = train(batch)
    if rank == 0:
        print(step, loss.item(), flush=True)
    mon.step(step, loss=loss)
    if step % 20 == 0:
        mon.saved(save(step), step)
rekindle.finish(mon)
dist.destroy_process_group()
