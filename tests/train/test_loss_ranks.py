"""Several processes of real PyTorch over gloo: DDP's result under LocalWatch; losses that one rank alone has."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from rekindle.integrations import torch as rekindle
from rekindle.monitor import Monitor
from rekindle.protocol.keys import manifest_prefix
from rekindle.protocol.mailbox import LossState
from rekindle.protocol.manifests import Manifest
from rekindle.protocol.reports import RankReport, ReportKind, report_key
from tests.monitor.boxes import PATIENCE_S, ObservedBox

SICK = ("spiking", "diverging")
QUICK = {"REKINDLE_HEARTBEAT_S": "0.2", "REKINDLE_POLL_S": "0.1", "REKINDLE_WATCH_S": "0.5"}


def play(part: Callable[..., None], world_size: int, folder: Path, *more: Any) -> None:
    """Run `part(rank, world_size, folder, *more)` in so many processes that form a group; raises what one raises.

    They are forked by a server that has imported this module once.
    """
    folder.mkdir(exist_ok=True)
    multiprocessing.set_forkserver_preload([__name__])
    mp.start_processes(_rank, args=(part, world_size, str(folder), more), nprocs=world_size, start_method="forkserver")


def _rank(rank: int, part: Callable[..., None], world_size: int, folder: str, more: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    try:
        part(rank, world_size, Path(folder), *more)
        dist.barrier()
    finally:
        dist.destroy_process_group()


# ---- bit for bit ---------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """A model with small and large parameters, one of which a step may not use."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(24, 40), nn.LayerNorm(40), nn.ReLU())
        self.left, self.right = nn.Linear(40, 12), nn.Linear(40, 12)

    def forward(self, rows: torch.Tensor, is_left: bool) -> torch.Tensor:
        return (self.left if is_left else self.right)(self.front(rows))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bucket view": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "small buckets": {"bucket_cap_mb": 0.001},
    "accumulated": {"accumulate": 3},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "own hook": {"hook": fp16_compress_hook},
}


def weights_after(rank: int, kind: dict[str, Any], watched: bool) -> str:
    options = dict(kind)
    accumulate, dtype = options.pop("accumulate", 1), options.pop("dtype", torch.float32)
    hook = options.pop("hook", None)
    torch.manual_seed(3)
    model = DistributedDataParallel(Branches().to(dtype), **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch = rekindle.LocalWatch(Monitor(None))  # type: ignore[arg-type]  # silent: it says nothing and resumes nothing
    if watched:
        watch.gradients(model)
    random = torch.Generator().manual_seed(100 + rank)
    digest = hashlib.sha256()
    for step in range(6):
        optimizer.zero_grad()
        for part in range(accumulate):
            rows = torch.randn(8, 24, generator=random).to(dtype)
            with model.no_sync() if part < accumulate - 1 else nullcontext():
                out = model(rows, "find_unused_parameters" not in options or step % 2 == 0)
                loss = out.float().pow(2).mean()
                if "find_unused_parameters" not in options:  # the other branch takes part as well
                    loss = loss + 0.0 * sum(parameter.float().sum() for parameter in model.module.right.parameters())
                loss.backward()
            watch.loss(loss)
        optimizer.step()
        watch.stepped(step)
        for one in model.parameters():
            digest.update(one.detach().view(torch.uint8).numpy().tobytes())
    watch.close()
    return digest.hexdigest()


def compare(rank: int, world_size: int, folder: Path) -> None:
    found = {
        name: [weights_after(rank, kind, watched) for watched in (False, True, False)] for name, kind in KINDS.items()
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8])
def test_the_weights_are_the_same_bit_for_bit_whether_gradients_are_looked_at_or_not(
    tmp_path: Path, world_size: int
) -> None:
    play(compare, world_size, tmp_path / "run")
    for rank in range(world_size):
        found = json.loads((tmp_path / "run" / f"{rank}.json").read_text())
        assert {name: len(set(digests)) for name, digests in found.items()} == dict.fromkeys(KINDS, 1)


# ---- whose NaN -----------------------------------------------------------------------------------------------------


