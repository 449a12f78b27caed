"""The training side's own look at what it is about to load."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

import rekindle.monitor as rekindle
from rekindle.checkpoints.marks import QuarantineMark
from rekindle.mailbox import Manifest, ManifestFile, ResumePlan, SaveKind
from rekindle.monitor.boxes import DirectoryBox
from tests.checkpoints.made import layout
from tests.checkpoints.test_folders import laid_out

AT = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return laid_out(tmp_path / "ckpt", layout("hf_trainer"))


def plan_of(tmp_path: Path, **env: str) -> ResumePlan:
    given = {"REKINDLE_MAILBOX": str(tmp_path / "box"), "REKINDLE_CHECKPOINT_DIR": str(tmp_path / "ckpt")}
    return rekindle.start(env={**given, "REKINDLE_MONITOR": "off", **env}).resume


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
