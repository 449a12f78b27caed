"""Nothing is vouched for that is not the checkpoint of that step: torch's own formats and those of the frameworks.

Each file is written by torch or safetensors, in the layout of a framework, and loaded as that framework loads it. The
frameworks themselves are in integrations/test_integration_lies.py.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from rekindle.protocol.manifests import SaveKind
from tests.monitor.saving.lying_saves import Layout, Part, played, wrongly_stopped

SHAPE = (16, 64)
_lock = threading.Lock()


def full(number: float) -> torch.Tensor:
    return torch.full(SHAPE, number)


def saved(path: Path, **state: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


def adam(number: float) -> dict[str, Any]:
    return {"state": {0: {"step": torch.tensor(1.0), "exp_avg": full(number)}}, "param_groups": [{"lr": 0.1}]}


def numbers_in(path: Path, *keys: str) -> Any:
    state = torch.load(path, weights_only=False)
    for key in keys:
        state = state[key]
    return state.ravel()


# ---- one file --------------------------------------------------------------------------------------------------------


def write_pt(part: Part) -> None:
    if part.rank == 0:
        saved(part.root, iter_num=part.step, model={"w": full(part.value)}, optimizer=adam(part.value))


def write_old_pt(part: Part) -> None:
    if part.rank == 0:
        part.root.parent.mkdir(parents=True, exist_ok=True)
        state = {"step": part.step, "model": {"w": full(part.value)}}
        torch.save(state, part.root, _use_new_zipfile_serialization=False)


def write_ckpt(part: Part) -> None:
    if part.rank == 0:
        saved(
            part.root, epoch=0, global_step=part.step, state_dict={"w": full(part.value)},
            optimizer_states=[adam(part.value)], lr_schedulers=[], loops={},
        )  # fmt: skip


# ---- a folder that rank 0 writes -------------------------------------------------------------------------------------


def write_hugging_face(part: Part) -> None:
    saved(part.root / _rng_name(part.rank, part.world), cpu=torch.get_rng_state())
    if part.rank == 0:
        save_file({"w": full(part.value)}, part.root / "model.safetensors", metadata={"format": "pt"})
        saved(part.root / "optimizer.pt", **adam(part.value))
        saved(part.root / "scheduler.pt", last_epoch=part.step)
        state = {"epoch": 0.5, "global_step": part.step, "log_history": []}
        (part.root / "trainer_state.json").write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")


def _rng_name(rank: int, world: int) -> str:
    return f"rng_state_{rank}.pth" if world > 1 else "rng_state.pth"


def load_hugging_face(root: Path, world: int) -> list[Any]:
    json.loads((root / "trainer_state.json").read_text())
    for name in ("optimizer.pt", "scheduler.pt", *(_rng_name(rank, world) for rank in range(world))):
        torch.load(root / name)
    return [load_file(root / "model.safetensors")["w"].ravel()]


def write_accelerate(part: Part) -> None:
    part.root.mkdir(parents=True, exist_ok=True)
    torch.save({"step": 0, "torch_manual_seed": torch.get_rng_state()}, part.root / f"random_states_{part.rank}.pkl")
    if part.rank == 0:
        save_file({"w": full(part.value)}, part.root / "model.safetensors", metadata={"format": "pt"})
        saved(part.root / "optimizer.bin", **adam(part.value))
        saved(part.root / "scheduler.bin", last_epoch=part.step)


def load_accelerate(root: Path, world: int) -> list[Any]:
    for name in ("optimizer.bin", "scheduler.bin", *(f"random_states_{rank}.pkl" for rank in range(world))):
        torch.load(root / name)
    return [load_file(root / "model.safetensors")["w"].ravel()]


def write_own(part: Part) -> None:
    """A script's own folder."""
    if part.rank == 0:
        saved(part.root / "model.pt", w=full(part.value))
        saved(part.root / "optim.pt", **adam(part.value))
        saved(part.root / "sched.pt", last_epoch=part.step)


def load_own(root: Path, _: int) -> list[Any]:
    for name in ("optim.pt", "sched.pt"):
        torch.load(root / name)
    return [numbers_in(root / "model.pt", "w")]


# ---- a part by each rank ---------------------------------------------------------------------------------------------


def write_shards(part: Part) -> None:
    saved(part.root / f"rank{part.rank}.pt", step=part.step, w=full(part.own_value))


def load_shards(root: Path, world: int) -> list[Any]:
    return [numbers_in(root / f"rank{rank}.pt", "w") for rank in range(world)]


def write_zero(part: Part) -> None:
    if part.rank == 0:
        saved(
            part.root / "mp_rank_00_model_states.pt", module={"w": full(part.value)}, global_steps=part.step,
            dp_world_size=part.world, mp_world_size=1,
        )  # fmt: skip
    own = part.root / f"zero_pp_rank_{part.rank}_mp_rank_00_optim_states.pt"
    saved(own, optimizer_state_dict={"fp32": full(part.own_value)}, zero_stage=2)


def load_zero(root: Path, world: int) -> list[Any]:
    assert numbers_in(root / "mp_rank_00_model_states.pt", "module", "w")[0].isfinite()
    names = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(world)]
    return [numbers_in(root / name, "optimizer_state_dict", "fp32") for name in names]


