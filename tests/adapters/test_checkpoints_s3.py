"""Checkpoints that no manifest speaks for: found with few calls, judged, told from each other's writers."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from chalicelib.aws.s3 import discovered as discovered_s3
from chalicelib.aws.s3.checkpoints import MAX_MORE
from chalicelib.aws.s3.mailbox import S3Mailbox
from chalicelib.domain.model.action import Done, QuarantineCheckpoint
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import CheckpointView
from tests.adapters.samples import T0, attempt, job
from tests.adapters.test_mailbox_contract import BUCKET, PREFIX, S3Desk, s3_side
from tests.checkpoints.made import LAYOUTS, layout, torch_archive, trainer_state

Side = tuple[S3Mailbox, S3Desk]
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def s3(aws: None) -> Side:
    return s3_side()


def put(desk: S3Desk, files: dict[str, bytes], below: str = "") -> None:
    for path, body in files.items():
        desk.put(below + path, body)


def first(**changes: Any) -> Attempt:
    return replace(attempt(), submitted_at=LONG_AGO, **changes)


def saved_by_torch() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/version", b"3\n")
    return held.getvalue()


def found(side: Side, attempts: list[Attempt] | None = None, **changes: Any) -> tuple[CheckpointView, ...]:
    return side[0].checkpoints(job(**changes), attempts or [first()]).value


def told(views: tuple[CheckpointView, ...]) -> list[tuple[int, str, str, bool]]:
    start = len(f"s3://{BUCKET}/{PREFIX}/")
    return [(view.step, view.kind, view.root[start:], not view.problems) for view in views]


def calls_of(desk: S3Desk) -> Counter[str]:
    calls: Counter[str] = Counter()
    desk.client.meta.events.register("before-call.s3", lambda model, **_: calls.update([model.name]))
    return calls


def test_what_hugging_face_s_trainer_saved_is_found_without_any_monitor(s3: Side) -> None:
    put(s3[1], layout("hf_trainer"))
    put(s3[1], {"checkpoint-8/model.safetensors": b"x" * 9, "runs/events.out.tfevents.1": b"e"})
    views = found(s3)
    assert told(views) == [
        (8, "hf_trainer", "checkpoint-8", False),
        (6, "hf_trainer", "checkpoint-6", True),
        (4, "hf_trainer", "checkpoint-4", True),
        (2, "hf_trainer", "checkpoint-2", True),
    ]
    assert any("trainer_state.json is missing" in problem for problem in views[0].problems)
    assert {(view.manifest, view.attempt, view.fenced) for view in views} == {("", "lm-7b", False)}


@pytest.mark.parametrize("name", [name for name in LAYOUTS if not name.startswith("accelerate")])
def test_each_format_is_found_in_a_bucket(s3: Side, name: str) -> None:
    files = layout(name)
    if name == "one_file":  # recorded of several programs
        files = {path: body for path, body in files.items() if path == "step_000123.pt"}
    put(s3[1], files)
    views = found(s3)
    assert views
    assert all(not view.problems for view in views)


def test_checkpoints_of_unknown_step_are_left_out(s3: Side) -> None:
    put(s3[1], layout("accelerate"))  # checkpoint_<n> counts saves
    put(s3[1], {"step-3/whatever.dat": b"x"})
    assert found(s3) == ()


def test_the_checkpoint_uri_counts_beside_the_mailbox_and_without_one(s3: Side) -> None:
    uri = f"s3://{BUCKET}/elsewhere/lm"
    for path, body in layout("torch_dcp").items():
        s3[1].client.put_object(Bucket=BUCKET, Key=f"elsewhere/lm/{path}", Body=body)
    assert [view.root for view in found(s3, checkpoints=uri)] == [f"{uri}/step-7"]
    assert [view.root for view in found(s3, checkpoints=uri, mailbox="")] == [f"{uri}/step-7"]
    assert found(s3, checkpoints="/fsx/lm") == ()
    assert found(s3, checkpoints="nonsense") == ()


def test_a_manifest_wins_over_what_is_found_in_its_place_and_of_its_step(s3: Side) -> None:
    put(s3[1], layout("hf_trainer"))
    root = f"s3://{BUCKET}/{PREFIX}/checkpoint-6"
    s3[1].checkpoint(6, root=root, saved_at=T0)  # names files that are not there
    views = found(s3)
    assert [(view.step, view.kind, bool(view.problems)) for view in views] == [
        (6, "periodic", True),
        (4, "hf_trainer", False),
        (2, "hf_trainer", False),
    ]
    s3[1].checkpoint(4, saved_at=T0)  # another place, the same step
    assert [view.kind for view in found(s3)] == ["periodic", "periodic", "hf_trainer"]


def test_the_monitor_s_own_files_are_no_checkpoints(s3: Side) -> None:
    for step in (100, 200):
        s3[1].checkpoint(step)
    calls = calls_of(s3[1])
    assert [view.kind for view in found(s3)] == ["periodic", "periodic"]
    assert calls["ListObjectsV2"] == 5 + 2  # manifests, lives, marks, the prefix, ckpt/; and each checkpoint


def test_a_quarantined_one_is_told_until_somebody_lifts_the_mark(s3: Side) -> None:
    put(s3[1], layout("hf_trainer"))
    action = QuarantineCheckpoint(root=f"s3://{BUCKET}/{PREFIX}/checkpoint-6", why="died at load twice")
    assert s3[0].quarantine(job(), action, by="inc-a", now=T0).done is Done.DONE
    views = found(s3)
    assert views[0].problems == ("quarantined: died at load twice (inc-a)",)
    assert not views[1].problems
    (mark,) = s3[1].client.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/rekindle/quarantine/")["Contents"]
    s3[1].client.delete_object(Bucket=BUCKET, Key=mark["Key"])
    assert not found(s3)[0].problems


def test_a_mark_that_cannot_be_read_is_still_a_mark(s3: Side) -> None:
    put(s3[1], layout("hf_trainer"))
    action = QuarantineCheckpoint(root=f"s3://{BUCKET}/{PREFIX}/checkpoint-6", why="x")
    s3[0].quarantine(job(), action, by="inc-a", now=T0)
    (mark,) = s3[1].client.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/rekindle/quarantine/")["Contents"]
    s3[1].client.put_object(Bucket=BUCKET, Key=mark["Key"], Body=b"garbage")
    assert found(s3)[0].problems[0].startswith("quarantined: ")


def test_the_writer_is_the_attempt_that_ran_when_its_files_came(s3: Side) -> None:
    put(s3[1], layout("hf_trainer"))
    old = first(superseded_at=LATER)
    assert {view.attempt for view in found(s3, [old, replace(attempt(2), submitted_at=LATER)])} == {"lm-7b"}
    new = replace(attempt(2), submitted_at=LONG_AGO + timedelta(days=1))
    assert {view.attempt for view in found(s3, [old, new])} == {"lm-7b-r2"}


def test_what_a_newer_attempt_cannot_have_written_is_fenced(s3: Side) -> None:
    put(s3[1], layout("hf_trainer"))
    ended = replace(attempt(2), submitted_at=LONG_AGO + timedelta(days=1), last_step=Known(5), ended_at=T0)
    views = found(s3, [first(), ended])
    assert [(view.step, view.fenced) for view in views] == [(6, True), (4, False), (2, False)]
    alone = first(last_step=Known(5), ended_at=T0)  # nobody else can have written it: a late heartbeat, no zombie
    assert not any(view.fenced for view in found(s3, [alone]))


def test_what_the_only_attempt_came_nowhere_near_is_another_run_s(s3: Side) -> None:
    put(s3[1], {"step-60.pt": saved_by_torch(), "step-20.pt": saved_by_torch()})
    alone = first(last_step=Known(25), ended_at=T0)
    assert [(view.step, view.fenced) for view in found(s3, [alone])] == [(60, True), (20, False)]
    assert not any(view.fenced for view in found(s3, [replace(alone, ended_at=None)]))  # how far it comes is not known


def test_what_lay_there_before_a_run_that_began_below_it_is_another_run_s(s3: Side) -> None:
    put(s3[1], layout("hf_trainer"))
    fresh = replace(attempt(), submitted_at=LATER, first_step=Known(1))
    assert all(view.fenced for view in found(s3, [fresh]))
    assert not any(view.fenced for view in found(s3, [replace(fresh, first_step=Known(7))]))  # it continues from there
    unseen = replace(fresh, first_step=Unknown("no step"))
    assert not any(view.fenced for view in found(s3, [unseen]))
    again = replace(attempt(2), submitted_at=LATER, first_step=Known(1))
    assert all(view.fenced for view in found(s3, [unseen, again]))  # it could have continued from there, and did not
    told = replace(again, resume_step=Known(0))
    assert not any(view.fenced for view in found(s3, [unseen, told]))  # where it began, its order says


def test_files_of_two_writers_in_one_checkpoint_are_fenced(s3: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    put(s3[1], layout("hf_trainer"))
    real = s3[1].client.list_objects_v2
    taken_over_at = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

    def dated(**asked: Any) -> Any:
        page = real(**asked)
        for entry in page.get("Contents", ()):
            before = entry["Key"].endswith("checkpoint-6/model.safetensors") or "checkpoint-2/" in entry["Key"]
            entry["LastModified"] = taken_over_at + timedelta(hours=-1 if before else 1)
        return page

    monkeypatch.setattr(s3[1].client, "list_objects_v2", dated)
    views = found(s3, [first(superseded_at=taken_over_at), replace(attempt(2), submitted_at=taken_over_at)])
    assert [(view.step, view.attempt, view.fenced) for view in views] == [
        (6, "lm-7b-r2", True),
        (4, "lm-7b-r2", False),
        (2, "lm-7b", False),
    ]


def test_a_latest_that_names_a_missing_tag_is_told_and_the_older_tag_stands(s3: Side) -> None:
    files = layout("deepspeed_stage2")
    put(s3[1], {path: body for path, body in files.items() if not path.startswith("global_step4/")})
    views = found(s3)
    assert told(views) == [(4, "deepspeed", "global_step4", False), (2, "deepspeed", "global_step2", True)]
    assert views[0].problems == ("the file `latest` names global_step4, which is not there",)


def small(step: int) -> dict[str, bytes]:
    state = {"trainer_state.json": trainer_state(step), "model.safetensors": layout("hf_trainer_weights_only")[MODEL]}
    return {f"checkpoint-{step}/{name}": body for name, body in state.items()}


MODEL = "checkpoint-2/model.safetensors"


@pytest.mark.long
def test_many_checkpoints_of_many_files_cost_few_calls_and_the_far_past_is_reached(s3: Side) -> None:
    steps = list(range(10, 310, 10))
    for step in steps:
        put(s3[1], small(step))
        put(s3[1], {f"checkpoint-{step}/extra/{n}.txt": b"x" for n in range(30)})  # more than a thousand objects
    calls = calls_of(s3[1])
    views = found(s3)
    newest = steps[: -discovered_s3.NEWEST - 1 : -1]
    assert [view.step for view in views] == [*newest, 220, 210, 190, 150, 70]
    assert calls["ListObjectsV2"] == 3 + len(views)  # manifests, marks, one level; and each that is judged
    far = s3[0].checkpoints(job(), [first()], near=(55,)).value
    assert {50, 40, 30, 20} <= {view.step for view in far}


def test_the_search_for_folders_is_bounded(s3: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovered_s3, "MAX_PAGES", 5)
    put(s3[1], {f"deep-{n}/notes.txt": b"x" for n in range(20)})
    put(s3[1], small(10))
    calls = calls_of(s3[1])
    assert [view.step for view in found(s3)] == [10]
    assert calls["ListObjectsV2"] == 5 + 3  # and manifests, marks, the one that was found


def test_a_bucket_that_may_not_be_listed_leaves_the_manifests_as_they_are(
    s3: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3[1].checkpoint(100)
    real = s3[1].client.list_objects_v2

    def denied(**asked: Any) -> Any:
        if asked["Bucket"] == "foreign-bucket":
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ListObjectsV2")
        return real(**asked)

    monkeypatch.setattr(s3[1].client, "list_objects_v2", denied)
    views = found(s3, checkpoints="s3://foreign-bucket/lm")
    assert [(view.step, view.problems) for view in views] == [(100, ())]


def test_one_file_snapshots_beside_each_other(s3: Side) -> None:
    put(s3[1], {f"snap/step_{n:06d}.pt": torch_archive({"step": n}) for n in (1, 2, 3)})
    put(s3[1], {"snap/step_000004.pt": torch_archive({"step": 4})[:-9], "snap/step_000005.pt.tmp": b"half"})
    assert told(found(s3)) == [
        (5, "one_file", "snap/step_000005.pt.tmp", False),
        (4, "one_file", "snap/step_000004.pt", False),
        (3, "one_file", "snap/step_000003.pt", True),
        (2, "one_file", "snap/step_000002.pt", True),
        (1, "one_file", "snap/step_000001.pt", True),
    ]


def test_older_ones_are_read_until_one_is_whole(s3: Side) -> None:
    for step in range(10, 500, 10):
        s3[1].checkpoint(step, lose=step > 170)
    whole = [view.step for view in found(s3) if not view.problems]
    assert whole[0] == 170, "the newest that is whole, though more than the usual number of newer ones are damaged"


def test_damaged_ones_below_a_step_are_passed_until_one_is_whole(s3: Side) -> None:
    for step in range(10, 900, 10):
        s3[1].checkpoint(step, lose=230 <= step <= 300)
    views = s3[0].checkpoints(job(), [first()], near=(300,)).value
    assert max(view.step for view in views if not view.problems and view.step <= 300) == 220


def test_only_so_many_damaged_ones_are_read(s3: Side) -> None:
    for step in range(1, 141):
        s3[1].checkpoint(step, lose=True)
    calls = calls_of(s3[1])
    assert all(view.problems for view in found(s3))
    assert calls["GetObject"] <= 16 + 8 + MAX_MORE


def test_a_manifest_s_word_that_the_loss_could_not_be_read_reaches_the_choice_of_a_resume_point(s3: Side) -> None:
    s3[1].checkpoint(200, loss_unread=True)
    s3[1].checkpoint(100)
    assert [(view.step, view.loss_unread) for view in found(s3)] == [(200, True), (100, False)]


def test_nemo_1_s_files_of_all_ranks_are_one_checkpoint(s3: Side) -> None:
    ranks = [f"tp_rank_{tensor:02d}_pp_rank_000" for tensor in range(16)]
    names = [f"megatron_gpt--val_loss=2.10-step={step}-consumed_samples={step * 8}.0.ckpt" for step in (99, 199, 299)]
    put(s3[1], {f"nemo/checkpoints/{rank}/{name}": saved_by_torch() for rank in ranks for name in names})
    put(s3[1], {f"nemo/checkpoints/{rank}/{names[2].replace('299', '399')}": saved_by_torch() for rank in ranks[:-1]})
    assert told(found(s3)) == [
        (399, "nemo", "nemo/checkpoints/" + names[2].replace("299", "399"), False),
        *(
            (step, "nemo", f"nemo/checkpoints/{name}", True)
            for step, name in ((299, names[2]), (199, names[1]), (99, names[0]))
        ),
    ]
