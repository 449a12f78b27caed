"""When SIGTERM gets its effect back: the rules, and the evidence that a worker of the same torchrun has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rekindle.monitor.liveness.peers import LocalWorkers
from rekindle.monitor.stops.termination import Termination, TerminationState, why_to_end
from rekindle.protocol.mailbox import RunPhase

TRAINING = TerminationState(
    has_read_stop=False,
    is_stopping=False,
    unheeded_steps=0,
    is_sealed=True,
    is_saving=False,
    can_save=True,
    has_stepped=True,
    phase=RunPhase.TRAINING,
    silent_s=1.0,
    usual_step_s=0.5,
    is_elastic=True,
    is_peer_gone=False,
)


def why(since_s: float = 10.0, *, insists: bool = False, **changes: object) -> str | None:
    return why_to_end(replace(TRAINING, **changes), since_s=since_s, insists=insists, grace_s=120.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "since_s", "reason"),
    [
        ({}, 10.0, None),
        ({}, 119.9, None),
        ({}, 120.0, "did not end within 120 s"),
        ({"has_read_stop": True}, 120.0, "did not end within 120 s"),
        ({"is_saving": True}, 120.0, "did not end within 120 s"),
        ({"has_stepped": False}, 0.1, "no step is done yet"),
        ({"can_save": False}, 4.9, None),
        ({"can_save": False}, 5.0, "nothing can be saved"),
        ({"can_save": False, "has_read_stop": True}, 60.0, None),
        ({"is_peer_gone": True}, 0.1, "another worker"),
        ({"is_peer_gone": None}, 60.0, None),
        ({"is_peer_gone": True, "is_saving": True}, 60.0, None),
        ({"is_peer_gone": True, "has_read_stop": True}, 60.0, None),
        ({"is_stopping": True, "unheeded_steps": 2}, 60.0, None),
        ({"is_stopping": True, "unheeded_steps": 3}, 60.0, "without looking"),
        ({"is_stopping": True, "unheeded_steps": 3, "is_sealed": False}, 60.0, None),
        ({"is_stopping": True, "unheeded_steps": 3, "has_read_stop": True}, 60.0, None),
        ({"silent_s": 2.9, "usual_step_s": 0.1}, 10.0, None),
        ({"silent_s": 3.1, "usual_step_s": 0.1}, 0.1, "has not moved"),
        ({"silent_s": 3.1, "usual_step_s": 0.1, "is_elastic": False}, 10.0, None),
        ({"silent_s": 15.1, "usual_step_s": 0.1, "is_elastic": False}, 10.0, "has not moved"),
        ({"silent_s": 99.0, "usual_step_s": 20.0}, 60.0, None),
        ({"silent_s": 100.1, "usual_step_s": 20.0}, 60.0, "has not moved"),
        ({"silent_s": 29.9, "usual_step_s": None}, 60.0, None),
        ({"silent_s": 30.1, "usual_step_s": None}, 60.0, "has not moved"),
        ({"silent_s": 100.0, "phase": RunPhase.EVALUATION}, 60.0, None),
        ({"silent_s": 100.0, "phase": RunPhase.SAVING}, 60.0, None),
        ({"silent_s": 100.0, "has_read_stop": True}, 60.0, None),
    ],
)
def test_sigterm_has_its_effect_only_where_the_save_cannot_come(
    changes: dict[str, object], since_s: float, reason: str | None
) -> None:
    found = why(since_s, **changes)
    assert found is None if reason is None else found is not None and reason in found


def test_a_sender_that_insists_is_obeyed_even_during_the_save() -> None:
    assert why(1.0, insists=True, is_saving=True) == "it was sent again"


class _Signals:
    """As rekindle.monitor's, with nothing behind it."""

    def __init__(self) -> None:
        self.given_back = 0

    def is_ours(self, number: int) -> bool:
        return number == signal.SIGTERM

    def can_give_back(self, number: int) -> bool:
        return number == signal.SIGTERM

    def give_back(self, number: int) -> bool:
        self.given_back += number == signal.SIGTERM
        return True


class _Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def monotonic(self) -> float:
        return self.at


def test_a_loop_gets_its_time_to_look_from_when_it_is_known_that_nothing_can_be_saved() -> None:
    """Ranks that look for each other for ten seconds are told of the stop only when they have given up."""
    signals, clock, now = _Signals(), _Clock(), [TRAINING]
    termination = Termination(
        signals=signals,  # type: ignore[arg-type]
        clock=clock,  # type: ignore[arg-type]
        grace_s=120.0,
        situation=lambda: now[0],
        moved_at=lambda: clock.at,
    )
    termination.heard(is_from_python=True)
    for seconds in (0.0, 5.0, 10.0):
        clock.at = 100.0 + seconds
        assert termination.turn() is not None
    now[0] = replace(TRAINING, can_save=False)
    for seconds, given_back in ((10.05, 0), (14.9, 0), (15.1, 1)):
        clock.at = 100.0 + seconds
        termination.turn()
        assert signals.given_back == given_back, seconds


WORKER = "import sys; print('ready', flush=True); sys.stdin.read()"


def worker(local_rank: int, run: str = "run") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | {"TORCHELASTIC_RUN_ID": run, "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": "3"},
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc here")
def test_a_worker_that_has_ended_is_missed_before_and_after_it_was_waited_for(tmp_path: Path) -> None:
    script = (
        "import os, sys; from rekindle.monitor.liveness.peers import LocalWorkers\n"
        "while sys.stdin.readline(): print(LocalWorkers(os.environ).is_one_gone(), flush=True)"
    )
    watching = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ) | {"TORCHELASTIC_RUN_ID": "run", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"},
    )

    def look() -> str:
        assert watching.stdin is not None
        assert watching.stdout is not None
        watching.stdin.write("look\n")
        watching.stdin.flush()
        return watching.stdout.readline().strip()

    others = [worker(1), worker(2), worker(1, "another run")]
    try:
        assert look() == "False"
        os.kill(others[1].pid, 9)
        os.waitid(os.P_PID, others[1].pid, os.WEXITED | os.WNOWAIT)
        assert look() == "True", "it is a zombie"
        others[1].wait()
        assert look() == "True"
    finally:
        for process in (*others, watching):
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"TORCHELASTIC_RUN_ID": "run"},
        {"TORCHELASTIC_RUN_ID": "run", "LOCAL_WORLD_SIZE": "1"},
        {"TORCHELASTIC_RUN_ID": "run", "LOCAL_WORLD_SIZE": "x"},
        {"TORCHELASTIC_RUN_ID": "run", "LOCAL_WORLD_SIZE": "4"},
        {"TORCHELASTIC_RUN_ID": "\udcff", "LOCAL_WORLD_SIZE": "4"},
    ],
)
def test_what_torchrun_did_not_start_as_its_own_child_is_unknown(env: dict[str, str], tmp_path: Path) -> None:
    assert LocalWorkers(env).is_one_gone() is None
    assert LocalWorkers(env, proc=tmp_path / "none").is_one_gone() is None
