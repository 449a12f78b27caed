"""Who holds the run: children, doubles and older lives as real processes with one mailbox, and one of them counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rekindle.monitor.mail.boxes import DirectoryBox
from rekindle.monitor.mail.holding import lives_in
from rekindle.protocol.keys import heartbeat_key, manifest_prefix, parse_key, reply_key, request_key
from rekindle.protocol.lives import Claim, Standing, life_key, named, split_name
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, Heartbeat, ReplyOutcome
from tests.monitor.boxes import PATIENCE_S
from tests.monitor.processes import PRELUDE, ROOT, Script

pytestmark = pytest.mark.process
ENV_ELASTIC = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "RANK": "0", "WORLD_SIZE": "1"}

# A run that trains until it is told to do something else, and says what came of it.
TRAINS = """
import queue, subprocess
env = {name: value for name, value in os.environ.items() if name.startswith(("TORCHE", "SLURM", "RANK", "WORLD"))}
events = []
mon = start(env=env, on_event=lambda name, detail: events.append((name, detail.get("why", ""))))
say(resumed=mon.resume.step, silent=mon.is_silent)
words = queue.Queue()
threading.Thread(target=lambda: [words.put(line.strip()) for line in sys.stdin], daemon=True).start()
step, is_idle = mon.resume.step or 0, False
while True:
    try:
        word = words.get(timeout=0.01)
    except queue.Empty:
        word = ""
    if word == "idle":
        is_idle = True
    elif word == "go on":
        is_idle = False
    elif word == "save":
        mon.saved(save(step, "periodic"), step)
        mon.flush(20)
    elif word == "finish":
        mon.finish()
    elif word.startswith("run "):
        exec(json.loads(word[4:]))
    if word:
        say(word=word[:6], step=step, stop=mon.should_stop, silent=mon.is_silent, superseded=mon.superseded,
            events=events)
    if word == "finish":
        break
    if not is_idle:
        step += 1
        mon.step(step, loss=1.0)
"""
CHILD = """
mon = start(env={name: value for name, value in os.environ.items() if name.startswith(("TORCHE", "RANK", "WORLD"))})
say_silent = mon.is_silent
for step in range(1, 4):
    mon.step(step, loss=9.0)
mon.saved(save(step, "periodic"), step)
mon.finish()
(here / "child-says").write_text(json.dumps(say_silent))
"""
STARTS = {
    "fork": """
pid = os.fork()
if pid == 0:
    try:
        exec(CHILD)
    finally:
        os._exit(0)
os.waitpid(pid, 0)
""",
    "spawn": """
import multiprocessing
child = multiprocessing.get_context("spawn").Process(target=exec, args=(PRELUDE + CHILD, {}))
child.start()
child.join()
""",
    "subprocess": "subprocess.run([sys.executable, '-c', PRELUDE + CHILD, str(here)], check=True)",
    "a shell's": """
