"""What lies in a mailbox was written by somebody else: another Job's words, ways out of the folder, giants."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from chalicelib.domain.model.known import Known, Unknown
from rekindle.monitor.base.run import Identity
from rekindle.monitor.mail.requests import Requests, Verdict
from rekindle.protocol.keys import heartbeat_key, manifest_key, reply_key
from rekindle.protocol.mailbox import CheckpointRequest, Fence
from rekindle.protocol.manifests import MAX_FILES, MAX_MANIFEST_BYTES, Manifest
from rekindle.protocol.wire import MailboxError, Place
from tests.adapters.conftest import aws  # noqa: F401  the fixture
from tests.adapters.samples import attempt, job
from tests.adapters.test_mailbox_contract import BUCKET, PREFIX, VIEW, s3_side

pytestmark = pytest.mark.long

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OUT = ("../victim", "a/../../victim", "..", "/etc/passwd", "a/b", "a\x00b", "%2e%2e/x", ".", "a b", "é", "x" * 129)


def test_another_job_s_fence_and_requests_move_nobody() -> None:
    """Who makes the service write into our mailbox under their own Job's name stops neither us nor our saves."""
    desk = Requests(Identity(job_id="lm", attempt="lm", attempt_number=1, rank=0, world_size=1))
    stranger = Fence(job_id="eve", attempt="eve-2", attempt_number=9, superseded=("lm",), written_at=AT)
    assert desk.fenced(stranger) is False
    assert desk.superseded_by is None
    request = CheckpointRequest(request_id="r-1", job_id="eve", attempt="lm", deadline_s=3600.0, reason="save")
    assert desk.offer(request, now=0.0) is Verdict.IGNORED
    assert desk.has_wish is False


def test_another_job_s_words_are_not_taken_for_ours(aws: None) -> None:  # noqa: F811
    mailbox, desk = s3_side()
    forged: dict[str, Any] = {
        "v": 1,
        "job_id": "eve",
        "attempt": "lm-7b",
        "request_id": "inc-a.1",
        "outcome": "saved",
        "why": "",
        "replied_at": AT.isoformat(),
        "step": 999,
        "manifest": manifest_key(999, "lm-7b"),
    }
    desk.put(reply_key("inc-a.1"), json.dumps(forged).encode())
    reply = mailbox.reply(job(), "inc-a.1")
    assert isinstance(reply, Unknown)
    assert "job_id" in reply.why
    desk.heartbeat(step=7, first_step=0, heartbeat_at=AT)
    good = mailbox.heartbeat(job(), VIEW)
    assert good.last_step == Known(7)
    stored = json.loads(desk.client.get_object(Bucket=BUCKET, Key=f"{PREFIX}/{heartbeat_key('lm-7b')}")["Body"].read())
    desk.put(heartbeat_key("lm-7b"), json.dumps(stored | {"job_id": "eve"}).encode())
    assert isinstance(mailbox.heartbeat(job(), VIEW).last_step, Unknown)


@pytest.mark.parametrize("name", OUT)
def test_no_name_leads_out_of_a_mailbox(name: str) -> None:
    for make in (reply_key, heartbeat_key, lambda name: manifest_key(1, name)):
        with pytest.raises(MailboxError):
            make(name)


@pytest.mark.parametrize(
    "uri", ["s3://bucket/../other", "file:///a/../b", "s3://b", "relative", "file://host/a", "s3:///x"]
)
def test_no_place_leads_elsewhere(uri: str) -> None:
    with pytest.raises(MailboxError):
        Place.parse(uri)


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "step": 500,
        "job_id": "lm-7b",
        "attempt": "lm-7b",
        "attempt_number": 1,
        "world_size": 8,
        "kind": "emergency",
        "root": "s3://bucket/ckpt/500",
        "saved_at": AT.isoformat(),
        "files": [{"path": "model.pt", "bytes": 5}],
    } | changes


def test_the_manifest_of_these_tests_is_a_good_one() -> None:
    assert Manifest.from_wire(manifest()).step == 500


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [{"path": "../../victim/model.pt", "bytes": 5}]},
        {"files": [{"path": "/etc/passwd", "bytes": 5}]},
        {"files": [{"path": "a/./../../b", "bytes": 5}]},
        {"root": "s3://bucket/ckpt/../../other"},
        {"files": [{"path": "a", "bytes": -1}]},
        {"files": [{"path": "a" * 5000, "bytes": 1}]},
        {"files": [{"path": f"f{number}", "bytes": 1} for number in range(MAX_FILES + 1)]},
        {"step": 10**13},
        {"attempt": "../x"},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_a_manifest_that_leads_out_or_is_too_much_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(MailboxError):
        Manifest.from_wire(manifest(**changes))


def test_of_an_oversized_manifest_no_more_is_read_than_one_may_hold(aws: None) -> None:  # noqa: F811
    mailbox, desk = s3_side()
    giant = b'{"v": 1, "pad": "' + b"x" * (MAX_MANIFEST_BYTES + 1000) + b'"}'
    desk.put(manifest_key(500, "lm-7b"), giant)
    read: list[str] = []
    client = mailbox._objects._client
    client.meta.events.register(
        "before-parameter-build.s3.GetObject", lambda params, **_: read.append(params.get("Range", "all"))
    )
    (view,) = mailbox.checkpoints(job(), [attempt()]).value
    assert view.problems
    assert read
    assert all(header.startswith("bytes=") for header in read)
    assert max(int(header.rpartition("-")[2]) for header in read) <= MAX_MANIFEST_BYTES
