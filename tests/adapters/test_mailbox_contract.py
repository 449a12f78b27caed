"""ports.Mailbox's contract, over the fake and over S3. `Desk` is the training process's side of the mailbox."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import moto.s3.models
import pytest

from chalicelib.aws.s3.mailbox import S3Mailbox
from chalicelib.domain.model.action import Done, QuarantineCheckpoint, RequestCheckpoint
from chalicelib.domain.model.errors import VersionConflict
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView, ReplyView
from chalicelib.ports.platforms import Mailbox
from rekindle.protocol.keys import heartbeat_key, manifest_key, reply_key
from rekindle.protocol.mailbox import CheckpointReply, Heartbeat, LossState, ReplyOutcome, RunPhase
from rekindle.protocol.manifests import Manifest, ManifestFile, SaveKind
from tests.adapters.conftest import REGION, make_client
from tests.adapters.samples import T0, at, attempt, job
from tests.fakes.world import FakeMailbox

BUCKET = "training"
PREFIX = "runs/lm-7b"
VIEW = AttemptView(name="lm-7b", status=AttemptStatus.RUNNING)


@dataclass
class S3Desk:
    """Writes what a monitor would write. Its host's clock is off: only S3's dates are right."""

    client: Any
    clock_off: timedelta = timedelta(minutes=7)

    def put(self, key: str, body: bytes, at: datetime | None = None) -> None:
        """at: the date that S3 gives it; by default now."""
        with pytest.MonkeyPatch.context() as patch:
            if at is not None:
                patch.setattr(moto.s3.models, "utcnow", lambda: at.replace(tzinfo=None))
            self.client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}", Body=body)

    def heartbeat(self, step: int, first_step: int, heartbeat_at: datetime) -> None:
        body = Heartbeat(
            job_id="lm-7b",
            attempt="lm-7b",
            attempt_number=1,
            step=step,
            first_step=first_step,
            loss=None,
            loss_state=LossState.NAN,
            phase=RunPhase.TRAINING,
            step_s_median=0.4,
            rank=0,
            world_size=8,
            at=heartbeat_at + self.clock_off,
        )
        self.put(heartbeat_key("lm-7b"), body.to_json(), heartbeat_at)

    def reply(self, request_id: str, step: int) -> None:
        body = CheckpointReply(
            request_id=request_id,
            job_id="lm-7b",
            attempt="lm-7b",
            outcome=ReplyOutcome.SAVED,
            step=step,
            manifest=manifest_key(step, "lm-7b"),
            why="asked",
            replied_at=T0,
        )
        self.put(reply_key(request_id), body.to_json())

    def checkpoint(
        self, step: int, *, by: str = "lm-7b", saved_at: datetime = T0, lose: bool = False, **changes: Any
    ) -> None:
        folder = f"ckpt/step-{step}-{by}"
        self.put(f"{folder}/rank-0.bin", b"x" * 10)
        if not lose:
            self.put(f"{folder}/rank-1.bin", b"y" * 20)
        values: dict[str, Any] = {
            "job_id": "lm-7b",
            "attempt": by,
            "attempt_number": 1,
            "step": step,
            "kind": SaveKind.PERIODIC,
            "root": f"s3://{BUCKET}/{PREFIX}/{folder}",
            "files": (
                ManifestFile(path="rank-0.bin", bytes=10),
                ManifestFile(path="rank-1.bin", bytes=20),
            ),
            "world_size": 2,
            "saved_at": saved_at + self.clock_off,
        }
        self.put(manifest_key(step, by), Manifest(**(values | changes)).to_json(), saved_at)


@dataclass
class FakeDesk:
    """The same for the fake."""

    mailbox: FakeMailbox

    def heartbeat(self, step: int, first_step: int, heartbeat_at: datetime) -> None:
        self.mailbox.heartbeats["lm-7b"] = replace(
            VIEW,
            first_step=Known(first_step),
            last_step=Known(step),
            heartbeat_at=heartbeat_at,
            loss_state="nan",
            work="training",
        )

    def reply(self, request_id: str, step: int) -> None:
        self.mailbox.replies[request_id] = ReplyView(request_id=request_id, outcome="saved", step=step, why="asked")

    def checkpoint(self, step: int, *, by: str = "lm-7b", saved_at: datetime = T0, lose: bool = False) -> None:
        self.mailbox.stored.append(
            CheckpointView(
                step=step,
                root=f"s3://{BUCKET}/{PREFIX}/ckpt/step-{step}-{by}",
                manifest=f"s3://{BUCKET}/{PREFIX}/{manifest_key(step, by)}",
                attempt=by,
                kind="periodic",
                saved_at=saved_at,
                problems=("rank-1.bin is missing",) if lose else (),
                life=0,
            )
        )


def s3_side() -> tuple[S3Mailbox, S3Desk]:
    client = make_client("s3")
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    return S3Mailbox(client, bucket="stack"), S3Desk(client)


@pytest.fixture(params=["fake", "s3"])
def sides(request: pytest.FixtureRequest, aws: None) -> Iterator[tuple[Mailbox, S3Desk | FakeDesk]]:
    if request.param == "s3":
        yield s3_side()
    else:
        fake = FakeMailbox()
        yield fake, FakeDesk(fake)


@pytest.fixture
def s3(aws: None) -> tuple[S3Mailbox, S3Desk]:
    return s3_side()


def ask(number: int = 1, **changes: Any) -> RequestCheckpoint:
    values: dict[str, Any] = {
        "request_id": f"inc-a.{number}",
        "attempt": "lm-7b",
        "deadline_at": at(300),
        "why": "a GPU is failing",
    }
    return RequestCheckpoint(**(values | changes))


Sides = tuple[Mailbox, S3Desk | FakeDesk]


def test_without_a_heartbeat_the_steps_stay_unknown(sides: Sides) -> None:
    mailbox, _ = sides
    assert mailbox.heartbeat(job(), VIEW) == VIEW


def test_a_heartbeat_adds_steps_loss_state_and_time(sides: Sides) -> None:
    mailbox, desk = sides
    desk.heartbeat(step=120, first_step=101, heartbeat_at=at(40))
    seen = mailbox.heartbeat(job(), VIEW)
    assert (seen.first_step, seen.last_step, seen.heartbeat_at) == (Known(101), Known(120), at(40))
    assert (seen.loss_state, seen.work, seen.status) == ("nan", "training", AttemptStatus.RUNNING)


def test_a_request_is_written_once(sides: Sides) -> None:
    mailbox, _ = sides
    assert mailbox.ask(job(), ask(), incident_id="inc-a", now=T0).done is Done.DONE
    assert mailbox.ask(job(), ask(why="again"), incident_id="inc-a", now=at(5)).done is Done.ALREADY
    other = mailbox.ask(job(), ask(attempt="lm-7b-r2"), incident_id="inc-a", now=T0)
    assert other.done is Done.REFUSED
    assert mailbox.ask(job(), ask(2), incident_id="inc-a", now=T0).done is Done.DONE


def test_a_run_without_a_mailbox_is_refused_and_unknown(sides: Sides) -> None:
    mailbox, _ = sides
    bare = job(mailbox="")
    assert mailbox.ask(bare, ask(), incident_id="inc-a", now=T0).done is Done.REFUSED
    assert isinstance(mailbox.reply(bare, "inc-a.1"), Unknown)
    assert mailbox.heartbeat(bare, VIEW) == VIEW
    assert mailbox.checkpoints(bare, [attempt()]) == Known(())
    mailbox.fence(bare, attempt="lm-7b", number=1, superseded=[], now=T0)


def test_no_reply_yet_is_known_and_a_reply_is_read(sides: Sides) -> None:
    mailbox, desk = sides
    assert mailbox.reply(job(), "inc-a.1") == Known(None)
    desk.reply("inc-a.1", step=118)
    assert mailbox.reply(job(), "inc-a.1") == Known(
        ReplyView(request_id="inc-a.1", outcome="saved", step=118, why="asked")
    )


def test_checkpoints_come_newest_first_and_verified(sides: Sides) -> None:
    mailbox, desk = sides
    for step in (100, 300, 200):
        desk.checkpoint(step, saved_at=at(step))
    desk.checkpoint(400, lose=True)
    found = mailbox.checkpoints(job(), [attempt()]).value
    assert [item.step for item in found] == [400, 300, 200, 100]
    assert [bool(item.problems) for item in found] == [True, False, False, False]
    assert "rank-1.bin is missing" in found[0].problems
    assert found[1] == CheckpointView(
        step=300,
        root="s3://training/runs/lm-7b/ckpt/step-300-lm-7b",
        manifest="s3://training/runs/lm-7b/rekindle/manifests/step-000000000300-lm-7b.json",
        attempt="lm-7b",
        kind="periodic",
        saved_at=at(300),
        life=0,
    )


def test_what_a_superseded_or_unknown_attempt_wrote_is_fenced(sides: Sides) -> None:
    mailbox, desk = sides
    desk.checkpoint(100, saved_at=at(10))
    desk.checkpoint(200, saved_at=at(90))
    desk.checkpoint(300, by="stranger", saved_at=at(20))
    old = replace(attempt(), superseded_at=at(50))
    found = mailbox.checkpoints(job(), [old, attempt(2)]).value
    assert [(item.step, item.fenced) for item in found] == [(300, True), (200, True), (100, False)]


def test_the_fence_goes_forward_only(sides: Sides) -> None:
    mailbox, _ = sides
    mailbox.fence(job(), attempt="lm-7b-r2", number=2, superseded=["lm-7b"], now=T0)
    mailbox.fence(job(), attempt="lm-7b-r2", number=2, superseded=["lm-7b"], now=at(5))
    mailbox.fence(job(), attempt="lm-7b-r3", number=3, superseded=["lm-7b", "lm-7b-r2"], now=at(9))
    with pytest.raises(VersionConflict):
        mailbox.fence(job(), attempt="lm-7b-r2", number=2, superseded=["lm-7b"], now=at(10))


def quarantine(step: int) -> QuarantineCheckpoint:
    return QuarantineCheckpoint(root=f"s3://{BUCKET}/{PREFIX}/ckpt/step-{step}-lm-7b", why="died at load twice")


def test_a_quarantined_checkpoint_stays_there_and_reads_as_a_problem(sides: Sides) -> None:
    mailbox, desk = sides
    for step in (100, 200):
        desk.checkpoint(step)
    assert mailbox.quarantine(job(), quarantine(200), by="inc-a", now=T0).done is Done.DONE
    found = mailbox.checkpoints(job(), [attempt()]).value
    assert [(item.step, item.problems) for item in found] == [
        (200, ("quarantined: died at load twice (inc-a)",)),
        (100, ()),
    ]


def test_marking_twice_is_marking_once(sides: Sides) -> None:
    mailbox, _ = sides
    assert mailbox.quarantine(job(), quarantine(200), by="inc-a", now=T0).done is Done.DONE
    assert mailbox.quarantine(job(), quarantine(200), by="inc-a", now=at(9)).done is Done.ALREADY
    assert mailbox.quarantine(job(mailbox=""), quarantine(200), by="inc-a", now=T0).done is Done.REFUSED
