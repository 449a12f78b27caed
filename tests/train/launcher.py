"""Starts the ranks of a story as real processes, follows them by their events, and ends what is left of them.

A rank is forked from a nursery that imported the heavy packages once (`fork`), started as a new interpreter (`spawn`),
or by torchrun (`torchrun`). Nothing here asserts how long something takes: conditions are polled, for minutes if need
be, and a wait that ends in vain raises with the ranks' newest events.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.train.line import ENV_LINE, Receiver

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
LOOP = SCRIPTS / "loop.py"
PATIENCE_S = 300.0  # a loaded machine may need a minute for what takes seconds
TORCH = ("tests.train.warm", "tests.train.harm", "tests.train.scripts.torch_work")
NURSERIES: Mapping[str, Sequence[str]] = {
    "light": ("rekindle.monitor", "tests.train.harm"),
    "torch": TORCH,
    "hf": (*TORCH, "transformers", "transformers.trainer", "rekindle.integrations.hf"),
    "lightning": (*TORCH, "lightning", "rekindle.integrations.lightning"),
    "accelerate": (*TORCH, "accelerate", "rekindle.integrations.accelerate"),
    "deepspeed": (*TORCH, "deepspeed", "rekindle.integrations.deepspeed"),
}
SETTINGS = {
    "REKINDLE_JOB_ID": "story",
    "REKINDLE_METRICS": "off",
    "REKINDLE_HEARTBEAT_S": "0.2",
    "REKINDLE_POLL_S": "0.1",
    "REKINDLE_AGREE_S": "0.1",
    "REKINDLE_ABANDON_S": "3",
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "TORCH_EXTENSIONS_DIR": os.devnull,  # what would compile one, for minutes and under one lock of the user's, fails
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
KEPT = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "HOME", "VIRTUAL_ENV")


def environment() -> dict[str, str]:
    """What every process of a story starts with: nothing of the machine's own but where programs lie."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | SETTINGS


class Nursery:
    """A process that forks ranks; see `nursery.py`. One per kind of imports and test process."""

    def __init__(self, kind: str) -> None:
        env = environment()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.nursery", *NURSERIES[kind]],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._pids: dict[Any, int] = {}
        self._statuses: dict[int, int] = {}
        self._is_gone = False
        threading.Thread(target=self._read, daemon=True).start()
        self._pid_of("ready")

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, *, ranks: int = 0) -> int:
        """The id of a rank; with `ranks`, of the launcher of so many (`gang.py`)."""
        number = next(self._numbers)
        order = {
            "id": number, "argv": list(argv), "env": dict(env), "cwd": str(cwd), "log": str(log), "ranks": ranks,
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(order) + "\n").encode())
        self._process.stdin.flush()
        return self._pid_of(number)

    def status(self, pid: int) -> int | None:
        with self._changed:
            return self._statuses.get(pid)

    def ended(self, pid: int, timeout_s: float) -> int | None:
        """Its status, as soon as it has ended; None where it has not in that time."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._statuses or self._is_gone, timeout_s)
            return self._statuses.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _pid_of(self, number: Any) -> int:
        with self._changed:
            assert self._changed.wait_for(lambda: number in self._pids or self._is_gone, PATIENCE_S), "no nursery"
            return self._pids[number]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._changed:
                if "status" in answer:
                    self._statuses[answer["pid"]] = answer["status"]
                else:
                    self._pids[answer["id"]] = answer["pid"]
                    self._statuses.pop(answer["pid"], None)
                self._changed.notify_all()
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()


class Forked:
    """A process that a nursery has forked, as `subprocess.Popen` shows one."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid

    def poll(self) -> int | None:
        return self._nursery.status(self.pid)

    def wait(self, timeout_s: float) -> int:
        """Raises: subprocess.TimeoutExpired."""
        status = self._nursery.ended(self.pid, timeout_s)
        if status is None:
            raise subprocess.TimeoutExpired("forked", timeout_s)
        return status

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)


class Nurseries:
    """One of each kind, made when it is needed first."""

    def __init__(self) -> None:
        self._made: dict[str, Nursery] = {}

    def of(self, kind: str) -> Nursery:
        if kind not in self._made:
            self._made[kind] = Nursery(kind)
        return self._made[kind]

    def close(self) -> None:
        for nursery in self._made.values():
            nursery.close()


