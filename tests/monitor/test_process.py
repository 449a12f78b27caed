"""The monitor in processes of its own: signals, forks, freezes and deaths are real here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from rekindle.protocol.keys import heartbeat_key, manifest_prefix
from rekindle.protocol.mailbox import Heartbeat, RunPhase
from rekindle.protocol.manifests import Manifest, SaveKind

pytestmark = [pytest.mark.process, pytest.mark.long]
ROOT = Path(__file__).parents[2]

PRELUDE = """
import json, os, sys, threading
from pathlib import Path
from rekindle.monitor.base.settings import Config
from rekindle.monitor.starting import start_in

here = Path(sys.argv[1])

def save(step, kind):
    path = here / f"step-{step}.bin"
    path.write_bytes(b"x" * 100)
    return path

def say(**what):
    print(json.dumps(what), flush=True)

def hear():
    return sys.stdin.readline().strip()

config = Config(heartbeat_s=0.05, poll_s=0.05, watch_s=0.05, stall_startup_s=0.6, stall_floor_s=0.6)
def start(**more):
    env = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
    return start_in(env, save=save, mailbox=str(here), config=config, **more)
"""


def run(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(body), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.fixture
def launch(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    return lambda body: run(tmp_path, body)


def heartbeat(tmp_path: Path) -> Heartbeat:
    return Heartbeat.from_json((tmp_path / heartbeat_key("run-1")).read_bytes())


def heard(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    answer: dict[str, object] = json.loads(line)
    return answer


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def test_sigterm_saves_at_the_next_step_chains_the_old_handler_and_asks_the_loop_to_stop(
    launch: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = launch("""
        import signal
        called = []
        signal.signal(signal.SIGTERM, lambda *args: called.append(1))
        mon = start(signals=("TERM",))
        mon.step(1, loss=1.0)
        say(ready=True)
        hear()
        step = 1
        while not mon.should_stop and step < 100:
            step += 1
            mon.step(step, loss=1.0)
        mon.finish()
        say(step=step, called=len(called), restored=signal.getsignal(signal.SIGTERM).__name__)
    """)
    assert heard(process) == {"ready": True}
    process.send_signal(signal.SIGTERM)
    tell(process, "go on")
    assert heard(process) == {"step": 2, "called": 1, "restored": "<lambda>"}
    assert process.wait(120) == 0
    [manifest] = (tmp_path / manifest_prefix()).iterdir()
    sealed = Manifest.from_json(manifest.read_bytes())
    assert (sealed.step, sealed.kind) == (2, SaveKind.EMERGENCY)


def test_a_forked_child_says_nothing_in_its_parents_name(
    launch: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = launch("""
        mon = start()
        mon.step(1, loss=1.0)
        child = os.fork()
        if child == 0:
            mon.step(999, loss=float("nan"))
            mon.saved(save(999, "x"), 999)
            mon.finish()
            os._exit(0 if mon.is_silent else 1)
        _, status = os.waitpid(child, 0)
        mon.step(2, loss=1.0)
        mon.finish()
        say(child=os.waitstatus_to_exitcode(status))
    """)
    assert heard(process)["child"] == 0
    assert process.wait(120) == 0
    assert heartbeat(tmp_path).step == 2
    assert not (tmp_path / manifest_prefix()).exists()


def test_a_script_that_dies_writes_its_last_step_and_is_not_said_to_have_finished(
    launch: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = launch("""
        mon = start()
        mon.step(7, loss=1.0)
        raise RuntimeError("CUDA error")
    """)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.count("Traceback") == 1, "only the script's own error"
    assert (heartbeat(tmp_path).step, heartbeat(tmp_path).phase) == (7, RunPhase.TRAINING)
    assert heartbeat(tmp_path).is_last


def test_a_process_that_was_stopped_and_continued_does_not_call_itself_stalled(
    launch: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = launch("""
        config = Config(heartbeat_s=0.05, poll_s=0.05, watch_s=0.05, stall_startup_s=4, stall_floor_s=4)
        mon = start()
        for step in range(1, 10):
            mon.step(step, loss=1.0)
        say(ready=True)
        hear()
        mon.step(10, loss=1.0)
        mon.finish()
        say(done=True)
    """)
    assert heard(process) == {"ready": True}
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(5)  # the freeze itself: longer than every limit of this run
    process.send_signal(signal.SIGCONT)
    tell(process, "go on")
    assert heard(process) == {"done": True}
    _, errors = process.communicate(timeout=120)
    assert "No step for" not in errors


def test_importing_the_monitor_brings_in_neither_boto3_nor_numpy() -> None:
    code = "import sys, rekindle.monitor; print(sorted({'boto3', 'botocore', 'numpy', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
    assert os.path.exists(ROOT / "rekindle" / "py.typed")


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the platform has no SIGUSR1")
def test_sigusr1_saves_at_the_next_step_and_the_run_goes_on(
    launch: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = launch("""
        mon = start(signals=("TERM", "USR1"))
        mon.step(1, loss=1.0)
        say(ready=True)
        hear()
        for step in range(2, 6):
            mon.step(step, loss=1.0)
        mon.finish()
        say(stops=mon.should_stop)
    """)
    assert heard(process) == {"ready": True}
    process.send_signal(signal.SIGUSR1)
    tell(process, "go on")
    assert heard(process) == {"stops": False}
    assert process.wait(120) == 0
    [manifest] = (tmp_path / manifest_prefix()).iterdir()
    sealed = Manifest.from_json(manifest.read_bytes())
    assert (sealed.step, sealed.kind) == (2, SaveKind.EMERGENCY)
