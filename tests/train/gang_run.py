"""A training process over gloo: steps with a collective each, and a save that is one too. Arguments: folder, scene."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from rekindle.integrations import torch_ranks

folder, scene = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
if scene == "filestore":
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), world), rank=rank, world_size=world)
else:
    dist.init_process_group("gloo")
if scene == "twice":
    torch_ranks.share("first")
    dist.barrier()  # the first world ends once all have read
    dist.destroy_process_group()
    # The address stays: a rank that came sooner would join the first world's store, which is about to end.
    ended = folder / "first-world-ended"
    if rank == 0:
        ended.touch()
    while not ended.exists():
        threading.Event().wait(0.05)
    dist.init_process_group("gloo")

if scene == "many saves":
    keys = []
    for _ in range(3):
        for _ in range(10):
            failure = torch_ranks.all_done()
        dist.barrier()
        keys.append(torch_ranks.store()._store.num_keys())
        dist.barrier()
    print("ready", flush=True)
    print(json.dumps({"keys": keys, "failure": failure}), flush=True)
    sys.exit()

saves: list[int] = []


def save(step: int, kind: str) -> str:
    saves.append(step)
    path = folder / f"step-{step}"
    path.mkdir(exist_ok=True)
    if scene in ("full disk", "full disk, no collective") and rank == dist.get_world_size() - 1:
        raise OSError("no space left on device")
    (path / f"{rank}.bin").write_bytes(b"weights")
    if scene == "full disk, no collective":
        failure = torch_ranks.all_done()  # waits for the rank that never comes there
        if failure is not None:
            raise RuntimeError(failure)
    else:
        dist.barrier()
    return str(path)


os.environ |= {
    "REKINDLE_JOB_ID": "job",
    "TRAINING_JOB_NAME": "run-1",
    "REKINDLE_HEARTBEAT_S": "0.2",
    "REKINDLE_POLL_S": "0.1",
    "REKINDLE_AGREE_S": "0.05",
    "REKINDLE_ABANDON_S": "2",
}
mon = torch_ranks.start(save=save, mailbox=str(folder / "mailbox"))
print("ready", flush=True)
step, pause = 0, threading.Event()
error = ""
try:
    # Where no save is a collective all ranks come out of the one that fails, and the run goes on.
    while not mon.should_stop and not (scene == "full disk, no collective" and saves and step > saves[0] + 20):
        step += 1
        pause.wait(0.005)
        dist.all_reduce(torch.ones(1))
        mon.step(step, loss=1.0)
except RuntimeError as err:
    error = type(err).__name__
torch_ranks.finish(mon)
print(json.dumps({"saves": saves, "last": step, "stops": mon.should_stop, "health": mon.health()}), flush=True)
