"""`rekindle checkpoints`: a folder, a bucket, rubbish, and the marks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from rekindle.monitor.base.aws import Clients
from rekindle.monitor.mail.boxes import DirectoryBox
from rekindle.monitor.saving.measure import measure
from rekindle.monitor.saving.saved import SaveResult
from rekindle.protocol.hashing import hash_file
from rekindle.protocol.manifests import Hashes, Manifest, SaveKind
from tests.checkpoints.made import layout, torch_archive
from tests.checkpoints.test_folders import laid_out
from tests.cli.conftest import Run

BUCKET = "training-runs"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    files = layout("hf_trainer")
    files["checkpoint-6/optimizer.pt"] = files["checkpoint-6/optimizer.pt"][:50]
    return laid_out(tmp_path / "out", files)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        for path, body in layout("deepspeed_stage2").items():
            client.put_object(Bucket=BUCKET, Key=f"lm/{path}", Body=body)
        yield client


def test_a_folder_is_told_as_a_table(run: Run, disk: Path) -> None:
    ended = run("checkpoints", str(disk))
    lines = ended.out.splitlines()
    assert ended.code == 0
    assert lines[0].split() == ["STEP", "FORMAT", "SIZE", "VERDICT", "ROOT", "PROBLEMS"]
    assert lines[1].split()[:2] == ["6", "hf_trainer"]
    assert "not usable" in lines[1]
    assert "optimizer.pt is cut short" in lines[1]
    assert "whole" in lines[2]
    assert len(lines) == 4


def test_json_says_the_same_for_machines(run: Run, disk: Path) -> None:
    rows = json.loads(run("checkpoints", "out", "--json").out)
    assert [(row["step"], row["verdict"]) for row in rows] == [(6, "not usable"), (4, "whole"), (2, "whole")]
    assert rows[1] | {"bytes": 0} == {
        "root": str(disk / "checkpoint-4"),
        "format": "hf_trainer",
        "step": 4,
        "bytes": 0,
        "files": 7,
        "verdict": "whole",
        "problems": [],
    }


def test_the_newest_usable_one_is_printed_for_a_script(run: Run, disk: Path, tmp_path: Path) -> None:
    assert run("checkpoints", str(disk), "--newest").out == f"{disk / 'checkpoint-4'}\n"
    (tmp_path / "empty").mkdir()
    ended = run("checkpoints", "empty", "--newest")
    assert (ended.code, ended.out) == (3, "")


def test_the_newest_of_what_is_not_all_known_is_printed_and_is_no_success(run: Run, disk: Path, tmp_path: Path) -> None:
    """A script can tell three cases apart: go on from the path (0), decide (1), nothing lies there (3)."""
    (disk / "state").mkdir()
    with (disk / "state" / "blob.dat").open("wb") as file:
        file.truncate(1_500_000_000)
    ended = run("checkpoints", str(disk), "--newest")
    assert (ended.code, ended.out) == (1, f"{disk / 'checkpoint-4'}\n")
    assert ended.err == f"rekindle: not chosen: {disk / 'state'} (1.5 GB): no rule knows what it is\n"
    alone = run("checkpoints", str(disk / "state"), "--newest")
    assert (alone.code, alone.out) == (1, ""), "not 3, on which a script begins anew"
    laid_out(tmp_path / "stepless", {"last.pt": torch_archive({"model": {}})})
    stepless = run("checkpoints", "stepless", "--newest")
    assert (stepless.code, stepless.out, "its step is not known" in stepless.err) == (1, "", True)


def test_a_mark_is_set_seen_and_lifted(run: Run, disk: Path) -> None:
    assert (
        "is quarantined" in run("checkpoints", "out", "--quarantine", "checkpoint-4", "--yes", "--why", "bad data").out
    )
    assert "already" in run("checkpoints", "out", "--quarantine", str(disk / "checkpoint-4"), "--yes").out
    rows = json.loads(run("checkpoints", "out", "--json").out)
    assert rows[1]["verdict"] == "not usable"
    assert rows[1]["problems"][0].startswith("quarantined: bad data (")
    assert run("checkpoints", "out", "--newest").out == f"{disk / 'checkpoint-2'}\n"
    unasked = run("checkpoints", "out", "--lift", "checkpoint-4")
    assert (unasked.code, "in a script say --yes" in unasked.err) == (1, True)
    assert run("checkpoints", "out", "--lift", "checkpoint-4", "--yes").code == 0
    assert run("checkpoints", "out", "--newest").out == f"{disk / 'checkpoint-4'}\n"
    assert run("checkpoints", "out", "--lift", "checkpoint-4").code == 3
    assert (disk / "checkpoint-4" / "model.safetensors").exists()


def test_a_bucket_is_told_as_a_folder_is(run: Run, bucket: Any) -> None:
    rows = json.loads(run("checkpoints", f"s3://{BUCKET}/lm", "--json").out)
    assert [(row["step"], row["verdict"]) for row in rows] == [(4, "whole"), (2, "whole")]
    assert run("checkpoints", f"s3://{BUCKET}/lm", "--quarantine", "global_step4", "--yes").code == 0
    assert run("checkpoints", f"s3://{BUCKET}/lm", "--newest").out == f"s3://{BUCKET}/lm/global_step2\n"
    assert run("checkpoints", f"s3://{BUCKET}/lm", "--lift", f"s3://{BUCKET}/lm/global_step4", "--yes").code == 0
    assert run("checkpoints", f"s3://{BUCKET}/lm", "--newest").out == f"s3://{BUCKET}/lm/global_step4\n"


def test_what_is_not_there_is_said_in_one_line(run: Run, bucket: Any) -> None:
    for path in ("nowhere", "s3://no-such-bucket-here/lm", f"s3://{BUCKET}/nothing"):
        ended = run("checkpoints", path)
        assert (ended.code, ended.out) == (3, "")
        assert len(ended.err.splitlines()) == 1
    for path in ("s3://BAD_bucket/x", "s3://", "file://host/x"):
        assert run("checkpoints", path).code == 2


def test_rubbish_is_no_checkpoint_and_no_crash(run: Run, tmp_path: Path) -> None:
    laid_out(tmp_path / "junk", {"notes.txt": b"x", "step_5.pt": b"rubbish", "checkpoint-7/.metadata": b"\x80\x04"})
    ended = run("checkpoints", "junk")
    assert ended.code == 0
    assert ended.out.count("not usable") == 2
    (tmp_path / "junk" / "notes.txt").rename(tmp_path / "notes.txt")
    assert run("checkpoints", "notes.txt").out == "no checkpoint lies there\n"
    one = run("checkpoints", "junk/step_5.pt", "--json")
    assert json.loads(one.out)[0]["root"] == str(tmp_path / "junk" / "step_5.pt")


def test_a_path_may_go_up_and_its_root_has_one_spelling(run: Run, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(disk / "checkpoint-2")
    assert run("checkpoints", "../../out", "--newest").out == f"{disk / 'checkpoint-4'}\n"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("",), "PATH"),
        (("out", "--quarantine", ""), "ROOT"),
        (("out", "--lift", ""), "ROOT"),
        (("out", "--mailbox", ""), "--mailbox"),
        (("out", "--mailbox", "s3://"), "--mailbox"),
    ],
)
def test_an_argument_that_names_nothing_is_wrong_usage(run: Run, disk: Path, argv: tuple[str, ...], named: str) -> None:
    ended = run("checkpoints", *argv)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"rekindle: {named}: ")


def test_hashes_find_a_changed_byte_that_sizes_cannot(run: Run, disk: Path) -> None:
    root = disk / "checkpoint-4"
    found = measure(SaveResult(path=root), Clients())
    manifest = Manifest(
        job_id="lm",
        attempt="lm",
        attempt_number=1,
        step=4,
        kind=SaveKind.PERIODIC,
        root=str(root),
        files=found.files,
        world_size=1,
        saved_at=datetime.now(UTC),
    )
    files = {item.path: hash_file(root / item.path) for item in found.files}
    hashes = Hashes(
        job_id="lm", attempt="lm", step=4, manifest=manifest.digest, files=files, hashed_at=datetime.now(UTC)
    )
    box = DirectoryBox(str(disk))
    box.put(manifest.key, manifest.to_json())
    box.put(hashes.key, hashes.to_json())
    ended = run("checkpoints", str(disk), "--newest", "--hashes")
    assert ended.out.strip() == str(root)
    assert f"{root}: {len(found.files)} files have the content that was sealed" in ended.err
    assert f"{disk / 'checkpoint-2'}: no manifest, so no hashes" in ended.err

    weights = root / max(found.files, key=lambda item: item.bytes).path
    body = bytearray(weights.read_bytes())
    body[len(body) // 2] ^= 1
    seen = weights.stat()
    weights.write_bytes(body)
    os.utime(weights, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # by a bad disk: no one wrote it
    assert run("checkpoints", str(disk), "--newest").out.strip() == str(root), "sizes cannot tell"
    assert run("checkpoints", str(disk), "--newest", "--hashes").out.strip() == str(disk / "checkpoint-2")


def test_hashes_name_the_record_of_an_archive_whose_content_has_changed(run: Run, disk: Path) -> None:
    """Without a manifest, and whatever the file's size says: torch keeps a sum of each record."""
    path = disk / "step-7.pt"
    path.write_bytes(torch_archive({"step": 7, "optimizer": {"param_groups": []}}))
    assert "CRC" not in run("checkpoints", str(path), "--hashes").out
    body = bytearray(path.read_bytes())
    body[body.index(b"\x01" * 8)] ^= 1
    path.write_bytes(body)
    assert "its record archive/data/0 has other content" in run("checkpoints", str(path), "--hashes").out
    assert "CRC" not in run("checkpoints", str(path)).out


def test_gigabytes_that_no_rule_knows_are_named_and_are_no_success(run: Run, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with (tmp_path / "state" / "blob.dat").open("wb") as file:
        file.truncate(1_500_000_000)
    ended = run("checkpoints", str(tmp_path))
    assert ended.code == 1
    assert "unknown" in ended.out
    assert "no rule knows what it is" in ended.out
    with (tmp_path / "state" / "blob.dat").open("wb") as file:
        file.truncate(10_000)
    assert run("checkpoints", str(tmp_path)).code == 0


@pytest.mark.parametrize("names", [("step-100/weights.xyz",), ("a/x.bin", "b/x.bin", "c/x.bin")])
def test_they_are_no_success_in_a_folder_of_a_checkpoint_s_name_or_in_small_ones_either(
    run: Run, tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir()
        with (tmp_path / name).open("wb") as file:
            file.truncate(1_500_000_000 // len(names))
    ended = run("checkpoints", str(tmp_path))
    assert ended.code == 1
    assert "unknown" in ended.out
