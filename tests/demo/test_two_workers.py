"""Two real worker processes: they agree with one process that does it all, resume exactly, and fail together."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import corpus
import pytest
from trainer import Setup, Trainer

from rekindle.protocol.manifests import Manifest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "numpy_lm"
pytestmark = [pytest.mark.process, pytest.mark.long]


@contextlib.contextmanager
def workers(folder: Path, **more: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
        "PYTHONPATH": str(ROOT),
        "NUMPY_LM_DATA": str(folder / "data"),
        "NUMPY_LM_TRACE": str(folder / "trace"),
        "NUMPY_LM_SAVE_EVERY": "10",
        "NUMPY_LM_SEED": "5",
        "NUMPY_LM_STEPS": "30",
        "REKINDLE_MAILBOX": str(folder / "box"),
        "REKINDLE_JOB_ID": "numpy-lm",
        "TRAINING_JOB_NAME": "first",
        "SM_OUTPUT_DIR": str(folder),
        "WORLD_SIZE": "2",
        "MASTER_PORT": str(port),
        **more,
    }
    argv = [sys.executable, str(EXAMPLE / "train.py")]
    started = [subprocess.Popen(argv, env={**env, "RANK": str(rank)}, cwd=folder) for rank in range(2)]
    try:
        yield started
    finally:
        for worker in started:
            worker.kill()
            worker.wait()


def finished(started: list[subprocess.Popen[bytes]]) -> list[int]:
    return [worker.wait(timeout=300) for worker in started]


def trace(folder: Path, attempt: str = "first") -> dict[int, str]:
    path = folder / "trace" / f"{attempt}.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return {line["step"]: line["loss"] for line in map(json.loads, whole.splitlines())}


def wait_for_steps(folder: Path, steps: int, worker: subprocess.Popen[bytes]) -> None:
    while len(trace(folder)) < steps:
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the worker ended with {worker.wait(timeout=0.05)}")


@pytest.fixture
def expected(tmp_path: Path) -> dict[int, str]:
    corpus.write_dataset(tmp_path / "data", batches=5000, size_bytes=20_000)
    alone = Trainer(Setup(data=tmp_path / "data", seed=5, workers=2), shares=range(2))
    losses = {}
    for step in range(1, 31):
        losses[step] = alone.train().hex()
    return losses


def test_two_workers_agree_with_one_process_and_resume_bit_for_bit(tmp_path: Path, expected: dict[int, str]) -> None:
    with workers(tmp_path) as started:
        assert finished(started) == [0, 0]
    assert trace(tmp_path) == expected
    manifests = sorted((tmp_path / "box" / "rekindle" / "manifests").iterdir())
    manifest = Manifest.from_json(manifests[1].read_bytes())
    assert (manifest.step, len(manifests)) == (20, 3)
    resume = {
        "TRAINING_JOB_NAME": "second",
        "REKINDLE_ATTEMPT": "2",
        "REKINDLE_RESUME_STEP": "20",
        "REKINDLE_RESUME_URI": manifest.root,
    }
    with workers(tmp_path, **resume) as started:
        assert finished(started) == [0, 0]
    assert trace(tmp_path, "second") == {step: loss for step, loss in expected.items() if step > 20}


def test_data_that_the_service_names_are_left_out_and_only_they(tmp_path: Path, expected: dict[int, str]) -> None:
    with workers(tmp_path, REKINDLE_SKIP="[[12,15]]", DEMO_POISON_STEP="13", NUMPY_LM_STEPS="20") as started:
        assert finished(started) == [0, 0]
    got = trace(tmp_path)
    assert sorted(got) == [*range(1, 12), *range(15, 21)]
    assert {step: got[step] for step in range(1, 12)} == {step: expected[step] for step in range(1, 12)}
    assert "nan" not in got.values()


def test_a_killed_worker_takes_the_other_down_which_says_why(tmp_path: Path, expected: dict[int, str]) -> None:
    with workers(tmp_path, NUMPY_LM_STEPS="5000") as started:
        wait_for_steps(tmp_path, 3, started[0])
        started[1].kill()
        assert started[0].wait(timeout=240) == 1
    assert "GangBroken: rank 0" in (tmp_path / "failure").read_text()


def test_sigterm_saves_once_more_and_ends_in_order(tmp_path: Path, expected: dict[int, str]) -> None:
    with workers(tmp_path, NUMPY_LM_STEPS="5000", NUMPY_LM_SAVE_EVERY="4000") as started:
        wait_for_steps(tmp_path, 3, started[0])
        for worker in started:
            worker.send_signal(signal.SIGTERM)
        assert finished(started) == [0, 0]
    manifests = [Manifest.from_json(path.read_bytes()) for path in (tmp_path / "box/rekindle/manifests").iterdir()]
    assert [manifest.step for manifest in manifests] == [max(trace(tmp_path))]
