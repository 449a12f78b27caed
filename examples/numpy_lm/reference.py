"""The run that nothing ever happened to: one process computes every worker's share, in the order of the ranks.

Reads commands from standard input, one JSON object a line, and answers each on standard output:

    {"to": 400}                          train up to step 400
    {"to": 900, "skip": [[401, 402]]}    go on to step 900, leaving out the data of these steps [from, to)
    -> {"losses": {"1": "0x1.3d…p+2", …}}     exact, as float.hex(); skipped steps are not in it

Ends with its input. Usage: python reference.py DATA_FOLDER SEED WORKERS
"""

# ruff: noqa: E402  the variables must be set before NumPy is loaded
from __future__ import annotations

import os

# Several BLAS threads would split sums differently, and fight over the cores.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import json
import sys
from pathlib import Path

from corpus import in_windows
from trainer import Setup, Trainer


def main(data: str, seed: str, workers: str) -> None:
    """Serve commands until standard input ends."""
    setup = Setup(data=Path(data), seed=int(seed), workers=int(workers))
    trainer = Trainer(setup, shares=range(setup.workers))
    for line in sys.stdin:
        command = json.loads(line)
        losses = {}
        while trainer.step < command["to"]:
            if in_windows(trainer.step + 1, command.get("skip", ())):
                trainer.skip()
            else:
                loss = trainer.train()
                losses[trainer.step] = loss.hex()
        print(json.dumps({"losses": losses}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
