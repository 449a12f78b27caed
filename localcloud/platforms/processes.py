"""Training jobs backed by real processes, each worker in a session of its own, which can be killed, frozen and stopped.

Follows SageMaker: SIGTERM, then SIGKILL after the grace period; one failed worker fails the job;
`/opt/ml/output/failure` becomes the FailureReason. Source: SageMaker developer guide, "How Amazon
SageMaker Processes Training Output" and "How SageMaker runs your training image".

A worker is one instance's container (algo-1, algo-2, …) and gets SageMaker's resource configuration, which names the
others. A script with one rank per instance also gets torchrun's variables; one with several ranks per instance is
launched by torchrun (`python3 -m torch.distributed.run …`), and each rank can be killed and frozen separately.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from localcloud.aws.clock import Clock, Timer
from localcloud.aws.sagemaker import Phase, TrainingJob, TrainingJobs
from localcloud.keeper import KEEPER, descendants
from localcloud.platforms.places import MAX_PORTS, is_free, take_ports

_PROJECT = Path(__file__).resolve().parents[2]
_CLOSE_S = 10.0  # for a keeper to kill its workers and go; it needs milliseconds
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(slots=True, kw_only=True)
class _Running:
    job: TrainingJob
    keeper: subprocess.Popen[bytes] | None = None
    pids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    ends_as: Phase | None = None
    failure: str | None = None
    timers: list[Timer] = field(default_factory=list)
    writing: threading.Lock = field(default_factory=threading.Lock)
    began: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class Processes:
    """A backend for `TrainingJobs` that runs the container's command on this machine.

    folder: gets one folder per job (logs, output). environ: what workers need to reach the cloud.
    starting, downloading: how long those phases last here. grace: from SIGTERM to SIGKILL (120 s in AWS).
    """

    def __init__(
        self,
        *,
        clock: Clock,
        jobs: TrainingJobs,
        folder: Path,
        environ: Mapping[str, str],
        starting: timedelta = timedelta(milliseconds=200),
        downloading: timedelta = timedelta(milliseconds=200),
        grace: timedelta = timedelta(seconds=120),
    ) -> None:
        self._clock = clock
        self._jobs = jobs
        self._folder = folder
        self._environ = dict(environ)
        self._starting = starting
        self._downloading = downloading
        self.grace = grace
        self._lock = threading.RLock()
        self._running: dict[str, _Running] = {}
        self._closed = False
        self._ports = _Ports()

    # ---- the backend -----------------------------------------------------------------------------------------------

    def launch(self, job: TrainingJob) -> None:
        running = _Running(job=job)
        with self._lock:
            self._running[job.name] = running
        self._later(running, self._starting, lambda: self._download(running))

    def stop(self, job: TrainingJob) -> None:
        running = self._running.get(job.name)
        if running is None:  # a job of an earlier life of the cloud: its processes ended with that
            self._jobs.enter(job.name, Phase.STOPPED)
            return
        self._terminate(running, Phase.STOPPED)

    # ---- what tests and the demo do --------------------------------------------------------------------------------

    def pids(self, name: str) -> dict[int, int]:
        """Process ids by rank, of the workers that began and have not ended."""
        running = self._running[name]
        # A copy in one piece: the thread that listens to the keeper writes into it meanwhile.
        return {rank: pid for rank, pid in running.pids.copy().items() if rank not in running.codes}

    def log(self, name: str, rank: int) -> Path:
        """Where a worker's output goes."""
        return self._folder / name / f"algo-{rank + 1}.log"

    def kill(self, name: str, rank: int, *, number: int = signal.SIGKILL) -> None:
        """Kill one worker, and what it started."""
        self._order(self._running[name], number, [rank], group=True)

    def freeze(self, name: str, rank: int) -> None:
        """Stop one worker in its tracks (SIGSTOP): it neither works nor answers, and is not dead."""
        self.kill(name, rank, number=signal.SIGSTOP)

    def ranks(self, name: str) -> dict[int, int]:
        """Process ids of training ranks, by rank of the whole job: torchrun's where a worker is one, else the workers.

        Reads /proc; ranks that have not begun, or have ended, are left out.
        """
        found: dict[int, int] = {}
        for worker, pid in self.pids(name).items():
            launched = _launched(pid)
            found |= launched or {worker: pid}
        return found

    def kill_rank(self, name: str, rank: int, *, number: int = signal.SIGKILL) -> None:
        """Kill one rank's process, and it alone. Raises KeyError where that rank is not running."""
        self._write(self._running[name], {"signal": int(number), "numbers": [], "pids": [self.ranks(name)[rank]]})

    def freeze_rank(self, name: str, rank: int) -> None:
        """Stop one rank's process in its tracks (SIGSTOP). Raises KeyError where that rank is not running."""
        self.kill_rank(name, rank, number=signal.SIGSTOP)

    def thaw(self, name: str, rank: int) -> None:
        """Let a frozen worker go on."""
        self.kill(name, rank, number=signal.SIGCONT)

    def wait_running(self, name: str, timeout_s: float = 120.0) -> bool:
        """Wait for a job's workers to have been started."""
        return self._running[name].began.wait(timeout_s)

    def close(self) -> None:
        """Kill every worker of every job, and wait until they are gone."""
        with self._lock:
            self._closed = True
            running = list(self._running.values())
        for process in running:
            for timer in process.timers:
                timer.cancel()
            self._end_keeper(process)
        for process in running:
            if process.keeper is not None:
                try:
                    process.keeper.wait(_CLOSE_S)
                except subprocess.TimeoutExpired:
                    process.keeper.kill()
                    process.keeper.wait()
                process.over.wait(_CLOSE_S)
        self._ports.close()

    # ---- the life of a job -----------------------------------------------------------------------------------------

    def _download(self, running: _Running) -> None:
        if self._jobs.enter(running.job.name, Phase.DOWNLOADING):
            self._later(running, self._downloading, lambda: self._train(running))

    def _train(self, running: _Running) -> None:
        name = running.job.name
        with self._lock:
            if self._closed or running.ends_as is not None:
                return
            folder = self._folder / name
            (folder / "output").mkdir(parents=True, exist_ok=True)
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=folder,
                start_new_session=True,  # a Ctrl-C at the console is the cloud's to act upon
            )
            running.keeper = keeper
        for worker in self._workers(running.job, folder):
            self._write(running, {"start": worker})
        self._jobs.enter(name, Phase.TRAINING)
        threading.Thread(target=self._watch, args=(running,), name=f"watch {name}", daemon=True).start()
        self._later(running, running.job.max_runtime, lambda: self._terminate(running, Phase.MAX_RUNTIME_EXCEEDED))

    def _workers(self, job: TrainingJob, folder: Path) -> list[dict[str, Any]]:
        algorithm = job.request.get("AlgorithmSpecification") or {}
        argv = [*(algorithm.get("ContainerEntrypoint") or []), *(algorithm.get("ContainerArguments") or [])]
        if argv and argv[0] in ("python", "python3"):  # the container's interpreter is this one
            argv[0] = sys.executable
        common = self._common_environ(job, folder)
        hosts = json.loads(common["SM_HOSTS"])
        return [
            {
                "argv": argv or ["false"],
                "cwd": str(folder),
                "log": str(self.log(job.name, rank)),
                "env": common
                | {"RANK": str(rank), "NODE_RANK": str(rank), "GROUP_RANK": str(rank), "SM_CURRENT_HOST": host}
                | _resource_config(job, folder, host, hosts),
            }
            for rank, host in enumerate(hosts)
        ]

    def _common_environ(self, job: TrainingJob, folder: Path) -> dict[str, str]:
        world = job.instance_count
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        python_path = [str(_PROJECT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        # Source of the SM_* names: sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md; of the rest: torch elastic.
        return (
            passed_on
            | {"PYTHONPATH": os.pathsep.join(python_path), "PYTHONUNBUFFERED": "1"}
            | self._environ
            | job.environment
            | {
                "TRAINING_JOB_NAME": job.name,
                "TRAINING_JOB_ARN": job.arn,
                "SM_HOSTS": json.dumps([f"algo-{n + 1}" for n in range(world)]),
                "SM_MASTER": "algo-1",
                "SM_NUM_GPUS": "0",
                "SM_HPS": json.dumps(job.request.get("HyperParameters") or {}),
                "SM_OUTPUT_DIR": str(folder / "output"),
                "SM_MODEL_DIR": str(folder / "model"),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._ports.next()),
            }
        )

    def _watch(self, running: _Running) -> None:
        """Read what the keeper tells, until it ends; then the job has ended too."""
        keeper = running.keeper
        if keeper is None or keeper.stdout is None:
            return
        expected = running.job.instance_count
        for line in keeper.stdout:
            reported = json.loads(line)
            if "started" in reported:
                running.pids[reported["started"]] = reported["pid"]
                if len(running.pids) == expected:
                    running.began.set()
            elif "failed" in reported:
                running.failure = f"AlgorithmError: the container did not start: {reported['why']}"
                self._end_keeper(running)
            elif "ended" in reported:
                self._worker_ended(running, reported["ended"], reported["code"])
                if len(running.codes) == expected:
                    self._end_keeper(running)
        keeper.wait()
        keeper.stdout.close()
        self._finish(running)

    def _worker_ended(self, running: _Running, rank: int, code: int) -> None:
        running.codes[rank] = code
        if code == 0 or running.ends_as is not None or running.failure is not None:
            return
        # SageMaker fails the job at once and ends the other instances. Source: docs/facts-sagemaker.md#training-jobs.
        running.failure = self._failure_reason(running.job.name, code)
        self._order(running, signal.SIGKILL, range(running.job.instance_count), group=True)

    def _failure_reason(self, name: str, code: int) -> str:
        """What the program wrote to its failure file, and the exit code as a shell gives it (128 + signal)."""
        path = self._folder / name / "output" / "failure"
        text = path.read_text(errors="replace").strip() if path.is_file() else ""
        return f"AlgorithmError: {text}, exit code: {code if code >= 0 else 128 - code}"

    def _finish(self, running: _Running) -> None:
        for timer in running.timers:
            timer.cancel()
        name = running.job.name
        if not self._closed:
            if running.ends_as is not None:
                self._jobs.enter(name, running.ends_as)
            elif running.failure is not None:
                self._jobs.enter(name, Phase.FAILED, failure_reason=running.failure)
            elif len(running.codes) < running.job.instance_count:
                self._jobs.enter(name, Phase.FAILED, failure_reason="InternalServerError: the instance was lost")
            elif self._jobs.enter(name, Phase.UPLOADING):
                self._jobs.enter(name, Phase.COMPLETED)
        running.began.set()
        running.over.set()

    def _terminate(self, running: _Running, phase: Phase) -> None:
        """SIGTERM now, SIGKILL when the grace is over."""
        with self._lock:
            if running.ends_as is None:
                running.ends_as = phase
            has_begun = running.keeper is not None
        if not has_begun:
            for timer in running.timers:
                timer.cancel()
            running.over.set()
            self._jobs.enter(running.job.name, phase)
            return
        ranks = range(running.job.instance_count)
        # To the container's first process only, as `docker stop` does.
        self._order(running, signal.SIGTERM, ranks, group=False)
        self._later(running, self.grace, lambda: self._order(running, signal.SIGKILL, ranks, group=True))

    def _later(self, running: _Running, delay: timedelta, call: Any) -> None:
        running.timers.append(self._clock.after(delay, call, label=running.job.name))

    def _order(self, running: _Running, number: int, ranks: Sequence[int], *, group: bool) -> None:
        self._write(running, {"signal": int(number), "numbers": list(ranks), "group": group})

    @staticmethod
    def _end_keeper(running: _Running) -> None:
        """It ends with all that a worker left behind."""
        if running.keeper is not None and running.keeper.stdin is not None:
            with running.writing, contextlib.suppress(BrokenPipeError):
                running.keeper.stdin.close()

    @staticmethod
    def _write(running: _Running, order: dict[str, Any]) -> None:
        keeper = running.keeper
        if keeper is None or keeper.stdin is None:
            return
        with running.writing:
            try:
                keeper.stdin.write(json.dumps(order).encode() + b"\n")
                keeper.stdin.flush()
            except (BrokenPipeError, ValueError):  # all workers have ended, or the cloud is closing
                return


def _resource_config(job: TrainingJob, folder: Path, host: str, hosts: list[str]) -> dict[str, str]:
    """SageMaker's file about the instances, and the variables of the toolkit that stand for it.

    Source: SageMaker developer guide, "Distributed Training Configuration"; sagemaker-training-toolkit,
    ENVIRONMENT_VARIABLES.md. The file is in /opt/ml/input/config there, and where SM_INPUT_CONFIG_DIR says here.
    """
    kind = str((job.request.get("ResourceConfig") or {}).get("InstanceType", ""))
    group = {"instance_group_name": "homogeneousCluster", "instance_type": kind, "hosts": hosts}
    config = {
        "current_host": host,
        "current_instance_type": kind,
        "current_group_name": group["instance_group_name"],
        "hosts": hosts,
        "instance_groups": [group],
        "network_interface_name": "lo",
    }
    place = folder / host / "input" / "config"
    place.mkdir(parents=True, exist_ok=True)
    (place / "resourceconfig.json").write_text(json.dumps(config))
    return {
        "SM_RESOURCE_CONFIG": json.dumps(config),
        "SM_INPUT_CONFIG_DIR": str(place),
        "SM_NETWORK_INTERFACE_NAME": "lo",
    }


def _launched(worker: int) -> dict[int, int]:
    """The ranks that torchrun started inside a worker: the first process of each that has its mark.

    Source: PyTorch documentation, torchrun, "Environment Variables": RANK, TORCHELASTIC_RUN_ID.
    """
    found: dict[int, int] = {}
    for pid in descendants(worker):  # parents come before their children
        try:
            raw = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        environ = dict(item.split("=", 1) for item in raw.decode(errors="replace").split("\0") if "=" in item)
        if "TORCHELASTIC_RUN_ID" in environ and environ.get("RANK", "").isdigit():
            found.setdefault(int(environ["RANK"]), pid)
    return found


class _Ports:
    """Rendezvous ports of a job's ranks. A port that is merely free can be taken by another process before rank 0 binds
    it, so on Linux they come from a reserved block below the ephemeral range.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        first = take_ports(MAX_PORTS, self._stack) if sys.platform == "linux" else 0
        self._block = itertools.cycle(range(first, first + MAX_PORTS)) if first else None

    def next(self) -> int:
        """Another one for each job: a rank of the last may still sit on its own."""
        ours = itertools.islice(self._block, MAX_PORTS) if self._block is not None else ()
        return next(filter(is_free, ours), None) or _free_port()

    def close(self) -> None:
        self._stack.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
