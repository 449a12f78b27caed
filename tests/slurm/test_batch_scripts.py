"""The examples' batch scripts as a person submits them: saved by a signal, requeued, resumed, and not one bit off.

No service and no agent: this is what the monitor does by itself on Slurm, with its mailbox on a shared path.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekindle.protocol.cluster.names import first_attempt
from rekindle.protocol.keys import heartbeat_key, manifest_prefix
from rekindle.protocol.mailbox import Heartbeat
from rekindle.protocol.manifests import Manifest, SaveKind
from tests.sealed import check_files
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
EXAMPLES = ("slurm_torchrun", "slurm_accelerate", "slurm_deepspeed")
STEPS = 80  # at a second each, more than a minute for a signal to arrive in
PACE_S = 1.0  # of the first start; what nobody interrupts any more need not wait
LATER_PACE_S = 0.05
SAVE_EVERY = 30
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    patient = Timers(slurmd_timeout_s=60, message_timeout_s=10, kill_wait_s=60)
    with SlurmLab(nodes=("n1", "n2"), timers=patient) as raised:
        yield raised


class Run:
    """One job of an example, in a folder of its own that all nodes see."""

    def __init__(self, lab: SlurmLab, example: str, home: Path, *, pace_s: float, steps: int = STEPS) -> None:
        self.lab, self.home = lab, home
        home.mkdir()
        python = home / "python"
        python.write_text(
            "#!/bin/bash\n"
            f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || export REKINDLE_EXAMPLE_PACE_S={LATER_PACE_S}\n'
            f'exec {shlex.quote(sys.executable)} "$@"\n'
        )
        python.chmod(0o755)
        environ = {
            "PYTHON": str(python),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",  # all nodes are this machine
            "MASTER_PORT": str(lab.port + 60),
            "GLOO_SOCKET_IFNAME": "lo",
            "REKINDLE_MAILBOX": str(home),
            "REKINDLE_EXAMPLE_STEPS": str(steps),
            "REKINDLE_EXAMPLE_SAVE_EVERY": str(SAVE_EVERY),
            "REKINDLE_EXAMPLE_PACE_S": str(pace_s),
            "REKINDLE_HEARTBEAT_S": "0.2",
            "REKINDLE_POLL_S": "0.2",
            "REKINDLE_AGREE_S": "0.5",
            "REKINDLE_METRICS": "off",
        }
        self.job = lab.submit(
            ROOT / "examples" / example / "job.sbatch",
            f"--chdir={ROOT}",
            f"--output={home}/out.log",
            f"--comment=rekindle,mailbox={home},signal=USR1",
            environ=environ,
        )

    @property
    def output(self) -> str:
        log = self.home / "out.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def attempt(self, restart: int) -> str:
        return first_attempt(self.lab.name, self.job).restarted(restart).name

    def heartbeat(self) -> Heartbeat:
        """The first start's."""
        return Heartbeat.from_json((self.home / heartbeat_key(self.attempt(0))).read_bytes())

    def step(self, restart: int = 0) -> int:
        """The step that a start's monitor told of last; 0 before its first."""
        path = self.home / heartbeat_key(self.attempt(restart))
        return Heartbeat.from_json(path.read_bytes()).step or 0 if path.exists() else 0

    def manifests(self, restart: int) -> list[Manifest]:
        """A start's own, by step."""
        found = (Manifest.from_json(path.read_bytes()) for path in (self.home / manifest_prefix()).glob("*.json"))
        return sorted((one for one in found if one.attempt == self.attempt(restart)), key=lambda one: one.step)

    def asked_for(self) -> list[Manifest]:
        """The first start's checkpoints that were asked for by a signal."""
        return [manifest for manifest in self.manifests(0) if manifest.kind is SaveKind.EMERGENCY]

    def until(self, condition: object, what: str) -> None:
        """Wait for a condition, as long as the job has not failed."""
        assert callable(condition)

        def holds() -> bool:
            assert self.lab.job_state(self.job) not in ("FAILED", "NODE_FAIL", "TIMEOUT"), self.output[-6000:]
            return bool(condition())

        self.lab.wait(holds, f"{what}:\n{self.output[-3000:]}", PATIENCE_S)

    def finish(self) -> str:
        """Wait for its end; the hash of the weights."""
        self.until(lambda: self.lab.job_state(self.job) == "COMPLETED", "the end")
        assert f"finished at step {STEPS}" in self.output, self.output[-6000:]
        return str(re.findall(r"weights ([0-9a-f]{64})", self.output)[-1])


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_batch_script_saves_on_a_signal_is_requeued_and_ends_as_if_nothing_had_happened(
    example: str, lab: SlurmLab, tmp_path: Path
) -> None:
    run = Run(lab, example, tmp_path / "disturbed", pace_s=PACE_S)
    run.until(lambda: run.step() >= 3, "its first steps")
    lab.run("scancel", "--signal=USR1", str(run.job))
    run.until(run.asked_for, "the checkpoint that the signal asks for")
    assert lab.job_state(run.job) == "RUNNING"  # and it goes on
    saved = run.asked_for()[0]
    check_files(run.home, saved)

    lab.run("scontrol", "requeue", str(run.job))
    lab.wait(lambda: lab.job(run.job).get("Restarts") == "1", "the requeue")
    weights = run.finish()
    assert run.step(1) == STEPS
    assert all(manifest.step > saved.step for manifest in run.manifests(1))  # it went on from there, not from the start

    undisturbed = Run(lab, example, tmp_path / "undisturbed", pace_s=0.0)
    assert undisturbed.finish() == weights
