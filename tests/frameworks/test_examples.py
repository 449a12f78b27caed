"""Every example as a person would start it: saved on request, stopped by SIGTERM, resumed, and not one bit off.

Waits end at conditions; the patience below is for a starved machine and says nothing about how fast things are.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rekindle.protocol.keys import heartbeat_key, manifest_key, manifest_prefix, reply_key, request_key
from rekindle.protocol.launch_orders import AttemptOrder, ResumePlan
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, Heartbeat, ReplyOutcome
from rekindle.protocol.manifests import Manifest, SaveKind
from tests.sealed import check_files
from tests.train.integration_stage import descendants
from tests.train.launcher import Forked, Nurseries, Nursery

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
STEPS = 120  # at half a second each, a minute for a request to arrive in
SLOW_S = 0.5
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LAUNCHERS = {
    "pytorch_ddp": TORCHRUN,
    "fsdp2_dcp": TORCHRUN,
    "hf_trainer": TORCHRUN,
    "accelerate": TORCHRUN,
    "deepspeed": TORCHRUN,
    "lightning": (sys.executable,),  # starts its second rank itself
}
# What an undisturbed and a resumed run are forked from. The stories of tests/train stop and resume each of these, too.
NURSERIES = {
    "pytorch_ddp": "torch",
    "fsdp2_dcp": "torch",
    "hf_trainer": "hf",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "lightning": "lightning",
}


class Run:
    """One attempt of an example, in a process group of its own. nursery: it is forked from that."""

    def __init__(
        self, example: str, home: Path, attempt: str, resume: ResumePlan, pace_s: float, nursery: Nursery | None
    ) -> None:
        order = AttemptOrder(job_id="job", attempt_number=int(attempt[-1]), mailbox=str(home), resume=resume)
        environment = order.apply(os.environ) | {
            "TRAINING_JOB_NAME": attempt,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "REKINDLE_EXAMPLE_DIR": str(home / "checkpoints"),
            "REKINDLE_EXAMPLE_STEPS": str(STEPS),
            "REKINDLE_EXAMPLE_SAVE_EVERY": "30",
            "REKINDLE_EXAMPLE_PACE_S": str(pace_s),
            "REKINDLE_HEARTBEAT_S": "0.2",
            "REKINDLE_POLL_S": "0.2",
            "REKINDLE_AGREE_S": "0.1",
            "REKINDLE_METRICS": "off",
        }
        self.home, self.attempt = home, attempt
        self._output: list[str] = []
        self._pipe = home / f"output-{attempt}"
        os.mkfifo(self._pipe)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        script = str(ROOT / "examples" / example / "train.py")
        if nursery is not None:
            self.process: Forked | subprocess.Popen[bytes] = Forked(
                nursery, nursery.start([script], environment, home, self._pipe, ranks=2)
            )
            return
        with self._pipe.open("ab") as pipe:
            self.process = subprocess.Popen(
                [*LAUNCHERS[example], script],
                env=environment,
                cwd=home,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
            )

    def _read(self) -> None:
        with self._pipe.open(errors="replace") as lines:
            self._output.extend(lines)

    @property
    def output(self) -> str:
        return "".join(self._output)

    def until(self, what: str, is_there: Callable[[], bool]) -> None:
        """Wait for a condition, as long as the run lives."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.1)):
            if is_there():
                return
            if self.process.poll() is not None and not is_there():
                pytest.fail(f"the run ended before {what}:\n{self.output[-6000:]}")
            pause.wait(0.1)
        pytest.fail(f"no {what} in {PATIENCE_S} s:\n{self.output[-6000:]}")

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def kill(self) -> None:
        """With all its ranks: a launcher that is killed leaves them, and they have process groups of their own."""
        for process in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def heartbeat(self) -> Heartbeat | None:
        path = self.home / heartbeat_key(self.attempt)
        return Heartbeat.from_json(path.read_bytes()) if path.exists() else None

    def step(self) -> int:
        heartbeat = self.heartbeat()
        return heartbeat.step or 0 if heartbeat is not None else 0

    def manifest(self, step: int) -> Manifest:
        return Manifest.from_json((self.home / manifest_key(step, self.attempt)).read_bytes())

    def emergencies(self) -> set[int]:
        """The steps of the manifests that are no periodic save's."""
        manifests = (Manifest.from_json(path.read_bytes()) for path in (self.home / manifest_prefix()).glob("*.json"))
        return {manifest.step for manifest in manifests if manifest.kind is SaveKind.EMERGENCY}

    def text(self, pattern: str) -> str:
        found = re.findall(pattern, self.output)
        assert found, self.output[-6000:]
        return str(found[-1])


