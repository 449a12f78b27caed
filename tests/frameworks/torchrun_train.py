"""A script for torchrun whose ranks 0 and 2 wait for each other for ever once rank 1 is gone.

    torchrun ... torchrun_train.py FOLDER stuck|stop

`stuck`: rank 1 kills itself, the others sit in a collective that does not notice; the restart ends at once.
`stop`: all train until they are told to stop; rank 0 needs a while to save.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rekindle.integrations import torch_ranks


def main() -> None:
    here, what = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["RANK"])
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        sys.stdout.write(f"restarted {rank}\n")  # one write: torchrun runs its ranks with -u, where print() makes two
        return
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    pair = dist.new_group([0, 2])
    saved = threading.Event()

    def save(step: int, kind: str) -> Path | None:
        if rank != 0:
            return None
        saved.wait(4)  # longer than the others need to end
        path = here / f"step-{step}.bin"
        path.write_bytes(b"weights")
        return path

    os.environ |= {"REKINDLE_JOB_ID": "job", "REKINDLE_MAILBOX": str(here / "box")}
    monitor = torch_ranks.start(save=save)
    assert not monitor.is_silent
    for step in range(1, 20 if what == "stuck" else 1_000_000):
        dist.all_reduce(torch.ones(1))
        saved.wait(0.01)
        monitor.step(step, loss=1.0)
        if step == 19 and rank == 0:
            print("ready", flush=True)
        if monitor.should_stop:
            break
    if what == "stuck":
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.recv(torch.zeros(1), src=2 if rank == 0 else 0, group=pair)
    torch_ranks.finish(monitor)
    sys.stdout.write(f"done {rank}\n")  # one write, as above
    sys.stdout.flush()


if __name__ == "__main__":
    main()