command = ["sh", "-c", '"$0" -c "$1" "$2"; true', sys.executable, PRELUDE + CHILD, str(here)]
subprocess.run(command, check=True)
""",
}


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Script]]:
    scripts: list[Script] = []

    def start(**env: str) -> Script:
        scripts.append(Script(tmp_path, TRAINS, **env))
        return scripts[-1]

    yield start
    for script in scripts:
        script.end()


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def told(script: Script, word: str) -> dict[str, Any]:
    assert script.process.stdin is not None
    script.process.stdin.write(word + "\n")
    script.process.stdin.flush()
    return script.heard()


def does(script: Script, body: str) -> dict[str, Any]:
    return told(script, f"run {json.dumps(body)}")


def heartbeat(box: Path) -> Heartbeat:
    return Heartbeat.from_json((box / heartbeat_key("run-1")).read_bytes())


def sealed(box: Path) -> list[tuple[int, int]]:
    """(step, life) of every manifest."""
    names = sorted(path.name for path in (box / manifest_prefix()).glob("*"))
    keys = [parse_key(f"{manifest_prefix()}{name}") for name in names]
    return [(key.step or 0, key.life) for key in keys if key is not None]


def claim(box: Path, life: int) -> Claim | None:
    path = box / life_key("run-1", 0, life)
    return Claim.from_json(path.read_bytes()) if path.exists() else None


def has_trained(box: Path, life: int = 0, beyond: int = 3) -> Callable[[], bool]:
    def look() -> bool:
        path = box / heartbeat_key("run-1")
        return path.exists() and heartbeat(box).life == life and (heartbeat(box).step or 0) > beyond

    return look


@pytest.mark.parametrize("env", [{}, ENV_ELASTIC], ids=["plain", "torchrun"])
@pytest.mark.parametrize("kind", STARTS)
def test_a_child_of_the_run_stays_silent_with_one_warning(
    kind: str, env: dict[str, str], launch: Callable[..., Script], tmp_path: Path
) -> None:
    run = launch(**env)
    assert run.heard()["silent"] is False
    until(has_trained(tmp_path))
    body = f"PRELUDE, CHILD = {PRELUDE!r}, {CHILD!r}\n{STARTS[kind]}"
    after = does(run, body)
    assert (after["silent"], after["stop"]) == (False, False)
    assert json.loads((tmp_path / "child-says").read_text()) is True
    beat = heartbeat(tmp_path)
    assert (beat.is_last, beat.loss, beat.life) == (False, 1.0, 0)
    assert not sealed(tmp_path), "the child's save is none of the run's"
    assert claim(tmp_path, 1) is None
    told(run, "finish")
    assert heartbeat(tmp_path).is_last
    assert run.ended()[1].count("stays silent") == 1


def test_a_request_is_answered_by_the_run_and_not_by_its_child(launch: Callable[..., Script], tmp_path: Path) -> None:
    run = launch()
    run.heard()
    until(has_trained(tmp_path))
    slow = CHILD.replace("mon.finish()", "time.sleep(1.5); mon.finish()").replace("loss=9.0", "loss=float('nan')")
    body = f"child = subprocess.Popen([sys.executable, '-c', {PRELUDE + slow!r}, str(here)])"
    does(run, body)
    request = CheckpointRequest(request_id="r-1", job_id="job", attempt="run-1", deadline_s=60.0)
    path = tmp_path / request_key("r-1")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_bytes(request.to_json())
    path.with_suffix(".new").rename(path)
    until(lambda: (tmp_path / reply_key("r-1")).exists())
    answer = CheckpointReply.from_json((tmp_path / reply_key("r-1")).read_bytes())
    assert answer.outcome is ReplyOutcome.SAVED


def test_a_double_of_a_run_that_trains_falls_silent(launch: Callable[..., Script], tmp_path: Path) -> None:
    run = launch()
    run.heard()
    until(has_trained(tmp_path))
    double = launch()
    double.heard()
    until(lambda: (found := claim(tmp_path, 1)) is not None and found.standing is Standing.REFUSED)
    until(lambda: told(double, "save")["silent"] is True)
    assert told(run, "go on")["stop"] is False
    assert heartbeat(tmp_path).life == 0
    assert not sealed(tmp_path)
    assert told(double, "go on")["events"] == [], "nothing of it is heard of"
    told(double, "finish")
    assert double.ended()[1].count("is silent from here on") == 1
    assert not heartbeat(tmp_path).is_last
    third = launch()  # a refused claim takes a number, and no more
    third.heard()
    until(lambda: (found := claim(tmp_path, 2)) is not None and found.standing is Standing.REFUSED)


@pytest.mark.long
def test_a_run_is_still_known_after_many_doubles_that_were_refused(
    launch: Callable[..., Script], tmp_path: Path
) -> None:
    """As where an evaluation with the run's environment is started every hour."""
    run = launch()
    run.heard()
    until(lambda: (tmp_path / heartbeat_key("run-1")).exists() and heartbeat(tmp_path).step is not None)
    own = claim(tmp_path, 0)
    assert own is not None
    for life in range(1, 20):
        refused = replace(own, life=life, standing=Standing.REFUSED, process="gone 1 1", why="the run trains")
        (tmp_path / refused.key).write_bytes(refused.to_json())
    double = launch()
    double.heard()
    until(lambda: (found := claim(tmp_path, 20)) is not None and found.standing is Standing.REFUSED)
    assert not told(run, "save")["superseded"]


def test_a_run_that_is_killed_is_followed_by_a_new_life(launch: Callable[..., Script], tmp_path: Path) -> None:
    run = launch()
    run.heard()
    until(has_trained(tmp_path))
    saved_at = told(run, "save")["step"]
    run.process.kill()
    run.process.wait()
    second = launch()
    assert second.heard() == {"resumed": saved_at, "silent": False}
    until(has_trained(tmp_path, life=1, beyond=saved_at))
    again = told(second, "save")["step"]
    assert sealed(tmp_path) == [(saved_at, 0), (again, 1)]
    told(second, "finish")
    third = launch()
    assert third.heard()["resumed"] == again, "from what its own lives have saved"


