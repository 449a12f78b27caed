"""The agreement over torch.distributed's own store, with real processes and gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from rekindle.integrations.torch_ranks import TorchStore  # noqa: E402
from rekindle.protocol.keys import manifest_prefix  # noqa: E402
from rekindle.protocol.manifests import Manifest  # noqa: E402
from tests.monitor.boxes import PATIENCE_S  # noqa: E402
from tests.monitor.exchanges import check_contract  # noqa: E402

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
RUN = Path(__file__).with_name("gang_run.py")


@pytest.mark.parametrize("kind", ["tcp", "file", "hash"])
def test_torchs_stores_keep_the_contract_of_an_exchange(kind: str, tmp_path: Path) -> None:
    bare: Any
    if kind == "tcp":
        bare = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    else:
        bare = dist.FileStore(str(tmp_path / "store"), 1) if kind == "file" else dist.HashStore()
    check_contract(lambda: TorchStore(bare, "space", 2))
    if kind == "tcp":
        check_contract(lambda: TorchStore(bare, "other", 2).reconnected())


def run(folder: Path, scene: str, world: int) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    around = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    return [
        subprocess.Popen(
            [sys.executable, str(RUN), str(folder), scene],
            env=around | {"RANK": str(rank), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(world)
    ]


def ends(ranks: list[subprocess.Popen[str]], *, sent: signal.Signals, to: int) -> list[tuple[dict[str, Any], str]]:
    """The last line of each rank, after a signal to one of them once all have started; and its errors."""
    # A rank that never comes to the others keeps them in torch's rendezvous for half an hour.
    late = threading.Timer(PATIENCE_S, lambda: [process.kill() for process in ranks])
    late.start()
    try:
        for process in ranks:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "ready\n", process.communicate()[1]
        late.cancel()
        threading.Event().wait(0.5)
        ranks[to].send_signal(sent)
        said = [process.communicate(timeout=PATIENCE_S) for process in ranks]
    finally:
        late.cancel()
        for process in ranks:
            process.kill()
            process.wait()
    return [(json.loads(out) if out else {}, err) for out, err in said]


@pytest.mark.parametrize("scene", ["plain", "twice", "filestore"])
def test_sigterm_to_one_rank_saves_the_same_step_on_all_and_stops_them(tmp_path: Path, scene: str) -> None:
    found = ends(run(tmp_path, scene, 3), sent=signal.SIGTERM, to=2)
    assert all(end for end, _ in found), found
    assert len({json.dumps([end["saves"], end["last"], end["stops"]]) for end, _ in found}) == 1, found
    [step] = found[0][0]["saves"]
    [manifest] = (tmp_path / "mailbox" / manifest_prefix()).iterdir()
    sealed = Manifest.from_json(manifest.read_bytes())
    assert (sealed.step, [item.path for item in sealed.files]) == (step, ["0.bin", "1.bin", "2.bin"])
    for end, errors in found:
        assert "coordinator" not in end["health"], errors
        assert "Broken pipe" not in errors


def test_what_the_ranks_tell_each_other_of_a_save_does_not_pile_up_in_torchs_store(tmp_path: Path) -> None:
    for process in (ranks := run(tmp_path, "many saves", 2)):
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert out, errors
        said = json.loads(out.splitlines()[-1])
        assert said["failure"] is None
        assert len(set(said["keys"])) == 1, said
    assert len(ranks) == 2


def test_ranks_that_wait_in_a_save_for_one_whose_disk_is_full_go_on_where_they_can_be_called_back(
    tmp_path: Path,
) -> None:
    found = ends(run(tmp_path, "full disk, no collective", 3), sent=signal.SIGUSR1, to=0)
    assert all("no space left on device" in errors for _, errors in found), found
    assert [(len(end["saves"]), end["stops"]) for end, _ in found] == [(1, False)] * 3, found
    assert not (tmp_path / "mailbox" / manifest_prefix()).exists()


def test_ranks_that_wait_in_a_save_for_one_whose_disk_is_full_end_with_that_reason(tmp_path: Path) -> None:
    found = ends(run(tmp_path, "full disk", 3), sent=signal.SIGUSR1, to=0)
    assert all("no space left on device" in errors for _, errors in found), found
    assert all(end["stops"] for end, _ in found if end), found
    assert not (tmp_path / "mailbox" / manifest_prefix()).exists()
