"""One rank of a small deterministic training, in one of several kinds, which can be told to harm itself.

TRAIN_KIND:

    plain   no torch: a weight, `rekindle.monitor.start`, no collective; each rank writes its part of a checkpoint
    store   the same, with torch.distributed's store and no process group that could talk (backend "fake")
    gloo    the same, with gloo's process group, which nothing but the start uses
    ddp     DistributedDataParallel; the checkpoint is one file of rank 0's (`save_file`, which gathers on all ranks)
    alone   DistributedDataParallel; rank 0 writes the checkpoint by itself, and start is told so (`saves_alone=True`)
    fsdp2   FSDP2 and torch.distributed.checkpoint

TRAIN_SPEC is JSON: `last` step, `pace_s` per step (a number, or one for each rank), `save_every`, `loss` (how the loss
is given), `start` (further arguments of start), and `ignores_stop`, `never_finishes`, `resumes`. A step's result
depends on its number and the seed alone. The run ends at `last`, or at the step in the file `finish`.
"""

# Annotations must be real here, not texts: DDP reads those of its communication hook.
import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.train.harm import Harm
from tests.train.line import Line

KIND = os.environ.get("TRAIN_KIND", "plain")
SPEC: dict[str, Any] = json.loads(os.environ.get("TRAIN_SPEC", "{}"))
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
HOME = Path(os.environ.get("TRAIN_HOME", "."))
HAS_TORCH = KIND != "plain"


def plain_weight(step: int, weight: float) -> float:
    """The weight after `step`, from the one before it: the same floating point operations on every machine."""
    x = ((step * 7919) % 1009) / 1009.0
    return weight - 0.1 * (weight * x - 3.0 * x) * x


class PlainWork:
    """One weight, the same on every rank."""

    def __init__(self) -> None:
        self.weight = 0.0

    def train(self, step: int) -> Any:
        before, self.weight = self.weight, plain_weight(step, self.weight)
        return (before - 3.0) ** 2 + 0.5

    def poison(self) -> None:
        self.weight = float("nan")

    def digest(self) -> str:
        return self.weight.hex()

    def save(self, step: int, harm: Harm) -> Path:
        folder = HOME / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".rank-{RANK}"
        filler = "x" * int(SPEC.get("filler", 0))
        with beside.open("w") as file:
            file.write(json.dumps({"step": step, "rank": RANK, "weight": self.digest(), "filler": filler}))
        harm.at("half saved", step)
        beside.replace(folder / f"rank-{RANK}.json")
        return folder

    def load(self, path: str) -> int:
        state = json.loads((Path(path) / f"rank-{RANK}.json").read_text())
        self.weight = float.fromhex(state["weight"])
        return int(state["step"])

    def close(self) -> None:
        """Nothing is open."""


def make_work() -> Any:
    if not HAS_TORCH:
        return PlainWork()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    if KIND == "store":
        from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), WORLD, is_master=False)
        dist.init_process_group("fake", store=store, rank=RANK, world_size=WORLD)
    elif int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
        # torchrun keeps its store when it restarts workers in place, and gloo would find the dead ones' addresses.
        # Seen with torch 2.13 and a script of torch alone.
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.PrefixStore("restarted", dist.TCPStore(*address, WORLD, is_master=False))
        dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    else:
        dist.init_process_group("gloo")
    if KIND in ("store", "gloo"):
        return PlainWork()
    from tests.train.scripts.torch_work import TorchWork

    return TorchWork(KIND, HOME, rank=RANK, world=WORLD, lr=float(SPEC.get("lr", 3e-3)))


def start(work: Any, harm: Harm, line: Line, timer: dict[str, float]) -> Any:
    def save(step: int, kind: str) -> Any:
        began = time.monotonic()
        line.send("save", step=step, kind=kind)
        try:
            if kind == "emergency":  # the script's own saves fail as they would without Rekindle
                harm.at("save", step)
            path = work.save(step, harm)
            if (nonsense := harm.has("nonsense")) is not None:
                path = {"none": None, "number": 42, "missing": HOME / "nowhere", "object": object()}[nonsense["what"]]
            if kind == "emergency":
                harm.at("saved", step)
            line.send("saved", step=step, kind=kind)
            return path
        finally:
            timer["own"] += time.monotonic() - began

    more = dict(SPEC.get("start", {})) | SPEC.get(f"start of {RANK}", {})
    if KIND == "alone":
        from rekindle.monitor import Ranks

        more["ranks"] = Ranks(saves_alone=True)
    if not SPEC.get("has_no_save"):
        more["save"] = save
    if HAS_TORCH:
        from rekindle.integrations import torch as rekindle

        if SPEC.get("second monitor"):
            rekindle.start(**({"save": None} | more))
        return rekindle.start(**({"save": None} | more)), save
    import rekindle.monitor as monitor

    if SPEC.get("second monitor"):
        monitor.start(**({"signals": ("TERM", "USR1")} | more))
    return monitor.start(**({"signals": ("TERM", "USR1")} | more)), save


