"""What other ranks see of a save, and what its siblings have, decides whether it is all there."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from rekindle.monitor.base.aws import Clients
from rekindle.monitor.saving.measure import Claim, MeasuredSave, SaveUnsettled, measure
from rekindle.monitor.saving.own_saves import OwnSaves
from rekindle.monitor.saving.rank_files import MAX_TOLD, OwnFiles, PartFiles, Told, read_told
from rekindle.monitor.saving.saved import SaveResult
from tests.checkpoints.made import safetensors, torch_archive, trainer_state
from tests.monitor.exchanges import MemoryExchange, Shared

SAVE = "3"


def told_of(root: Path, began: float, ranks: int = 2) -> Told:
    """What the ranks above 0 tell of a save."""
    exchange = MemoryExchange(Shared())
    tellers = [OwnFiles(rank) for rank in range(1, ranks)]
    for teller in tellers:
        teller.tell(SAVE, began, time.monotonic() + 60)
        teller.turn(exchange, "s")
        assert not teller.is_idle, "nothing is looked at before all parts are over"
    exchange.put(f"s/{SAVE}/root", str(root))
    while not all(teller.is_idle for teller in tellers):
        for teller in tellers:
            teller.turn(exchange, "s")
        threading.Event().wait(0.01)
    return read_told(exchange, f"s/{SAVE}", ranks)


def measured(root: Path, told: Told, *, is_copied: bool = False, files: tuple[str, ...] | None = None) -> MeasuredSave:
    return measure(SaveResult(path=root, files=files), Clients(), claim=Claim(told=told, is_copied=is_copied))


def folder(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"weights")
    return root


def test_a_rank_tells_what_was_written_since_its_part_began(tmp_path: Path) -> None:
    root = folder(tmp_path / "step-3", "old.bin")
    os.utime(root / "old.bin", (1, 1))
    threading.Event().wait(0.3)
    began = time.monotonic()
    folder(root, "rank1.bin", "optim/rank1.bin", "half.bin.tmp")
    assert set(told_of(root, began)) == {"rank1.bin", "optim/rank1.bin"}
    assert set(told_of(root / "rank1.bin", began)) == {"."}
    assert told_of(tmp_path / "gone", began) == {}


def test_a_list_is_bounded_and_keeps_what_was_written_last(tmp_path: Path) -> None:
    root = folder(tmp_path, *(f"{number}.bin" for number in range(MAX_TOLD + 5)))
    for number in range(5):
        os.utime(root / f"{number}.bin", (1, 1))
    assert "0.bin" not in told_of(root, time.monotonic() - 1000)


def test_what_is_no_list_is_none() -> None:
    exchange = MemoryExchange(Shared())
    for rank, text in enumerate(("[]", '{"a": 1}', '{"../a": [1, 2]}', "{", '{"b.bin": [7, 5]}'), start=1):
        exchange.put(f"s/{SAVE}/files/{rank}", text)
    assert read_told(exchange, f"s/{SAVE}", 7) == {"b.bin": (7, 5)}


def test_a_file_that_another_rank_wrote_is_waited_for_until_it_is_seen_as_written(tmp_path: Path) -> None:
    root = folder(tmp_path / "step-3", "rank0.bin", "rank1.bin")
    told = told_of(root, time.monotonic() - 60)
    assert {item.path for item in measured(root, told).files} == {"rank0.bin", "rank1.bin"}
    (root / "rank1.bin").write_bytes(b"wei")  # as a stale cache shows it
    os.utime(root / "rank1.bin", ns=(1, told["rank1.bin"][1] - 10**9))
    with pytest.raises(SaveUnsettled, match=r"rank1\.bin is not seen yet"):
        measured(root, told)
    (root / "rank1.bin").unlink()
    with pytest.raises(SaveUnsettled, match=r"rank1\.bin, which another rank has written, is not seen here"):
        measured(root, told)
    assert measured(root, told, files=("rank0.bin",)).files, "the script names the files itself"
    copied = measured(root, told, is_copied=True).files
    assert {item.path: item.bytes for item in copied} == {"rank0.bin": 7, "rank1.bin": 7}, "each host uploads its own"


def test_a_root_in_s3_is_nobodys_folder() -> None:
    assert PartFiles.of("s3://bucket/ckpt", 1.0).root is None
    assert PartFiles.of("file:///ckpt/3", 1.0).root == "/ckpt/3"


def hf_checkpoint(root: Path, step: int, *, without: str = "") -> Path:
    root.mkdir(parents=True)
    (root / "model.safetensors").write_bytes(safetensors())
    (root / "trainer_state.json").write_bytes(trainer_state(step))
    for name in {"optimizer.pt", "scheduler.pt", "rng_state.pth"} - {without}:
        (root / name).write_bytes(torch_archive({}))
    return root


@pytest.mark.parametrize("lost", ["scheduler.pt", "rng_state.pth"])
def test_a_part_that_lies_in_those_beside_it_is_waited_for(lost: str, tmp_path: Path) -> None:
    hf_checkpoint(tmp_path / "checkpoint-10", 10)
    root = hf_checkpoint(tmp_path / "checkpoint-20", 20, without=lost)
    with pytest.raises(SaveUnsettled, match=f"{lost} is missing .checkpoint-10 has it"):
        measured(root, {})
    (root / lost).write_bytes(torch_archive({}))
    assert measured(root, {}).files


def test_a_part_that_a_sealed_one_had_is_waited_for_though_that_is_gone(tmp_path: Path) -> None:
    own, root = OwnSaves(), tmp_path / "checkpoint-10"
    measure(SaveResult(path=hf_checkpoint(root, 10)), Clients(), claim=Claim(step=10, own=own))
    shutil.rmtree(root)
    export = folder(tmp_path / "export", "model.bin", "config.bin")
    assert measure(SaveResult(path=export), Clients(), claim=Claim(step=11, own=own)).files, "of another family"
    later = hf_checkpoint(tmp_path / "checkpoint-20", 20, without="scheduler.pt")
    with pytest.raises(SaveUnsettled, match=r"scheduler\.pt is missing .checkpoint-10 has it"):
        measure(SaveResult(path=later), Clients(), claim=Claim(step=20, own=own))


def test_what_all_lack_is_not_missed(tmp_path: Path) -> None:
    for step in (10, 20):
        root = hf_checkpoint(tmp_path / f"checkpoint-{step}", step, without="scheduler.pt")
        assert measured(root, {}).files


def test_a_ranks_own_part_that_the_siblings_have_is_missed_unless_there_are_fewer_ranks_now(tmp_path: Path) -> None:
    folder(tmp_path / "step-10", *(f"rank{rank}.bin" for rank in range(4)))
    later = folder(tmp_path / "step-20", *(f"rank{rank}.bin" for rank in range(3)))
    names = [path.name for path in later.iterdir()]
    assert OwnSaves(world_size=4).missing(later, names) == ["rank3.bin is missing (step-10 has it)"]
    assert OwnSaves(world_size=3).missing(later, names) == []
    assert len(OwnSaves(world_size=2).missing(later, ["rank0.bin"])) == 1, "a folder with one file, too"


def test_a_run_that_goes_on_with_another_number_of_ranks_lacks_none_of_their_random_states(tmp_path: Path) -> None:
    """The Trainer's are `rng_state.pth` of one process, and `rng_state_0.pth` and so on of several."""
    of_two, of_one = ["optimizer.pt", "rng_state_0.pth", "rng_state_1.pth"], ["optimizer.pt", "rng_state.pth"]
    folder(tmp_path / "two" / "step-10", *of_two)
    folder(tmp_path / "one" / "step-10", *of_one)
    assert OwnSaves(world_size=1).missing(tmp_path / "two" / "step-20", of_one) == []
    assert OwnSaves(world_size=2).missing(tmp_path / "one" / "step-20", of_two) == []
    assert OwnSaves(world_size=1).missing(tmp_path / "two" / "step-20", of_one[:1]) != []
    assert OwnSaves(world_size=2).missing(tmp_path / "two" / "step-20", of_one) != [], "two ranks write two"
    assert OwnSaves(world_size=2).missing(tmp_path / "two" / "step-20", of_two[:2]) != []
