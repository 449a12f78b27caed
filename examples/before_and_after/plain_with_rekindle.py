"""A training loop as many people have it: one process, a file for each checkpoint, resumed from the newest.

python plain.py FOLDER STEPS SECONDS_PER_STEP
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import rekindle.monitor as rekindle

folder, steps, pace_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def batches(first: int) -> Iterator[torch.Tensor]:
    for number in range(first, steps + 1):
        yield torch.randn(16, 8, generator=torch.Generator().manual_seed(number))


def train(batch: torch.Tensor) -> torch.Tensor:
    time.sleep(pace_s)
    loss = nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def save(step: int) -> Path:
    path = folder / f"step-{step}.pt"
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def load(path: str | Path) -> int:
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def newest() -> Path | None:
    return max(folder.glob("step-*.pt"), key=lambda path: int(path.stem[5:]), default=None)


mon = rekindle.start(lambda step, _kind: save(step), signals=("TERM", "USR1"))
path = mon.resume_path or newest()
first = load(path) + 1 if path else 1
for step, batch in mon.batches(batches(first), steps, first_step=first):
    loss = train(batch)
    print(step, loss.item(), flush=True)
    mon.step(step, loss=loss)
    if step % 20 == 0:
        mon.saved(save(step), step)
mon.finish()
