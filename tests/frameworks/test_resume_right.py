"""What is resumed from is what the run itself saved last, whole and of numbers; real files, real killed processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file as save_safetensors
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.utils.data import DataLoader, Dataset

from rekindle.checkpoints.folders import discover_in, newest_complete, problems_at
from rekindle.integrations import torch as integration
from rekindle.integrations.rng import draws_of, restore_rng, rng_state
from rekindle.protocol.launch_orders import ResumePlan

PATIENCE_S = 240


def trained(fill: float | None = None, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with one step behind it; `fill` replaces one weight matrix of several."""
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 4)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.arange(8)).float().sum().backward()
    optimizer.step()
    if fill is not None:
        with torch.no_grad():
            model[1].weight.fill_(fill)
    return model, optimizer


def write(path: Path, step: int, fill: float | None = None, dtype: torch.dtype = torch.float32) -> Path:
    model, optimizer = trained(fill, dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def write_dcp(path: Path, fill: float | None = None) -> Path:
    weights, moments = get_state_dict(*trained(fill))
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path, no_dist=True)
    return path


# ---- NaN and damage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_file_whose_weights_are_not_numbers_is_passed_over(tmp_path: Path, dtype: torch.dtype) -> None:
    write(tmp_path / "step-10.pt", 10, dtype=dtype)
    write(tmp_path / "step-20.pt", 20, float("nan"), dtype=dtype)
    assert "holds NaN" in problems_at(tmp_path / "step-20.pt")[0]
    newest = newest_complete(tmp_path)
    assert newest is not None
    assert newest.step == 10


def test_infinite_masks_and_rows_of_metrics_that_are_not_numbers_are_weights_of_nobody(tmp_path: Path) -> None:
    model, optimizer = trained()
    mask = torch.full((64, 64), float("-inf")).triu()
    state = {"step": 3, "model": {**model.state_dict(), "mask": mask}, "optimizer": optimizer.state_dict()}
    torch.save(
        {**state, "history": torch.full((100,), float("nan")), "best": torch.tensor(float("nan"))},
        tmp_path / "step-3.pt",
    )
    assert problems_at(tmp_path / "step-3.pt") == ()


def test_sharded_and_safetensors_weights_that_are_not_numbers_are_told(tmp_path: Path) -> None:
    assert problems_at(write_dcp(tmp_path / "step-1")) == ()
    assert any("holds NaN" in problem for problem in problems_at(write_dcp(tmp_path / "step-2", float("nan"))))
    good = {"a.weight": torch.ones(64, 64), "b.weight": torch.ones(64, 64, dtype=torch.bfloat16), "c": torch.ones(3)}
    save_safetensors(good, str(tmp_path / "model_1.safetensors"))
    assert problems_at(tmp_path / "model_1.safetensors") == ()
    for name in ("a.weight", "b.weight"):
        bad = good | {name: good[name] * float("nan")}
        save_safetensors(bad, str(tmp_path / "model_2.safetensors"))
        assert "holds NaN" in problems_at(tmp_path / "model_2.safetensors")[0]


def test_an_archive_with_a_broken_directory_is_not_loaded_and_the_error_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "step-5.pt", 5)
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"PK\x01\x02")
    raw[at + 42 : at + 46] = (2**31).to_bytes(4, "little")  # where that member lies
    path.write_bytes(raw)
    model, optimizer = trained()
    with pytest.raises(OSError, match=r"is not whole: step-5.pt is damaged") as caught:
        integration.load_file(path, model=model, optimizer=optimizer)
    assert "\n" not in str(caught.value)
    raw[at : at + 4] = b"XXXX"
    path.write_bytes(raw)
    assert "is damaged" in problems_at(path)[0]
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        integration.load_dcp(tmp_path / "gone", model=model)


def test_a_dcp_folder_without_a_shard_is_not_loaded(tmp_path: Path) -> None:
    model, optimizer = trained()
    folder = integration.save_dcp(tmp_path / "step-5", step=5, model=model, optimizer=optimizer)
    next(folder.glob("*.distcp")).unlink()
    with pytest.raises(OSError, match=r"is not whole: .*distcp is missing"):
        integration.load_dcp(folder, model=model, optimizer=optimizer)


# ---- whose checkpoint it is ----------------------------------------------------------------------------------------


