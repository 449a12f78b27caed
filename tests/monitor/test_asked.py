"""Stacks that are asked for by a signal, in processes as Slurm runs them: below one that is called slurmstepd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rekindle.protocol.keys import heartbeat_key
from rekindle.protocol.mailbox import Heartbeat
from rekindle.protocol.reports import RankReport, ReportKind, report_key

pytestmark = [pytest.mark.process, pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")]
ROOT = Path(__file__).parents[2]
ATTEMPT = "slurm.hpc.17"
PATIENCE_S = 120.0
STEPD = (
    "import subprocess, sys; open('/proc/self/comm', 'w').write('slurmstepd'); sys.exit(subprocess.call(sys.argv[1:]))"
)
PRELUDE = """
import ctypes, json, os, signal, subprocess, sys
def say(**what): print(json.dumps(what), flush=True)
def hear(): return sys.stdin.readline().strip()
def stuck_in_c():
    say(pid=os.getpid())
    lock = ctypes.create_string_buffer(128)  # all zero is an initialised mutex; taking it twice never ends
    wait = ctypes.CDLL(None).pthread_mutex_lock
    wait(lock)
    wait(lock)
"""


class Rank:
    """One rank's process; `under` is the program that started it."""

    def __init__(self, here: Path, body: str, *, under: str | None = STEPD, **more: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "REKINDLE"))}
        env |= {
            "SLURM_JOB_ID": "17",
            "REKINDLE_CLUSTER": "hpc",
            "PYTHONPATH": str(ROOT),
            "REKINDLE_HEARTBEAT_S": "0.05",
        }
        above = [] if under is None else [sys.executable, "-c", under]
        self._pid: int | None = None
        self._run = subprocess.Popen(
            [*above, sys.executable, "-c", PRELUDE + textwrap.dedent(body)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env | {"REKINDLE_MAILBOX": str(here)} | more,
        )

    def heard(self) -> dict[str, object]:
        assert self._run.stdout is not None
        line = self._run.stdout.readline()
        assert line, "the rank has ended"
        said: dict[str, object] = json.loads(line)
        if isinstance(said.get("pid"), int):
            self._pid = int(str(said["pid"]))
        return said

    def tell(self, word: str = "go on") -> None:
        assert self._run.stdin is not None
        self._run.stdin.write(word + "\n")
        self._run.stdin.flush()

    def ask(self) -> None:
        assert self._pid is not None
        os.kill(self._pid, signal.SIGUSR2)

    def wait(self) -> int:
        return self._run.wait(PATIENCE_S)

    def end(self) -> None:
        if self._pid is not None and self._run.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._run.kill()
        self._run.communicate()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    ranks: list[Rank] = []

    def start(body: str, **more: str) -> Rank:
        ranks.append(Rank(tmp_path, body, **more))
        return ranks[-1]

    yield start
    for one in ranks:
        one.end()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.02)


def hears(here: Path) -> str | None:
    """What the newest beat after the first step says; None before there is one."""
    path = here / heartbeat_key(ATTEMPT)
    heartbeat = Heartbeat.from_json(path.read_bytes()) if path.exists() else None
    return heartbeat.hears if heartbeat is not None and heartbeat.step is not None else None


def asked(here: Path) -> RankReport | None:
    path = here / report_key(ATTEMPT, ReportKind.ASKED, 0)
    return RankReport.from_json(path.read_bytes()) if path.exists() else None


def test_a_rank_that_is_stuck_in_a_c_call_writes_where(rank: Callable[..., Rank], tmp_path: Path) -> None:
    run = rank("""
        import rekindle.monitor as rekindle
        mon = rekindle.start()
        mon.step(1)
        stuck_in_c()
    """)
    run.heard()
    until(lambda: hears(tmp_path) == "USR2")
    run.ask()
    until(lambda: asked(tmp_path) is not None)
    told = asked(tmp_path)
    assert told is not None
    assert "in stuck_in_c" in told.stacks
    assert (told.step, told.kind) == (1, ReportKind.ASKED)
    assert told.silent_s is not None
    again = told.at
    run.ask()  # and it still hears
    until(lambda: (found := asked(tmp_path)) is not None and found.at > again)


def test_after_the_end_the_signal_does_nothing(rank: Callable[..., Rank], tmp_path: Path) -> None:
    run = rank("""
        import rekindle.monitor as rekindle
        mon = rekindle.start()
        mon.step(1)
        mon.finish()
        say(pid=os.getpid())
        hear()
    """)
    run.heard()
    run.ask()
    run.tell()
    assert run.wait() == 0
    assert asked(tmp_path) is None


