"""The commands that CI runs. Tests of real processes mostly wait; suites that compute run beside them, niced.

What a command prints is shown when it ends, and kept in build/ci. A suite that computes is played once. A failed test
of real processes is played once more at the end, alone. If it passes then it is flaky: the last lines name it, its
suite's log keeps its first failure, and tests/flaky.toml must have it by the next landing. A test that fails twice
fails the run, and so do more than `UNLISTED` failed tests that the list does not have.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

# Where the service's suites run; when CI is ended from outside, and how much of that has passed, in seconds.
SERVICE_VENV, LIMIT_S, BEGAN = sys.argv[1], int(sys.argv[2]), time.monotonic() - int(sys.argv[3])
SERVICE: Final = f"PART=service VENV={SERVICE_VENV}"
OTHERS: Final = "PART='monitor agent cli testkit'"
# `make test-long` with what is not long, too: each process of a suite imports the whole project and all its tests.
ALL: Final = "ARGS=\"-m ''\""
FIRST: Final = (
    "make check",
    "make .venv/.docs .venv/.chromium .venv/.frameworks .venv/.slurm-26.05 .venv/.slurm-24.11 .venv/.slurm-22.05",
    "make test-api",
)
COMPUTING: Final = (
    "make docs",
    "make prove-fresh",  # a finding fails it, with its shrunk story
    f"make test-long {SERVICE} {ALL}",
    f"make test-long {OTHERS} {ALL}",
    "make e2e-console",
)
WAITING: Final = (
    "make e2e-slurm SLURM=26.05",
    "make test-train",
    "make test-frameworks",
    # On the older versions what reads or orders something that differs between them. The one between plays the
    # readings, and leaves what the oldest and the newest show alike to those.
    "make e2e-slurm SLURM=24.11 ARGS='-m \"versions and not outermost\"'",
    "make e2e-slurm SLURM=22.05 ARGS='-m versions'",
    "make demo ARGS='--out build/ci-demo'",
)
REAL_PROCESSES: Final = {"e2e-slurm", "test-train", "test-frameworks", "e2e-console"}
UNLISTED: Final = 3
AGAIN: Final = "PYTEST_ADDOPTS=--last-failed PYTEST_WORKERS=1 WAITING_WORKERS=1"
LOGS: Final = Path("build/ci").absolute()


class Played(NamedTuple):
    """A command that has ended. failed: the tests of real processes to play again."""

    command: str
    code: int
    failed: list[str]
    times: str


def play(command: str, niceness: int = 0, again: str = "") -> Played:
    """Run a command under what is left of the time. again: the environment in which it plays only what failed."""
    name, began = re.sub(r"[^\w.=]+", "-", command).strip("-"), int(time.monotonic() - BEGAN)
    log, cache = LOGS / (f"{name}-again.log" if again else f"{name}.log"), LOGS / name
    print(f"=== {command}: begins after {began} s")
    limit = ["timeout", "--kill-after=20", str(max(1, LIMIT_S - 60 - began)), "nice", "-n", str(niceness)]
    with log.open("w") as output:
        arguments = [*limit, *shlex.split(f"env {again} {command}"), f"CACHE={cache}"]
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)  # with the CPU time of all its processes
    process.returncode = code = os.waitstatus_to_exitcode(status)
    took, cpu = int(time.monotonic() - BEGAN) - began, usage.ru_utime + usage.ru_stime
    text = log.read_text(errors="replace")
    counts = re.findall(r"^=* ?(\d+ (?:passed|failed|error).* in [\d.]+s)", text, re.MULTILINE)
    ended = "was ended, for CI's time was used up" if code == 124 else f"ended with {code}"
    times = f"{took:5d} s, {cpu:5.0f} s of CPU, from {began:4d} s on  {command}: {', '.join([*counts, ended])}"
    print(f"{text}=== {times}")
    failed, kept = [], cache / "v/cache/lastfailed"
    # Where pytest ended by anything else than failed tests, those are not all that is left to play.
    by_tests = re.search(r"^make(?:\[\d+\])?: \*\*\* .* Error 1$", text, re.MULTILINE)
    if command.split()[1] in REAL_PROCESSES and by_tests and kept.exists():
        failed = list(json.loads(kept.read_text()))
    return Played(command, code, failed, times)


def judged(ended: list[Played]) -> bool:
    """Play once more what may be; print the times, what is flaky and what failed. Whether nothing failed."""
    known = {row["test"]: row["cause"] for row in tomllib.loads(Path("tests/flaky.toml").read_text()).get("flaky", ())}
    unlisted = [test for played in ended for test in played.failed if test not in known]
    to_play = [played for played in ended if played.failed and len(unlisted) <= UNLISTED]
    again = [play(played.command, again=AGAIN) for played in to_play]
    flaky = [test for once, more in zip(to_play, again, strict=True) if not more.code for test in once.failed]
    red = [played.command for played in [*ended, *again] if played.code and played not in to_play]
    print("=== times:", *(played.times for played in [*ended, *again]), sep="\n")
    for test in unlisted if len(unlisted) > UNLISTED else ():
        print(f"=== not played again, as tests/flaky.toml has too few of the failed tests: {test}")
    for test in flaky:
        print(f"=== flaky: {test}: {known.get(test, 'tests/flaky.toml must have it by the next landing')}")
    print(f"=== {len(flaky)} flaky tests; failed: {', '.join(red) or 'nothing'}")
    return not red


shutil.rmtree(LOGS, ignore_errors=True)
LOGS.mkdir(parents=True)
with ThreadPoolExecutor() as pool:
    all_ended = list(pool.map(play, FIRST))
    if not any(played.code for played in all_ended):
        waiting = pool.submit(lambda: [play(command) for command in WAITING])
        all_ended += [*(play(command, niceness=4) for command in COMPUTING), *waiting.result()]
sys.exit(not judged(all_ended))
