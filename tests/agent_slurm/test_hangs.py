"""One hanging path, one Job: on a file system that never answers, with processes that SIGKILL does not end."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.keys import plan_key
from rekindle.slurm_agent.base.ports import SlurmUnavailable
from rekindle.slurm_agent.files import user_files, worker, workers
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.worker import WorkNotDone
from rekindle.slurm_agent.files.workers import Hangs, Workers, WorkPending, mount_of
from rekindle.slurm_agent.reading.run import Runner
from rekindle.slurm_agent.watching.followed_jobs import FollowedJob, FollowedJobs
from rekindle.slurm_agent.watching.relay import MailboxRelay
from tests.agent_slurm.conftest import START, Head, Kept
from tests.agent_slurm.test_relay import heartbeat
from tests.slurm.never_answers import CannotMount, never_answers

ME = (os.getuid(), os.getgid())
SOFT_S = 0.5  # for one path; a path that answers needs some milliseconds. Longer on a busy machine: `pace`
MOMENT_S = 5 * SOFT_S + 1.0  # the start of the workers, and one path that hangs
LONGEST_S = 2.0  # as in an agent that is installed: what one user may cost in a pass is more than that


@pytest.fixture(autouse=True)
def pace() -> None:
    """Deadlines as long as this machine, as busy as it is, needs to tell a path that answers from one that hangs."""
    global SOFT_S, MOMENT_S
    made, took = Workers(soft_s=60.0, patience_s=120.0), 0.0
    for whose in ("a", "b"):  # the second asks a worker that is there
        began = time.monotonic()
        made.ask((whose, "folder"), "/", "answers", {"path": "/"}, *ME)
        took = max(took, time.monotonic() - began)
    made.close()
    SOFT_S = min(max(0.5, 5 * took), LONGEST_S)
    MOMENT_S = 5 * SOFT_S + 1.0


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    try:
        with never_answers(tmp_path / "hung") as folder:
            yield folder
    except CannotMount as err:
        pytest.skip(f"no file system of our own can be mounted here: {err}")


@pytest.fixture
def files() -> Iterator[UserFiles]:
    made = UserFiles(Workers(soft_s=SOFT_S, patience_s=2 * SOFT_S))
    made.is_folder("warm up", "/", None, None)
    yield made
    made.workers.close()


def member(number: int, mailbox: Path) -> FollowedJob:
    name = f"slurm.ml.{number}"
    return FollowedJob(
        job_id=name,
        slurm_job=number,
        attempt=name,
        mailbox=f"file://{mailbox}",
        checkpoints="",
        uid=os.getuid(),
        gid=os.getgid(),
        is_running=True,
    )


def heartbeat_in(box: Path) -> Path:
    path = box / "rekindle" / "heartbeats" / "slurm.ml.7.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(heartbeat(3))
    return box


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="stack")
        yield client


def relay_of(s3: object, files: UserFiles, *members: FollowedJob) -> MailboxRelay:
    followed_jobs = FollowedJobs()
    followed_jobs.put(members)
    return MailboxRelay(cluster="ml", bucket="stack", s3=s3, memory=Kept(), followed_jobs=followed_jobs, files=files)


def test_the_relay_carries_every_other_mailbox_and_names_the_path(
    hung: Path, files: UserFiles, s3: object, tmp_path: Path
) -> None:
    relay = relay_of(s3, files, member(6, hung / "box"), member(7, heartbeat_in(tmp_path / "box")))
    sent: set[str] = set()
    for _ in range(3):
        began = time.monotonic()
        reading = relay.run_once(START)
        assert time.monotonic() - began < MOMENT_S
        sent |= reading.documents.keys()
        assert len(reading.problems) == 1
        assert "slurm.ml.6" in reading.problems[0]
        assert f"{hung}/box" in reading.problems[0]
        time.sleep(SOFT_S)
    assert "clusters/ml/jobs/slurm.ml.7/rekindle/heartbeats/slurm.ml.7.json" in sent


def test_a_process_that_cannot_be_killed_is_left_behind_and_its_path_is_not_tried_meanwhile(
    hung: Path, files: UserFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Hangs):
        files.read("a", str(hung / "x"), 10, *ME)
    (waiting,) = files.workers._waiting.values()
    deadline = time.monotonic() + 3 * SOFT_S
    with monkeypatch.context() as patch:
        patch.setattr(workers, "Worker", lambda: pytest.fail("another process was started for it"))
        while time.monotonic() < deadline:
            began = time.monotonic()
            with pytest.raises(Hangs, match=str(hung)):
                files.read("a", str(hung / "x"), 10, *ME)
            assert time.monotonic() - began < SOFT_S
            time.sleep(0.05)
    assert waiting.is_killed
    assert not waiting.worker.is_gone(), "the kernel waits for the file system, beyond SIGKILL"
    assert files.workers.ask(("b", "folder"), "/", "answers", {"path": "/"}, *ME), "others go on"


def test_a_path_that_answers_again_is_used_again(tmp_path: Path) -> None:
    now = [0.0]
    files = UserFiles(Workers(soft_s=SOFT_S, patience_s=2 * SOFT_S, now=lambda: now[0]))
    folder = tmp_path / "box"
    try:
        with never_answers(folder), pytest.raises(Hangs):
            files.is_folder("a", str(folder), *ME)
    except CannotMount as err:
        pytest.skip(str(err))
    now[0] += 10.0  # its time is over
    (waiting,) = files.workers._waiting.values()
    with pytest.raises(Hangs):
        files.is_folder("a", str(folder), *ME)
    deadline = time.monotonic() + 30.0
    while not waiting.worker.is_gone() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(Hangs, match="tried again in"):
        files.is_folder("a", str(folder), *ME)
    now[0] += workers.AGAIN_S
    assert files.is_folder("a", str(folder), *ME)
    assert files.is_folder("a", str(folder), *ME)
    files.workers.close()


@pytest.mark.long
def test_many_jobs_on_a_file_system_that_hangs_cost_few_processes_and_little_time(
    hung: Path, files: UserFiles, s3: object, tmp_path: Path
) -> None:
    many = [member(number, hung / f"box{number}") for number in range(10, 40)]
    good = replace(member(7, heartbeat_in(tmp_path / "box")), uid=4000)  # another user: each has a budget of a pass
    relay = relay_of(s3, files, *many, good if os.geteuid() else replace(good, uid=0))
    began = time.monotonic()
    problems: tuple[str, ...] = ()
    for _ in range(3):
        problems = relay.run_once(START).problems
        assert len(files.workers._waiting) <= workers.IN_A_ROW
        time.sleep(SOFT_S)
    assert time.monotonic() - began < workers.IN_A_ROW * SOFT_S + 3 * MOMENT_S
    assert any("is not tried" in line and str(hung) in line for line in problems)
    with pytest.raises(Hangs, match="is not tried"):
        files.is_folder("another", str(hung / "other"), *ME)
    assert files.is_folder("another", str(tmp_path), *ME)


@pytest.mark.long
def test_a_file_system_that_hangs_in_part_serves_the_others(
    hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a parallel file system does that has lost one of its servers: some files answer, and others do not."""
    monkeypatch.setattr(workers, "mount_of", lambda _: "/fsx")
    now = [0.0]
    files = UserFiles(Workers(soft_s=1.0, patience_s=1e9, now=lambda: now[0]))
    files.is_folder("warm up", "/", *ME)
    for number in range(2 * workers.IN_A_ROW):
        now[0] += 1.0
        with pytest.raises(Hangs, match="within"):
            files.is_folder(f"bad {number}", str(hung / str(number)), *ME)
        now[0] += 1.0
        assert files.is_folder(f"good {number}", str(tmp_path), *ME), "one of the others answered just now"

    for number in range(workers.IN_A_ROW):
        now[0] += 1.0
        with pytest.raises(Hangs, match="within"):
            files.is_folder(f"worse {number}", str(hung / f"w{number}"), *ME)
    with pytest.raises(Hangs, match="is not tried"):
        files.is_folder("good 0", str(tmp_path), *ME)
    now[0] += workers.PROBE_S
    assert files.is_folder("good 0", str(tmp_path), *ME), "one is tried now and then"
    assert files.is_folder("good 1", str(tmp_path), *ME), "it answered, so the others are tried again"
    files.workers.close()


