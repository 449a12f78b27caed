"""Runs of `scripts/integration.py` as real processes, and what they leave. Waits end at conditions, in minutes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.keys import heartbeat_key, manifest_prefix, reply_key, request_key
from rekindle.protocol.launch_orders import AttemptOrder, ResumePlan
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, Heartbeat
from rekindle.protocol.manifests import Manifest, SaveKind
from tests.train.launcher import SETTINGS, Forked, Nurseries

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("scripts") / "integration.py"
PATIENCE_S = 240.0
_NUMBERS = itertools.count()


class Attempt:
    """One attempt of a run, in a process group of its own, with its launcher.

    Ranks are forked from a nursery, which has imported the framework once for all tests of a process; several have a
    launcher. by_torchrun: torchrun starts them.
    """

    def __init__(
        self,
        framework: str,
        home: Path,
        nurseries: Nurseries,
        *,
        world: int,
        number: int = 1,
        resume: ResumePlan | None = None,
        by_torchrun: bool = False,
        **spec: Any,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.name, self.world = home, f"run-{number}", world
        order = AttemptOrder(job_id="job", attempt_number=number, mailbox=str(home), resume=resume or ResumePlan())
        environment = order.apply(os.environ) | {
            "TRAINING_JOB_NAME": self.name,
            "HOME_FOLDER": str(home),
            "SPEC": json.dumps(spec),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TORCH_EXTENSIONS_DIR": SETTINGS["TORCH_EXTENSIONS_DIR"],
            "REKINDLE_HEARTBEAT_S": "0.2",
            "REKINDLE_POLL_S": "0.2",
            "REKINDLE_AGREE_S": "0.1",
            "REKINDLE_METRICS": "off",
            **spec.pop("env", {}),
        }
        for old in home.glob("rank-*.jsonl"):
            old.unlink()
        self._output: list[str] = []
        self._pipe = home / f"output-{next(_NUMBERS)}"  # no file, whose size is limited where a rank's disk is full
        os.mkfifo(self._pipe)
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        argv = [str(SCRIPT), framework]
        if not by_torchrun:
            nursery = nurseries.of(framework)
            pid = nursery.start(argv, environment, home, self._pipe, ranks=world if world > 1 else 0)
            self.process: Forked | subprocess.Popen[bytes] = Forked(nursery, pid)
            return
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        with self._pipe.open("ab") as pipe:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, *argv], env=environment, cwd=home, stdout=pipe, stderr=pipe,
                start_new_session=True,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return "".join(self._output)[-8000:]

    def _read(self) -> None:
        with self._pipe.open(errors="replace") as lines:
            self._output.extend(lines)

    def until(self, what: str, is_there: Callable[[], Any]) -> None:
        """Wait for a condition, as long as the run lives."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.05)):
            if is_there():
                return
            if self.process.poll() is not None and not is_there():
                pytest.fail(f"the run ended before {what}:\n{self.output}")
            pause.wait(0.05)
        pytest.fail(f"no {what} in {PATIENCE_S} s:\n{self.output}")

    def end(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the run goes on for ever:\n{self.output}")

    def kill(self) -> None:
        for process in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def terminate(self) -> None:
        """SIGTERM, as a platform sends it: to the launcher, which passes it on, or to the process itself."""
        self.process.send_signal(signal.SIGTERM)

    def notes(self, what: str) -> list[list[dict[str, Any]]]:
        """What each rank has noted of a kind, in order."""
        return [
            [note for note in map(json.loads, path.read_text().splitlines()) if note["what"] == what]
            for path in (self.home / f"rank-{rank}.jsonl" for rank in range(self.world))
            if path.exists()
        ]

    def ended(self) -> dict[str, Any]:
        """How all ranks ended: at the same step with the same weights."""
        assert self.end() == 0, self.output
        [notes] = {tuple(sorted(notes[-1].items())) for notes in self.notes("ended")}
        return dict(notes)

    def step(self) -> int:
        path = self.home / heartbeat_key(self.name)
        return (Heartbeat.from_json(path.read_bytes()).step or 0) if path.exists() else 0

    def ask(self, within_s: float = PATIENCE_S) -> CheckpointReply:
        """Ask for a checkpoint, and wait for the answer. within_s: how long its files are waited for."""
        self.until("its third step", lambda: self.step() >= 3)
        answer = self.request(within_s=within_s)
        self.until("an answer", answer.exists)
        return CheckpointReply.from_json(answer.read_bytes())

    def request(self, request_id: str = "please", within_s: float = PATIENCE_S) -> Path:
        """Drop a request as the service does; where the answer will be."""
        request = CheckpointRequest(
            request_id=request_id,
            job_id="job",
            attempt=self.name,
            deadline_s=within_s,
            reason="a test wants to know",
        )
        path = self.home / request_key(request_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_bytes(request.to_json())
        beside.replace(path)
        return self.home / reply_key(request_id)

    def hurry(self) -> None:
        """What had to be slow is over."""
        (self.home / "hurry").touch()

    def manifests(self, kind: SaveKind | None = None) -> dict[int, Manifest]:
        """By step; of all attempts in this home."""
        folder = self.home / manifest_prefix()
        found = [Manifest.from_json(path.read_bytes()) for path in folder.glob("*.json")] if folder.is_dir() else []
        return {checkpoint.step: checkpoint for checkpoint in found if kind is None or checkpoint.kind is kind}


class Launcher:
    """The attempts of one test, ended with it. Undisturbed runs are played once for all tests of a process."""

    def __init__(self, folder: Path, undisturbed: dict[str, dict[str, Any]], nurseries: Nurseries) -> None:
        self._folder, self._nurseries = folder, nurseries
        self._undisturbed = undisturbed
        self._attempts: list[Attempt] = []

    def __call__(self, framework: str, home: str, **spec: Any) -> Attempt:
        self._attempts.append(Attempt(framework, self._folder / home, self._nurseries, **spec))
        return self._attempts[-1]

    def undisturbed(self, framework: str, **spec: Any) -> dict[str, Any]:
        """How a run ends to which nothing happens."""
        key = json.dumps([framework, spec], sort_keys=True)
        if key not in self._undisturbed:
            self._undisturbed[key] = self(framework, "undisturbed", **spec).ended()
        return self._undisturbed[key]

    def close(self) -> None:
        for attempt in self._attempts:
            attempt.kill()


def plan(manifest: Manifest) -> ResumePlan:
    return ResumePlan(step=manifest.step, uri=manifest.root)


def descendants(process: int) -> list[int]:
    """Children, their children and so on, as the kernel knows them now."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = list(parents.get(process, ()))
    for child in found:
        found.extend(parents.get(child, ()))
    return found
