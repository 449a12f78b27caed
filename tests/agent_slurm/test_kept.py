"""What is needed to submit a job again stays on the cluster's own file system."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rekindle.protocol.cluster.documents import JobSpec
from rekindle.slurm_agent.copies.kept import KEPT_S, SpecFolder

ENVIRONMENT = {"MY_PASS": "hunter2", "NCCL_DEBUG": "INFO", "PATH": "/usr/bin:/bin"}


def spec() -> JobSpec:
    return JobSpec(
        script="#!/bin/sh\nexport HF_TOKEN=hunter2\nsrun train\n",
        arguments=("--key=hunter2",),
        user="ml",
        options={"export": "ALL,MY_PASS=hunter2", "nodes": "2"},
        environment=ENVIRONMENT,
    )


def folder(tmp_path: Path, name: str = "own") -> SpecFolder:
    (tmp_path / "slurmctld").mkdir(exist_ok=True)
    return SpecFolder(tmp_path / name, lambda: str(tmp_path / "slurmctld"))


def test_what_is_kept_is_for_its_owner_alone_and_found_by_another_head_node(tmp_path: Path) -> None:
    name = folder(tmp_path).put(spec())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {(path.parent.name, path.stat().st_mode & 0o777) for path in files} == {("rekindle", 0o600)}
    assert (tmp_path / "slurmctld/rekindle").stat().st_mode & 0o777 == 0o700
    other = folder(tmp_path, "other")
    assert other.get(name) == spec()
    assert other.put(spec()) == name, "by the same key"


def test_what_was_changed_there_is_not_what_its_name_says(tmp_path: Path) -> None:
    kept = folder(tmp_path)
    name = kept.put(spec())
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(JobSpec(script="#!/bin/sh\nforged\n", user="ml").to_json())
    assert kept.get(name) is None
    assert kept.get("../key") is None


def test_a_link_in_slurmctlds_folder_is_not_followed(tmp_path: Path) -> None:
    """The folder is SlurmUser's."""
    kept = folder(tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "slurmctld/rekindle").symlink_to(tmp_path / "target")
    name = kept.put(spec())
    assert [*(tmp_path / "target").iterdir()] == []
    assert (tmp_path / f"own/specs/{name}.json").exists()


def test_what_cannot_be_written_is_kept_in_memory_and_written_later(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("no folder")
    kept = SpecFolder(tmp_path / "own", str)
    name = kept.put(spec())
    assert (kept.write(), kept.get(name)) == (False, spec())
    (tmp_path / "own").unlink()
    assert kept.write()
    assert SpecFolder(tmp_path / "own", str).get(name) == spec()


def test_what_is_followed_no_more_goes_with_the_cluster_state(tmp_path: Path) -> None:
    kept = folder(tmp_path)
    names = [kept.put(JobSpec(script=f"#!/bin/sh\n{n}\n")) for n in range(3)]
    old = time.time() - KEPT_S - 60
    for name in names[:2]:
        os.utime(tmp_path / f"slurmctld/rekindle/{name}.json", (old, old))
    kept.sweep({names[0]})
    assert [kept.get(name) is not None for name in names] == [True, False, True]
    assert kept.remove() == (str(tmp_path / "slurmctld/rekindle"),)
    assert [*(tmp_path / "slurmctld").iterdir()] == []
