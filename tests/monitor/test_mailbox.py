from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.protocol.keys import (
    KeyKind,
    fence_key,
    hashes_key,
    heartbeat_key,
    manifest_key,
    parse_key,
    plan_key,
    reply_key,
    request_key,
)
from rekindle.protocol.launch_orders import (
    ENV_RESUME_STEP,
    ENV_SKIP,
    AttemptOrder,
    Plan,
    ResumePlan,
    SkipWindow,
    merge_windows,
)
from rekindle.protocol.mailbox import (
    CheckpointReply,
    CheckpointRequest,
    Fence,
    Heartbeat,
    LossState,
    ReplyOutcome,
    RunPhase,
)
from rekindle.protocol.manifests import ITSELF, Hashes, Manifest, ManifestFile, SaveKind, relative_path, verify_listing
from rekindle.protocol.reports import (
    MAX_REPORT_STACKS_CHARS,
    RankReport,
    ReportKey,
    ReportKind,
    parse_report_key,
    report_key,
    report_prefix,
)
from rekindle.protocol.wire import MAX_STEP, MailboxError, Place, check_id

AT = datetime(2026, 11, 21, 9, 30, 15, 123456, tzinfo=UTC)
IDS = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,40}", fullmatch=True)
MANIFEST = Manifest(
    job_id="job",
    attempt="run-1",
    attempt_number=1,
    step=42,
    kind=SaveKind.EMERGENCY,
    request_id="r1",
    root="s3://bucket/ckpt/step-42",
    files=(
        ManifestFile(path="shards/0.bin", bytes=10),
        ManifestFile(path="optim.bin", bytes=7),
    ),
    world_size=2,
    data={"sampler": [1, 2, {"deep": None}]},
    loss=2.5,
    saved_at=AT,
)
PLAN = Plan.of(
    attempt="slurm.hpc.17.r1",
    order=AttemptOrder(
        job_id="slurm.hpc.17",
        attempt_number=2,
        mailbox="/fsx/mail",
        incident_id="i-1",
        resume=ResumePlan(step=41, uri="/fsx/ckpt/step-41", skip=(SkipWindow(from_step=5, to_step=9),)),
    ),
    written_at=AT,
)
MESSAGES = [
    PLAN,
    Fence(job_id="job", attempt="run-2", attempt_number=2, superseded=("run-1",), written_at=AT),
    CheckpointRequest(request_id="r1", job_id="job", attempt="run-1", deadline_s=90.5, reason="why", incident_id="i-1"),
    CheckpointReply(
        request_id="r1",
        job_id="job",
        attempt="run-1",
        outcome=ReplyOutcome.SAVED,
        why="",
        replied_at=AT,
        step=42,
        manifest=MANIFEST.key,
        bytes=17,
        took_s=0.5,
    ),
    CheckpointReply(
        request_id="r1",
        job_id="job",
        attempt="run-1",
        outcome=ReplyOutcome.CANNOT,
        why="stuck",
        replied_at=AT,
        stacks="x",
    ),
    MANIFEST,
    Hashes(
        job_id="job",
        attempt="run-1",
        step=42,
        manifest=MANIFEST.digest,
        files={"shards/0.bin": "a" * 64},
        hashed_at=AT,
    ),
    Heartbeat(
        job_id="job",
        attempt="run-1",
        attempt_number=1,
        step=None,
        first_step=None,
        loss=None,
        loss_state=LossState.NONE,
        phase=RunPhase.STARTUP,
        step_s_median=None,
        rank=0,
        world_size=1,
        at=AT,
    ),
    RankReport(
        kind=ReportKind.STALL,
        job_id="job",
        attempt="run-1",
        rank=0,
        world_size=2,
        host="node-1",
        at=AT,
        step=41,
        phase="training",
        silent_s=61.5,
        metric="loss",
        stacks="Thread MainThread:\n",
        step_s=0.25,
    ),
]
KINDS = [Fence, CheckpointRequest, CheckpointReply, Manifest, Hashes, Heartbeat, RankReport]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_as_it_was_written(message: Any) -> None:
    assert type(message).from_json(message.to_json()) == message
    assert json.loads(message.to_json())["v"] == 1


