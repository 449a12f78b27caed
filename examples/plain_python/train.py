"""The smallest training script with Rekindle beside it: one process, one weight, one file per checkpoint.

    python examples/plain_python/train.py /tmp/run --steps 300

Kill it, start it again with REKINDLE_RESUME_URI and REKINDLE_RESUME_STEP set, and it continues where it was. Drop a
request into <folder>/rekindle/requests/ while it runs, and it saves, seals and answers. On AWS nothing in here
changes: the service sets the environment.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import rekindle.monitor as rekindle


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path, help="where checkpoints and the mailbox lie")
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--save-every", type=int, default=100)
    arguments.add_argument("--step-s", type=float, default=0.01, help="how long a step takes")
    given = arguments.parse_args()
    folder: Path = given.folder.absolute()
    weight, first = 0.0, 1

    def save(step: int, kind: str) -> Path:
        """Called by the monitor for emergency checkpoints, and by the loop below for periodic ones."""
        path = folder / f"step-{step:06d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"weight": weight, "step": step, "kind": kind}))
        return path

    mon = rekindle.start(save=save, mailbox=str(folder), job_id="plain-python", signals=("TERM",))
    if mon.resume_path is not None:
        state = json.loads(Path(mon.resume_path).read_text())
        weight, first = state["weight"], state["step"] + 1

    for step in range(first, given.steps + 1):
        if mon.should_skip(step):
            continue
        x = random.Random(step).uniform(-1, 1)  # the batch belongs to the step: a resumed run sees the same data
        error = weight * x - 3 * x
        weight -= 0.1 * error * x
        time.sleep(given.step_s)  # stands for the work of a real step
        mon.step(step, loss=error * error)
        if step % given.save_every == 0:
            mon.saved(save(step, "periodic"), step)
        if mon.should_stop:
            break
    mon.finish()
    print(f"weight {weight:.6f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
