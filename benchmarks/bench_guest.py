"""What the monitor is inside the training process: its size, its threads, what its import brings, what a step costs.

    make bench ARGS=guest

Measured in a process of its own: a run with a directory as mailbox, whose loop
goes 2,000 steps without pauses, then 300 with 20 ms between them, and saves once by SIGUSR1. Processor time is the
training thread's. What a CUDA device adds is measured by `make test-cuda`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RUNS = 5
PROBE = """
import inspect, json, os, signal, sys, tempfile, threading, time
os.environ.update(SLURM_JOB_ID="1", REKINDLE_MAILBOX=tempfile.mkdtemp())
before, began = set(sys.modules), time.process_time()
import rekindle.monitor as rekindle
found = {"import_ms": (time.process_time() - began) * 1000, "imported": len(set(sys.modules) - before)}
taken = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
found["handlers_by_import"] = sum(signal.getsignal(number) is not signal.SIG_DFL for number in taken)
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
del os.environ["SLURM_JOB_ID"]
found["keywords"] = len(inspect.signature(rekindle.start).parameters)
os.environ.update(REKINDLE_JOB_ID="bench", REKINDLE_METRICS="off", REKINDLE_MAILBOX=tempfile.mkdtemp())

def threads():
    return sum(thread.name.startswith("rekindle-") for thread in threading.enumerate())

def save(step, kind):
    found["threads_under_a_save"] = threads()
    path = os.path.join(tempfile.mkdtemp(), "state.bin")
    open(path, "wb").write(b"x" * 1000)
    return path

monitor = rekindle.start(save=save, signals=("TERM", "USR1"))
assert not monitor.is_silent

def steps(first, count, pause_s):
    inside, pause = 0, threading.Event()
    for step in range(first, first + count):
        cpu = time.thread_time_ns()
        monitor.step(step, loss=2.5 + step % 7 / 100, grad_norm=1.0, tokens=4096)
        inside += time.thread_time_ns() - cpu
        if pause_s:
            pause.wait(pause_s)
    return inside / count / 1000

steps(1, 200, 0.001)
found["step_us"] = steps(201, 2000, 0)
found["step_us_with_pauses"] = steps(2201, 300, 0.02)
found["threads_at_rest"] = threads()
os.kill(os.getpid(), signal.SIGUSR1)
steps(2501, 20, 0.01)
monitor.finish()
print(json.dumps(found))
"""
LOADED = """
import json, os, sys, tempfile
os.environ.update(REKINDLE_JOB_ID="bench", REKINDLE_METRICS="off", REKINDLE_MAILBOX=tempfile.mkdtemp())
import rekindle.monitor as rekindle
monitor = rekindle.start(save=lambda step, kind: None)
assert not monitor.is_silent
loaded = [module.__file__ for name, module in sys.modules.items() if name.startswith("rekindle.monitor")]
print(json.dumps(sum(len(open(path).read().splitlines()) for path in loaded)))
monitor.finish("measured", 0.0)
"""
RANKS = {"alone": (0, 1), "first": (0, 2), "other": (1, 2)}  # rank, world size
ROWS = {
    "lines": "lines of rekindle/monitor",
    "alone": "of them in the process of a run of one rank",
    "first": "in rank 0 of several",
    "other": "in another rank",
    "integrations": "lines of rekindle/integrations",
    "ctypes": "modules that import ctypes",
    "keywords": "arguments of start()",
    "handlers_by_import": "signals taken by the import, on Slurm",
    "imported": "modules that the import brings",
    "import_ms": "milliseconds of processor time of the import",
    "threads_at_rest": "threads at rest, one rank with a mailbox",
    "threads_under_a_save": "threads under a save",
    "step_us": "µs of step(), without pauses",
    "step_us_with_pauses": "µs of step(), 20 ms apart",
}


def measure() -> dict[str, float]:
    """Where times are measured, the least of some runs: the rest is other processes' work."""
    runs = [_played(PROBE) for _ in range(RUNS)]
    monitor, integrations = (list((ROOT / "rekindle" / part).rglob("*.py")) for part in ("monitor", "integrations"))
    texts = [path.read_text() for path in (*monitor, *integrations)]
    return {
        "lines": sum(len(path.read_text().splitlines()) for path in monitor),
        "integrations": sum(len(path.read_text().splitlines()) for path in integrations),
        "ctypes": sum("import ctypes" in text for text in texts),
        **{name: _played(LOADED, RANK=str(rank), WORLD_SIZE=str(size)) for name, (rank, size) in RANKS.items()},
        **{name: min(run[name] for run in runs) for name in runs[0]},
    }


def _played(script: str, **env: str) -> Any:
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout)


def main() -> None:
    """Print one line per figure."""
    found = measure()
    for name, text in ROWS.items():
        print(f"{text:<46}{round(found[name], 1):>14.10g}")