def test_what_lies_beside_the_runs_own_checkpoints_is_not_resumed_from(tmp_path: Path) -> None:
    model, optimizer = trained()
    for step in (10, 20):
        write(tmp_path / f"step-{step}.pt", step)
    write(tmp_path / "best_step-900.pt", 900)
    write(tmp_path / "eval" / "step-901.pt", 901)
    torch.save(model.state_dict(), tmp_path / "ema_step-902.pt")
    torch.save({"model": model.state_dict()}, tmp_path / "model_903.pt")  # weights only
    torch.save(optimizer.state_dict(), tmp_path / "state_904.pt")  # an optimizer only
    (tmp_path / "samples").mkdir()
    np.savez(tmp_path / "samples" / "step_905.npz", images=np.zeros((4, 8)))
    newest = newest_complete(tmp_path)
    assert newest is not None
    assert newest.root == "step-20.pt"
    problems = {item.root: item.problems for item in discover_in(tmp_path) if item.problems}
    assert len(problems) == 6
    assert "(best)" in problems["best_step-900.pt"][0]
    assert problems["state_904.pt"] == ("it holds no weights",)


def test_two_runs_in_one_folder_are_not_guessed_between_unless_one_is_known(tmp_path: Path) -> None:
    write(tmp_path / "small-step-10.pt", 10)
    write(tmp_path / "large-step-20.pt", 20)
    assert newest_complete(tmp_path) is None
    assert all("is not known" in item.problems[0] for item in discover_in(tmp_path))
    known = newest_complete(tmp_path, like=[str(tmp_path / "small-step-5.pt")])
    assert known is not None
    assert known.root == "small-step-10.pt"


def test_periodic_and_emergency_saves_are_one_family(tmp_path: Path) -> None:
    for kind, step in (("periodic", 10), ("emergency", 15)):
        write(tmp_path / f"{kind}-step-{step}.pt", step)
    newest = newest_complete(tmp_path)
    assert newest is not None
    assert newest.step == 15


# ---- another save's files --------------------------------------------------------------------------------------------


def test_a_folder_with_a_shard_of_another_save_is_not_whole(tmp_path: Path) -> None:
    write_dcp(tmp_path / "step-1")
    torn = next(write_dcp(tmp_path / "step-2").glob("*.distcp"))
    torn.write_bytes(torn.read_bytes() + b"\0" * 4096)
    newest = newest_complete(tmp_path)
    assert newest is not None
    assert newest.step == 1
    assert "it is of another save" in discover_in(tmp_path)[0].problems[0]


def test_files_that_came_in_another_order_are_whole_where_their_content_is(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "step-1")
    ended = (folder / ".metadata").stat().st_mtime
    os.utime(next(folder.glob("*.distcp")), (ended + 30, ended + 30))
    (folder / "fp32.bin").write_bytes((folder / ".metadata").read_bytes())
    assert discover_in(tmp_path)[0].is_complete


KILLED = """
import os, signal, sys, threading, torch
from rekindle.integrations import torch as integration
folder = sys.argv[1]
model = torch.nn.Linear(64, 64)
integration.save_dcp(f"{folder}/step-1", step=1, model=model)
integration.save_file(f"{folder}/file/step-1.pt", step=1, model=model)
import torch.distributed.checkpoint as dcp
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "folder":
    dcp.filesystem.FileSystemWriter.finish = die  # every shard is written, and no metadata
    integration.save_dcp(f"{folder}/step-1", step=1 + 1, model=model)
[thread.join() for thread in threading.enumerate() if thread.name == "rekindle-clean"]  # which sync a file, too
os.fsync = die
integration.save_file(f"{folder}/file/step-1.pt", step=2, model=model)
"""
CLEANS = """
import sys, torch
from rekindle.integrations import torch as integration
import threading
model = torch.nn.Linear(64, 64)
integration.save_dcp(f"{sys.argv[1]}/step-3", step=3, model=model)
integration.save_file(f"{sys.argv[1]}/file/step-3.pt", step=3, model=model)
[thread.join() for thread in threading.enumerate() if thread.name == "rekindle-clean"]
"""


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_save_that_was_killed_leaves_the_checkpoint_before_it_and_is_cleaned_up_by_the_next_process(
    tmp_path: Path, kind: str
) -> None:
    first = subprocess.run([sys.executable, "-c", KILLED, tmp_path, kind], timeout=PATIENCE_S, check=False)
    assert first.returncode == -signal.SIGKILL
    left = [
        path for path in tmp_path.rglob("*rekindle-*") if ".rekindle-" in path.name or ".tmp-rekindle-" in path.name
    ]
    assert left
    model = nn.Linear(64, 64)
    assert integration.load_dcp(tmp_path / "step-1", model=model)["step"] == 1
    assert integration.load_file(tmp_path / "file" / "step-1.pt", model=model)["step"] == 1
    strange = tmp_path / "step-9.tmp-theirs"  # of another program
    strange.mkdir()
    subprocess.run([sys.executable, "-c", CLEANS, tmp_path], timeout=PATIENCE_S, check=True)
    assert not [path for path in left if path.exists()]
    assert strange.is_dir()
    newest = newest_complete(tmp_path, like=[str(tmp_path / "step-1")])
    assert newest is not None
    assert newest.root == "step-3"