@pytest.mark.parametrize("kind", KINDS)
@given(raw=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_garbage_raises_a_mailbox_error_and_nothing_else(kind: Any, raw: bytes) -> None:
    with pytest.raises(MailboxError):
        kind.from_json(raw)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@given(data=st.data())
def test_any_field_replaced_by_anything_is_read_whole_or_refused_by_name(message: Any, data: st.DataObject) -> None:
    wire = json.loads(message.to_json())
    name = data.draw(st.sampled_from(sorted(wire)))
    wire[name] = data.draw(JSON)
    complaint = name
    try:
        read = type(message).from_json(json.dumps(wire))
        assert type(message).from_json(read.to_json()) == read
    except MailboxError as err:
        complaint = err.field.split(".")[0]
    assert complaint in {name, "$", "manifest"}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_missing_required_field_is_named(message: Any) -> None:
    optional = {"superseded", "reason", "why", "data", "incident_id", "loss_health", "is_last"}
    optional |= {"life", "died_of"}
    wire = json.loads(message.to_json())
    for name, value in wire.items():
        if value is None or name in optional:
            continue
        if isinstance(message, CheckpointReply) and name in ("bytes", "took_s", "stacks"):
            continue
        if isinstance(message, Manifest) and name in ("request_id", "loss", "poisoned"):
            continue
        if isinstance(message, Plan) and name in ("mailbox", "step", "uri"):
            continue
        if isinstance(message, Hashes) and name == "files":
            continue
        if isinstance(message, RankReport) and name not in ("kind", "job_id", "attempt", "rank", "world_size", "at"):
            continue
        with pytest.raises(MailboxError) as caught:
            type(message).from_json(json.dumps({key: item for key, item in wire.items() if key != name}))
        assert caught.value.field in (name, "manifest")


def test_an_unknown_version_is_refused_and_unknown_fields_are_not() -> None:
    wire = json.loads(MANIFEST.to_json())
    assert Manifest.from_wire(wire | {"later": "addition"}) == MANIFEST
    with pytest.raises(MailboxError, match="v: "):
        Manifest.from_wire(wire | {"v": 2})


def test_a_message_above_its_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(MailboxError, match="larger"):
        Heartbeat.from_json(b'{"v":1,"pad":"' + b"x" * 300_000 + b'"}')
    with pytest.raises(MailboxError, match="larger"):
        replace(MANIFEST, data={"big": "x" * 9_000_000}).to_json()


@pytest.mark.parametrize("nesting", [b"[" * 100_000, b'{"v":' * 50_000])
def test_deep_nesting_is_a_mailbox_error_too(nesting: bytes) -> None:
    with pytest.raises(MailboxError):
        Manifest.from_json(nesting)


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(MailboxError):
        replace(MANIFEST, loss=float("nan")).to_json()
    with pytest.raises(MailboxError, match="attempt"):
        replace(MANIFEST, attempt="../up").to_json()
    with pytest.raises(MailboxError):
        replace(MANIFEST, data={"tensor": object()}).to_json()


def test_times_become_utc_and_times_without_a_zone_are_refused() -> None:
    wire = MANIFEST.to_wire() | {"v": 1}
    local = AT.astimezone(timezone(timedelta(hours=5)))
    assert Manifest.from_wire(wire | {"saved_at": local.isoformat()}).saved_at.tzinfo is UTC
    assert Manifest.from_wire(wire | {"saved_at": "2026-11-21T09:30:15Z"}).saved_at == AT.replace(microsecond=0)
    with pytest.raises(MailboxError, match="saved_at"):
        Manifest.from_wire(wire | {"saved_at": "2026-11-21T09:30:15"})


@given(prefix=st.sampled_from(["", "a", "a/b", "rekindle", "x/rekindle/y"]), name=IDS, step=st.integers(0, MAX_STEP))
def test_keys_are_parsed_as_they_were_made(prefix: str, name: str, step: int) -> None:
    lead = f"{prefix}/" if prefix else ""
    for made, kind in (
        (request_key(name), KeyKind.REQUEST),
        (reply_key(name), KeyKind.REPLY),
        (heartbeat_key(name), KeyKind.HEARTBEAT),
        (plan_key(name), KeyKind.PLAN),
        (hashes_key(step, name), KeyKind.HASHES),
        (manifest_key(step, name), KeyKind.MANIFEST),
    ):
        key = parse_key(lead + made)
        assert key is not None
        assert (key.kind, key.prefix, key.name) == (kind, prefix, name)
    assert key.step == step
    fence = parse_key(lead + fence_key())
    assert fence is not None
    assert fence.kind is KeyKind.FENCE


@pytest.mark.parametrize(
    "key",
    [
        "rekindle/requests/../fence.json",
        "rekindle/requests/a/b.json",
        "rekindle/requests/..json",
        "rekindle/requests/.json",
        "rekindle/manifests/step-1-a.json",
        "rekindle/heartbeats/a.txt",
        "other/fence.json",
        "rekindle/fence.json\n",
    ],
)
def test_a_foreign_key_is_none_of_ours(key: str) -> None:
    assert parse_key(key) is None


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a b", "ä", "a" * 129, "a\n", None, 3])
def test_ids_that_could_leave_their_folder_are_refused(bad: object) -> None:
    with pytest.raises(MailboxError):
        check_id(bad)


@pytest.mark.parametrize(
    ("sizes", "problems"),
    [
        ({"shards/0.bin": 10, "optim.bin": 7}, ()),
        ({"shards/0.bin": 10, "optim.bin": 7, "extra": 0}, ()),
        ({"shards/0.bin": 10}, ("optim.bin is missing",)),
        ({"shards/0.bin": 9, "optim.bin": 7}, ("shards/0.bin has 9 bytes, the manifest says 10",)),
        ({"shards/0.bin": 0, "optim.bin": 7}, ("shards/0.bin has 0 bytes, the manifest says 10",)),
    ],
)
def test_a_listing_is_compared_file_by_file(sizes: dict[str, int], problems: tuple[str, ...]) -> None:
    assert verify_listing(MANIFEST, sizes) == problems


def test_empty_files_no_files_and_ways_out_are_never_verified() -> None:
    empty = replace(MANIFEST, files=(ManifestFile(path="a", bytes=0),))
    assert verify_listing(empty, {"a": 0}) == ("a is empty",)
    assert verify_listing(replace(MANIFEST, files=()), {}) == ("names no file",)
    for path in ("../up", "/etc/passwd", "a/../../b", "a//b", "a\\b", "", "a\0"):
        out = replace(MANIFEST, files=(ManifestFile(path=path, bytes=1),))
        [problem] = verify_listing(out, {path: 1})
        assert "leads out" in problem
        with pytest.raises(MailboxError, match=r"files.0.path"):
            out.to_json()


def test_a_checkpoint_of_one_file_is_its_own_root() -> None:
    single = replace(MANIFEST, root="s3://bucket/snap.pt", files=(ManifestFile(path=ITSELF, bytes=3),))
    found = relative_path("snap.pt", "snap.pt")
    assert found == ITSELF
    assert verify_listing(single, {found: 3}) == ()
    assert single.place_of(single.files[0]).uri == "s3://bucket/snap.pt"
    assert MANIFEST.place_of(MANIFEST.files[0]).uri == "s3://bucket/ckpt/step-42/shards/0.bin"
    with pytest.raises(MailboxError, match="only file"):
        replace(single, files=(*single.files, *MANIFEST.files)).to_json()


def test_relative_paths_stop_at_the_roots_own_name() -> None:
    assert relative_path("a/step-1", "a/step-1/x/y") == "x/y"
    assert relative_path("a/step-1", "a/step-10/x") is None
    assert relative_path("/d/", "/d/f") == "f"
    assert relative_path("", "a/b") == "a/b", "a bucket's root"
    assert relative_path("/", "/a/b") == "a/b", "a file system's root"


@pytest.mark.parametrize(
    ("uri", "back"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("file:///var/data/", "/var/data"),
        ("/var/data", "/var/data"),
        ("file:///with%20space", "/with space"),
    ],
)
def test_places_are_s3_or_absolute_directories(uri: str, back: str) -> None:
    assert Place.parse(uri).uri == back


@pytest.mark.parametrize(
    "uri", ["", "rel/path", "http://x/y", "s3://", "s3://B/x", "file://host/x", "/a/../b", "s3://bucket/../x"]
)
def test_other_places_are_refused(uri: str) -> None:
    with pytest.raises(MailboxError):
        Place.parse(uri)


@pytest.mark.parametrize(
    ("attempt", "number", "admitted"),
    [
        ("run-2", 2, True),
        ("run-1", 1, False),
        ("run-0", 0, False),
        ("run-x", 2, False),
        ("run-3", 3, True),
        ("run-1", 9, False),
    ],
)
def test_the_fence_admits_the_named_attempt_and_ones_newer_than_it_knows(
    attempt: str, number: int, admitted: bool
) -> None:
    fence = Fence(job_id="job", attempt="run-2", attempt_number=2, superseded=("run-1",), written_at=AT)
    assert fence.admits(attempt, number) is admitted


def test_an_order_replaces_all_of_the_order_before_it() -> None:
    before = AttemptOrder(job_id="job", attempt_number=1, resume=ResumePlan(step=5, uri="/a", manifest_uri="/m"))
    order = AttemptOrder(job_id="job", attempt_number=2, mailbox="s3://bucket/job", bus="rekindle", incident_id="i")
    env = order.apply({"USER_VAR": "kept"} | before.to_env())
    assert env["USER_VAR"] == "kept"
    assert ENV_RESUME_STEP not in env
    assert AttemptOrder.from_env(env) == order


WINDOWS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda p: SkipWindow(from_step=p[0], to_step=p[0] + p[1])),
    max_size=6,
)