@pytest.mark.parametrize("name", ["a handler of the script's", "a wakeup descriptor of the script's"])
def test_what_is_the_scripts_stays_the_scripts(rank: Callable[..., Rank], tmp_path: Path, name: str) -> None:
    mine = {
        "a handler of the script's": "signal.signal(signal.SIGUSR2, lambda *_: None)",
        "a wakeup descriptor of the script's": "w = os.pipe()[1]; os.set_blocking(w, False); signal.set_wakeup_fd(w)",
    }[name]
    run = rank(
        f"""
        {mine}
        before = signal.getsignal(signal.SIGUSR2)
        import rekindle.monitor as rekindle
        mon = rekindle.start()
        mon.step(1)
        wakes = signal.set_wakeup_fd(-1) != -1
        say(same=signal.getsignal(signal.SIGUSR2) is before, wakes=wakes)
        hear()
        """
    )
    assert run.heard() == {"same": True, "wakes": "descriptor" in name}
    until(lambda: hears(tmp_path) is not None)
    assert hears(tmp_path) == ""
    run.tell()
    run.wait()


def test_a_run_whose_processes_the_signal_would_kill_says_that_it_does_not_hear(
    rank: Callable[..., Rank], tmp_path: Path
) -> None:
    run = rank("""
        child = subprocess.Popen(["sleep", "1000"])
        import rekindle.monitor as rekindle
        mon = rekindle.start()
        mon.step(1)
        say(ready=True)
        hear()
        child.kill()
    """)
    run.heard()
    until(lambda: hears(tmp_path) is not None)
    assert hears(tmp_path) == ""
    run.tell()
    run.wait()


def test_every_process_of_the_step_is_looked_at(rank: Callable[..., Rank]) -> None:
    run = rank("""
        from rekindle.monitor.stops.stacks_on_signal import what_it_would_kill
        def look(): say(kills=what_it_would_kill(os.getpid(), signal.SIGUSR2))
        look()  # this one has no handler yet
        signal.signal(signal.SIGUSR2, lambda *_: None)
        look()
        child = subprocess.Popen(["sleep", "1000"])
        look()
        child.kill(); child.wait()
        look()
        deaf = subprocess.Popen(["sh", "-c", "trap '' USR2; echo; read line"], stdout=-1, stdin=-1)
        deaf.stdout.readline()
        look()
        deaf.communicate(b"")
    """)
    first, caught, with_child, without, ignoring = (str(run.heard()["kills"]) for _ in range(5))
    assert "would be killed" in first
    assert caught == without == ignoring == ""
    assert "sleep" in with_child
    assert run.wait() == 0


def test_outside_a_step_nothing_is_called_safe(rank: Callable[..., Rank]) -> None:
    run = rank(
        """
        from rekindle.monitor.stops.stacks_on_signal import what_it_would_kill
        signal.signal(signal.SIGUSR2, lambda *_: None)
        say(kills=what_it_would_kill(os.getpid(), signal.SIGUSR2))
        """,
        under=None,
    )
    assert "is not known" in str(run.heard()["kills"])


def test_further_steps_of_the_same_job_are_looked_at_and_other_jobs_are_not(tmp_path: Path) -> None:
    from rekindle.monitor.stops.stacks_on_signal import what_it_would_kill

    def process(pid: int, parent: int, name: str, title: str = "", *, survives: bool = False) -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} ({name}) S {parent}" + " 0" * 18)
        (folder / "cmdline").write_bytes(title.encode() + b"\0")
        mask = f"{1 << (signal.SIGUSR2 - 1):016x}" if survives else "0" * 16
        (folder / "status").write_text(f"State:\tS\nSigBlk:\t{'0' * 16}\nSigIgn:\t{'0' * 16}\nSigCgt:\t{mask}\n")

    process(1, 0, "init")
    process(10, 1, "slurmstepd", "slurmstepd: [7.0]")
    process(11, 10, "python (x) y", survives=True)
    process(20, 1, "slurmstepd", "slurmstepd: [7.batch]")
    process(21, 20, "bash")
    process(30, 1, "slurmstepd", "slurmstepd: [71.0]")
    process(31, 30, "bash")
    assert what_it_would_kill(11, signal.SIGUSR2, tmp_path) == ""
    process(40, 1, "slurmstepd", "slurmstepd: [7.1]")
    process(41, 40, "dcgmi")
    assert "41 (dcgmi)" in what_it_would_kill(11, signal.SIGUSR2, tmp_path)