RANKS = """
import os, sys, time, torch.distributed as dist
from pathlib import Path
from rekindle.integrations import torch as integration
dist.init_process_group("gloo")
rank, target = dist.get_rank(), Path(sys.argv[1]) / "step-1"
with integration.write_folder(target) as beside:
    assert not target.exists()
    (beside / f"{rank}.bin").write_bytes(b"x")
assert sorted(path.name for path in target.iterdir()) == ["0.bin", "1.bin", "2.bin"]
for is_made_again in (True, False):
    try:
        with integration.write_folder(target) as beside:
            dist.barrier()  # all have made it
            if rank == 2:
                raise OSError(28, "No space left on device")
            while rank == 1 and beside.exists():  # this rank is still writing when the others take the folder away
                time.sleep(0.01)
            if is_made_again:
                beside.mkdir(exist_ok=True)
            (beside / f"{rank}.bin").write_bytes(b"again")
    except OSError as err:
        assert rank == 2, err
        print(rank, "full", flush=True)
    except RuntimeError as err:
        print(rank, err, flush=True)
    else:
        raise AssertionError("a folder without rank 2's part")
    dist.barrier()
assert {path.read_bytes() for path in target.iterdir()} == {b"x"}
model = __import__("torch").nn.Linear(8, 8)
folder = integration.save_dcp(Path(sys.argv[1]) / "step-5", step=5, model=model)
before = (folder / ".metadata").stat().st_ino
assert integration.save_dcp(folder, step=5, model=model) == folder  # an emergency at the periodic save's step
assert (folder / ".metadata").stat().st_ino == before
done = []
integration.save_dcp(Path(sys.argv[1]) / "step-6", step=6, model=model, on_done=lambda path, step: done.append(step))
integration.save_dcp(Path(sys.argv[1]) / "step-6", step=6, model=model, on_done=lambda path, step: done.append(step))
integration.wait_for_dcp()
assert done == ([6] if rank == 0 else []), done
assert integration.load_dcp(Path(sys.argv[1]) / "step-6", model=model)["step"] == 6
dist.destroy_process_group()
"""


