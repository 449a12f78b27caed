"""One rank of a small DistributedDataParallel training (gloo, CPU) that can be told to harm itself.

Deterministic: a step's result depends on the seed, the data and the windows skipped before it, never on how often the
run was resumed; so two runs can be compared bit by bit. Dropout draws from a random generator per rank, whose state is
part of each checkpoint. Everything comes from the environment:

    RANK WORLD_SIZE MASTER_ADDR MASTER_PORT   as torchrun sets them
    DDP_FOLDER       holds `end` (end soon, please), `finish` (the last step, which rank 0 then writes down, if nobody
                     has), `poison.json` (the batches whose records are broken, for every attempt), `harm` (do it now)
                     and `trace/`, where each rank writes down what it did
    DDP_CHECKPOINTS  s3:// prefix; without it nothing is saved
    DDP_SAVE_EVERY   steps between checkpoints
    DDP_PACE_S       the least time a step takes
    DDP_FAULT        {"kind", "rank"}: what that rank of the first attempt does to itself, see `Harm`; optional
    REKINDLE_…       what the service tells each attempt (docs/monitor.md)

The lines marked >>> are Rekindle's.
"""

# Annotations must be real here, not texts: DDP reads those of its communication hook.
import hashlib
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rekindle.integrations import torch as rekindle
from rekindle.monitor import SaveResult

SEED = 11
ROWS = 16  # per rank and step
STEPS_PER_EPOCH = 64
FEATURES, HIDDEN, CLASSES = 16, 32, 8
MAX_STEPS = 100_000


class Data:
    """A classification task made on the spot; in each epoch its rows come in another order."""

    def __init__(self, folder: Path, *, rank: int, world_size: int) -> None:
        random = torch.Generator().manual_seed(SEED)
        size = STEPS_PER_EPOCH * ROWS * world_size
        self._inputs = torch.randn(size, FEATURES, generator=random)
        teacher = torch.randn(FEATURES, CLASSES, generator=random)
        noise = torch.randn(size, CLASSES, generator=random)
        self._labels = (self._inputs @ teacher + noise).argmax(dim=1)
        self._poison = folder / "poison.json"
        self._rank, self._world_size = rank, world_size
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """This rank's inputs, labels and row numbers of batch `number`, which is the step's own number."""
        epoch, place = divmod(number - 1, STEPS_PER_EPOCH)
        if epoch != self._epoch:
            self._order = torch.randperm(
                len(self._inputs), generator=torch.Generator().manual_seed(SEED * 1000 + epoch)
            )
            self._epoch = epoch
        first = (place * self._world_size + self._rank) * ROWS
        rows = self._order[first : first + ROWS]
        inputs, labels = self._inputs[rows], self._labels[rows]
        if self._poison.exists() and number in json.loads(self._poison.read_text()):
            inputs, labels = inputs * 30.0, (labels + number) % CLASSES  # too large, and not to be learned
        return inputs, labels, [int(row) for row in rows]


class Harm:
    """What this rank does to itself, if it is the one, once, in the Job's first attempt, as soon as it is told.

    freeze_in_all_reduce  stops its own process (SIGSTOP) inside the all-reduce of the gradients
    nan_gradient          its own share of the gradient becomes NaN before it is averaged
    """

    def __init__(self, env: dict[str, str], folder: Path, rank: int) -> None:
        order = json.loads(env.get("DDP_FAULT", "{}"))
        is_mine = env.get("REKINDLE_ATTEMPT", "1") == "1" and order.get("rank") == rank
        self._kind = order.get("kind") if is_mine else None
        self._told = folder / "harm"
        self._done = folder / "harmed"

    def in_all_reduce(self, step: int) -> None:
        """Called there."""
        if self._is_time("freeze_in_all_reduce", step):
            os.kill(os.getpid(), signal.SIGSTOP)

    def to_gradient(self, step: int, gradient: torch.Tensor) -> torch.Tensor:
        """One parameter's gradient as this rank computed it, or what it becomes."""
        return torch.full_like(gradient, float("nan")) if self._is_time("nan_gradient", step) else gradient

    def _is_time(self, kind: str, step: int) -> bool:
        if self._kind != kind or not self._told.exists():
            return False
        self._kind = None
        print(f"harm: {kind} at step {step}", flush=True)
        self._done.write_text(str(step))
        return True