Launch = Callable[..., Run]


@pytest.fixture
def launch(tmp_path: Path, nurseries: Nurseries) -> Iterator[Launch]:
    runs: list[Run] = []

    def start(
        example: str,
        home: str,
        attempt: str,
        resume: ResumePlan | None = None,
        pace_s: float = 0.0,
        by_command: bool = False,
    ) -> Run:
        (tmp_path / home).mkdir(exist_ok=True)
        nursery = None if by_command else nurseries.of(NURSERIES[example])
        runs.append(Run(example, tmp_path / home, attempt, resume or ResumePlan(), pace_s, nursery))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()


def ask(home: Path, attempt: str) -> Path:
    """Drop a request as the service does; where the answer will be."""
    request = CheckpointRequest(
        request_id="please",
        job_id="job",
        attempt=attempt,
        deadline_s=PATIENCE_S,
        reason="a test wants to know",
    )
    path = home / request_key("please")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_bytes(request.to_json())
    beside.replace(path)
    return home / reply_key("please")


def plan(manifest: Manifest) -> ResumePlan:
    return ResumePlan(step=manifest.step, uri=manifest.root)


@pytest.mark.parametrize("example", LAUNCHERS)
def test_a_run_saves_on_request_stops_on_sigterm_and_ends_as_if_nothing_had_happened(
    example: str, launch: Launch
) -> None:
    undisturbed = launch(example, "undisturbed", "run-1")
    assert undisturbed.end() == 0, undisturbed.output
    weights = undisturbed.text(r"weights ([0-9a-f]{64})")
    assert undisturbed.text(r"finished at step (\d+)") == str(STEPS)
    check_files(undisturbed.home, undisturbed.manifest(30))

    first = launch(example, "disturbed", "run-1", pace_s=SLOW_S, by_command=True)
    first.until("its third step", lambda: first.step() >= 3)
    answer = ask(first.home, "run-1")
    first.until("an answer", answer.exists)
    reply = CheckpointReply.from_json(answer.read_bytes())
    assert reply.outcome is ReplyOutcome.SAVED, reply
    assert reply.step is not None
    assert reply.step >= 3
    assert reply.took_s is not None
    emergency = first.manifest(reply.step)
    assert (reply.manifest, reply.bytes) == (emergency.key, emergency.total_bytes)
    assert (emergency.kind, emergency.request_id, emergency.world_size) == (SaveKind.EMERGENCY, "please", 2)
    check_files(first.home, emergency)

    if example == "lightning":  # its first rank is the process itself; torchrun passes on SIGTERM only
        before = first.emergencies()
        first.process.send_signal(signal.SIGUSR1)
        first.until("a save at SIGUSR1", lambda: len(first.emergencies()) > len(before))
        assert min(first.emergencies() - before) > reply.step

    first.process.send_signal(signal.SIGTERM)
    first.end()
    stopped_at = int(first.text(r"stopped at step (\d+)"))
    assert reply.step <= stopped_at < STEPS
    check_files(first.home, first.manifest(stopped_at))

    second = launch(example, "disturbed", "run-2", plan(emergency))
    assert second.end() == 0, second.output
    heartbeat = second.heartbeat()
    assert heartbeat is not None
    assert (heartbeat.first_step, heartbeat.step) == (reply.step + 1, STEPS)
    assert second.text(r"weights ([0-9a-f]{64})") == weights