def torchrun(ranks: int, script: Path, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    restarts = env.pop("RESTARTS", "0")
    return subprocess.run(
        [*command, f"--max-restarts={restarts}", str(script), *map(str, args)],
        # A store for each start: in torchrun's own, gloo finds the addresses of the killed ranks (torch 2.13).
        env={
            **os.environ,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path.cwd()),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_folder_gets_its_name_when_all_ranks_have_written_and_keeps_its_old_content_when_one_fails(
    tmp_path: Path,
) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    done = torchrun(3, script, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("the checkpoint is not whole: rank 2: OSError(28") == 4
    assert not [path for path in tmp_path.iterdir() if ".tmp-" in path.name]


# ---- the same attempt, started again -------------------------------------------------------------------------------

AGAIN = """
import json, os, sys, torch, torch.distributed as dist
from pathlib import Path
from rekindle.integrations import torch as rekindle
home = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
def save(step, kind):
    return rekindle.save_file(home / "ckpt" / f"step-{step}.pt", step=step, model=model, optimizer=optimizer)
mon = rekindle.start(save=save)
if mon.resume_path:
    rekindle.load_file(mon.resume_path, model=model, optimizer=optimizer)
first = (mon.resume.step or 0) + 1
with (home / f"starts-{rank}").open("a") as file:
    file.write(json.dumps([os.environ["TORCHELASTIC_RESTART_COUNT"], mon.resume.step, mon.should_skip(7)]) + "\\n")
for step in range(first, 61):
    if mon.should_skip(step):
        continue
    random = torch.Generator().manual_seed(step)
    optimizer.zero_grad()
    loss = ((model(torch.randn(4, 8, generator=random))) ** 2).mean()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        path = save(step, "periodic")
        mon.saved(path, step)
        mon.flush(60)
        dist.barrier()
    mon.step(step, loss=float(loss))
    if step == 45 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), 9)
if rank == 0:
    (home / f"end-{sys.argv[2]}").write_text(repr([p.tolist() for p in model.parameters()]))
rekindle.finish(mon)
dist.destroy_process_group()
"""


def test_torchruns_restart_goes_on_from_what_the_attempt_has_sealed_and_keeps_skipping(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    ends = {}
    for name, crashes in (("killed", "0"), ("whole", "1")):
        home = tmp_path / name
        home.mkdir()
        env = {
            "REKINDLE_JOB_ID": "job",
            "TRAINING_JOB_NAME": "run-1",
            "REKINDLE_MAILBOX": str(home / "box"),
            "REKINDLE_METRICS": "off",
            "REKINDLE_SKIP": "[[7,9]]",
            "RESTARTS": "1",
        }
        text = AGAIN if crashes == "0" else AGAIN.replace("os.kill(os.getpid(), 9)", "pass")
        script.write_text(text)
        done = torchrun(2, script, home, name, **env)
        assert done.returncode == 0, done.stderr[-3000:]
        ends[name] = (home / f"end-{name}").read_text()
        if name == "killed":
            for rank in range(2):
                lines = (home / f"starts-{rank}").read_text().splitlines()
                assert lines == ['["0", null, true]', '["1", 40, true]']
    assert ends["killed"] == ends["whole"]


# ---- data that draw random numbers ---------------------------------------------------------------------------------


class Noisy(Dataset[torch.Tensor]):
    """Samples with noise of all three generators on them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.rand(1) + random.random() + np.random.rand()
        return torch.tensor([float(index)]) + noise.float()


def drawn(
    workers: int, first: int, last: int, state: dict[str, object] | None
) -> tuple[list[object], Callable[[], object]]:
    """Each batch, and a draw of the training after it; and the generators' state after the last."""
    if state is not None:
        restore_rng(state)
    sampler = integration.ResumableSampler(Noisy(), batch_size=4, rank=0, world_size=1, resume=ResumePlan(step=first))
    loader = DataLoader(Noisy(), batch_sampler=sampler, num_workers=workers)
    seen: list[object] = []
    for step, batch in sampler.steps(loader, last):
        seen.append((step, batch.flatten().tolist(), torch.rand(1).item()))
        if step == last:
            break
    return seen, rng_state


@pytest.mark.parametrize("workers", [0, 2])
def test_data_that_draw_random_numbers_draw_the_same_after_a_resume(workers: int) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    whole, _ = drawn(workers, 0, 16, None)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    begun, state = drawn(workers, 0, 6, None)
    kept = state()
    torch.manual_seed(99)
    rest, _ = drawn(workers, 6, 16, kept)  # type: ignore[arg-type]
    assert begun + rest == whole
    assert len({str(batch) for batch in whole}) == 16


def test_whether_data_draw_is_seen_without_drawing() -> None:
    before = rng_state()
    assert draws_of(Noisy()) == "torch"
    assert draws_of(list(range(5))) is None
    assert draws_of(iter(())) is None
    after = rng_state()
    assert torch.equal(before["torch"], after["torch"])
    assert before["python"] == after["python"]


class Opened(Dataset[int]):
    """Opens its file when it is first read, so that each worker has one of its own, as HDF5 and LMDB need it."""

    def __init__(self) -> None:
        self.opened_by: int | None = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.opened_by = self.opened_by or os.getpid()
        return self.opened_by


def test_data_that_are_opened_in_each_worker_are_not_read_in_the_process_that_forks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from rekindle.integrations.accelerate import Rekindle

    for name, value in {"REKINDLE_JOB_ID": "job", "REKINDLE_MAILBOX": str(tmp_path), "REKINDLE_METRICS": "off"}.items():
        monkeypatch.setenv(name, value)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator, data = Accelerator(cpu=True), Opened()
    run = Rekindle(accelerator, tmp_path / "checkpoints", signals=())
    opened_by = {
        int(number)
        for _, batch in run.steps(accelerator.prepare(DataLoader(data, num_workers=2)), 4)
        for number in batch
    }
    run.finish()
    assert data.opened_by is None
    assert os.getpid() not in opened_by
    assert len(opened_by) == 2


def test_a_background_save_that_failed_does_not_prevent_the_next(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    ended = threading.Event()

    def full(*_: object) -> None:
        ended.set()
        raise OSError(28, "No space left on device")

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        integration.save_dcp(tmp_path / "step-1", step=1, model=model, on_done=full)
        assert ended.wait(PATIENCE_S)
        done: list[int] = []
        integration.save_dcp(tmp_path / "step-2", step=2, model=model, on_done=lambda _, step: done.append(step))
        integration.wait_for_dcp()
        assert done == [2]
    finally:
        torch.distributed.destroy_process_group()
