"""The monitor in processes that Slurm could have started: signals are real here."""

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

from rekindle.protocol.keys import manifest_prefix
from rekindle.protocol.manifests import Manifest, SaveKind

pytestmark = [
    pytest.mark.long,
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no SIGUSR1 here"),
]
ROOT = Path(__file__).parents[2]
PRELUDE = """
import json, os, signal, sys
from pathlib import Path
here = Path(sys.argv[1])
def say(**what): print(json.dumps(what), flush=True)
def hear(): return sys.stdin.readline().strip()
def save(step, kind):
    path = here / f"step-{step}.bin"
    path.write_bytes(b"x" * 100)
    return path
def steps(mon, first, last):
    for step in range(first, last + 1):
        mon.step(step, loss=1.0)
"""
Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    def start(body: str, *, mailbox: bool = True, wrap: tuple[str, ...] = (), **more: str) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "REKINDLE"))}
        env |= {"SLURM_JOB_ID": "17", "REKINDLE_CLUSTER": "hpc", "PYTHONPATH": str(ROOT), **more}
        env |= {"REKINDLE_MAILBOX": str(tmp_path)} if mailbox else {}
        return subprocess.Popen(
            [*wrap, sys.executable, "-c", PRELUDE + textwrap.dedent(body), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )

    return start


def heard(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    answer: dict[str, object] = json.loads(line)
    return answer


def tell(process: subprocess.Popen[str], word: str = "go on") -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def saved(tmp_path: Path) -> list[Manifest]:
    folder = tmp_path / manifest_prefix()
    return [Manifest.from_json(path.read_bytes()) for path in sorted(folder.iterdir())] if folder.exists() else []


def test_on_slurm_usr1_is_a_wish_for_a_checkpoint_without_a_word_in_the_script(launch: Launch, tmp_path: Path) -> None:
    process = launch("""
        import rekindle.monitor as rekindle
        mon = rekindle.start(save=save)
        steps(mon, 1, 1)
        say(ready=True)
        hear()
        steps(mon, 2, 5)
        mon.finish()
        say(stops=mon.should_stop)
        hear()
    """)
    assert heard(process) == {"ready": True}
    process.send_signal(signal.SIGUSR1)
    tell(process)
    assert heard(process) == {"stops": False}
    process.send_signal(signal.SIGUSR1)  # after the end: it must not kill the tear-down
    tell(process)
    assert process.wait(120) == 0
    [manifest] = saved(tmp_path)
    assert (manifest.step, manifest.kind, manifest.request_id) == (2, SaveKind.EMERGENCY, "signal-2")
    assert manifest.attempt == "slurm.hpc.17"


def test_a_signal_that_the_launcher_ignores_is_still_taken_by_the_rank(launch: Launch, tmp_path: Path) -> None:
    """`trap '' USR1; exec torchrun …`: ignored signals stay ignored across exec, and torchrun would die of it."""
    process = launch(
        """
        import rekindle.monitor as rekindle
        say(ignored=signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN)
        mon = rekindle.start(save=save)
        say(ready=True)
        hear()
        steps(mon, 1, 3)
        mon.finish()
        say(ignored=signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN)
        """,
        wrap=("sh", "-c", "trap '' USR1; exec \"$@\"", "sh"),
    )
    assert heard(process) == {"ignored": True}
    assert heard(process) == {"ready": True}
    process.send_signal(signal.SIGUSR1)
    tell(process)
    assert heard(process) == {"ignored": True}
    assert [manifest.step for manifest in saved(tmp_path)] == [1]
    assert process.wait(120) == 0


@pytest.mark.parametrize("chosen", ["", "signals=()"])
def test_a_handler_of_the_scripts_own_stays_the_scripts(launch: Launch, tmp_path: Path, chosen: str) -> None:
    process = launch(f"""
        called = []
        signal.signal(signal.SIGUSR1, lambda *_: called.append(1))
        import rekindle.monitor as rekindle
        mon = rekindle.start(save=save, {chosen})
        say(ready=True)
        hear()
        steps(mon, 1, 3)
        mon.finish()
        say(called=len(called))
    """)
    assert heard(process) == {"ready": True}
    process.send_signal(signal.SIGUSR1)
    tell(process)
    assert heard(process) == {"called": 1}
    assert process.wait(120) == 0
    assert saved(tmp_path) == []


def test_importing_takes_no_signal_and_starts_no_thread(launch: Launch) -> None:
    process = launch(
        """
        import threading
        before = {number: signal.getsignal(number) for number in signal.valid_signals()}
        import rekindle.monitor
        say(
            signals=before == {number: signal.getsignal(number) for number in signal.valid_signals()},
            threads=threading.active_count(),
        )
        """
    )
    assert heard(process) == {"signals": True, "threads": 1}
    assert process.wait(120) == 0
