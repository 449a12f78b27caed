"""A tiny model on DDP or FSDP2; what the model is after a step depends on the step's number and the seed alone."""

# Annotations must be real here, not texts: DDP reads those of its communication hook.
import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rekindle.integrations import torch as rekindle

SEED = 5
ROWS, FEATURES, HIDDEN = 8, 8, 16


class TorchWork:
    """`kind`: ddp, alone or fsdp2. Every rank draws its own batch of the step, and its own dropout."""

    def __init__(self, kind: str, home: Path, *, rank: int, world: int, lr: float) -> None:
        self._kind, self._folder, self._rank = kind, home / "checkpoints", rank
        # A rank that saves by itself has no other rank's random generator to save.
        drop = 0.0 if kind == "alone" else 0.1
        torch.manual_seed(SEED)  # the same weights on every rank
        net = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Dropout(drop), nn.Linear(HIDDEN, 1))
        if kind == "fsdp2":
            try:
                from torch.distributed.fsdp import fully_shard
            except ImportError:  # before torch 2.6
                from torch.distributed._composable.fsdp import fully_shard

            mesh = dist.init_device_mesh("cpu", (world,))
            fully_shard(net[0], mesh=mesh)
            fully_shard(net, mesh=mesh)
            self._model: Any = net
        else:
            # Keeps DDP's buckets as they are after the first step: a resumed run then adds in the same order.
            self._model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
        self._net = net
        self._optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
        torch.manual_seed(SEED + 1 + rank)

    def train(self, step: int) -> Any:
        random = torch.Generator().manual_seed(SEED * 1_000_003 + step * 1009 + self._rank)
        x = torch.rand(ROWS, FEATURES, generator=random) * 2 - 1
        y = torch.sin(3 * x).sum(dim=1, keepdim=True)
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._model(x), y)
        loss.backward()
        self._optimizer.step()
        return loss

    def poison(self) -> None:
        with torch.no_grad():
            for parameter in self._net.parameters():
                parameter.fill_(float("nan"))

    def digest(self) -> str:
        """Of this rank's weights: the whole ones, or its shards."""
        digest = hashlib.sha256()
        for value in self._net.state_dict().values():
            local = value.to_local() if hasattr(value, "to_local") else value
            digest.update(local.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def save(self, step: int, harm: Any) -> Path:
        parts = {"model": self._model, "optimizer": self._optimizer}
        if self._kind == "fsdp2":
            return rekindle.save_dcp(self._folder / f"step-{step:06d}", step=step, **parts)
        path = self._folder / f"step-{step:06d}.pt"
        if self._kind == "ddp":
            rekindle.save_file(path, step=step, **parts)
        elif self._rank == 0:
            rekindle.write_file(
                path, {"step": step, "model": self._net.state_dict(), "optimizer": self._optimizer.state_dict()}
            )
        harm.at("half saved", step)
        return path

    def save_in_the_background(self, step: int, mon: Any) -> None:
        parts = {"model": self._model, "optimizer": self._optimizer}
        rekindle.save_dcp(self._folder / f"step-{step:06d}", step=step, on_done=mon.saved, **parts)

    def load(self, path: str) -> int:
        parts = {"model": self._model, "optimizer": self._optimizer}
        if self._kind == "fsdp2":
            return int(rekindle.load_dcp(path, **parts)["step"])
        if self._kind == "ddp":
            return int(rekindle.load_file(path, **parts)["step"])
        state = torch.load(path, weights_only=True)
        self._net.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def close(self) -> None:
        if self._kind == "fsdp2":
            rekindle.wait_for_dcp()
