"""Sharded checkpoints in the ways in which large runs make them: parts of a model, DCP's own options, its own saves."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard

from rekindle.integrations import torch as rekindle
from rekindle.protocol.keys import manifest_prefix
from rekindle.protocol.manifests import Manifest, SaveKind
from tests.sealed import check_files
from tests.train.test_loss_ranks import play

Parts = tuple[list[Any], list[torch.optim.Optimizer]]


class Stage(nn.ModuleDict):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.values():
            rows = layer(rows)
        return rows


def stages() -> Parts:
    """Two stages of a pipeline on each rank, sharded, after a step of training."""
    torch.manual_seed(0)
    models: list[Any] = [Stage({name: nn.Linear(8, 8) for name in names}) for names in ("01", "23")]
    for model in models:
        fully_shard(model)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return models, optimizers


def state_of(parts: Parts) -> list[torch.Tensor]:
    weights = [parameter.to_local() for model in parts[0] for parameter in model.parameters()]
    moments = [values["exp_avg"].to_local() for optimizer in parts[1] for values in optimizer.state.values()]
    return [value.detach().clone() for value in (*weights, *moments)]


def pass_through(rank: int, world_size: int, folder: Path) -> None:
    class Planner(dcp.DefaultSavePlanner):
        def finish_plan(self, *args: Any) -> Any:
            seen.append("planner")
            return super().finish_plan(*args)

    seen: list[str] = []
    models, optimizers = stages()
    options: dict[str, Any] = {
        "planner": Planner(),
        "storage_writer": dcp.FileSystemWriter("of no meaning", thread_count=2),
        "process_group": dist.new_group(backend="gloo"),
        "async_checkpointer_type": AsyncCheckpointerType.THREAD,
        "async_stager": DefaultStager(
            StagingOptions(False, False, use_async_staging=True, use_non_blocking_copy=False)
        ),
    }
    expected = state_of((models, optimizers))
    done: list[tuple[Path, int]] = []
    for step, on_done in ((1, None), (2, lambda path, step: done.append((path, step)))):
        target = folder / f"step-{step}"
        path = rekindle.save_dcp(target, step=step, model=models, optimizer=optimizers, on_done=on_done, **options)
        for parameter in models[0].parameters():
            parameter.detach().to_local().zero_()  # what was staged is the state of before
        rekindle.wait_for_dcp()
        assert rekindle.load_dcp(path, model=models, optimizer=optimizers)["step"] == step
        assert all(map(torch.equal, state_of((models, optimizers)), expected))
    assert seen == ["planner", "planner"]
    assert done == ([(folder / "step-2", 2)] if rank == 0 else [])
    assert not Path("of no meaning").exists()
    with pytest.raises(ValueError, match=r"two of its parts have a parameter named 0\.bias"):
        rekindle.save_dcp(folder / "step-3", step=3, model=[models[0], models[0]])
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        rekindle.save_dcp(folder / "step-3", step=3, model=models, optimizer=optimizers[:1])


def test_a_pipelines_stages_and_dcps_own_options_pass_through(tmp_path: Path) -> None:
    play(pass_through, 2, tmp_path / "run")


def recipe(rank: int, world_size: int, folder: Path) -> None:
    os.environ |= {
        "REKINDLE_JOB_ID": "job",
        "TRAINING_JOB_NAME": "run-1",
        "REKINDLE_MAILBOX": str(folder),
        "REKINDLE_METRICS": "off",
    }
    models, optimizers = stages()
    model, optimizer = models[0], optimizers[0]

    def save(step: int, kind: str) -> Path:
        path = folder / f"step-{step}"
        dcp.save(state(), checkpoint_id=path, process_group=group)
        return path

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    group = dist.new_group(backend="gloo")
    mon = rekindle.start(save=save)
    for step in (1, 2):
        mon.step(step, loss=1.0)
        path = folder / f"step-{step}"
        future: Any = dcp.async_save(state(), checkpoint_id=path, process_group=group)
        future.add_done_callback(lambda done, path=path, step=step: done.exception() or mon.saved(path, step))
        future.result()
    mon.flush()
    rekindle.finish(mon)


def test_a_scripts_own_asynchronous_saves_get_their_manifests_when_all_shards_are_there(tmp_path: Path) -> None:
    play(recipe, 2, tmp_path / "run")
    manifests = [Manifest.from_json(path.read_bytes()) for path in (tmp_path / "run" / manifest_prefix()).iterdir()]
    assert sorted(manifest.step for manifest in manifests) == [1, 2]
    for manifest in manifests:
        assert {"__0_0.distcp", "__1_0.distcp", ".metadata"} <= {item.path for item in manifest.files}
        check_files(tmp_path / "run", manifest)


def one_cannot_begin(rank: int, world_size: int, folder: Path) -> None:
    os.environ |= {
        "REKINDLE_JOB_ID": "job",
        "TRAINING_JOB_NAME": "run-1",
        "REKINDLE_MAILBOX": str(folder),
        "REKINDLE_METRICS": "off",
        "REKINDLE_AGREE_S": "0.05",
    }
    tried: list[int] = []
    saved: list[int] = []

    def save(step: int, kind: str) -> Path:
        tried.append(step)
        with rekindle.all_ready():
            if rank == 1 and len(tried) == 1:
                raise OSError("no space left")
        path = folder / f"step-{step}"
        dcp.save(state, checkpoint_id=path, process_group=group)
        saved.append(step)
        return path

    state = {"model": stages()[0][0].state_dict()}
    group = dist.new_group(backend="gloo")
    mon = rekindle.start(save=save)
    step, asked, done = 0, 0, torch.zeros(())
    while done < world_size:
        step += 1
        mon.step(step, loss=1.0)
        if rank == 1 and asked == len(tried) and not saved:
            asked += 1
            os.kill(os.getpid(), signal.SIGUSR1)
        done = torch.tensor(float(len(saved)))
        dist.all_reduce(done)  # training's own, which no save may have put out of order
    assert len(tried) == 2
    assert not mon.should_stop
    mon.flush()
    rekindle.finish(mon)


def test_a_rank_that_cannot_begin_its_save_says_so_and_all_train_on_and_save_the_next_time(tmp_path: Path) -> None:
    play(one_cannot_begin, 2, tmp_path / "run")
    [manifest] = [Manifest.from_json(path.read_bytes()) for path in (tmp_path / "run" / manifest_prefix()).iterdir()]
    assert manifest.kind is SaveKind.EMERGENCY
    check_files(tmp_path / "run", manifest)
