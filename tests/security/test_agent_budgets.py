"""What one user leaves for the agent costs that user's own jobs, and no other's: the real relay and watcher."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from rekindle.protocol.cluster.documents import AgentDoc
from rekindle.protocol.mailbox import Heartbeat, LossState, RunPhase
from rekindle.protocol.manifests import OUTSIDE, Manifest, ManifestFile, SaveKind
from rekindle.slurm_agent.base.ports import OutputVerdict
from rekindle.slurm_agent.base.problems import Problems
from rekindle.slurm_agent.files import worker, workers
from rekindle.slurm_agent.files.time_spent import TimeSpent
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.watching.followed_jobs import FollowedJob, FollowedJobs
from rekindle.slurm_agent.watching.relay import MailboxRelay
from tests.agent_slurm.conftest import START, Kept
from tests.security.bad_documents import DOCUMENTS, WORDS

pytestmark = pytest.mark.long

GOOD = "slurm.ml.7"
BAD = "slurm.ml.8"


@pytest.fixture
def s3() -> Iterator[object]:
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="stack")
        yield client


def member(name: str, mailbox: str, checkpoints: str = "", *, uid: int = 1000) -> FollowedJob:
    return FollowedJob(
        job_id=name,
        slurm_job=int(name.rpartition(".")[2]),
        attempt=name,
        mailbox=mailbox,
        checkpoints=checkpoints,
        uid=os.geteuid() if os.geteuid() else uid,
        gid=os.getegid() if os.geteuid() else uid,
        is_running=True,
    )


def heartbeat_in(box: Path, attempt: str = GOOD) -> None:
    folder = box / "rekindle" / "heartbeats"
    folder.mkdir(parents=True)
    heartbeat = Heartbeat(
        job_id=attempt,
        attempt=attempt,
        attempt_number=1,
        step=7,
        first_step=1,
        loss=1.0,
        loss_state=LossState.FINITE,
        phase=RunPhase.TRAINING,
        step_s_median=0.1,
        rank=0,
        world_size=1,
        at=START,
    )
    (folder / f"{attempt}.json").write_bytes(heartbeat.to_json())


def relay_of(s3: object, *members: FollowedJob) -> MailboxRelay:
    followed_jobs = FollowedJobs()
    followed_jobs.put(members)
    return MailboxRelay(cluster="ml", bucket="stack", s3=s3, memory=Kept(), followed_jobs=followed_jobs)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Other users read below it. Each session of pytest that begins closes the folder above pytest's own to them."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rekindle-") as folder:
        yield Path(folder)


def open_to_all(path: Path) -> Path:
    for one in (path, *path.parents):
        if one == Path("/tmp"):
            break
        one.chmod(one.stat().st_mode | 0o755)
    return path


@pytest.mark.parametrize("words", WORDS.values(), ids=list(WORDS))
def test_no_mailbox_that_a_comment_names_keeps_the_relay_from_the_others(
    words: str, s3: object, tmp_path: Path
) -> None:
    box = open_to_all(tmp_path) / "box"
    heartbeat_in(box)
    relay = relay_of(s3, member(BAD, words, words), member(GOOD, str(box)))
    reading = relay.run_once(START)
    assert f"clusters/ml/jobs/{GOOD}/rekindle/heartbeats/{GOOD}.json" in reading.documents


@pytest.mark.parametrize("raw", DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_no_document_in_a_mailbox_keeps_the_relay_from_the_others(raw: bytes, s3: object, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    good, bad = tmp_path / "good", tmp_path / "bad"
    heartbeat_in(good)
    for name in (f"heartbeats/{BAD}", "replies/r", f"manifests/step-000000000001-{BAD}", f"reports/{BAD}/stall-0"):
        path = bad / "rekindle" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    reading = relay_of(s3, member(BAD, str(bad), str(bad)), member(GOOD, str(good))).run_once(START)
    assert f"clusters/ml/jobs/{GOOD}/rekindle/heartbeats/{GOOD}.json" in reading.documents
    assert not [key for key in reading.documents if BAD in key and not key.endswith("found.json")]


@pytest.mark.parametrize("name", [b"checkpoint-\xff5", b"checkpoint-\n5", b"step-\x1b[31m7", b"%00"])
def test_a_folder_with_a_strange_name_hides_no_other_checkpoint(name: bytes, s3: object, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    for folder in (name, b"checkpoint-100"):
        path = os.path.join(os.fsencode(tmp_path), b"ck", folder)
        os.makedirs(path)
        for file in (b"model.safetensors", b"optimizer.pt", b"trainer_state.json"):
            with open(os.path.join(path, file), "wb") as out:
                out.write(b'{"global_step": 100}')
    reading = relay_of(s3, member(GOOD, "", str(tmp_path / "ck"))).run_once(START)
    found = json.loads(reading.documents[f"clusters/ml/jobs/{GOOD}/found.json"])
    assert any(checkpoint["root"].endswith("checkpoint-100") for checkpoint in found["checkpoints"])


def test_a_problem_with_a_strange_name_in_it_does_not_break_the_heartbeat() -> None:
    problems = Problems()
    problems.set("relay", ["mailbox of x: /fsx/\udcff\x1b[2J\0"])
    now = datetime(2026, 11, 20, tzinfo=UTC)
    doc = AgentDoc(cluster="ml", agent_id="a", at=now, started_at=now, read_at=now, problems=problems.lines())
    assert AgentDoc.from_json(doc.to_json()).problems == problems.lines()


def test_a_manifest_that_points_at_somebody_elses_files_is_no_checkpoint(s3: object, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    box, own, other = tmp_path / "box", tmp_path / "ck" / "step-5", tmp_path / "neighbour" / "step-9"
    for folder in (own, other):
        folder.mkdir(parents=True)
        (folder / "weights.pt").write_bytes(b"w" * 64)
    (box / "rekindle" / "manifests").mkdir(parents=True)
    for step, root in ((5, own), (9, other)):
        manifest = Manifest(
            job_id=GOOD,
            attempt=GOOD,
            attempt_number=1,
            step=step,
            kind=SaveKind.PERIODIC,
            root=str(root),
            files=(ManifestFile(path="weights.pt", bytes=64),),
            world_size=1,
            saved_at=START,
        )
        (box / manifest.key).write_bytes(manifest.to_json())
    reading = relay_of(s3, member(GOOD, str(box), str(tmp_path / "ck"))).run_once(START)
    found = json.loads(reading.documents[f"clusters/ml/jobs/{GOOD}/found.json"])
    assert {checkpoint["step"]: checkpoint["problems"] for checkpoint in found["checkpoints"]} == {9: [OUTSIDE], 5: []}


def test_work_on_a_users_files_ends_with_its_time(tmp_path: Path) -> None:
    """A pipe has no end that could be read, and a folder of ten thousand is a folder still."""
    os.mkfifo(tmp_path / "out")
    began = time.monotonic()
    assert (
        UserFiles().failure("x", [str(tmp_path / "out"), "/dev/zero", "/proc/self/mem"], None, None) == OutputVerdict()
    )
    assert time.monotonic() - began < workers.PATIENCE_S


def test_the_end_of_a_log_is_judged_in_bounded_time(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    log = tmp_path / "out"
    files = UserFiles()
    for text in WORDS.values():
        log.write_bytes((text.encode("utf-8", "surrogatepass") * 40)[-200_000:])
        began = time.monotonic()
        files.failure("x", [str(log)], os.geteuid(), os.getegid())
        assert time.monotonic() - began < 5.0
    log.write_text("RuntimeError: CUDA error: device-side assert triggered\n")
    found = files.failure("x", [str(log)], os.geteuid(), os.getegid())
    assert "device-side assert" in found.text
    assert found.cause is not None
    assert (found.cause.label, found.cause.response, found.cause.line) == ("cuda_device_assert", "ask_owner", 1)


def test_the_process_for_a_users_files_is_isolated() -> None:
    assert worker._CHILD[1] == "-I"
    assert not any(name.startswith(("PYTHON", "LD_")) for name in worker._ENVIRONMENT)


def test_one_users_work_is_put_off_when_it_has_taken_its_share() -> None:
    spent = TimeSpent(0.01)
    with spent.by("mallory"):
        time.sleep(0.02)
    assert spent.is_over("mallory")
    assert not spent.is_over("alice")
    assert spent.over() == ("mallory",)


def test_folders_that_take_long_are_asked_for_less_often(s3: object, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    slow = replace(member(GOOD, ""), checkpoints=str(tmp_path))
    relay = relay_of(s3, slow)
    relay.run_once(START)
    box = relay._boxes[GOOD]
    assert timedelta(0) < box.judge_took < timedelta(seconds=10)
    assert box.judge_every >= timedelta(seconds=10)