def test_an_older_life_that_stands_still_is_fenced_by_a_new_one(launch: Callable[..., Script], tmp_path: Path) -> None:
    run = launch()
    run.heard()
    until(has_trained(tmp_path))
    saved_at = told(run, "save")["step"]
    told(run, "idle")
    second = launch()
    assert second.heard()["resumed"] == saved_at
    until(has_trained(tmp_path, life=1, beyond=saved_at))
    again = told(second, "save")["step"]
    told(run, "go on")
    until(lambda: told(run, "go on")["stop"] is True)
    late = told(run, "save")
    assert late["superseded"] is True
    assert ["Rekindle Monitor Finished", "superseded by run-1.g1"] in late["events"]
    assert sealed(tmp_path) == [(saved_at, 0), (again, 1)], "it seals nothing any more"
    told(run, "finish")
    assert not heartbeat(tmp_path).is_last, "and says nothing of the run"
    assert told(second, "go on")["stop"] is False
    third_at = told(second, "save")["step"]
    told(second, "finish")
    assert launch().heard()["resumed"] == third_at


def test_a_run_that_is_inside_an_evaluation_keeps_its_run(launch: Callable[..., Script], tmp_path: Path) -> None:
    run = launch()
    run.heard()
    until(has_trained(tmp_path))
    does(run, "mon.phase('evaluation').__enter__(); is_idle = True")
    launch().heard()
    until(lambda: (found := claim(tmp_path, 1)) is not None and found.standing is Standing.REFUSED)
    assert "evaluation" in (claim(tmp_path, 1) or pytest.fail("no claim")).why


def test_a_worker_whose_launcher_has_started_another_one_in_its_place_is_fenced_at_once(
    launch: Callable[..., Script], tmp_path: Path
) -> None:
    run = launch(**ENV_ELASTIC)
    run.heard()
    until(has_trained(tmp_path))
    second = launch(**ENV_ELASTIC | {"TORCHELASTIC_RESTART_COUNT": "1"})
    second.heard()
    assert (claim(tmp_path, 1) or pytest.fail("no claim")).standing is Standing.HELD
    until(lambda: told(run, "go on")["stop"] is True)
    assert told(second, "go on")["stop"] is False


def test_an_unsupervised_worker_is_fenced_though_it_trains_on(launch: Callable[..., Script], tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" "$2" < /dev/zero > /dev/null & sleep 600', sys.executable, worker(), str(tmp_path)],
        env=os.environ | ENV_ELASTIC | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        until(has_trained(tmp_path))
        launcher.kill()  # and its worker lives on
        launcher.wait()
        second = launch(**ENV_ELASTIC)
        second.heard()
        assert (claim(tmp_path, 1) or pytest.fail("no claim")).standing is Standing.HELD
        until(lambda: (tmp_path / "told-to-stop").exists())
        until(has_trained(tmp_path, life=1))
    finally:
        os.killpg(launcher.pid, signal.SIGKILL)


def worker() -> str:
    return PRELUDE + textwrap.dedent("""
        env = {name: value for name, value in os.environ.items() if name.startswith(("TORCHE", "RANK", "WORLD"))}
        mon = start(env=env)
        for step in range(1, 100_000):
            mon.step(step, loss=1.0)
            if mon.should_stop:
                (here / "told-to-stop").touch()
                break
            time.sleep(0.01)
    """)


def test_the_last_heartbeat_of_a_life_frees_the_run_though_its_process_lives(
    launch: Callable[..., Script], tmp_path: Path
) -> None:
    run = launch()
    run.heard()
    until(has_trained(tmp_path))
    does(run, "mon.finish(); is_idle = True")
    second = launch()
    second.heard()
    assert (claim(tmp_path, 1) or pytest.fail("no claim")).standing is Standing.HELD


def test_a_life_ended_when_the_next_one_began_however_many_followed(tmp_path: Path) -> None:
    """So that what its process saves later, where that lives on, is not resumed from."""
    box = DirectoryBox(str(tmp_path))
    for life in range(20):
        at = datetime(2026, 11, 21, 9, life, tzinfo=UTC)
        held = Claim(job_id="j", attempt="run-1", life=life, rank=0, standing=Standing.HELD, process="h 1 1", at=at)
        box.put(held.key, held.to_json())
        os.utime(tmp_path / held.key, (at.timestamp(), at.timestamp()))
    lives = lives_in(box)
    assert [lives.ended_at("run-1", life) for life in (0, 18)] == [
        datetime(2026, 11, 21, 9, minute, tzinfo=UTC) for minute in (1, 19)
    ]
    assert lives.ended_at("run-1", 19) is None


def test_a_script_that_replaces_itself_begins_a_new_life(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        mon = start()
        mon.step(1, loss=1.0)
        if mon.identity.life == 0:
            os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], str(here)])
        say(life=mon.identity.life)
        """,
    )
    try:
        assert script.heard() == {"life": 1}
    finally:
        script.end()


@pytest.mark.parametrize("name", ["run-1", "slurm.hpc.17.r2", "job-a1"])
@pytest.mark.parametrize("life", [0, 1, 12])
def test_the_name_of_a_life_is_read_back(name: str, life: int) -> None:
    assert split_name(named(name, life)) == (name, life)
