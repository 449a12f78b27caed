"""The training side's own look at what it is about to load."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rekindle.checkpoints.marks import QuarantineMark
from rekindle.monitor.mail.boxes import DirectoryBox
from rekindle.protocol.launch_orders import ResumePlan
from rekindle.protocol.manifests import Manifest, ManifestFile, SaveKind
from tests.checkpoints.made import layout
from tests.checkpoints.test_folders import laid_out
from tests.monitor.boxes import start_monitor

AT = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return laid_out(tmp_path / "ckpt", layout("hf_trainer"))


def plan_of(tmp_path: Path, **env: str) -> ResumePlan:
    given = {"REKINDLE_MAILBOX": str(tmp_path / "box"), "REKINDLE_CHECKPOINT_DIR": str(tmp_path / "ckpt")}
    return start_monitor(env={**given, "REKINDLE_MONITOR": "off", **env}).resume


def test_an_attempt_that_was_told_no_checkpoint_finds_the_newest_whole_one(tmp_path: Path, disk: Path) -> None:
    os.truncate(disk / "checkpoint-6" / "model.safetensors", 99)
    plan = plan_of(tmp_path, REKINDLE_ATTEMPT="2", REKINDLE_SKIP="[[10,20]]")
    assert (plan.step, plan.uri) == (4, str(disk / "checkpoint-4"))
    assert plan.should_skip(12)


def test_the_first_attempt_starts_as_its_script_says(tmp_path: Path, disk: Path) -> None:
    assert plan_of(tmp_path).uri is None
    assert plan_of(tmp_path, REKINDLE_ATTEMPT="2", REKINDLE_CHECKPOINT_DIR=str(tmp_path / "nowhere")).uri is None


def test_a_quarantined_one_is_passed_over(tmp_path: Path, disk: Path) -> None:
    box = DirectoryBox(str(tmp_path / "box"))
    mark = QuarantineMark(root=str(disk / "checkpoint-6"), why="died at load twice", by="inc-1", at=AT)
    box.put(mark.key, mark.to_json())
    assert plan_of(tmp_path, REKINDLE_ATTEMPT="2").step == 4
    mark = QuarantineMark(root="s3://runs-bucket/lm/checkpoint-4", why="the same", by="inc-1", at=AT)
    box.put(mark.key, mark.to_json())
    assert plan_of(tmp_path, REKINDLE_ATTEMPT="2", REKINDLE_CHECKPOINT_URI="s3://runs-bucket/lm").step == 2


def test_the_checkpoint_that_was_ordered_is_kept_while_it_is_whole(tmp_path: Path, disk: Path) -> None:
    for uri in (str(disk / "checkpoint-4"), f"file://{disk}/checkpoint-4"):
        plan = plan_of(tmp_path, REKINDLE_RESUME_URI=uri, REKINDLE_RESUME_STEP="4")
        assert (plan.step, plan.uri) == (4, uri)
    in_s3 = plan_of(tmp_path, REKINDLE_RESUME_URI="s3://runs-bucket/lm/checkpoint-4", REKINDLE_RESUME_STEP="4")
    assert in_s3.uri == "s3://runs-bucket/lm/checkpoint-4"


def test_a_damaged_one_gives_way_to_an_older_and_never_to_a_newer(tmp_path: Path, disk: Path) -> None:
    (disk / "checkpoint-4" / "optimizer.pt").write_bytes(b"")
    ordered = {"REKINDLE_RESUME_URI": str(disk / "checkpoint-4"), "REKINDLE_RESUME_STEP": "4"}
    plan = plan_of(tmp_path, **ordered)
    assert (plan.step, plan.uri) == (2, str(disk / "checkpoint-2"))
    (disk / "checkpoint-2" / "trainer_state.json").unlink()
    assert plan_of(tmp_path, **ordered).step == 4  # nothing better: its own loading will say so


def test_a_manifest_s_sizes_are_checked_where_the_files_are(tmp_path: Path, disk: Path) -> None:
    root = disk / "checkpoint-4"
    sizes = {path.name: path.stat().st_size for path in root.iterdir()}

    def ordered(sizes: dict[str, int]) -> ResumePlan:
        manifest = Manifest(
            job_id="lm",
            attempt="lm",
            attempt_number=1,
            step=4,
            kind=SaveKind.PERIODIC,
            root=str(root),
            files=tuple(ManifestFile(path=name, bytes=size) for name, size in sizes.items()),
            world_size=1,
            saved_at=AT,
        )
        DirectoryBox(str(tmp_path / "box")).put(manifest.key, manifest.to_json())
        return plan_of(
            tmp_path,
            REKINDLE_RESUME_URI=str(root),
            REKINDLE_RESUME_STEP="4",
            REKINDLE_RESUME_MANIFEST=str(tmp_path / "box" / manifest.key),
        )

    assert ordered(sizes).step == 4
    assert ordered(sizes | {"optimizer.pt": sizes["optimizer.pt"] + 1}).step == 2


def test_a_mailbox_that_cannot_be_read_leaves_the_plan_as_it_is(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "box").write_text("a file, no folder")
    assert plan_of(tmp_path, REKINDLE_ATTEMPT="2").uri is None


def sealed(tmp_path: Path, root: Path, step: int, attempt: str = "run-1", **more: object) -> Manifest:
    seen = {path.name: path.stat() for path in root.iterdir()}
    values: dict[str, object] = {
        "job_id": "lm",
        "attempt": attempt,
        "attempt_number": 1,
        "step": step,
        "kind": SaveKind.PERIODIC,
        "root": str(root),
        "files": tuple(
            ManifestFile(path=name, bytes=it.st_size, mtime_ns=it.st_mtime_ns, inode=it.st_ino)
            for name, it in seen.items()
        ),
        "world_size": 1,
        "saved_at": datetime.now(UTC),
    }
    manifest = Manifest(**values | more)  # type: ignore[arg-type]
    DirectoryBox(str(tmp_path / "box")).put(manifest.key, manifest.to_json())
    return manifest


OWN = {"REKINDLE_JOB_ID": "lm", "TRAINING_JOB_NAME": "run-1"}


def test_an_attempt_that_is_started_again_goes_on_from_what_it_has_sealed(tmp_path: Path, disk: Path) -> None:
    planned = OWN | {"REKINDLE_RESUME_URI": str(disk / "checkpoint-2"), "REKINDLE_RESUME_STEP": "2"}
    assert plan_of(tmp_path, **planned).step == 2
    sealed(tmp_path, disk / "checkpoint-4", 4)
    sealed(tmp_path, disk / "checkpoint-6", 6, attempt="run-0")  # an earlier one's: the plan went back behind it
    plan = plan_of(tmp_path, **planned, REKINDLE_SKIP="[[3,4]]")
    assert (plan.step, plan.uri) == (4, str(disk / "checkpoint-4"))
    assert plan.manifest_uri is not None
    assert plan.should_skip(3)
    assert plan_of(tmp_path, **OWN).step == 4  # also without a plan, and in a first attempt


def test_what_it_has_sealed_counts_only_whole_of_numbers_and_neither_quarantined_nor_forensic(
    tmp_path: Path, disk: Path
) -> None:
    box = DirectoryBox(str(tmp_path / "box"))
    sealed(tmp_path, disk / "checkpoint-2", 2)
    sealed(tmp_path, disk / "checkpoint-4", 4)
    mark = QuarantineMark(root=str(disk / "checkpoint-4"), why="the loss jumps after it", by="inc-1", at=AT)
    box.put(mark.key, mark.to_json())
    sealed(tmp_path, disk / "checkpoint-6", 6, request_id="inc-1-f1", kind=SaveKind.EMERGENCY)
    damaged = laid_out(disk, {f"checkpoint-8/{name}": b"x" * 10 for name in ("a.bin", "b.bin")}) / "checkpoint-8"
    sealed(tmp_path, damaged, 8)
    (damaged / "b.bin").write_bytes(b"x")
    poison = disk / "checkpoint-9"
    header = b'{"w":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]}}'
    laid_out(poison, {"model.safetensors": len(header).to_bytes(8, "little") + header + b"\x00\x00\xc0\x7f" * 16})
    sealed(tmp_path, poison, 9)
    assert plan_of(tmp_path, **OWN).step == 2


@pytest.mark.parametrize(("age_s", "expected"), [(600, 2), (7200, 6)], ids=["near", "too far back"])
def test_a_save_whose_loss_was_read_is_taken_before_newer_ones_whose_loss_was_not(
    tmp_path: Path, disk: Path, age_s: int, expected: int
) -> None:
    now = datetime.now(UTC)
    sealed(tmp_path, disk / "checkpoint-2", 2, saved_at=now - timedelta(seconds=age_s))
    sealed(tmp_path, disk / "checkpoint-4", 4, saved_at=now - timedelta(seconds=60), loss_unread=True)
    sealed(tmp_path, disk / "checkpoint-6", 6, saved_at=now, loss_unread=True)
    assert plan_of(tmp_path, **OWN).step == expected


def test_a_second_save_into_a_sealed_folder_that_did_not_finish_is_noticed(tmp_path: Path, disk: Path) -> None:
    sealed(tmp_path, disk / "checkpoint-2", 2)
    sealed(tmp_path, disk / "checkpoint-4", 4)
    later = datetime.now(UTC).timestamp() + 3600
    os.utime(disk / "checkpoint-4" / "optimizer.pt", (later, later))
    assert plan_of(tmp_path, **OWN).step == 2


def test_a_copy_of_a_sealed_checkpoint_is_taken_where_its_content_says_its_step(tmp_path: Path, disk: Path) -> None:
    sealed(tmp_path, disk / "checkpoint-2", 2)
    sealed(tmp_path, disk / "checkpoint-4", 4)
    for path in (disk / "checkpoint-4").iterdir():
        os.utime(path, (5, 5))
    assert plan_of(tmp_path, **OWN).step == 4
    (disk / "checkpoint-4" / "trainer_state.json").write_bytes(b'{"global_step": 6}')
    assert plan_of(tmp_path, **OWN).step == 2


def test_a_sealed_file_whose_own_counter_does_not_count_skipped_steps_is_resumed_from(tmp_path: Path) -> None:
    """Lightning counts updates: with a plan that skips five, its sixth is step 11, as the seal knew."""
    place = laid_out(tmp_path / "ckpt", {"c/step=6.ckpt": pickle.dumps({"global_step": 6, "w": [1.0]})}) / "c"
    sealed(tmp_path, place, 11)
    assert plan_of(tmp_path, **OWN).step == 11
    (place / "step=6.ckpt").write_bytes(pickle.dumps({"global_step": 7, "w": [1.0]}))
    assert plan_of(tmp_path, **OWN).step != 11


def test_a_file_that_was_written_over_is_never_handed_over_under_the_step_that_was_sealed(tmp_path: Path) -> None:
    """A script with one name for all its checkpoints: a rewind after a spike would hand it the diverged state."""
    place = laid_out(tmp_path / "runs", {"ckpt.pkl": pickle.dumps({"w": [1.0] * 100})})
    box = DirectoryBox(str(tmp_path / "box"))
    seen = (place / "ckpt.pkl").stat()
    item = ManifestFile(path=".", bytes=seen.st_size, mtime_ns=seen.st_mtime_ns, inode=seen.st_ino)
    manifest = replace(sealed(tmp_path, place, 2), root=str(place / "ckpt.pkl"), files=(item,))
    box.put(manifest.key, manifest.to_json())
    planned = OWN | {
        "REKINDLE_RESUME_URI": manifest.root,
        "REKINDLE_RESUME_STEP": "2",
        "REKINDLE_RESUME_MANIFEST": f"{box.uri}/{manifest.key}",
    }
    assert plan_of(tmp_path, **planned).uri == manifest.root
    (place / "ckpt.pkl").write_bytes(pickle.dumps({"w": [2.0] * 100}))
    plan = plan_of(tmp_path, **planned)
    assert (plan.uri, plan.step) == (None, None)


def test_a_start_says_that_another_number_of_ranks_saved_what_it_resumes_from(
    tmp_path: Path, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = sealed(tmp_path, disk / "checkpoint-4", 4, world_size=4)
    planned = OWN | {
        "REKINDLE_RESUME_URI": manifest.root,
        "REKINDLE_RESUME_STEP": "4",
        "REKINDLE_RESUME_MANIFEST": str(tmp_path / "box" / manifest.key),
    }
    assert plan_of(tmp_path, **planned, RANK="0", WORLD_SIZE="4").step == 4
    assert "world size" not in caplog.text
    assert plan_of(tmp_path, **planned, RANK="1", WORLD_SIZE="2").step == 4
    assert "world size" not in caplog.text, "told once, by rank 0"
    assert plan_of(tmp_path, **planned, RANK="0", WORLD_SIZE="2").step == 4
    assert "was saved by 4 ranks, and 2 go on from it" in caplog.text
