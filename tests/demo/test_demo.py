"""The whole demo, on real processes: a poisoned batch is cured, and an interrupted demo leaves nothing behind."""

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.long, pytest.mark.process]

LISTENING = (
    "import runpy, signal\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "runpy.run_module('rekindle.cli.main', run_name='__main__', alter_sys=True)\n"
)


def demo(out: Path, *arguments: str) -> subprocess.Popen[str]:
    """A demo that Ctrl-C reaches, as at a terminal: whoever runs the tests in the background hands on a deaf ear."""
    argv = [sys.executable, "-c", LISTENING, "demo", "--out", str(out), *arguments]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def processes_of(out: Path) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(out).encode() in text:
            found.append(process.name)
    return found


def test_a_poisoned_batch_is_retried_once_then_skipped_and_every_other_loss_is_the_undisturbed_one(
    tmp_path: Path,
) -> None:
    run = demo(tmp_path / "demo", "--fault", "nan", "--seed", "3", "--json", "--keep")
    printed, _ = run.communicate(timeout=900)
    report = json.loads(printed)
    assert run.returncode == 0, report["problem"]
    assert report == json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["ok"]
    (row,) = report["faults"]
    assert (row["diagnosis"], row["outcome"]) == ("non_finite", "recovered")
    poisoned = row["injected_step"]
    first, second, third = report["attempts"]
    assert second["skipped"] == []
    assert third["skipped"] == [[poisoned, poisoned + 2]]
    for attempt in (second, third):
        assert attempt["resumed_at_step"] < poisoned
        assert attempt["first_step"] == attempt["resumed_at_step"] + 1
    assert first["last_good_step"] == second["last_good_step"] == poisoned - 1
    assert third["last_step"] > poisoned
    same = report["same_loss_at_same_step"]
    assert same["equal"]
    assert same["last_step"] == third["last_step"]
    assert math.isfinite(same["last_loss"])
    assert processes_of(tmp_path / "demo") == []
    agrees_with_the_store(report, tmp_path / "demo")


def test_where_a_gpu_fails_and_the_run_lives_its_work_is_saved_and_moved(tmp_path: Path) -> None:
    run = demo(tmp_path / "demo", "--fault", "node", "--json")
    printed, _ = run.communicate(timeout=900)
    report = json.loads(printed)
    assert run.returncode == 0, report["problem"]
    (row,) = report["faults"]
    assert (row["diagnosis"], row["outcome"]) == ("node_hardware", "recovered")
    assert row["emergency_checkpoint"]["answer"] == "saved"
    assert row["emergency_checkpoint"]["steps_saved"] >= 0
    agrees_with_the_store(report, tmp_path / "demo")


def read(store: Path, *command: str) -> Any:
    """What `rekindle COMMAND --json` prints of a store."""
    argv = [sys.executable, "-m", "rekindle.cli.main", *command, "--json", "--store", str(store)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


def agrees_with_the_store(report: dict[str, Any], store: Path) -> None:
    """Nothing is under way any more, and every command has the report's figures."""
    status = read(store, "status")
    assert (status["jobs_active"], status["incidents_open"]) == (0, 0)
    jobs = {job["job_id"]: job for job in read(store, "jobs")["jobs"]}
    assert jobs.keys() == {report["job_id"]}
    assert not any(job["active"] or job["open_incident"] for job in jobs.values())
    (row,) = report["faults"]
    one = read(store, "ledger", "--incident", row["incident_id"])
    figures = ("mttd_s", "mttr_s", "steps_lost")
    assert [one[name] for name in figures] == [row[name] for name in figures]
    books = [read(store, "ledger", "--job", job_id) for job_id in jobs]
    whole = read(store, "ledger")
    assert whole["incidents"]["all"] == sum(book["incidents"]["all"] for book in books) == 1
    assert whole["steps_lost"]["sum"] == sum(book["steps_lost"]["sum"] for book in books)
    wall = sum(book["wall_s"] for book in books)
    assert whole["ettr"] == pytest.approx(sum(book["ettr"] * book["wall_s"] for book in books) / wall, abs=0.001)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    run = demo(tmp_path / "demo", "--fault", "freeze")
    assert run.stdout is not None
    for line in run.stdout:
        if "training on" in line:
            break
    assert len(processes_of(tmp_path / "demo")) >= 4  # the demo, the reference and two workers
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=240) == 130
    run.stdout.close()
    assert processes_of(tmp_path / "demo") == []


def test_a_folder_that_no_demo_made_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.txt").write_text("precious")
    run = demo(tmp_path)
    run.communicate(timeout=900)
    assert run.returncode == 2
    assert (tmp_path / "data" / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize(("arguments", "why"), [(("--seed", "-1"), "whole number"), (("--fault", "nope"), "invalid")])
def test_a_wrong_option_is_refused_before_anything_starts(tmp_path: Path, arguments: tuple[str, str], why: str) -> None:
    argv = [sys.executable, "-m", "rekindle.cli.main", "demo", "--out", str(tmp_path / "demo"), *arguments]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, why in done.stderr) == (2, True)
    assert not (tmp_path / "demo").exists()


def test_a_place_that_is_a_file_or_in_use_by_another_demo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "used").mkdir()
    with (tmp_path / "used" / ".rekindle-demo").open("a") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        for name, why in (("file", "is not a folder"), ("used", "another demo is running")):
            argv = [sys.executable, "-m", "rekindle.cli.main", "demo", "--out", str(tmp_path / name)]
            done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
            assert (done.returncode, why in done.stderr) == (2, True)
