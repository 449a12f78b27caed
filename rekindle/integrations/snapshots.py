"""Checkpoints of plain PyTorch: one file for a model that every rank holds whole, DCP for a sharded one.

Both are called on every rank. A name that exists stands for a whole file: it is written beside, synced, then renamed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rekindle.integrations.gang import dcp_group, rank_and_world
from rekindle.integrations.rng import gathered_rng, restore_rng, rng_state

STATE_FILE = "trainer_state.pt"


def write_file(path: str | os.PathLike[str], state: object) -> Path:
    """`torch.save`, whole or not at all. Raises: OSError."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return target


def save_file(
    path: str | os.PathLike[str],
    *,
    step: int,
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """The state after `step` in one file, written by rank 0, with every rank's random generators. Returns its path.

    A model in DDP is saved as the model inside. `extra`: whatever `torch.load(weights_only=True)` reads.
    """
    generators = gathered_rng(step)
    if rank_and_world()[0] == 0:
        state = {"step": step, "model": _bare(model).state_dict(), "rng": generators, "extra": dict(extra or {})}
        state |= {name: part.state_dict() for name, part in _parts(optimizer, scheduler)}
        write_file(path, state)
    return Path(path)


def load_file(
    path: str | os.PathLike[str], *, model: Any, optimizer: Any = None, scheduler: Any = None
) -> dict[str, Any]:
    """Put the state back, on every rank. Returns {"step", "extra"}.

    The random generators are restored where the file holds this rank's. Raises: OSError, KeyError, RuntimeError
    (another model's file), pickle.UnpicklingError.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    _bare(model).load_state_dict(state["model"])
    for name, part in _parts(optimizer, scheduler):
        part.load_state_dict(state[name])
    rank, world = rank_and_world()
    if len(state["rng"]) == world:
        restore_rng(state["rng"][rank])
    return {"step": int(state["step"]), "extra": state["extra"]}


def save_dcp(
    folder: str | os.PathLike[str],
    *,
    step: int,
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    extra: Mapping[str, Any] | None = None,
    on_done: Callable[[Path, int], None] | None = None,
) -> Path:
    """The state after `step` as a torch.distributed.checkpoint folder: each rank writes its shards, `.metadata` last.

    on_done: with it, the shards are copied to host memory now and written in the background; rank 0 calls it with
    (folder, step) when all ranks' files are there (`on_done=mon.saved`). Wait for the one before first: DCP keeps one
    copy. Without it, all of this rank's files are written when this returns.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    target = Path(folder)
    rank, _ = rank_and_world()
    wait_for_dcp()
    target.mkdir(parents=True, exist_ok=True)
    weights, moments = get_state_dict(model, [] if optimizer is None else optimizer)
    if rank == 0:
        rest = {"step": step, "extra": dict(extra or {})}
        write_file(target / STATE_FILE, rest | {name: part.state_dict() for name, part in _parts(None, scheduler)})
    write_file(target / _rng_name(rank), rng_state())
    state = {"model": weights, "optimizer": moments}
    if on_done is None:
        dcp.save(state, checkpoint_id=target, process_group=dcp_group())
        return target
    _background.append(dcp.async_save(state, checkpoint_id=target, process_group=dcp_group()))
    if rank == 0:
        # The coordinator's write is over when every rank's plan was carried out: `.metadata` lists them all.
        _background[0].add_done_callback(lambda future: None if future.exception() else on_done(target, step))
    return target


_background: list[Any] = []  # the asynchronous save under way, if any


def wait_for_dcp() -> None:
    """Until the background save, if any, is over. Raises what that save raised."""
    while _background:
        _background.pop().result()


def load_dcp(
    folder: str | os.PathLike[str], *, model: Any, optimizer: Any = None, scheduler: Any = None
) -> dict[str, Any]:
    """Put the state back, on every rank; DCP reshards it where the world has changed. Returns {"step", "extra"}.

    The random generators are restored where the folder holds as many as there are ranks now. Raises: OSError, what DCP
    raises.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    source = Path(folder)
    weights, moments = get_state_dict(model, [] if optimizer is None else optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=source, process_group=dcp_group())
    set_state_dict(
        model,
        [] if optimizer is None else optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    rest = torch.load(source / STATE_FILE, map_location="cpu", weights_only=True)
    for name, part in _parts(None, scheduler):
        part.load_state_dict(rest[name])
    load_rng(source)
    return {"step": int(rest["step"]), "extra": rest["extra"]}


def save_rng(folder: str | os.PathLike[str]) -> None:
    """This rank's random generators into a checkpoint folder, for the frameworks that do not keep them."""
    write_file(Path(folder) / _rng_name(rank_and_world()[0]), rng_state())


def load_rng(folder: str | os.PathLike[str]) -> bool:
    """Restore this rank's generators from a folder that as many ranks as there are now wrote; whether it was one."""
    rank, world = rank_and_world()
    source = Path(folder)
    if len(list(source.glob(_rng_name(None)))) != world:
        return False
    restore_rng(torch.load(source / _rng_name(rank), map_location="cpu", weights_only=True))
    return True


def _rng_name(rank: int | None) -> str:
    return f"rng_state_{'*' if rank is None else rank}.pt"


def _bare(model: Any) -> Any:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def _parts(optimizer: Any, scheduler: Any) -> list[tuple[str, Any]]:
    return [(name, part) for name, part in (("optimizer", optimizer), ("scheduler", scheduler)) if part is not None]