def given_loss(work: Any, loss: Any, step: int, harm: Harm) -> Any:
    """The loss in the form that the story asks for."""
    form = SPEC.get("loss", "as it is")
    if (bad := harm.has("bad loss", step)) is not None:
        return {"nan": float("nan"), "inf": float("inf"), "text": "2.0", "list": [1.0, 2.0], "none": None}[bad["what"]]
    if form == "as it is":
        return loss
    import torch

    value = torch.as_tensor(float(loss))
    if form == "vector":
        return value.repeat(3)
    if form == "zeroed":
        work.accumulator = getattr(work, "accumulator", torch.zeros(()))
        work.accumulator.copy_(value)
        return work.accumulator
    if form == "integer":
        return torch.tensor(3)
    return value


def pace_of(step: int) -> float:
    pace = SPEC.get("pace_s", 0.02)
    own = float(pace[RANK % len(pace)]) if isinstance(pace, list) else float(pace)
    every, long_s = SPEC.get("long step", (0, 0.0))
    return float(long_s) if every and step % every == 0 else own


def is_over(step: int) -> bool:
    """Rank 0 names the last step when the launcher asks for the end; ranks that work together cannot get past it."""
    finish = HOME / "finish"
    if RANK == 0 and (HOME / "end").exists() and not finish.exists():
        beside = HOME / ".finish"
        beside.write_text(str(step + (2 if KIND not in ("plain", "store", "gloo") else 10)))
        beside.replace(finish)
    with contextlib.suppress(FileNotFoundError, ValueError):
        return step >= int(finish.read_text())
    return False


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads_left() -> list[str]:
    """Rekindle's, which end by themselves; a moment may pass until the last of them is gone."""
    for _ in range(100):
        found = sorted(one.name for one in threading.enumerate() if one.name.startswith("rekindle"))
        if not found:
            break
        time.sleep(0.05)
    return found


def run(line: Line, harm: Harm) -> str:
    work = make_work()
    before = descriptors()
    timer = {"own": 0.0}
    harm.at("before start")
    began = time.monotonic()
    mon, save = start(work, harm, line, timer)
    line.send("started", took_s=time.monotonic() - began, silent=mon.is_silent, resume=mon.resume.step)
    harm.at("started")
    first = 1
    if mon.resume_path is not None:
        first = work.load(mon.resume_path) + 1
    elif mon.resume.uri is not None:
        raise SystemExit("resume is not on this machine")
    why = "finished"
    for step in range(first, int(SPEC.get("last", 400)) + 1):
        step_began = time.monotonic()
        harm.at("step", step)
        loss = work.train(step)
        if harm.has("poisoned weights", step) is not None:
            work.poison()
        digest = work.digest()
        timer["own"], began = 0.0, time.monotonic()
        lost = harm.has("lost call")
        if lost is None or lost["step"] != step:
            mon.step(step, loss=given_loss(work, loss, step, harm))
        held_s = time.monotonic() - began - timer["own"]
        if SPEC.get("loss") == "zeroed":
            work.accumulator.zero_()
        line.send("step", step=step, held_s=held_s, digest=digest, step_s=time.monotonic() - step_began)
        harm.at("stepped", step)
        every = int(SPEC.get("save_every", 0))
        if every and step % every == 0:
            if SPEC.get("in the background"):
                try:
                    work.save_in_the_background(step, mon)
                except Exception as err:  # a script that goes on without its periodic checkpoint
                    line.send("background failed", why=f"{err!r}"[:300])
            else:
                with mon.phase("saving"):
                    path = save(step, "periodic")
                mon.saved(path, step, by_all_ranks=True)
        if mon.should_stop:
            line.send("stop", step=step)
            if not SPEC.get("ignores_stop"):
                why = "stopped"
                break
        time.sleep(max(0.0, pace_of(step) - (time.monotonic() - step_began)))
        if is_over(step):
            break
    harm.at("finish")
    if SPEC.get("never_finishes"):
        return why
    began = time.monotonic()
    if HAS_TORCH:
        from rekindle.integrations import torch as rekindle

        rekindle.finish(mon)
    else:
        mon.finish(why)
    took_s = time.monotonic() - began
    threads = threads_left()
    line.send(
        "finished", took_s=took_s, threads=threads, descriptors=descriptors() - before, health=mon.health(), why=why
    )
    work.close()
    return why


def main() -> int:
    """0 when the run ended as it should."""
    faulthandler.enable()
    line = Line(rank=RANK, world=WORLD)
    harm = Harm(line)
    try:
        why = run(line, harm)
    except BaseException as err:
        line.send("bye", why=f"{type(err).__name__}: {err}"[:1000])
        raise
    if HAS_TORCH:
        import torch.distributed as dist

        dist.destroy_process_group()
    line.send("bye", why=why)
    return 0


if __name__ == "__main__":
    sys.exit(main())