class Trainer:
    """Model, optimiser, place in the data."""

    def __init__(self, env: dict[str, str]) -> None:
        self.rank, self.world_size = int(env["RANK"]), int(env["WORLD_SIZE"])
        self.folder = Path(env["DDP_FOLDER"])
        self.attempt = env.get("TRAINING_JOB_NAME", "undisturbed")
        self.checkpoints = env.get("DDP_CHECKPOINTS")
        self.step = 0
        self._harm = Harm(env, self.folder, self.rank)
        self._data = Data(self.folder, rank=self.rank, world_size=self.world_size)
        torch.manual_seed(SEED)  # the same weights on every rank
        model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(HIDDEN, CLASSES))
        model[0].weight.register_hook(lambda gradient: self._harm.to_gradient(self.step, gradient))
        # After its first step DDP sorts the gradients into other buckets, unless it looks for unused parameters. Where
        # a gradient lies decides in which order gloo adds the shares of more than two ranks: without this, the first
        # step after a resume would differ in its last bits.
        # Source: torch/csrc/distributed/c10d/reducer.hpp, should_rebuild_buckets.
        self.model = DistributedDataParallel(model, find_unused_parameters=True)
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
        torch.manual_seed(SEED + 1 + self.rank)  # another dropout on every rank
        (self.folder / "trace").mkdir(parents=True, exist_ok=True)
        self._trace = self._open("steps")
        self._saves = self._open("saves")

    def train(self) -> float:
        """One step. Returns this rank's loss."""
        self.step += 1
        inputs, labels, rows = self._data.batch(self.step)
        self.optimiser.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        self.optimiser.step()
        value = loss.item()
        line = {"step": self.step, "loss": value.hex(), "rows": rows, "weights": self.weights_hash()}
        self._trace.write(json.dumps(line) + "\n")
        return value

    def skip(self) -> None:
        """Pass the next batch over."""
        self.step += 1

    def save(self, step: int, kind: str) -> SaveResult | None:
        """On all ranks at the same step: each gives its random state, rank 0 writes."""
        mine = torch.get_rng_state()
        states = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(states, mine)
        self._saves.write(json.dumps({"step": step, "kind": kind}) + "\n")
        if self.rank != 0 or self.checkpoints is None:
            return None
        body = io.BytesIO()
        state = {
            "step": self.step,
            "model": self.model.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": states,
        }
        torch.save(state, body)
        uri = f"{self.checkpoints}/step-{step:06d}-{self.attempt}.pt"
        place = urlsplit(uri)
        _s3().put_object(Bucket=place.netloc, Key=place.path.lstrip("/"), Body=body.getvalue())
        return SaveResult(path=uri)

    def restore(self, uri: str) -> None:
        place = urlsplit(uri)
        body = _s3().get_object(Bucket=place.netloc, Key=place.path.lstrip("/"))["Body"].read()
        state = torch.load(io.BytesIO(body), weights_only=True)
        self.step = state["step"]
        self.model.module.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"][self.rank])
        print(f"resumed after step {self.step} from {uri}", flush=True)

    def is_over(self) -> bool:
        """All ranks end after the same step: rank 0 names the one after next, and none gets past the next alone."""
        if self.step >= MAX_STEPS:
            return True
        finish = self.folder / "finish"
        if self.rank == 0 and (self.folder / "end").exists() and not finish.exists():
            beside = self.folder / ".finish"
            beside.write_text(str(self.step + 2))
            beside.replace(finish)
        try:
            return self.step >= int(finish.read_text())
        except FileNotFoundError:
            return False

    def weights_hash(self) -> str:
        state = self.model.module.state_dict()
        return hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest()

    def close(self) -> None:
        final = {"step": self.step, "weights": self.weights_hash()}
        (self.folder / "trace" / f"final-{self.attempt}-{self.rank}.json").write_text(json.dumps(final))
        self._trace.close()
        self._saves.close()

    def average(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DDP does by itself, with the harm in the middle."""
        self._harm.in_all_reduce(self.step)
        gradient = bucket.buffer().div_(self.world_size)
        return dist.all_reduce(gradient, async_op=True).get_future().then(lambda done: done.value()[0])

    def _open(self, what: str) -> TextIO:
        return (self.folder / "trace" / f"{what}-{self.attempt}-{self.rank}.jsonl").open("a", buffering=1)


def train(trainer: Trainer, *, save_every: int, pace_s: float) -> str:
    """Train until the run is over or the monitor says stop. Returns why it ended."""
    mon = rekindle.start(save=trainer.save)  # >>>
    watch = rekindle.LocalWatch(mon)  # >>>
    trainer.model.register_comm_hook(None, trainer.average)
    watch.gradients(trainer.model)  # >>>
    if mon.resume.uri is not None:  # >>>
        trainer.restore(mon.resume.uri)  # >>>
    why = "finished"
    while not trainer.is_over():
        began = time.monotonic()
        if mon.should_skip(trainer.step + 1):  # >>>
            trainer.skip()
            continue
        loss = trainer.train()
        mon.step(trainer.step, loss=loss, work_s=watch.stepped(trainer.step))  # >>>
        if save_every and trainer.step % save_every == 0:
            with mon.phase("saving"):  # >>>
                saved = trainer.save(trainer.step, "periodic")
            if saved is not None:
                mon.saved(saved.path, trainer.step)  # >>>
        if mon.should_stop:  # >>>
            why = "stopped"
            break
        time.sleep(max(0.0, pace_s - (time.monotonic() - began)))
    watch.close()  # >>>
    mon.finish(why)  # >>>
    return f"{why} after step {trainer.step}"


def _s3() -> Any:
    import boto3

    return boto3.session.Session().client("s3")


def main() -> int:
    """0 when the run ended as it should."""
    env = dict(os.environ)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    dist.init_process_group("gloo")
    trainer = Trainer(env)
    try:
        why = train(trainer, save_every=int(env.get("DDP_SAVE_EVERY", "0")), pace_s=float(env.get("DDP_PACE_S", "0")))
        print(f"rank {trainer.rank}: {why}", flush=True)
    finally:
        trainer.close()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