class Rank:
    """One process, however it was started."""

    def __init__(self, number: int, pid: int, status: Callable[[], int | None]) -> None:
        self.number, self.pid = number, pid
        self._status = status

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._status()

    def send(self, number: int) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Run:
    """One attempt: `world` ranks in `home`, and their events."""

    def __init__(self, home: Path, nurseries: Nurseries, *, world: int) -> None:
        self.home, self.world = home, world
        home.mkdir(parents=True, exist_ok=True)
        self._nurseries = nurseries
        self._sockets = _socket_folder()
        self.receiver = Receiver(self._sockets)
        self.ranks: list[Rank] = []
        self._popens: list[subprocess.Popen[bytes]] = []
        self._store: subprocess.Popen[bytes] | None = None

    def env_of(self, rank: int, **more: str) -> dict[str, str]:
        return environment() | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.world),
            "MASTER_ADDR": "127.0.0.1",
            "TRAIN_HOME": str(self.home),
            "REKINDLE_MAILBOX": str(self.home),
            ENV_LINE: self.receiver.path,
            **more,
        }

    def fork(self, rank: int, kind: str, env: Mapping[str, str], argv: Sequence[Path]) -> None:
        nursery = self._nurseries.of(kind)
        pid = nursery.start([str(argument) for argument in argv], env, self.home, self.home / f"rank-{rank}.log")
        self.ranks.append(Rank(rank, pid, lambda: nursery.status(pid)))

    def spawn(self, rank: int, env: Mapping[str, str], command: Sequence[str]) -> None:
        with (self.home / f"rank-{rank}.log").open("ab") as log:
            process = subprocess.Popen(
                list(command), cwd=self.home, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._popens.append(process)
        self.ranks.append(Rank(rank, process.pid, process.poll))

    def until(self, what: str, is_there: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        if not self.receiver.wait(is_there, timeout_s):
            for rank in self.alive():
                rank.send(signal.SIGABRT)  # its stacks, into its log
            self.receiver.wait(lambda: not self.alive(), 5.0)
            raise AssertionError(f"no {what} in {timeout_s:.0f} s\n{self.story()}")

    def step_of(self, rank: int) -> int:
        steps = self.receiver.of("step", rank)
        return int(steps[-1]["step"]) if steps else 0

    def alive(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.status is None]

    def end_soon(self) -> None:
        """Ask rank 0 to name the last step; where it is gone, each rank ends at its next one."""
        (self.home / "end").touch()
        if not any(rank.number == 0 and rank.status is None for rank in self.ranks):
            (self.home / "finish").write_text("0")

    def sessions(self) -> list[int]:
        """Processes that are left of this run, of whatever depth: by their session, or their line to the launcher."""
        mine = {rank.pid for rank in self.ranks} | {process.pid for process in self._popens}
        needle = f"{ENV_LINE}={self.receiver.path}".encode()
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if fields[0] == "Z":
                    continue
                if int(fields[3]) in mine or needle in (stat.parent / "environ").read_bytes():
                    found.append(int(stat.parent.name))
        return found

    def close(self) -> None:
        """Kill what is left. Does not raise."""
        for rank in self.ranks:
            rank.send(signal.SIGKILL)
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._popens:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self.receiver.wait(lambda: not self.alive(), PATIENCE_S)
        self.receiver.close()
        with contextlib.suppress(OSError):
            os.unlink(self.receiver.path)
            self._sockets.rmdir()

    def story(self) -> str:
        """What happened, for people: where each rank stands, its newest events, and the ends of the logs."""
        lines = []
        for rank in self.ranks:
            events = [event for event in self.receiver.events if event["rank"] == rank.number]
            lines.append(f"rank {rank.number}: pid {rank.pid}, status {rank.status}, step {self.step_of(rank.number)}")
            shown = [event for event in events if event["e"] != "step"][-12:]
            lines += [f"    {json.dumps({k: v for k, v in event.items() if k != 'pid'})[:600]}" for event in shown]
            log = self.home / f"rank-{rank.number}.log"
            if log.exists() and (text := log.read_text(errors="replace").strip()):
                lines += [f"    | {line}" for line in text[-2500:].splitlines()]
        for reply in sorted((self.home / "rekindle" / "replies").glob("*.json")):
            lines.append(f"reply {reply.name}: {reply.read_text()[:600]}")
        lines += [f"manifest {path.name}" for path in sorted((self.home / "rekindle" / "manifests").glob("*.json"))]
        return "\n".join(lines[:400])


def other_pythons() -> dict[str, str]:
    """Version → program of the other Pythons, 3.11 or newer, that this machine has; as they are found by name."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(11, 16)]
    candidates += [str(path) for path in sorted((Path.home() / ".pyenv/versions").glob("3.*/bin/python3"))]
    found: dict[str, str] = {}
    for program in filter(None, candidates):
        asked = subprocess.run(
            [program, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"], capture_output=True, text=True
        )
        version = asked.stdout.strip()
        if asked.returncode == 0 and int(version.split(".")[1]) >= 11 and version != platform.python_version():
            found.setdefault(version.rpartition(".")[0], program)
    return found


def _socket_folder() -> Path:
    """Short: a Unix socket's path has at most 107 characters, and pytest's folders are long."""
    import tempfile

    return Path(tempfile.mkdtemp(prefix="train-"))


def wait_until(is_there: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    until = time.monotonic() + timeout_s
    pause = threading.Event()
    while not is_there():
        if time.monotonic() > until:
            return False
        pause.wait(0.05)
    return True
