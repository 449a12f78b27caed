"""Many light ranks on one machine: forked processes with a real TCPStore, real monitors, and nothing to train.

    python -m benchmarks.crowd RANKS [--steps 40] [--pace-s 0.25]

Each rank measures its own calls of `Monitor.step`; three times in the run one rank gets SIGUSR1, on which all ranks
agree on a save. Prints one line of JSON (see `Crowd`). The process group is torch's "fake" one: only the store talks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SAVES = 3
WARM_STEPS = 4
PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Of one run. Quantiles are over all calls of all ranks, but those in which a save was agreed on.

    agreed_cpu_ms: the training thread's processor time in such a call, without the save function's; the median.
    agreed_wall_ms: how long such a call took, waiting for the other ranks; the median. to_agree_s: from the
    signal to the last rank's save; the median. store_cpu_ms_per_s: of the process that hosts the store, per second.
    """

    ranks: int
    step_p50_us: float
    step_p99_us: float
    step_max_us: float
    step_cpu_us: float
    agreed: int
    agreed_cpu_ms: float
    agreed_wall_ms: float
    to_agree_s: float
    descriptors: int
    store_cpu_ms_per_s: float


def rank_main(rank: int, ranks: int, port: int, home: Path, steps: int, pace_s: float) -> None:
    """One rank; its measurements go into a file."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

    from rekindle.integrations import torch as rekindle

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, ranks, is_master=False)
    dist.init_process_group("fake", store=store, rank=rank, world_size=ranks)
    saves: list[tuple[float, int, int]] = []

    def save(step: int, kind: str) -> Path:  # noqa: ARG001 - a save function's arguments
        began, cpu = time.monotonic(), time.thread_time_ns()
        path = home / f"step-{step}"
        path.mkdir(exist_ok=True)
        (path / f"rank-{rank}").write_text(str(step))
        saves.append((began, time.monotonic_ns() - int(began * 1e9), time.thread_time_ns() - cpu))
        return path

    before = len(os.listdir("/proc/self/fd"))
    env = {"REKINDLE_JOB_ID": "bench", "REKINDLE_METRICS": "off", "REKINDLE_MAILBOX": str(home)}
    os.environ.update(env)
    monitor = rekindle.start(save=save)
    walls, cpus, agreed = [], [], []
    pause, number = threading.Event(), 0
    store.add("started", 1)
    while store.add("started", 0) < ranks:  # nothing in these steps keeps the ranks together, as collectives would
        pause.wait(0.2)
    finish = home / "finish"
    most = 0
    while not finish.exists():
        number += 1
        count = len(saves)
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        monitor.step(number, loss=2.5)
        wall, cpu = time.perf_counter_ns() - wall, time.thread_time_ns() - cpu
        if len(saves) > count:
            agreed.append((wall - saves[-1][1], cpu - saves[-1][2]))
        elif number > WARM_STEPS:
            walls.append(wall)
            cpus.append(cpu)
        if number % 8 == 0:
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
        if number == steps:
            (home / f"ready-{rank}").touch()
        pause.wait(pace_s)
    monitor.finish()
    found = {"walls": walls, "cpus": cpus, "agreed": agreed, "saves": [save[0] for save in saves], "descriptors": most}
    beside = home / f".found-{rank}"
    beside.write_text(json.dumps(found))
    beside.replace(home / f"found-{rank}")


def store_main(port_file: Path) -> None:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    beside = port_file.with_suffix(".new")
    beside.write_text(str(store.port))
    beside.replace(port_file)
    threading.Event().wait()


def forked(work: Any, *arguments: Any) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work(*arguments)
        status = 0
    finally:
        os._exit(status)


def until(is_there: Any, what: str) -> None:
    pause, end = threading.Event(), time.monotonic() + PATIENCE_S
    while not is_there():
        if time.monotonic() > end:
            raise TimeoutError(what)
        pause.wait(0.05)


def cpu_s_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))]) if ordered else 0.0


def measure(ranks: int, steps: int, pace_s: float) -> Crowd:
    """Raises: TimeoutError where the machine is too slow for so many ranks."""
    import torch._dynamo  # noqa: F401 - the monitor has torch.compile leave it alone, which imports it
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    import rekindle.integrations.torch  # noqa: F401 - once, before the ranks are forked

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        host = forked(store_main, home / "port")
        pids: list[int] = []
        try:
            until((home / "port").exists, "the store")
            port = int((home / "port").read_text())
            pids = [forked(rank_main, rank, ranks, port, home, steps, pace_s) for rank in range(ranks)]
            until(lambda: len(list(home.glob("ready-*"))) == ranks, "all ranks' first steps")
            signalled, host_cpu, began = [], cpu_s_of(host), time.monotonic()
            for number in range(SAVES):
                signalled.append(time.monotonic())
                os.kill(pids[number % ranks], signal.SIGUSR1)
                until(lambda wanted=number + 1: len(list(home.glob("step-*"))) >= wanted, "an agreed save")
                newest = max(home.glob("step-*"), key=lambda path: int(path.name.rpartition("-")[2]))
                until(lambda path=newest: len(list(path.iterdir())) == ranks, "all ranks' parts")
            host_share = (cpu_s_of(host) - host_cpu) / (time.monotonic() - began)
            (home / "finish").touch()
            until(lambda: len(list(home.glob("found-*"))) == ranks, "the ranks' ends")
            found = [json.loads((home / f"found-{rank}").read_text()) for rank in range(ranks)]
        finally:
            for pid in (*pids, host):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    walls = [wall for rank in found for wall in rank["walls"]]
    cpus = [cpu for rank in found for cpu in rank["cpus"]]
    saved = [max(rank["saves"][number] for rank in found) - signalled[number] for number in range(SAVES)]
    return Crowd(
        ranks=ranks,
        step_p50_us=quantile(walls, 0.5) / 1e3,
        step_p99_us=quantile(walls, 0.99) / 1e3,
        step_max_us=max(walls) / 1e3,
        step_cpu_us=sum(cpus) / len(cpus) / 1e3,
        agreed=sum(len(rank["agreed"]) for rank in found),
        agreed_cpu_ms=quantile([cpu for rank in found for _, cpu in rank["agreed"]], 0.5) / 1e6,
        agreed_wall_ms=quantile([wall for rank in found for wall, _ in rank["agreed"]], 0.5) / 1e6,
        to_agree_s=quantile(saved, 0.5),
        descriptors=max(rank["descriptors"] for rank in found),
        store_cpu_ms_per_s=host_share * 1e3,
    )


def main(argv: Sequence[str] = ()) -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("ranks", type=int)
    arguments.add_argument("--steps", type=int, default=20, help="before the first agreement")
    arguments.add_argument("--pace-s", type=float, default=0.25)
    given = arguments.parse_args(argv)
    if given.ranks < 1:
        arguments.error("ranks: must be 1 or more")
    print(json.dumps(asdict(measure(given.ranks, given.steps, given.pace_s))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