def test_no_order_waits_for_a_path_that_hangs(hung: Path, files: UserFiles, s3: object, tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    relay = relay_of(s3, files, member(6, hung / "box"), member(7, box))
    for number in (6, 7):
        key = f"clusters/ml/jobs/slurm.ml.{number}/{plan_key(f'slurm.ml.{number}.r1')}"
        s3.put_object(Bucket="stack", Key=key, Body=b"plan")  # type: ignore[attr-defined]
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(SlurmUnavailable, match=f"slurm.ml.6.*{hung}"):
            relay.deliver(6)
        relay.deliver(7)
        assert time.monotonic() - began < MOMENT_S
    assert (box / plan_key("slurm.ml.7.r1")).read_bytes() == b"plan"


def test_the_look_sees_every_job_and_names_the_path(
    hung: Path, files: UserFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_files, "LOG_S", SOFT_S)
    head = Head(tmp_path)
    head.watch._inputs = replace(head.watch._inputs, files=files)
    running = {"State": "RUNNING", "NodeList": "n1"}
    ended = {"JobID": "6", "State": "FAILED", "NodeList": "n1", "Comment": "rekindle", "STDOUT": f"{hung}/out"}
    head.fake.jobs(
        [
            ended,
            running | {"JobID": "7", "Comment": f"rekindle,mailbox=file://{hung}/box"},
            running | {"JobID": "8", "Comment": "rekindle"},
        ]
    )
    head.fake.steps({"7": 1, "8": 1})
    for _ in range(2):
        began = time.monotonic()
        reading = head.look()
        assert time.monotonic() - began < MOMENT_S + 2.0
        assert any(f"{hung}/box" in line and "job 7" in line for line in reading.problems)
    assert head.doc("slurm.ml.7").is_ready is None
    assert head.doc("slurm.ml.8").state is SlurmState.RUNNING
    assert f"could not be read: {hung}/out" in head.doc("slurm.ml.6").detail


def test_a_command_that_cannot_be_killed_is_left_behind(hung: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.slurm_agent.reading.run.KILLED_S", 0.2)
    began = time.monotonic()
    with pytest.raises(SlurmUnavailable, match="did not end within"):
        Runner(environ={"PATH": "/usr/bin:/bin"}, patience_s=0.3).read(["ls", str(hung / "x")])
    assert time.monotonic() - began < MOMENT_S


def test_work_that_takes_its_time_is_no_hang(files: UserFiles, tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"checkpoint-{number}").mkdir()
    files.workers.soft_s = 0.0
    with pytest.raises(WorkPending):
        files.checkpoints("a", None, str(tmp_path), *ME, START)
    files.workers.patience_s = 60.0
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        try:
            doc = files.checkpoints("a", None, str(tmp_path), *ME, START)
        except WorkPending:
            time.sleep(0.05)
            continue
        assert doc.job_id == "a"
        return
    pytest.fail("its answer never came")


def test_the_file_system_of_a_path_is_told_without_touching_it(hung: Path, tmp_path: Path) -> None:
    assert mount_of(f"{hung}/a/b") == str(hung)
    assert mount_of(f"{hung}er") != str(hung)
    assert mount_of("/proc/self") == "/proc"


def test_what_comes_too_late_is_not_put_in_place(tmp_path: Path) -> None:
    """A file system that answers again brings back no fence that others have followed since."""
    place = tmp_path / "rekindle" / "fence.json"
    files = UserFiles(Workers(soft_s=20.0))
    files.deliver("a", str(tmp_path), "rekindle/fence.json", b"new", *ME)
    files.workers.patience_s = -1.0
    with pytest.raises(WorkNotDone, match="too late"):
        files.deliver("a", str(tmp_path), "rekindle/fence.json", b"old", *ME)
    assert place.read_bytes() == b"new"
    assert [path.name for path in place.parent.iterdir()] == ["fence.json"]
    files.workers.close()


def test_a_slow_file_system_is_served_a_turn_later(files: UserFiles, s3: object, tmp_path: Path) -> None:
    """What is not there in time is there in the next pass, and not begun anew."""
    relay = relay_of(s3, files, member(7, heartbeat_in(tmp_path / "box")))
    key = f"clusters/ml/jobs/slurm.ml.7/{plan_key('slurm.ml.7.r1')}"
    s3.put_object(Bucket="stack", Key=key, Body=b"plan")  # type: ignore[attr-defined]
    files.workers.soft_s, files.workers.patience_s = 0.0, 60.0
    sent: set[str] = set()
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline and not sent:
        sent |= relay.run_once(START).documents.keys()
        time.sleep(0.1)
    assert sent == {"clusters/ml/jobs/slurm.ml.7/rekindle/heartbeats/slurm.ml.7.json"}
    assert (tmp_path / "box" / plan_key("slurm.ml.7.r1")).read_bytes() == b"plan"


def test_an_agent_ends_whatever_its_workers_wait_for(hung: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {worker._HERE!r})\n"
        "from rekindle.slurm_agent.files.user_files import UserFiles\n"
        "from rekindle.slurm_agent.files.workers import Hangs, Workers\n"
        f"try: UserFiles(Workers(soft_s={SOFT_S})).is_folder('a', {str(hung / 'x')!r}, *{ME})\n"
        "except Hangs: print('hangs', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (0, "hangs\n"), done.stderr


def test_no_module_but_the_workers_own_touches_a_users_path() -> None:
    """What walks, reads or writes for users is imported where it runs: in the worker's process."""
    runs_apart = {"worker_process", "cause", "found", "messages", "userfs"}
    harmless = {
        ("worker", "worker_process"),
        ("user_files", "messages"),
        ("relay", "messages"),
        ("requests", "messages"),
        ("helper", "worker_process"),
        ("remote", "worker_process"),
    }  # a frame, a type and a number
    agent = Path(workers.__file__).parents[1]
    for path in sorted(agent.rglob("*.py")):
        if path.stem in runs_apart:
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom):
                continue
            parts = {(node.module or "").rpartition(".")[2], *(name.name for name in node.names)} & runs_apart
            names = {name.name for name in node.names}
            assert not {(path.stem, part) for part in parts} - harmless, f"{path.name}:{node.lineno}"
            assert not names & {"changed", "deliver", "of_files", "judge"}, f"{path.name}:{node.lineno}"
            assert node.module != "rekindle.checkpoints.folders", f"{path.name}:{node.lineno}"
