"""Checkpoints of plain PyTorch: one file for a model that every rank holds whole, DCP for a sharded one.

Both are called on every rank. A name that exists stands for a whole checkpoint: it is written beside, synced, then
renamed (see `beside` for folders).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from rekindle.checkpoints.folders import judged_at
from rekindle.integrations.folder_save import FolderSave, remove_leftovers_once, sync
from rekindle.integrations.rng import gathered_rng, restore_rng, rng_state
from rekindle.integrations.torch_ranks import check_interface, dcp_group, rank_and_world
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.saving.leftovers import name_beside

STATE_FILE = "trainer_state.pt"


def write_file(path: str | os.PathLike[str], state: object) -> Path:
    """`torch.save`, whole or not at all. Raises: OSError."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = name_beside(target)
    try:
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    sync(target.parent)
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
        remove_leftovers_once(Path(path).parent)
        state = {"step": step, "model": _bare(model).state_dict(), "rng": generators, "extra": dict(extra or {})}
        state |= {name: part.state_dict() for name, part in _parts(optimizer, scheduler)}
        write_file(path, state)
    return Path(path)


def load_file(
    path: str | os.PathLike[str], *, model: Any, optimizer: Any = None, scheduler: Any = None
) -> dict[str, Any]:
    """Put the state back, on every rank. Returns {"step", "extra"}.

    The random generators are restored where the file holds this rank's. Raises: OSError (also for a file that is not
    whole), KeyError, RuntimeError (another model's file), pickle.UnpicklingError.
    """
    require_whole(path)
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
    **options: Any,
) -> Path:
    """The state after `step` as a torch.distributed.checkpoint folder: each rank writes its shards, `.metadata` last.

    on_done: with it, the shards are copied to host memory now and written in the background; rank 0 calls it with
    (folder, step) when all ranks' files are there (`on_done=mon.saved`). One that is under way is waited for first: DCP
    keeps one copy. Without it, all of this rank's files are written when this returns. A folder that was just saved at
    this very step is not written again.

    model: a module, or a list of them, such as a pipeline's stages of this rank, with a list of as many optimizers.
    options: of `dcp.save` and `dcp.async_save`: planner, storage_writer (which is given its folder), process_group (by
    default a gloo group of its own), async_checkpointer_type, async_stager. The last two are left out without on_done.

    Raises: ValueError (parts that name a parameter alike), OSError, RuntimeError, what DCP raises.
    """
    import torch.distributed.checkpoint as dcp

    target = Path(folder)
    rank, _ = rank_and_world()
    _drain()
    if _written.get(os.path.abspath(target)) == step:
        return target  # an emergency at the step of a periodic save: the same state is there already
    _written.clear()
    save = FolderSave(target)
    try:
        check_interface()
        save.beside.mkdir(parents=True, exist_ok=True)
        state = _sharded(model, optimizer)
        if rank == 0:
            rest = {"step": step, "extra": dict(extra or {})}
            parts = {name: part.state_dict() for name, part in _parts(None, scheduler)}
            write_file(save.beside / STATE_FILE, rest | parts)
        write_file(save.beside / _rng_name(rank), rng_state())
    except BaseException as err:
        save.failed(err)
        raise
    save.ready()
    future: Any = None
    try:
        options = options if "process_group" in options else options | {"process_group": dcp_group()}
        if on_done is None:
            at_once = {name: option for name, option in options.items() if not name.startswith("async_")}
            dcp.save(state, checkpoint_id=save.beside, **at_once)
            _remove_empty(save.beside, rank)
        else:
            future = dcp.async_save(state, checkpoint_id=save.beside, **options)
            if (staged := getattr(future, "staging_completion", None)) is not None:  # a stager that copies meanwhile
                staged.result()
                future = future.upload_completion
    except BaseException as err:
        save.failed(err)
        raise
    if future is None:
        save.done()
    else:
        _background.append(_in_background(future, save, step, on_done if rank == 0 else None))
    _written[os.path.abspath(target)] = step
    return target


def _in_background(
    future: Any, save: FolderSave, step: int, on_done: Callable[[Path, int], None] | None
) -> Future[None]:
    """Of a save under way on threads: done when the folder has its name. Its result raises what went wrong."""
    ended: Future[None] = Future()

    def written(future: Any) -> None:
        """This rank's shards are written; for rank 0 `.metadata` too, which lists them all."""
        try:
            try:
                future.result()
                _remove_empty(save.beside, rank_and_world()[0])
            except BaseException as err:
                save.failed(err)
                raise
            save.done()
            if on_done is not None:
                on_done(save.target, step)
        except BaseException as err:
            ended.set_exception(err)
        else:
            ended.set_result(None)

    future.add_done_callback(written)
    return ended