def write_megatron(part: Part) -> None:
    saved(
        part.root / f"mp_rank_{part.rank:02}" / "model_optim_rng.pt", iteration=part.step,
        args={"tensor_model_parallel_size": part.world}, model={"w": full(part.own_value)}, rng_state=[],
    )  # fmt: skip


def load_megatron(root: Path, world: int) -> list[Any]:
    return [numbers_in(root / f"mp_rank_{rank:02}" / "model_optim_rng.pt", "model", "w") for rank in range(world)]


class Plans:
    """What the ranks of one save tell each other, instead of through torch.distributed."""

    def __init__(self, world: int) -> None:
        self.local: list[Any] = [None] * world
        self.each: list[Any] = []
        self.results: list[Any] = [None] * world
        self.metadata: Any = None


_plans: dict[tuple[Path, int], Plans] = {}


def write_dcp(part: Part) -> None:
    """As torch.distributed.checkpoint.save goes on each rank, with its own planner and writer."""
    with _lock:
        plans = _plans.setdefault((part.root, part.step), Plans(part.world))
    part.root.mkdir(parents=True, exist_ok=True)
    writer, planner = FileSystemWriter(part.root), DefaultSavePlanner()
    state = {f"w{part.rank}": full(part.own_value), f"m{part.rank}": full(part.own_value)}
    planner.set_up_planner(state, writer.storage_meta(), part.rank == 0)
    writer.set_up_storage_writer(part.rank == 0)
    plans.local[part.rank] = writer.prepare_local_plan(planner.create_local_plan())
    part.meet()
    if part.rank == 0:
        each, plans.metadata = planner.create_global_plan(plans.local)
        plans.each = writer.prepare_global_plan(each)
    part.meet()
    plans.results[part.rank] = writer.write_data(planner.finish_plan(plans.each[part.rank]), planner).value()
    part.meet()
    if part.rank == 0:
        writer.finish(plans.metadata, plans.results)
    part.meet()
    _plans.pop((part.root, part.step), None)


def load_dcp(root: Path, world: int) -> list[Any]:
    state: dict[str, Any] = {f"{name}{rank}": torch.zeros(SHAPE) for name in "wm" for rank in range(world)}
    dcp.load(state, checkpoint_id=root, no_dist=True)
    return [state[f"w{rank}"].ravel() for rank in range(world)]


def by_rank(start: str, *others: str) -> Any:
    """A rank's own files begin so; `others` are rank 0's."""
    return lambda path, rank: path.startswith(start.format(rank)) or (rank == 0 and path in others)


LAYOUTS = {
    "torch": Layout(
        lambda step: f"step-{step}.pt", write_pt, lambda root, _: [numbers_in(root, "model", "w")], "ckpt.pt"
    ),
    "torch, old": Layout(
        lambda step: f"step-{step}.pth", write_old_pt, lambda root, _: [numbers_in(root, "model", "w")], "ckpt.pth"
    ),
    "Lightning": Layout(
        lambda step: f"epoch=0-step={step}.ckpt", write_ckpt, lambda root, _: [numbers_in(root, "state_dict", "w")],
        "last.ckpt",
    ),
    "Hugging Face": Layout(
        lambda step: f"checkpoint-{step}", write_hugging_face, load_hugging_face, "last", by_rank=True,
        own=by_rank(
            "rng_state_{}.", "rng_state.pth", "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"
        ),
    ),
    "Accelerate": Layout(
        lambda step: f"step_{step}", write_accelerate, load_accelerate, "last", by_rank=True, tells_step=False,
        own=by_rank("random_states_{}.", "model.safetensors", "optimizer.bin", "scheduler.bin"),
    ),
    "a script's own folder": Layout(lambda step: f"step-{step}", write_own, load_own, "last", tells_step=False),
    "a file a rank": Layout(
        lambda step: f"step-{step}", write_shards, load_shards, "last", by_rank=True, own=by_rank("rank{}.")
    ),
    "DeepSpeed": Layout(
        lambda step: f"global_step{step}", write_zero, load_zero, "last", by_rank=True,
        own=by_rank("zero_pp_rank_{}_", "mp_rank_00_model_states.pt"),
    ),
    "Megatron": Layout(
        lambda step: f"iter_{step:07}", write_megatron, load_megatron, "release", by_rank=True,
        own=by_rank("mp_rank_{:02}/"),
    ),
    "DCP": Layout(
        lambda step: f"step-{step}", write_dcp, load_dcp, "last", by_rank=True, tells_step=False,
        own=by_rank("__{}_", ".metadata"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", [SaveKind.PERIODIC, SaveKind.EMERGENCY])
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_vouched_for_can_be_resumed_from(
    name: str, world: int, kind: SaveKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert played(tmp_path, LAYOUTS[name], world, kind, monkeypatch) == []


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", LAYOUTS)
def test_so_can_what_a_run_saves_that_ends_by_sigterm(
    name: str, world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wrongly_stopped(tmp_path, LAYOUTS[name], world, monkeypatch) == {}