def start(folder: Path, **more: Any) -> Monitor:
    os.environ |= {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1", "REKINDLE_METRICS": "off"} | QUICK
    monitor = rekindle.start(save=None, mailbox=str(folder / "mailbox"), **more)
    assert not monitor.is_silent
    return monitor


def spoil_one_rank(rank: int, world_size: int, folder: Path) -> None:
    monitor = start(folder)
    watch = rekindle.LocalWatch(monitor)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    watch.gradients(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 9):
        optimizer.zero_grad()
        out = model(torch.ones(4, 8))
        if rank == world_size - 1 and step == 4:
            out.register_hook(lambda gradient: gradient * math.nan)  # a device that computes the backward wrongly
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()
        monitor.step(step, loss=loss, work_s=watch.stepped(step))
    watch.close()
    monitor.finish(timeout_s=PATIENCE_S)


def test_the_rank_whose_gradient_was_bad_before_the_average_is_the_one_that_reports_it_first(tmp_path: Path) -> None:
    play(spoil_one_rank, 3, tmp_path / "run")
    box = ObservedBox(tmp_path / "run" / "mailbox")
    found = {}
    for rank in range(3):
        raw = box.get(report_key("run-1", ReportKind.NON_FINITE, rank))
        assert raw is not None
        report = RankReport.from_json(raw)
        found[rank] = report.step
    assert found == {0: 5, 1: 5, 2: 4}, "the others' weights are bad from the next step on"


# ---- pipelines -----------------------------------------------------------------------------------------------------


def pipeline(rank: int, world_size: int, folder: Path, fault: str) -> None:
    """Only the last stage computes a loss. Runs until rank 0's beat says what it should, or for two minutes."""
    step, is_over = 0, torch.zeros(1)
    monitor = start(folder)
    stage = nn.Linear(8, 8)
    until = time.monotonic() + PATIENCE_S
    box = ObservedBox(folder / "mailbox")
    while not is_over:
        step += 1
        rows = torch.full((2, 8), 0.1)
        if rank > 0:
            dist.recv(rows, rank - 1)
        rows = stage(rows).detach()
        if rank < world_size - 1:
            dist.send(rows, rank + 1)
        loss = 2.0 + 0.001 * (step % 7) + 0.0 * rows.mean() if rank == world_size - 1 else None
        if loss is not None and step > 400:
            loss = loss * (10.0 if fault == "spike" else math.nan)
        monitor.step(step, loss=loss)
        time.sleep(0.002)
        if step % 50 == 0:  # all ranks end together
            if rank == 0:
                is_over += time.monotonic() > until
                heartbeat = box.heartbeat("run-1")
                if heartbeat is not None:
                    is_bad = (
                        heartbeat.loss_health in SICK if fault == "spike" else heartbeat.loss_state is LossState.NAN
                    )
                    is_over += is_bad
            dist.broadcast(is_over, 0)
    (folder / f"judges-{rank}").write_text(str(monitor._judging_rank.is_mine))  # type: ignore[attr-defined]
    if rank == 0:
        path = folder / "weights.bin"
        path.write_bytes(b"weights")
        monitor.saved(path, step)
        monitor.flush(PATIENCE_S)
    monitor.finish(timeout_s=PATIENCE_S)


@pytest.mark.parametrize("fault", ["spike", "nan"])
def test_what_the_last_stage_of_a_pipeline_finds_stands_in_the_heartbeat_of_rank_0(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "run"
    play(pipeline, 3, folder, fault)
    assert [(folder / f"judges-{rank}").read_text() for rank in range(3)] == ["False", "False", "True"]
    box = ObservedBox(folder / "mailbox")
    heartbeat = box.heartbeat("run-1")
    assert heartbeat is not None
    assert heartbeat.rank == 0
    if fault == "spike":
        assert heartbeat.loss_health in SICK
        assert heartbeat.onset_step == 401
        assert heartbeat.loss == pytest.approx(20.0, rel=0.01)
    else:
        assert (heartbeat.loss_state, heartbeat.loss) == (LossState.NAN, None)
        written = [Manifest.from_json(path.read_bytes()) for path in (folder / "mailbox" / manifest_prefix()).glob("*")]
        assert [(manifest.poisoned, manifest.loss) for manifest in written] == [(True, None)]