@given(windows=WINDOWS)
def test_merged_windows_leave_out_the_same_steps_and_survive_the_environment(windows: list[SkipWindow]) -> None:
    plan = ResumePlan.from_env(ResumePlan(skip=tuple(windows)).to_env())
    assert plan.skip == merge_windows(windows)
    for step in range(70):
        assert plan.should_skip(step) is any(step in window for window in windows)


@pytest.mark.parametrize(
    "bad", ["nonsense", "{}", "[[1]]", "[[2,1]]", "[[true,2]]", "[[-1,2]]", "[[1,2]", "[[1,1e9]]", '[],"x":[]']
)
def test_a_plan_that_cannot_be_read_is_an_error_not_an_empty_plan(bad: str) -> None:
    with pytest.raises(MailboxError, match="REKINDLE_SKIP"):
        ResumePlan.from_env({ENV_SKIP: bad})


def test_a_plan_in_the_mailbox_says_what_the_environment_would_have_said() -> None:
    read = Plan.from_json(PLAN.to_json())
    assert read.order.to_env() == PLAN.order.to_env()
    assert AttemptOrder.from_env(read.order.to_env()) == PLAN.order


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uri", "relative/path"),
        ("manifest_uri", "s3://B!/x"),
        ("mailbox", "ftp://x"),
        ("skip.0", [[3, 3]]),
        ("skip", "[]"),
        ("attempt_number", 0),
        ("step", -1),
        ("attempt", "../x"),
    ],
)
def test_a_plan_with_a_wrong_field_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(MailboxError) as refused:
        Plan.from_wire(PLAN.to_wire() | {"v": 1, field.partition(".")[0]: value})
    assert refused.value.field == field