def _remove_empty(folder: Path, rank: int) -> None:
    """A rank that had nothing to write leaves an empty shard, which nothing names and which looks like damage."""
    for shard in folder.glob(f"__{rank}_*.distcp"):
        if shard.stat().st_size == 0:
            shard.unlink()


_background: list[Future[None]] = []  # the asynchronous save under way, if any
_written: dict[str, int] = {}  # the folder that this process saved last, and the step in it


def wait_for_dcp() -> None:
    """Until the background save, if any, is over. Raises what that save raised."""
    while _background:
        _background.pop().result()


def _drain() -> None:
    """The same before another save, which an earlier one's failure must not prevent."""
    try:
        wait_for_dcp()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as err:  # torch's CheckpointException is no Exception
        _written.clear()
        logger.warning("The background save before this one failed: %r", err)


def require_whole(path: str | os.PathLike[str]) -> None:
    """A look at a few bytes of a checkpoint before it is loaded. Raises: OSError that says in a line what is wrong."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no checkpoint at {os.fspath(path)}")
    found = judged_at(path)
    problems = [] if found is None else [problem for problem in found.problems if problem != found.nan]
    if problems:
        raise OSError(f"the checkpoint at {os.fspath(path)} is not whole: {'; '.join(problems[:3])}")


def load_dcp(
    folder: str | os.PathLike[str], *, model: Any, optimizer: Any = None, scheduler: Any = None, **options: Any
) -> dict[str, Any]:
    """Put the state back, on every rank; DCP reshards it where the world has changed. Returns {"step", "extra"}.

    model, optimizer: as `save_dcp` was given them. options: of `dcp.load`: planner, storage_reader, process_group. The
    random generators are restored where the folder holds as many as there are ranks now. Raises: OSError (also for a
    folder that is not whole), what DCP raises.
    """
    require_whole(folder)
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    source = Path(folder)
    state = _sharded(model, optimizer)
    dcp.load(state, checkpoint_id=source, **({"process_group": dcp_group()} | options))
    for part, own, by in _paired(model, optimizer):
        set_state_dict(part, own, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=by)
    rest = torch.load(source / STATE_FILE, map_location="cpu", weights_only=True)
    for name, part in _parts(None, scheduler):
        part.load_state_dict(rest[name])
    load_rng(source)
    return {"step": int(rest["step"]), "extra": rest["extra"]}


def _sharded(model: Any, optimizer: Any) -> dict[str, Any]:
    """The state that DCP saves and loads. Raises: ValueError."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    state: dict[str, Any] = {"model": {}, "optimizer": {}}
    for part, own, options in _paired(model, optimizer):
        weights, moments = get_state_dict(part, own, options=options)
        if alike := state["model"].keys() & weights.keys():
            raise ValueError(f"model: two of its parts have a parameter named {min(alike)}")
        state["model"] |= weights
        state["optimizer"] |= moments
    return state


def _paired(model: Any, optimizer: Any) -> list[tuple[Any, Any, Any]]:
    """Each model with its optimizers and the options of its state. Raises: ValueError where their numbers differ.

    Parts name what they hold by parameter, as one model would, and find their own among those of all.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    if not isinstance(model, list | tuple):
        return [(model, [] if optimizer is None else optimizer, None)]
    by_parameter = StateDictOptions(flatten_optimizer_state_dict=True, strict=False)
    own = [[]] * len(model) if optimizer is None else optimizer
    return [(part, its, by_parameter) for part, its in zip(model, own, strict=True)]


def save_rng(folder: str | os.PathLike[str]) -> None:
    """This rank's random generators into a checkpoint folder, for the frameworks that do not keep them."""
    write_file(Path(folder) / _rng_name(rank_and_world()[0]), rng_state())


def load_rng(folder: str | os.PathLike[str]) -> None:
    """Restore this rank's generators from a folder that as many ranks as there are now wrote."""
    rank, world = rank_and_world()
    source = Path(folder)
    if len(list(source.glob(_rng_name(None)))) == world:
        restore_rng(torch.load(source / _rng_name(rank), map_location="cpu", weights_only=True))


def _rng_name(rank: int | None) -> str:
    return f"rng_state_{'*' if rank is None else rank}.pt"


def _bare(model: Any) -> Any:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def _parts(optimizer: Any, scheduler: Any) -> list[tuple[str, Any]]:
    return [(name, part) for name, part in (("optimizer", optimizer), ("scheduler", scheduler)) if part is not None]
