"""One rank on a host of its own whose view of the checkpoints' file system is late: `late_rank.py HOME RANK LATE_S`.

Each rank writes its own file of a checkpoint. Rank 0 looks into the folder before the other has written, so that its
kernel keeps what it saw.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from pathlib import Path

from tests.monitor.late_mount import enter

HOME, RANK, LATE_S = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
PLACE = HOME / "shared"
enter(PLACE, HOME / "behind", LATE_S)

import rekindle.monitor as rekindle  # noqa: E402  its threads begin in the namespace
from rekindle.monitor.saving.seal import Sealer  # noqa: E402

if LATE_S > 60:  # what is never seen need not be waited for until the request's deadline
    setattr(Sealer, "_wait_s", lambda *_: 2.0)  # noqa: B010

pause = threading.Event()


def meet(what: str) -> None:
    """Beside the mount: what ranks tell each other by the network is not late."""
    (HOME / f"{what}-{RANK}").touch()
    while not (HOME / f"{what}-{1 - RANK}").exists():
        pause.wait(0.01)


def save(step: int, kind: str) -> Path:
    folder = PLACE / f"step-{step}"
    folder.mkdir(exist_ok=True)
    mine = folder / f"rank{RANK}.pkl"
    if RANK == 0:
        mine.write_bytes(pickle.dumps({"step": step, "rank": RANK}))
        seen = sorted(os.listdir(folder)), os.path.exists(folder / "rank1.pkl")
    meet(f"seen-{step}")
    if RANK == 1:
        mine.write_bytes(pickle.dumps({"step": step, "rank": RANK, "w": [1.0] * 5000}))
    meet(f"written-{step}")
    if RANK == 0:
        late = sorted(os.listdir(folder)), os.path.exists(folder / "rank1.pkl")
        (HOME / "views.json").write_text(json.dumps([seen, late]))
    return folder


monitor = rekindle.start(save=save)
step = 0
while not (HOME / "stop").exists():
    step += 1
    monitor.step(step, loss=1.0)
    pause.wait(0.02)
monitor.finish()