@pytest.mark.parametrize("bad", ["-1", "1.5", "x", "1" * 13, "١"])
def test_a_resume_step_is_a_plain_whole_number(bad: str) -> None:
    with pytest.raises(MailboxError, match=ENV_RESUME_STEP):
        ResumePlan.from_env({ENV_RESUME_STEP: bad})


def test_a_value_that_a_training_container_cannot_hold_is_refused_where_it_is_made() -> None:
    many = tuple(SkipWindow(from_step=step * 1000, to_step=step * 1000 + 1) for step in range(100))
    with pytest.raises(MailboxError, match="512"):
        ResumePlan(skip=many).to_env()


def test_a_heartbeat_of_an_older_monitor_reads_as_unknown_health() -> None:
    heartbeat = next(message for message in MESSAGES if isinstance(message, Heartbeat))
    new = {"loss_health", "onset_step", "healed_step", "loss_baseline"}
    old = {name: value for name, value in json.loads(heartbeat.to_json()).items() if name not in new}
    read = Heartbeat.from_json(json.dumps(old))
    assert (read.loss_health, read.onset_step, read.healed_step, read.loss_baseline) == ("unknown", None, None, None)


@pytest.mark.parametrize("kind", list(ReportKind))
@given(attempt=IDS, rank=st.integers(0, 10**7))
def test_a_report_is_found_again_by_its_key(kind: ReportKind, attempt: str, rank: int) -> None:
    key = report_key(attempt, kind, rank)
    assert key.startswith(report_prefix(attempt))
    assert parse_report_key(key) == ReportKey(attempt=attempt, kind=kind, rank=rank)
    assert parse_report_key(f"some/prefix/{key}") == ReportKey(attempt=attempt, kind=kind, rank=rank)
    assert parse_key(key) is None, "no reader of the other messages takes it for one of his"


@pytest.mark.parametrize(
    "key",
    [
        "rekindle/reports/run-1/stall-1.json",
        "rekindle/reports/run-1/other-00001.json",
        "rekindle/reports/../stall-00001.json",
        "rekindle/reports/run-1/stall-00001.json.tmp",
        "rekindle/reports/stall-00001.json",
    ],
)
def test_what_is_no_reports_key_is_none(key: str) -> None:
    assert parse_report_key(key) is None


@pytest.mark.parametrize("rank", [-1, 10**8, True])
def test_a_rank_out_of_bounds_is_refused_by_name(rank: int) -> None:
    with pytest.raises(MailboxError, match="rank"):
        report_key("run-1", ReportKind.STALL, rank)


def test_a_report_is_bounded_and_its_rank_belongs_to_its_world() -> None:
    report = next(message for message in MESSAGES if isinstance(message, RankReport))
    assert report.key == "rekindle/reports/run-1/stall-00000.json"
    with pytest.raises(MailboxError, match="stacks"):
        replace(report, stacks="x" * (MAX_REPORT_STACKS_CHARS + 1)).to_json()
    replace(report, stacks="ä" * 10_000).to_json()
    with pytest.raises(MailboxError, match="rank"):
        replace(report, rank=2).to_json()
