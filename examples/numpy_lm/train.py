"""One worker of a data-parallel training run under Rekindle's care. Start as many as WORLD_SIZE says.

Everything comes from the environment, as in a training container:

    RANK WORLD_SIZE MASTER_ADDR MASTER_PORT   who this worker is and where rank 0 listens (as torchrun sets them)
    NUMPY_LM_DATA       folder written by corpus.write_dataset
    NUMPY_LM_STEPS      steps to train; NUMPY_LM_SAVE_EVERY  steps between checkpoints; NUMPY_LM_SEED
    NUMPY_LM_PACE_S     the least time one step takes, so that a tiny model can be watched; 0 for full speed
    NUMPY_LM_TRACE      folder for `<attempt>.jsonl`, one line per step with the exact loss; optional
    DEMO_POISON_STEP    number of a batch that is to be found poisoned; optional
    REKINDLE_…          what the service tells each attempt: mailbox, resume point, data to skip (docs/monitor.md)

Rekindle's part is what stands between the lines marked >>> and <<<.
"""

# ruff: noqa: E402  the variables must be set before NumPy is loaded
from __future__ import annotations

import os

# Several BLAS threads would split sums differently from run to run, and fight over the cores.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import checkpoint
from gang import Gang, GangBroken
from trainer import Setup, Trainer

import rekindle.monitor
from rekindle.monitor import SaveResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """This worker's orders."""

    rank: int
    world_size: int
    address: str
    port: int
    data: Path
    steps: int
    save_every: int
    seed: int
    pace_s: float
    trace: Path | None
    poisoned: tuple[int, ...]
    checkpoints: str
    attempt: str
    attempt_number: int

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        """Raises KeyError for a variable that must be there."""
        trace, poison = env.get("NUMPY_LM_TRACE"), env.get("DEMO_POISON_STEP")
        home = env.get("REKINDLE_MAILBOX") or str(Path("checkpoints").resolve())
        return cls(
            rank=int(env.get("RANK", "0")),
            world_size=int(env.get("WORLD_SIZE", "1")),
            address=env.get("MASTER_ADDR", "127.0.0.1"),
            port=int(env.get("MASTER_PORT", "29500")),
            data=Path(env["NUMPY_LM_DATA"]),
            steps=int(env.get("NUMPY_LM_STEPS", "500")),
            save_every=int(env.get("NUMPY_LM_SAVE_EVERY", "50")),
            seed=int(env.get("NUMPY_LM_SEED", "0")),
            pace_s=float(env.get("NUMPY_LM_PACE_S", "0")),
            trace=Path(trace) if trace else None,
            poisoned=(int(poison),) if poison else (),
            checkpoints=f"{home.rstrip('/')}/checkpoints",
            attempt=env.get("TRAINING_JOB_NAME", "attempt-1"),
            attempt_number=int(env.get("REKINDLE_ATTEMPT", "1")),
        )


class LossTrace:
    """Writes each step down, exactly, as it is done; for those who watch and those who compare."""

    def __init__(self, run: Run) -> None:
        self._number = run.attempt_number
        self._file: TextIO | None = None
        if run.trace is not None and run.rank == 0:
            run.trace.mkdir(parents=True, exist_ok=True)
            self._file = (run.trace / f"{run.attempt}.jsonl").open("a", buffering=1)

    def write(self, step: int, loss: float) -> None:
        """One line; `loss` as float.hex(), which keeps every bit."""
        if self._file is not None:
            line = {"attempt_number": self._number, "step": step, "loss": loss.hex(), "at": time.time()}
            self._file.write(json.dumps(line) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def train(run: Run, gang: Gang) -> str:
    """Train to the last step, or until the monitor says stop. Returns why it ended."""
    setup = Setup(data=run.data, seed=run.seed, workers=run.world_size, poisoned=run.poisoned)
    trainer = Trainer(setup, shares=[run.rank], mean=gang.mean)

    def save(step: int, kind: str) -> SaveResult | None:
        """Every rank holds the same state, so rank 0 writes it for all."""
        if run.rank != 0:
            return None
        place = f"{run.checkpoints}/step-{step:012d}-{run.attempt}"
        state = trainer.checkpoint()
        return SaveResult(path=checkpoint.save(state, place), data={"kind": kind, "updates": state.position["updates"]})

    # >>> all that Rekindle asks of a training script: start, resume, step, saved, finish
    mon = rekindle.monitor.start(
        save=save,
        ranks=rekindle.monitor.Ranks(rank=run.rank, world_size=run.world_size),
        signals=("TERM",),  # SageMaker's stop: save once more, then go
    )
    if mon.resume.uri is not None:
        trainer.restore(checkpoint.load(mon.resume.uri))
    # <<<
    with LossTrace(run) as trace:
        while trainer.step < min(run.steps, len(trainer.sampler)):
            started = time.monotonic()
            if mon.should_skip(trainer.step + 1):  # >>> <<<
                trainer.skip()
                continue
            loss = trainer.train()
            trace.write(trainer.step, loss)
            mon.step(trainer.step, loss=loss)  # >>> <<<
            if trainer.step % run.save_every == 0:
                with mon.phase("saving"):  # >>> <<<
                    saved = save(trainer.step, "periodic")
                if saved is not None:
                    mon.saved(saved.path, trainer.step, data=saved.data)  # >>> <<<
            if mon.should_stop:  # >>> <<<
                mon.finish("stopped")
                return f"stopped after step {trainer.step}"
            time.sleep(max(0.0, run.pace_s - (time.monotonic() - started)))
    mon.finish()  # >>> <<<
    return f"finished at step {trainer.step}"


def main() -> int:
    """0 when the run ended as it should, 1 when a peer was lost."""
    run = Run.from_environment(os.environ)
    try:
        gang = Gang.join(run.rank, run.world_size, run.address, run.port)
        print(f"rank {run.rank}: {train(run, gang)}", flush=True)
    except GangBroken as err:
        print(f"rank {run.rank}: {err}", file=sys.stderr, flush=True)
        if "SM_OUTPUT_DIR" in os.environ:  # what stands in this file becomes the job's FailureReason
            (Path(os.environ["SM_OUTPUT_DIR"]) / "failure").write_text(f"GangBroken: {err}")
        return 1
    gang.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
