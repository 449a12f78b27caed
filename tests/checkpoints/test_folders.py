"""The same discovery over a directory, and a manifest's files checked where they lie."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rekindle.checkpoints.folders import discover_in, listing_of, newest_complete, path_of, reader_of, sealed_at
from rekindle.checkpoints.verdict import texts
from rekindle.protocol.manifests import Manifest, ManifestFile, SaveKind
from tests.checkpoints.made import layout, torch_archive


def laid_out(directory: Path, files: dict[str, bytes]) -> Path:
    for path, body in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(body)
    return directory


def test_a_directory_is_read_as_a_bucket_is(tmp_path: Path) -> None:
    laid_out(tmp_path, layout("hf_trainer"))
    assert [(item.step, item.is_complete) for item in discover_in(tmp_path)] == [(6, True), (4, True), (2, True)]


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    laid_out(tmp_path, layout("hf_trainer"))
    (tmp_path / "checkpoint-6" / "trainer_state.json").unlink()
    os.mkfifo(tmp_path / "checkpoint-6" / "trainer_state.json")  # whoever opens it waits for ever
    assert "checkpoint-6/trainer_state.json" not in listing_of(tmp_path)
    assert [(item.step, item.is_complete) for item in discover_in(tmp_path)] == [(6, False), (4, True), (2, True)]


def test_the_newest_complete_one_is_taken_and_damaged_marked_or_later_ones_are_not(tmp_path: Path) -> None:
    laid_out(tmp_path, layout("hf_trainer"))
    newest = newest_complete(tmp_path)
    assert newest is not None
    assert path_of(tmp_path, newest) == str(tmp_path / "checkpoint-6")
    os.truncate(tmp_path / "checkpoint-6" / "optimizer.pt", 100)
    assert _step(newest_complete(tmp_path)) == 4
    assert _step(newest_complete(tmp_path, at_most=3)) == 2
    assert _step(newest_complete(tmp_path, is_barred=lambda path: path.endswith("checkpoint-4"))) == 2
    assert newest_complete(tmp_path, at_most=1) is None


def _step(found: object) -> int | None:
    return getattr(found, "step", None)


def test_a_directory_that_is_not_there_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        discover_in(tmp_path / "nowhere")
    assert discover_in(tmp_path) == ()


def test_links_to_nothing_and_unreadable_files_do_no_harm(tmp_path: Path) -> None:
    laid_out(tmp_path, {"step_5.pt": torch_archive({"step": 5})})
    (tmp_path / "step_6.pt").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "step_7.txt")
    assert [item.step for item in discover_in(tmp_path)] == [5]


def manifest(*files: tuple[str, int]) -> Manifest:
    return Manifest(
        job_id="lm",
        attempt="lm",
        attempt_number=1,
        step=5,
        kind=SaveKind.PERIODIC,
        root="/fsx/lm/step-5",
        files=tuple(ManifestFile(path=path, bytes=size) for path, size in files),
        world_size=1,
        saved_at=datetime(2026, 11, 20, tzinfo=UTC),
    )


def manifest_problems(manifest: Manifest, path: str) -> tuple[str, ...]:
    return texts(sealed_at(manifest, path))


def test_what_a_manifest_vouches_for_is_measured_where_it_lies(tmp_path: Path) -> None:
    laid_out(tmp_path, {"a.bin": b"x" * 10, "in/b.bin": b"y" * 5})
    assert manifest_problems(manifest(("a.bin", 10), ("in/b.bin", 5)), str(tmp_path)) == ()
    assert manifest_problems(manifest(("a.bin", 11)), str(tmp_path)) == ("a.bin has 10 bytes, the manifest says 11",)
    assert manifest_problems(manifest(("c.bin", 1)), str(tmp_path)) == ("c.bin is missing",)
    assert manifest_problems(manifest((".", 10)), str(tmp_path / "a.bin")) == ()
    assert "is not there" in manifest_problems(manifest((".", 10)), str(tmp_path / "gone"))[0]


def test_a_pipe_in_a_files_place_holds_nobody_up(tmp_path: Path) -> None:
    """It may be put there between the listing and the look into it, by whoever owns the folder."""
    os.mkfifo(tmp_path / "trainer_state.json")
    assert reader_of(tmp_path)("trainer_state.json", 0, 10) is None


def test_a_listing_ends_also_where_one_folder_holds_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.checkpoints.folders.MAX_FILES", 5)
    for number in range(9):
        (tmp_path / f"{number}.bin").write_bytes(b"x")
    assert len(listing_of(tmp_path)) == 5
