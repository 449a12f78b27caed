"""What only the S3 mailbox can meet: garbage, giants, lies and crowds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from chalicelib.aws.s3 import checkpoints as checkpoints_s3
from chalicelib.aws.s3.mailbox import S3Mailbox
from chalicelib.domain.model.action import Done
from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus
from rekindle.protocol.keys import doorbell_key, fence_key, heartbeat_key, manifest_key, reply_key, request_key
from rekindle.protocol.lives import life_key
from rekindle.protocol.mailbox import CheckpointRequest, Fence
from rekindle.protocol.manifests import OUTSIDE, ManifestFile
from tests.adapters.samples import T0, at, attempt, job
from tests.adapters.test_mailbox_contract import BUCKET, PREFIX, VIEW, S3Desk, ask, s3_side

Side = tuple[S3Mailbox, S3Desk]

GARBAGE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe\x00",
    b'{"v": 99}',
    b'{"v": 1}',
    b"[" * 100_000,
    b'{"v": 1, "pad": "' + b"x" * (9 * 1024 * 1024) + b'"}',
]


@pytest.fixture
def s3(aws: None) -> Side:
    return s3_side()


@pytest.mark.parametrize("raw", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_makes_nothing_fail_and_nothing_healthy(s3: Side, raw: bytes) -> None:
    mailbox, desk = s3
    desk.put(heartbeat_key("lm-7b"), raw)
    desk.put(reply_key("inc-a.1"), raw)
    desk.put(manifest_key(500, "lm-7b"), raw)
    desk.put(fence_key(), raw)
    desk.put(request_key("inc-a.1"), raw)
    desk.checkpoint(100)
    seen = mailbox.heartbeat(job(), VIEW)
    assert isinstance(seen.last_step, Unknown)
    assert "cannot be read" in seen.last_step.why
    assert isinstance(mailbox.reply(job(), "inc-a.1"), Unknown)
    found = mailbox.checkpoints(job(), [attempt()]).value
    assert [(item.step, bool(item.problems)) for item in found] == [(500, True), (100, False)]
    assert mailbox.ask(job(), ask(), incident_id="inc-a", now=T0).done is Done.REFUSED
    mailbox.fence(job(), attempt="lm-7b-r2", number=2, superseded=["lm-7b"], now=T0)
    assert read_fence(desk).attempt == "lm-7b-r2"


def read_fence(desk: S3Desk) -> Fence:
    return Fence.from_json(desk.client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{fence_key()}")["Body"].read())


def test_a_heartbeat_that_speaks_for_another_attempt_is_not_believed(s3: Side) -> None:
    mailbox, desk = s3
    desk.heartbeat(step=120, first_step=1, heartbeat_at=T0)
    raw = desk.client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{heartbeat_key('lm-7b')}")["Body"].read()
    desk.put(heartbeat_key("lm-7b"), json.dumps(json.loads(raw) | {"attempt": "lm-7b-r2"}).encode())
    assert isinstance(mailbox.heartbeat(job(), VIEW).last_step, Unknown)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": 101}, "step"),
        ({"attempt": "lm-7b-r2"}, "attempt"),
        ({"job_id": "other"}, "job_id"),
        ({"root": "/fsx/ckpt"}, "file system"),
        ({"root": f"s3://{BUCKET}/elsewhere"}, "missing"),
        ({"root": f"s3://{BUCKET}/{PREFIX}x/step-100"}, "missing"),
        ({"root": f"s3://{BUCKET}/{PREFIX}/elsewhere"}, "missing"),
        ({"root": "s3://no-such-bucket-here/x"}, OUTSIDE),
        ({"files": [{"path": "rank-0.bin", "bytes": 11}]}, "10 bytes"),
        ({"files": [{"path": "../secret", "bytes": 11}]}, "path"),
    ],
)
def test_a_manifest_that_does_not_tell_the_truth_is_not_verified(s3: Side, changes: dict[str, Any], said: str) -> None:
    mailbox, desk = s3
    desk.checkpoint(100)
    key = manifest_key(100, "lm-7b")
    told = json.loads(desk.client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}")["Body"].read())
    desk.put(key, json.dumps(told | changes).encode())
    (found,) = mailbox.checkpoints(job(), [attempt()]).value
    assert any(said in problem for problem in found.problems), found.problems


def test_a_manifest_of_the_jobs_own_attempt_counts_wherever_in_its_bucket_it_lies(s3: Side) -> None:
    """A trainer that names its folder by the attempt saves elsewhere after each resume."""
    mailbox, desk = s3
    desk.checkpoint(100)
    key = manifest_key(100, "lm-7b")
    told = json.loads(desk.client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}")["Body"].read())
    for file in told["files"]:
        desk.client.put_object(Bucket=BUCKET, Key=f"runs/second/{file['path']}", Body=b"x" * file["bytes"])
    desk.put(key, json.dumps(told | {"root": f"s3://{BUCKET}/runs/second"}).encode())
    (found,) = mailbox.checkpoints(job(), [attempt()]).value
    assert (found.problems, found.root) == ((), f"s3://{BUCKET}/runs/second")
    (other,) = mailbox.checkpoints(job(), [attempt(2)]).value
    assert other.fenced


def test_a_clone_made_by_hand_that_knows_no_job_id_is_believed_about_itself(s3: Side) -> None:
    mailbox, desk = s3
    desk.checkpoint(100, by="by-hand", job_id="by-hand")
    (found,) = mailbox.checkpoints(job(), [attempt(), replace(attempt(2), name="by-hand")]).value
    assert (found.problems, found.fenced) == ((), False)


@pytest.mark.parametrize("signed", ["slurm.ml.7", "slurm.ml.7.r2", "lm-7b"])
def test_a_restart_of_what_a_person_submitted_is_heard_and_asked_by_the_id_that_it_signs_with(
    s3: Side, signed: str
) -> None:
    """On Slurm that is the first start's name, where the comment names no Job; its monitor obeys no other id."""
    mailbox, desk = s3
    name = "slurm.ml.7.r2"
    desk.checkpoint(100, by=name, job_id=signed)
    desk.heartbeat(step=120, first_step=1, heartbeat_at=T0)
    raw = desk.client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{heartbeat_key('lm-7b')}")["Body"].read()
    desk.put(heartbeat_key(name), json.dumps(json.loads(raw) | {"attempt": name, "job_id": signed}).encode())
    assert mailbox.heartbeat(job(), replace(VIEW, name=name)).last_step == Known(120)
    (found,) = mailbox.checkpoints(job(), [attempt(), replace(attempt(2), name=name)]).value
    assert (found.problems, found.fenced) == ((), False)
    wanted = replace(ask(), attempt=name)
    assert mailbox.ask(job(), wanted, incident_id="inc-a", now=T0).done is Done.DONE
    assert mailbox.ask(job(), wanted, incident_id="inc-a", now=T0).done is Done.ALREADY
    key = f"{PREFIX}/{request_key(wanted.request_id)}"
    asked = CheckpointRequest.from_json(desk.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    assert (asked.job_id, asked.attempt) == (signed, name)


def test_a_checkpoint_that_is_one_file_is_verified(s3: Side) -> None:
    mailbox, desk = s3
    desk.put("ckpt/model.npz", b"z" * 33)
    root = f"s3://{BUCKET}/{PREFIX}/ckpt/model.npz"
    desk.checkpoint(100, root=root, files=(ManifestFile(path=".", bytes=33),))
    (found,) = mailbox.checkpoints(job(), [attempt()]).value
    assert found.problems == ()
    assert found.root == root


def test_a_crowd_of_manifests_costs_a_bounded_number_of_reads_and_reaches_far_back(
    s3: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox, desk = s3
    monkeypatch.setattr(checkpoints_s3, "NEWEST", 3)
    monkeypatch.setattr(checkpoints_s3, "SPACED", 3)
    for step in range(1, 31):
        desk.checkpoint(step)
    for step in range(900, 920):
        desk.checkpoint(step, by="stranger")
    calls: list[str] = []
    desk.client.meta.events.register("before-call.s3", lambda model, **_: calls.append(model.name))
    found = mailbox.checkpoints(job(), [attempt()]).value
    steps = [item.step for item in found if not item.fenced]
    assert steps == [30, 29, 28, 27, 26, 24, 20]
    assert sum(item.fenced for item in found) == checkpoints_s3.MAX_STRANGERS
    assert calls.count("GetObject") == len(found)
    assert calls.count("ListObjectsV2") == 5 + len(steps)  # manifests, lives, marks, the prefix and its folder ckpt/


def test_other_objects_among_the_manifests_are_passed_over(s3: Side) -> None:
    mailbox, desk = s3
    desk.put("rekindle/manifests/notes.txt", b"hello")
    desk.put("rekindle/manifests/step-12-lm-7b.json", b"{}")
    desk.checkpoint(100)
    assert [item.step for item in mailbox.checkpoints(job(), [attempt()]).value] == [100]


def test_the_fence_remembers_everyone_it_ever_superseded(s3: Side) -> None:
    mailbox, desk = s3
    mailbox.fence(job(), attempt="lm-7b-r2", number=2, superseded=["lm-7b"], now=T0)
    mailbox.fence(job(), attempt="lm-7b-r3", number=3, superseded=[], now=at(9))
    fence = read_fence(desk)
    assert (fence.attempt, fence.attempt_number) == ("lm-7b-r3", 3)
    assert fence.superseded == ("lm-7b", "lm-7b-r2")
    assert not fence.admits("lm-7b-r2", 2)


def test_a_mailbox_in_a_directory_or_with_a_bad_uri_is_unknown(s3: Side) -> None:
    mailbox, _ = s3
    for uri in ("/fsx/run", "file:///fsx/run", "s3://BAD_bucket/x", "s3://training/../x", "nonsense"):
        lost = job(mailbox=uri)
        assert isinstance(mailbox.heartbeat(lost, VIEW).last_step, Unknown)
        assert mailbox.checkpoints(lost, [attempt()]) == Known(())
        assert mailbox.ask(lost, ask(), incident_id="inc-a", now=T0).done is Done.REFUSED


def test_a_bucket_that_we_may_not_read_is_unknown_and_never_empty(s3: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox, desk = s3

    def denied(**_: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no s3:GetObject"}}, "GetObject")

    monkeypatch.setattr(desk.client, "get_object", denied)
    monkeypatch.setattr(desk.client, "list_objects_v2", denied)
    assert isinstance(mailbox.heartbeat(job(), VIEW).last_step, Unknown)
    assert isinstance(mailbox.reply(job(), "inc-a.1"), Unknown)
    with pytest.raises(DependencyUnavailable):
        mailbox.checkpoints(job(), [attempt()])


def bell(desk: S3Desk) -> bytes:
    body: bytes = desk.client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{doorbell_key()}")["Body"].read()
    return body


def test_the_doorbell_changes_with_every_request_and_fence(s3: Side) -> None:
    mailbox, desk = s3
    heard = []
    for request_id in ("inc-a.1", "inc-a.2"):
        mailbox.ask(job(), replace(ask(), request_id=request_id), incident_id="inc-a", now=T0)
        heard.append(bell(desk))
    mailbox.fence(job(), attempt="lm-7b-r2", number=2, superseded=["lm-7b"], now=T0)
    heard.append(bell(desk))
    assert len(set(heard)) == 3


def test_a_doorbell_that_cannot_be_rung_costs_nothing_but_time(aws: None) -> None:
    mailbox, desk = s3_side()

    class Mute:
        """May write everything but the doorbell."""

        def __getattr__(self, name: str) -> Any:
            return getattr(desk.client, name)

        def put_object(self, **request: Any) -> Any:
            if request["Key"].endswith(doorbell_key()):
                raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject")
            return desk.client.put_object(**request)

    assert S3Mailbox(Mute(), bucket="stack").ask(job(), ask(), incident_id="inc-a", now=T0).done is Done.DONE
    assert mailbox.ask(job(), ask(), incident_id="inc-a", now=T0).done is Done.ALREADY
    assert bell(desk), "the second look rings for the first"


def test_an_object_that_was_written_over_since_it_was_sealed_is_not_resumed_from(s3: Side) -> None:
    """One name for all of a run's checkpoints: each manifest is of what was there then, and one is of what is there."""
    mailbox, desk = s3
    desk.checkpoint(100)
    key = manifest_key(100, "lm-7b")
    told = json.loads(desk.client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}")["Body"].read())
    place = f"s3://{BUCKET}/runs/ckpt.pt"

    def seal(step: int, body: bytes, *, has_etag: bool) -> None:
        etag = desk.client.put_object(Bucket=BUCKET, Key="runs/ckpt.pt", Body=body)["ETag"].strip('"')
        files = [{"path": ".", "bytes": len(body)} | ({"etag": etag} if has_etag else {})]
        changes = {"step": step, "root": place, "files": files, "saved_at": f"2026-11-20T10:{step // 10}:00+00:00"}
        desk.put(manifest_key(step, "lm-7b"), json.dumps(told | changes).encode())

    def usable() -> list[int]:
        return [view.step for view in mailbox.checkpoints(job(), [attempt()]).value if not view.problems]

    seal(100, b"x" * 10, has_etag=True)
    assert usable() == [100]
    desk.client.put_object(Bucket=BUCKET, Key="runs/ckpt.pt", Body=b"y" * 10)
    assert usable() == []
    for step in (100, 120, 140):
        seal(step, b"z" * 10, has_etag=False)  # copied there by SageMaker, which nobody sealed
    assert usable() == [140]


@pytest.mark.parametrize("storage", ["GLACIER", "DEEP_ARCHIVE"])
def test_what_must_first_be_restored_from_an_archive_is_no_resume_point(s3: Side, storage: str) -> None:
    mailbox, desk = s3
    desk.checkpoint(100)
    desk.checkpoint(200)
    (newest, _) = mailbox.checkpoints(job(), [attempt()]).value
    key = newest.root.removeprefix(f"s3://{BUCKET}/")
    for item in desk.client.list_objects_v2(Bucket=BUCKET, Prefix=key)["Contents"]:
        body = desk.client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()
        desk.client.put_object(Bucket=BUCKET, Key=item["Key"], Body=body, StorageClass=storage)
    views = mailbox.checkpoints(job(), [attempt()]).value
    assert [(view.step, bool(view.problems)) for view in views] == [(200, True), (100, False)]
    assert storage in views[0].problems[0]


@pytest.mark.parametrize(
    ("status", "is_claimed", "is_unread"),
    [
        (AttemptStatus.COMPLETED, True, True),
        (AttemptStatus.COMPLETED, False, False),  # without a monitor none is to come
        (AttemptStatus.RUNNING, True, False),  # it has just begun
    ],
)
def test_a_completed_run_that_a_process_has_claimed_has_a_heartbeat_that_is_not_read(
    s3: Side, status: AttemptStatus, is_claimed: bool, is_unread: bool
) -> None:
    mailbox, desk = s3
    if is_claimed:
        desk.put(life_key("lm-7b", 0, 0), b"{}")
    assert mailbox.heartbeat(job(), replace(VIEW, status=status)).is_heartbeat_unread is is_unread
