"""The ranks of torch.distributed, and the side group in which they agree: gloo, on the CPU, away from NCCL's stream."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rekindle.monitor import AllReduceMax, Coordinator, Monitor, Solo
from rekindle.monitor import start as start_monitor
from rekindle.monitor.saving import SaveFunction

# A rank may be late by an evaluation or a save of its own; when it is dead, gloo notices the closed connection at once.
AGREE_TIMEOUT = timedelta(minutes=30)

# A checkpoint of many GB, saved at SIGTERM, takes longer to hash than `Monitor.finish` waits by itself. SageMaker kills
# after 120 s. Source: developer guide, StopTrainingJob
SEAL_TIMEOUT_S = 90.0

_groups: dict[tuple[int, str], Any] = {}  # (id of the world's group, purpose) → its side group


def is_gang() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def rank_and_world() -> tuple[int, int]:
    """(0, 1) where torch.distributed is not initialised."""
    return (dist.get_rank(), dist.get_world_size()) if is_gang() else (0, 1)


def cpu_group(purpose: str = "training thread") -> Any:
    """A gloo group of all ranks, made at the first call, which all ranks must make. None when alone.

    Its tensors are on the CPU: an agreement neither waits for the device nor queues behind its kernels. Two threads
    must not share one, for the order of its collectives has to be the same on all ranks: hence `purpose`.
    """
    if not is_gang():
        return None
    key = (id(dist.group.WORLD), purpose)
    if key not in _groups:
        for old in [other for other in _groups if other[0] != key[0]]:  # of a world that was destroyed
            del _groups[old]
        _groups[key] = dist.new_group(backend="gloo", timeout=AGREE_TIMEOUT)
    return _groups[key]


def barrier() -> None:
    """Until all ranks are here. Nothing when alone."""
    if is_gang():
        dist.barrier(group=cpu_group())


def coordinator(every: int | None = None) -> Coordinator:
    """Agreement of all ranks of torch.distributed, for `rekindle.monitor.start`. Call it on every rank.

    every: steps between two agreements; by default the monitor adapts it to the length of a step.
    """
    if rank_and_world()[1] == 1:
        return Solo()
    group = cpu_group()

    def reduce_max(value: int) -> int:
        highest = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        return int(highest.item())

    return AllReduceMax(reduce_max) if every is None else AllReduceMax(reduce_max, every=every)


def share(text: str) -> str:
    """Rank 0's text, on every rank. A collective. The same text when alone."""
    if not is_gang():
        return text
    box = [text]
    dist.broadcast_object_list(box, src=0, group=cpu_group())
    return str(box[0])


def start(*, save: SaveFunction | None, every: int | None = None, **more: Any) -> Monitor:
    """`rekindle.monitor.start`, told by torch.distributed who this is and how all agree. Call it on every rank.

    every: steps between two agreements; by default adapted. SIGTERM means: save at the next agreement, then
    `should_stop`; SIGUSR1: save, and go on. more: further arguments of `rekindle.monitor.start`.
    """
    rank, world_size = rank_and_world()
    if world_size > 1:  # alone here does not mean alone: then the launcher's variables speak
        more = {"rank": rank, "world_size": world_size, "coordinator": coordinator(every), "share": share} | more
    more.setdefault("handle_signals", True)
    return start_monitor(save=save, **more)


def finish(monitor: Monitor, why: str = "") -> None:
    """End a run: first seal what was saved last, whatever its size, then `Monitor.finish`."""
    monitor.flush(SEAL_TIMEOUT_S)
    monitor.finish(why or ("stopped" if monitor.should_stop else "finished"))
