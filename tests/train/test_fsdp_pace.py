"""Whose own work is slow under FSDP2, where all ranks wait for each other at each module."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from rekindle.integrations import torch as rekindle
from rekindle.monitor import Monitor
from tests.train.test_loss_ranks import play

BLOCKS, STEPS, SLOW_S = 8, 6, 0.1


class Block(nn.Module):
    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.inner, self.pause_s = nn.Linear(16, 16), pause_s

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(self.pause_s)
        return torch.tanh(self.inner(rows))


def trained(rank: int, slow: str, *, is_watched: bool) -> tuple[list[float], str]:
    """The seconds of own work of each step, and the weights. slow: what is slow on rank 1."""
    torch.manual_seed(0)
    is_slow = rank == 1
    model = nn.Sequential(*(Block(SLOW_S if is_slow and slow == "device" else 0.002) for _ in range(BLOCKS)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watch, found = rekindle.LocalWatch(Monitor(None)), []  # type: ignore[arg-type]  # silent
    if is_watched:
        watch.gradients(model)
    for step in range(STEPS):
        if is_slow and slow == "data":
            time.sleep(SLOW_S * BLOCKS)
        loss = model(torch.full((4, 16), 0.1 * (rank + 1))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(watch.stepped(step))
    watch.close()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.full_tensor().detach().numpy().tobytes())  # type: ignore[attr-defined]  # a DTensor
    return [work_s for work_s in found if work_s is not None], digest.hexdigest()


def measure(rank: int, world_size: int, folder: Path) -> None:
    results: dict[str, Any] = {"plain": trained(rank, "", is_watched=False)}
    for slow in ("device", "data"):
        dist.barrier()
        results[slow] = trained(rank, slow, is_watched=True)
    (folder / f"{rank}.json").write_text(json.dumps(results))


def test_the_rank_whose_device_or_data_are_slow_is_told_by_its_own_work_and_no_weight_changes(tmp_path: Path) -> None:
    play(measure, 2, tmp_path / "run")
    quick, slow = (json.loads((tmp_path / "run" / f"{rank}.json").read_text()) for rank in range(2))
    assert quick["plain"][0] == []
    for what in ("device", "data"):
        assert len(quick[what][0]) == STEPS - 1, "the first step has no end of a step before it"
        assert statistics.median(slow[what][0]) > 2 * statistics.median(quick[what][0]), (what, quick, slow)
    assert {digest for ranks in (quick, slow) for _, digest in ranks.values()} == {quick["plain"][1]}
