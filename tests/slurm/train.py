"""One rank of a small data-parallel run, started by `srun`: the model of examples/numpy_lm, Rekindle's monitor.

    LM_FOLDER   folder of this run: data/ (corpus.write_dataset), trace/, and the files by which a test steers it
    LM_PORT0    first of 30 ports for the ranks to meet at; each start of each job has its own
    LM_SAVE_EVERY, LM_PACE_S, LM_SEED
    REKINDLE_MAILBOX and the rest: docs/monitor.md

Files in the folder, each looked at once a step:

    crash-<rank>   that rank raises an error of its own, once
    end            the run is to end soon, in order: rank 0 names the last step in the file `finish`
    late           a rank that has lost its peers lives on, where there is this file at that moment; when the file is
                   removed it saves, spoiled, and says that it saved: what a zombie does

Each step is written down, exactly, in trace/<job>.<restart>-<rank>.jsonl; saves in trace/saves-….jsonl.
"""

# ruff: noqa: E402  the variables must be set before NumPy is loaded, the path before the example's modules
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # several BLAS threads would split sums differently from run to run

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "numpy_lm"))

import checkpoint
from gang import Gang, GangBroken
from trainer import Setup, Trainer

import rekindle.monitor
from rekindle.monitor import SaveResult

PORTS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """This rank's orders."""

    rank: int
    world_size: int
    port: int
    folder: Path
    save_every: int
    seed: int
    pace_s: float
    checkpoints: str
    start: str

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Run:
        job, restart = int(env["SLURM_JOB_ID"]), int(env.get("SLURM_RESTART_COUNT", "0"))
        return cls(
            rank=int(env["SLURM_PROCID"]),
            world_size=int(env["SLURM_NTASKS"]),
            port=int(env["LM_PORT0"]) + (job * 7 + restart) % PORTS,
            folder=Path(env["LM_FOLDER"]),
            save_every=int(env["LM_SAVE_EVERY"]),
            seed=int(env["LM_SEED"]),
            pace_s=float(env["LM_PACE_S"]),
            checkpoints=f"{env['REKINDLE_MAILBOX'].rstrip('/')}/checkpoints",
            start=f"{job}.{restart}",
        )

    def note(self, name: str, **facts: object) -> None:
        """One whole line of the trace, in one write."""
        with (self.folder / "trace" / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(facts) + "\n")


def train(run: Run, gang: Gang) -> str:
    """Train to the last step, or until the monitor says stop. Returns why it ended."""
    trainer = Trainer(
        Setup(data=run.folder / "data", seed=run.seed, workers=run.world_size), shares=[run.rank], mean=gang.mean
    )

    def save(step: int, kind: str) -> SaveResult | None:
        """Every rank holds the same state, so rank 0 writes it for all."""
        if run.rank != 0:
            return None
        place = checkpoint.save(trainer.checkpoint(), f"{run.checkpoints}/step-{step:012d}-{run.start}")
        run.note(f"saves-{run.start}", step=step, kind=kind, place=place)
        return SaveResult(path=place)

    mon = rekindle.monitor.start(
        save=save,
        ranks=rekindle.monitor.Ranks(rank=run.rank, world_size=run.world_size),
    )
    if mon.resume.uri is not None:
        trainer.restore(checkpoint.load(mon.resume.uri))
    run.note(f"starts-{run.rank}", start=run.start, resumed=trainer.step, uri=mon.resume.uri, pid=os.getpid())
    crash = run.folder / f"crash-{run.rank}"
    try:
        while True:
            began = time.monotonic()
            if mon.should_skip(trainer.step + 1):
                trainer.skip()
                continue
            loss = trainer.train()
            run.note(f"{run.start}-{run.rank}", step=trainer.step, loss=loss.hex())
            mon.step(trainer.step, loss=loss)
            if trainer.step % run.save_every == 0:
                saved = save(trainer.step, "periodic")
                if saved is not None:
                    mon.saved(saved.path, trainer.step)
            if mon.should_stop:
                mon.finish("stopped")
                return f"stopped after step {trainer.step}"
            if crash.exists():
                crash.unlink()
                raise ZeroDivisionError("the owner's own mistake")
            if is_over(run, trainer.step):
                break
            time.sleep(max(0.0, run.pace_s - (time.monotonic() - began)))
    except GangBroken:
        if not (run.folder / "late").exists():
            raise
        haunt(run, trainer, mon)
        raise
    mon.finish()
    return f"finished at step {trainer.step}"


def is_over(run: Run, step: int) -> bool:
    """All ranks end after the same step: rank 0 names the one after next, and none gets past the next alone."""
    finish = run.folder / "finish"
    if run.rank == 0 and (run.folder / "end").exists() and not finish.exists():
        beside = run.folder / ".finish"
        beside.write_text(str(step + 2))
        beside.replace(finish)
    return finish.exists() and step >= int(finish.read_text())


def haunt(run: Run, trainer: Trainer, mon: rekindle.monitor.Monitor) -> None:
    """Live on without peers, and save when everybody else is further: a state that no run may go on from."""
    run.note("zombies", start=run.start, rank=run.rank, pid=os.getpid(), step=trainer.step)
    while (run.folder / "late").exists():
        time.sleep(0.05)
    trainer.model.flat += 1.0
    place = f"{run.checkpoints}/step-{trainer.step:012d}-{run.start}-late"
    checkpoint.save(trainer.checkpoint(), place)
    mon.saved(place, trainer.step)
    mon.finish()  # seals what has been saved, if it may
    run.note("zombies", start=run.start, rank=run.rank, pid=os.getpid(), step=trainer.step, saved=place)


def main() -> int:
    """0 when the run ended as it should, 1 when a peer was lost."""
    run = Run.from_environment(os.environ)
    (run.folder / "trace").mkdir(parents=True, exist_ok=True)
    try:
        gang = Gang.join(run.rank, run.world_size, "127.0.0.1", run.port, limit_s=240)
        print(f"rank {run.rank}: {train(run, gang)}", flush=True)
    except GangBroken as err:
        print(f"rank {run.rank}: {err}", file=sys.stderr, flush=True)
        return 1
    gang.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
