"""Two hosts whose views of one file system are late, as with the caches of NFS, Lustre and FSx: real mounts."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rekindle.protocol.keys import manifest_prefix, reply_key
from rekindle.protocol.mailbox import CheckpointReply, ReplyOutcome
from tests.monitor.boxes import PATIENCE_S, ObservedBox
from tests.monitor.late_mount import can_mount

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.process, pytest.mark.skipif(not can_mount(), reason="no FUSE mount can be made here")]


def until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        if is_so():
            return
        pause.wait(0.05)
    pytest.fail("it never came to be so")


@pytest.mark.long
@pytest.mark.parametrize("late_s", [3.0, 600.0], ids=["seen in time", "never seen"])
def test_a_checkpoint_is_sealed_with_every_ranks_files_or_not_at_all(late_s: float, tmp_path: Path) -> None:
    for name in ("shared", "behind"):
        (tmp_path / name).mkdir()
    box = ObservedBox(tmp_path / "mailbox")
    environ = os.environ | {
        "REKINDLE_JOB_ID": "job",
        "TRAINING_JOB_NAME": "run-1",
        "REKINDLE_MAILBOX": str(tmp_path / "mailbox"),
        "REKINDLE_POLL_S": "0.1",
        "REKINDLE_AGREE_S": "0.05",
        "REKINDLE_METRICS": "off",
        "WORLD_SIZE": "2",
        "PYTHONPATH": str(ROOT),
    }
    argv = [sys.executable, str(ROOT / "tests/monitor/late_rank.py"), str(tmp_path)]
    ranks = [
        subprocess.Popen([*argv, str(rank), str(late_s)], env=environ | {"RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        until(lambda: (heartbeat := box.heartbeat("run-1")) is not None and (heartbeat.step or 0) > 2)
        box.ask("r1", "run-1", within_s=PATIENCE_S)
        until(lambda: box.get(reply_key("r1")) is not None)
        reply = CheckpointReply.from_json(box.get(reply_key("r1")) or b"")
        (tmp_path / "stop").touch()
        errors = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    before, after = json.loads((tmp_path / "views.json").read_text())
    assert before == after == [["rank0.pkl"], False], "rank 0's kernel does not see what rank 1 has written"
    if late_s > 60:
        assert (reply.outcome, box.names(manifest_prefix())) == (ReplyOutcome.CANNOT, ()), errors
        return
    assert reply.outcome is ReplyOutcome.SAVED, (reply.why, errors)
    (manifest,) = box.names(manifest_prefix())
    sealed = {item.path: item.bytes for item in box.manifest(manifest).files}
    behind = tmp_path / "behind" / f"step-{reply.step}"
    assert sealed == {path.name: path.stat().st_size for path in behind.iterdir()}
    assert {pickle.loads((behind / name).read_bytes())["rank"] for name in sealed} == {0, 1}  # noqa: S301
