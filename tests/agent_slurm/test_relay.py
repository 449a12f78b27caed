"""Mailboxes and checkpoints on a shared path: carried, bounded, nobody's links followed."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import boto3
import moto.s3.models
import pytest
from moto import mock_aws
from moto.server import ThreadedMotoServer

from rekindle.checkpoints.marks import FORENSIC, forensic_request_id, mark_key
from rekindle.protocol.cluster.documents import FoundDoc
from rekindle.protocol.keys import doorbell_key, fence_key, plan_key, request_key
from rekindle.protocol.mailbox import CheckpointRequest
from rekindle.protocol.manifests import Hashes, Manifest, ManifestFile, SaveKind
from rekindle.protocol.reports import RankReport, ReportKind
from rekindle.protocol.summaries import HostSummary
from rekindle.slurm_agent.base.ports import Reading, SlurmUnavailable
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files import found, userfs
from rekindle.slurm_agent.files.messages import changed, is_for_the_run
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.workers import Workers
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.run import Runner
from rekindle.slurm_agent.slurm.commands import Commands
from rekindle.slurm_agent.watching.followed_jobs import FollowedJob, FollowedJobs
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.relay import MailboxRelay, shared_path
from tests.agent_slurm.conftest import START, Kept
from tests.agent_slurm.gates import NoGate, parts

JOB = "slurm.ml.7"
PREFIX = f"clusters/ml/jobs/{JOB}"


class World:
    def __init__(self, folder: Path, workers: Workers) -> None:
        self.workers = workers
        self.s3 = boto3.client("s3", region_name="us-east-1")
        self.s3.create_bucket(Bucket="stack")
        self.path = folder / "box"
        self.path.mkdir()
        self.checkpoints = folder / "ck"
        self.checkpoints.mkdir()
        self.memory = Kept()
        self.followed_jobs = FollowedJobs()
        self.now = START
        self.put_member()
        self.start()

    def put_member(self, **more: object) -> None:
        member = {
            "job_id": JOB,
            "slurm_job": 7,
            "attempt": JOB,
            "mailbox": f"file://{self.path}",
            "checkpoints": str(self.checkpoints),
            "uid": os.getuid(),
            "gid": os.getgid(),
            "is_running": True,
        }
        self.followed_jobs.put([FollowedJob(**(member | more))])  # type: ignore[arg-type]

    def start(self) -> None:
        self.files = UserFiles(self.workers)
        self.relay = MailboxRelay(
            cluster="ml",
            bucket="stack",
            s3=self.s3,
            memory=self.memory,
            followed_jobs=self.followed_jobs,
            files=self.files,
            observes=lambda: self.observes,
        )

    observes = False

    def run_once(self, seconds: float = 61) -> Reading:
        self.now += timedelta(seconds=seconds)
        reading = self.relay.run_once(self.now)
        self.memory.all |= {key: raw for key, raw in reading.memory.items() if raw is not None}
        return reading

    def serve(self, key: str, body: bytes = b"{}") -> None:
        self.s3.put_object(Bucket="stack", Key=f"{PREFIX}/{key}", Body=body)

    def write(self, key: str, body: bytes) -> Path:
        path = self.path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return path

    def found(self, reading: Reading) -> FoundDoc:
        return FoundDoc.from_json(reading.documents[f"{PREFIX}/found.json"])


@pytest.fixture(scope="module")
def workers() -> Workers:
    """The processes that touch users' files, started once. What takes long on a busy machine is no hang here:
    test_hangs plays those.
    """
    return Workers(soft_s=60.0, patience_s=120.0)


@pytest.fixture
def world(tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield World(tmp_path, workers)


def heartbeat(step: int) -> bytes:
    return json.dumps(
        {
            "v": 1,
            "job_id": JOB,
            "attempt": JOB,
            "attempt_number": 1,
            "step": step,
            "first_step": 0,
            "loss": 2.0,
            "loss_state": "finite",
            "phase": "training",
            "step_s_median": 1.0,
            "rank": 0,
            "world_size": 2,
            "at": START.isoformat(),
        }
    ).encode()


def manifest_of(root: Path, step: int, files: dict[str, int]) -> Manifest:
    return Manifest(
        job_id=JOB,
        attempt=JOB,
        attempt_number=1,
        step=step,
        kind=SaveKind.EMERGENCY,
        root=f"file://{root}",
        files=tuple(ManifestFile(path=name, bytes=size) for name, size in files.items()),
        world_size=1,
        saved_at=START,
    )


def test_what_the_service_writes_comes_to_the_path_and_the_bell_rings_last(world: World) -> None:
    for key in (fence_key(), request_key("r1"), plan_key(f"{JOB}.r1"), mark_key("file:///fsx/ck/1")):
        world.serve(key, key.encode())
    world.serve(doorbell_key(), b"1")
    world.run_once()
    for key in (fence_key(), request_key("r1"), plan_key(f"{JOB}.r1"), mark_key("file:///fsx/ck/1"), doorbell_key()):
        assert (world.path / key).exists(), key
    assert (world.path / request_key("r1")).read_bytes() == request_key("r1").encode()


def test_what_comes_is_not_held_up_by_all_that_a_long_run_has_left_there(world: World) -> None:
    """Manifests and hashes of a thousand saves, and the replies and reports of all ranks, lie beside it in S3."""
    for step in range(1, 1001):
        for folder in ("hashes", "manifests", "reports/slurm.ml.7"):
            world.serve(f"rekindle/{folder}/{step:012d}-{JOB}.json")
    brought = (fence_key(), plan_key(JOB), mark_key("file:///fsx/ck/1"), request_key("i-1"))
    for key in brought:
        world.serve(key)
    world.run_once()
    assert [key for key in brought if not (world.path / key).is_file()] == []


def test_a_ring_brings_news_at_once_and_silence_asks_for_no_list(world: World) -> None:
    world.run_once()
    world.serve(request_key("r1"))
    world.run_once(seconds=5)
    assert not (world.path / request_key("r1")).exists(), "nobody rang"
    world.serve(doorbell_key(), b"2")
    world.run_once(seconds=5)
    assert (world.path / request_key("r1")).exists()
    world.serve(request_key("r2"))
    world.run_once(seconds=61)
    assert (world.path / request_key("r2")).exists(), "once a minute it is looked for without a ring"


def test_a_plan_is_there_before_the_job_is_let_go_whatever_the_relay_was_about_to_do(world: World) -> None:
    world.serve(doorbell_key(), b"1")
    world.put_member(is_running=False)
    world.run_once()
    world.serve(plan_key(f"{JOB}.r1"), b"plan")
    world.run_once(seconds=5)
    assert not (world.path / plan_key(f"{JOB}.r1")).exists(), "nothing runs: the relay is in no hurry"
    world.relay.deliver(8)
    assert not (world.path / plan_key(f"{JOB}.r1")).exists(), "another job's"
    world.relay.deliver(7)
    assert (world.path / plan_key(f"{JOB}.r1")).read_bytes() == b"plan"
    world.put_member(mailbox="s3://elsewhere/box")
    world.relay.deliver(7)  # a mailbox in S3 needs nobody to carry it


def test_a_plan_that_cannot_be_brought_keeps_the_job_from_being_let_go(world: World) -> None:
    world.serve(plan_key(f"{JOB}.r1"), b"plan")
    world.path.rmdir()
    world.path.write_text("a file where the mailbox should be")
    with pytest.raises(SlurmUnavailable, match=JOB):
        world.relay.deliver(7)


def test_an_agent_that_observes_brings_nothing_to_a_run(world: World) -> None:
    brought = world.path / plan_key(f"{JOB}.r1")
    world.serve(plan_key(f"{JOB}.r1"), b"plan")
    world.observes = True
    world.run_once()
    assert not brought.exists()
    world.observes = False
    world.run_once()
    assert brought.read_bytes() == b"plan"


def test_a_job_is_not_let_go_before_its_plan_was_brought(world: World, tmp_path: Path) -> None:
    told = tmp_path / "told"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nls "{world.path}/rekindle/plans" > "{told}" 2>&1\n')
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\n")
    for command in (scontrol, squeue):
        command.chmod(0o755)
    runner = Runner(environ={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    reads = CopyReads(runner, lambda: START)
    commands = Commands(
        cluster="ml",
        reads=reads,
        **parts(runner, reads, Settings, NoGate),
        node_map=NodeMap(str(tmp_path / "none")),
        now=lambda: START,
        owners=Owners("ml", lambda _: None),
        watch=SimpleNamespace(asked=lambda _: None, spec=lambda _: None, followed=tuple),
        deliver=world.relay.deliver,
    )
    world.path.rename(tmp_path / "away")
    world.path.write_text("a file where the mailbox should be")
    world.serve(plan_key(f"{JOB}.r1"), b"plan")
    with pytest.raises(SlurmUnavailable, match="plan"):
        commands.release(7)
    assert not told.exists()
    world.path.unlink()
    (tmp_path / "away").rename(world.path)
    commands.release(7)
    assert told.read_text() == f"{JOB}.r1.json\n"


def test_a_checkpoint_of_many_is_judged_by_its_manifest_as_far_back_as_any_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "rekindle" / "manifests"
    folder.mkdir(parents=True)
    for step in range(1, 91):
        one = tmp_path / "ck" / f"step-{step}"
        one.mkdir(parents=True)
        (one / "w").write_bytes(b"1234")
        (folder / f"step-{step:012d}-{JOB}.json").write_bytes(manifest_of(one, step, {"w": 4}).to_json())
    doc = found.judge(JOB, str(tmp_path / "ck"), found.manifests_in(str(tmp_path)), START)
    assert [
        checkpoint.step for checkpoint in doc.checkpoints if checkpoint.manifest and not checkpoint.problems
    ] == list(range(90, 0, -1))


def test_only_the_services_own_names_come(world: World) -> None:
    for key in (
        "rekindle/heartbeats/x.json",
        "rekindle/requests/../../evil.json",
        "rekindle/x.sh",
        "rekindle/requests/a b.json",
    ):
        world.serve(key)
    world.run_once()
    assert not list((world.path / "rekindle").glob("**/*")) or not (world.path / "rekindle").exists()
    assert not is_for_the_run("rekindle/manifests/step-000000000001-a.json")
    assert not is_for_the_run("x/rekindle/fence.json")
    assert is_for_the_run("rekindle/fence.json")


def test_what_the_run_writes_goes_to_s3_when_it_changes(world: World) -> None:
    path = world.write(f"rekindle/heartbeats/{JOB}.json", heartbeat(1))
    assert world.run_once().documents[f"{PREFIX}/rekindle/heartbeats/{JOB}.json"] == heartbeat(1)
    assert world.run_once().documents == {}
    path.write_bytes(heartbeat(10))
    assert list(world.run_once().documents) == [f"{PREFIX}/rekindle/heartbeats/{JOB}.json"]
    world.start()
    assert f"{PREFIX}/rekindle/heartbeats/{JOB}.json" not in world.run_once().documents, (
        "a new process knows what was sent"
    )


def test_half_a_message_too_much_and_other_names_stay_where_they_are(world: World) -> None:
    world.write("rekindle/heartbeats/half.json", heartbeat(1)[:50])
    world.write("rekindle/heartbeats/large.json", b" " * (300 * 1024))
    world.write("rekindle/heartbeats/notes.txt", heartbeat(1))
    world.write("rekindle/fence.json", b"{}")
    world.write("rekindle/secrets/key.json", b"{}")
    assert [key for key in world.run_once().documents if not key.endswith("found.json")] == []
    world.write("rekindle/heartbeats/half.json", heartbeat(1))
    assert f"{PREFIX}/rekindle/heartbeats/half.json" in world.run_once().documents


def test_no_link_is_followed_in_a_mailbox(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_bytes(heartbeat(1))
    (world.path / "rekindle" / "heartbeats").mkdir(parents=True)
    (world.path / "rekindle" / "heartbeats" / "x.json").symlink_to(secret)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "y.json").write_bytes(heartbeat(1))
    (world.path / "rekindle" / "replies").symlink_to(elsewhere)
    (world.path / "rekindle" / "requests").symlink_to(elsewhere)
    world.serve(request_key("r1"))
    reading = world.run_once()
    assert [key for key in reading.documents if not key.endswith("found.json")] == []
    assert not (elsewhere / "r1.json").exists()
    assert any(JOB in problem for problem in reading.problems)


def test_a_pipe_in_a_mailbox_holds_nobody_up(world: World) -> None:
    (world.path / "rekindle" / "heartbeats").mkdir(parents=True)
    os.mkfifo(world.path / "rekindle" / "heartbeats" / "x.json")
    assert f"{PREFIX}/rekindle/heartbeats/x.json" not in world.run_once().documents


def test_checkpoints_with_manifests_are_judged_by_them(world: World) -> None:
    root = world.checkpoints / "mine" / "step-5"
    root.mkdir(parents=True)
    (root / "rank-0.bin").write_bytes(b"x" * 100)
    good = manifest_of(root, 5, {"rank-0.bin": 100})
    bad = manifest_of(root.parent / "step-6", 6, {"rank-0.bin": 100})
    for one in (good, bad):
        world.write(one.key, one.to_json())
    doc = world.found(world.run_once())
    assert [(checkpoint.step, checkpoint.problems == ()) for checkpoint in doc.checkpoints] == [(6, False), (5, True)]
    assert doc.checkpoints[1].root == f"file://{root}"
    assert doc.checkpoints[1].manifest == f"file://{world.path}/{good.key}"
    assert doc.checkpoints[1].attempt == JOB


def test_a_checkpoint_saved_for_people_to_look_into_says_so(world: World) -> None:
    """The service resumes from no such one, and sees of it only what this list says."""
    root = world.checkpoints / "mine" / "step-5"
    root.mkdir(parents=True)
    (root / "rank-0.bin").write_bytes(b"x" * 100)
    made = replace(manifest_of(root, 5, {"rank-0.bin": 100}), request_id=forensic_request_id("inc-1", 1))
    world.write(made.key, made.to_json())
    assert [checkpoint.kind for checkpoint in world.found(world.run_once()).checkpoints] == [FORENSIC]


def test_checkpoints_of_a_known_format_need_no_manifest(world: World) -> None:
    folder = world.checkpoints / "checkpoint-30"
    folder.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_bytes(b"x" * 10)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 30}))
    doc = world.found(world.run_once())
    assert [(checkpoint.step, checkpoint.kind) for checkpoint in doc.checkpoints] == [(30, "hf_trainer")]
    assert doc.checkpoints[0].root == f"file://{folder}"


def test_an_empty_folder_is_told_and_one_that_cannot_be_seen_is_not_empty(world: World) -> None:
    assert world.found(world.run_once()).checkpoints == ()
    world.put_member(checkpoints="/no/such/place/at/all")
    world.start()
    reading = world.run_once()
    assert reading.documents == {}
    assert any("No such file" in problem for problem in reading.problems)


def test_s3_away_stops_only_what_needs_it(world: World) -> None:
    world.write(f"rekindle/heartbeats/{JOB}.json", heartbeat(1))
    world.s3.delete_bucket(Bucket="stack")
    reading = world.run_once()
    assert f"{PREFIX}/rekindle/heartbeats/{JOB}.json" in reading.documents
    assert f"{PREFIX}/found.json" in reading.documents
    assert any("NoSuchBucket" in problem for problem in reading.problems)


def test_a_new_manifest_is_judged_at_once(world: World) -> None:
    world.run_once()
    root = world.checkpoints / "step-5"
    root.mkdir()
    (root / "a").write_bytes(b"x")
    manifest = manifest_of(root, 5, {"a": 1})
    world.write(manifest.key, manifest.to_json())
    assert [checkpoint.step for checkpoint in world.found(world.run_once(seconds=1)).checkpoints] == [5]


def test_a_job_that_is_forgotten_is_still_served_now_and_then(world: World) -> None:
    world.run_once()
    world.followed_jobs.put([])
    world.serve(plan_key(f"{JOB}.r1"))
    world.serve(doorbell_key(), b"3")
    world.run_once(seconds=5)
    assert not (world.path / plan_key(f"{JOB}.r1")).exists()
    world.run_once(seconds=61)
    assert (world.path / plan_key(f"{JOB}.r1")).exists()


def test_a_mailbox_in_s3_needs_no_relay(world: World) -> None:
    world.put_member(mailbox="s3://stack/x", checkpoints="s3://stack/y")
    assert world.run_once().documents == {}
    assert [shared_path(uri) for uri in ("s3://b/x", "", "relative", "/", "/fsx/../etc", "file:///fsx/box")] == [
        None,
        None,
        None,
        None,
        None,
        "/fsx/box",
    ]


def test_one_jobs_broken_mailbox_is_no_other_jobs(world: World, tmp_path: Path) -> None:
    world.followed_jobs.put([])
    other = tmp_path / "other"
    other.mkdir()
    base = {"slurm_job": 1, "checkpoints": "", "uid": os.getuid(), "gid": os.getgid(), "is_running": True}
    world.followed_jobs.put(
        [
            FollowedJob(job_id="slurm.ml.1", attempt="slurm.ml.1", mailbox="/proc/1/nope", **base),  # type: ignore[arg-type]
            FollowedJob(job_id="slurm.ml.2", attempt="slurm.ml.2", mailbox=str(other), **base),  # type: ignore[arg-type]
        ]
    )
    world.s3.put_object(Bucket="stack", Key="clusters/ml/jobs/slurm.ml.1/rekindle/fence.json", Body=b"{}")
    world.s3.put_object(Bucket="stack", Key="clusters/ml/jobs/slurm.ml.2/rekindle/fence.json", Body=b"{}")
    reading = world.run_once()
    assert (other / "rekindle" / "fence.json").exists()
    assert any("slurm.ml.1" in problem for problem in reading.problems)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")
def test_root_reads_and_writes_as_the_jobs_user(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    (locked / "x").write_bytes(b"root's")
    with userfs.as_user(65534, 65534):
        assert userfs.read(str(locked / "x"), 100) is None
        with pytest.raises(PermissionError):
            userfs.write(str(locked), "y", b"z")
    assert userfs.read(str(locked / "x"), 100) == b"root's"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")
def test_roots_groups_open_nothing_for_a_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    secret = tmp_path / "sudoers"
    secret.write_text("root's group may read this")
    secret.chmod(0o640)
    before = os.getgroups()
    os.setgroups([0, *before])  # as a root shell has it
    try:
        with pytest.raises(PermissionError), userfs.as_user(65534, 65534):
            userfs.tail(str(secret), 100)
        assert 0 in os.getgroups(), "and root has them again"
        with userfs.as_user(65534, 65534):
            assert os.getgroups() == list(userfs.groups_of(65534, 65534))
    finally:
        os.setgroups(before)


def test_a_mailbox_that_is_filled_up_comes_in_portions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.slurm_agent.watching.relay.MAX_SENT", 3)
    for number in range(5):
        world.write(f"rekindle/heartbeats/slurm.ml.7.r{number + 1}.json", heartbeat(number))
    sizes = [sum("/heartbeats/" in key for key in world.run_once().documents) for _ in range(3)]
    assert sizes == [3, 2, 0]


def test_a_mailbox_brings_no_more_than_fits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.slurm_agent.watching.relay.MAX_SENT_BYTES", 100)
    for number in range(3):
        world.write(f"rekindle/heartbeats/slurm.ml.7.r{number + 1}.json", heartbeat(number))
    assert sum("/heartbeats/" in key for key in world.run_once().documents) == 1


def rank_report(rank: int, kind: ReportKind = ReportKind.STALL, world: int = 2048) -> RankReport:
    return RankReport(kind=kind, job_id=JOB, attempt=JOB, rank=rank, world_size=world, host="node-8", at=START)


def test_of_a_large_run_the_hosts_summaries_go_up_first_and_of_ranks_only_what_they_do_not_tell(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [rank_report(rank) for rank in range(64, 72)]
    summary = HostSummary.of(ReportKind.STALL, [(3.0, one) for one in told], at=START)
    own = [*told, rank_report(64, ReportKind.PACE), rank_report(80)]
    paths = {one.key: world.write(one.key, one.to_json()) for one in own}
    for path in paths.values():
        os.utime(path, (1000, 1000))
    os.utime(world.write(summary.key, summary.to_json()), (1005, 1005))
    os.utime(paths[told[3].key], (1010, 1010))  # it has reported again since
    monkeypatch.setattr("rekindle.slurm_agent.watching.relay.MAX_SENT", 1)
    sent = [[key for key in world.run_once().documents if "/reports/" in key] for _ in range(4)]
    assert sent[0] == [f"{PREFIX}/{summary.key}"]
    later = sorted(key for turn in sent[1:] for key in turn)
    assert later == sorted(f"{PREFIX}/{one.key}" for one in (told[3], rank_report(80)))


def test_a_small_run_s_reports_all_go_up(world: World) -> None:
    own = [rank_report(rank, kind, world=8) for rank in range(8) for kind in (ReportKind.STALL, ReportKind.PACE)]
    for one in own:
        world.write(one.key, one.to_json())
    found = [key for key in world.run_once().documents if "/reports/" in key]
    assert sorted(found) == sorted(f"{PREFIX}/{one.key}" for one in own)


def test_a_file_that_calls_itself_a_summary_keeps_no_rank_s_report_back(world: World) -> None:
    own = rank_report(64)
    os.utime(world.write(own.key, own.to_json()), (1000, 1000))
    world.write(f"rekindle/reports/{JOB}/hosts-stall-00064.json", b"{}")
    assert [key for key in world.run_once().documents if "/reports/" in key] == [f"{PREFIX}/{own.key}"]


def test_of_very_many_saves_the_newest_go_up_and_keep_no_report_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.slurm_agent.files.messages.MAX_FILES", 40)
    report = RankReport(
        kind=ReportKind.STALL,
        job_id=JOB,
        attempt=JOB,
        rank=1,
        world_size=2,
        host="n1",
        at=START,
        step=60,
        phase="training",
    )
    written = {report.key: report.to_json()}
    for step in range(1, 61):
        manifest = manifest_of(tmp_path, step, {"rank-0.bin": 1})
        written[manifest.key] = manifest.to_json()
    for key, body in written.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(body)
    found = {key for key, _, _ in changed(str(tmp_path), {}, most=500, most_bytes=2**24)}
    assert {report.key, manifest.key} <= found
    assert len(found) <= 40


def test_a_request_comes_with_the_seconds_that_are_left_and_hashes_go_up(
    tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP, where S3's answers are dated: what a request spent in S3 is gone, by S3's own clock."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    try:
        world = World(tmp_path, workers)
        request = CheckpointRequest(request_id="r1", job_id=JOB, attempt=JOB, deadline_s=600.0, reason="a GPU fails")
        with monkeypatch.context() as patch:
            written_at = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=200)
            patch.setattr(moto.s3.models, "utcnow", lambda: written_at)
            world.serve(request_key("r1"), request.to_json())
        world.serve(doorbell_key(), b"1")
        manifest = manifest_of(tmp_path, 5, {"rank-0.bin": 1})
        hashes = Hashes(
            job_id=JOB,
            attempt=JOB,
            step=5,
            manifest=manifest.digest,
            files={"rank-0.bin": "0" * 64},
            hashed_at=START,
        )
        world.write(hashes.key, hashes.to_json())
        reading = world.run_once()
    finally:
        server.stop()
    brought = CheckpointRequest.from_json((world.path / request_key("r1")).read_bytes())
    assert brought.deadline_s <= 401.0
    assert replace(brought, deadline_s=600.0) == request
    assert Hashes.from_json(reading.documents[f"{PREFIX}/{hashes.key}"]) == hashes
