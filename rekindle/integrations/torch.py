"""Rekindle in a plain PyTorch loop: one process, DDP, or FSDP2.

    from rekindle.integrations import torch as rekindle

    mon = rekindle.start(save=save)                          # after init_process_group, on every rank
    sampler = rekindle.ResumableSampler(data, batch_size=8, resume=mon.resume)
    loader = DataLoader(data, batch_sampler=sampler)
    if mon.resume_path: rekindle.load_file(mon.resume_path, model=model, optimizer=optimizer)
    for step, batch in sampler.steps(loader, last_step):
        ...
        mon.step(step, loss=loss)
        if mon.should_stop: break
    rekindle.finish(mon)

with `save = lambda step, kind: rekindle.save_file(folder / f"step-{step}.pt", step=step, model=model, ...)`.
"""

from __future__ import annotations

from typing import Any

from rekindle.integrations.gang import barrier, coordinator, cpu_group, finish, rank_and_world
from rekindle.integrations.local import LocalWatch
from rekindle.integrations.rng import restore_rng, rng_state
from rekindle.integrations.sampler import ResumableSampler
from rekindle.integrations.snapshots import (
    load_dcp,
    load_file,
    load_rng,
    save_dcp,
    save_file,
    save_rng,
    wait_for_dcp,
    write_file,
)
from rekindle.monitor import Monitor
from rekindle.monitor import start as start_monitor
from rekindle.monitor.saving import SaveFunction

__all__ = [
    "start",
    "finish",
    "ResumableSampler",
    "LocalWatch",
    "save_file",
    "load_file",
    "save_dcp",
    "load_dcp",
    "wait_for_dcp",
    "save_rng",
    "load_rng",
    "rng_state",
    "restore_rng",
    "write_file",
    "coordinator",
    "cpu_group",
    "barrier",
]


def start(*, save: SaveFunction | None, every: int | None = None, **more: Any) -> Monitor:
    """`rekindle.monitor.start`, told by torch.distributed who this is and how all agree. Call it on every rank.

    every: steps between two agreements; by default adapted. SIGTERM means: save at the next agreement, then
    `should_stop`; SIGUSR1: save, and go on. more: further arguments of `rekindle.monitor.start`.
    """
    rank, world_size = rank_and_world()
    if world_size > 1:  # alone here does not mean alone: then the launcher's variables speak
        more = {"rank": rank, "world_size": world_size, "coordinator": coordinator(every)} | more
    more.setdefault("handle_signals", True)
    return start_monitor(save=save, **more)
