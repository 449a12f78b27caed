"""What the files of public scripts count, against the step that the monitor is given: none of them is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from rekindle.checkpoints.counts import Counted, fits
from rekindle.checkpoints.folders import steps_at
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.saving.measure import Claim, SaveIncomplete, measure
from rekindle.monitor.saving.own_saves import OwnSaves
from rekindle.monitor.saving.saved import SaveResult
from tests.checkpoints.made import torch_archive, trainer_state

STEPS = (20, 40, 45, 100)

# (who writes it, name of the file, what it names by the step of the training loop)
SCRIPTS: list[tuple[str, str, Any]] = [
    ("nanoGPT: iter_num", "ckpt.pt", lambda step: {"iter_num": step, "best_val_loss": 2.0, "config": {"step": 7}}),
    ("minGPT: weights alone", "model.pt", lambda step: {"transformer.wte.weight": None}),
    ("ImageNet example: epochs", "checkpoint.pth.tar", lambda step: {"epoch": step // 20, "best_acc1": 7}),
    ("timm: epochs", "checkpoint-3.pth.tar", lambda step: {"epoch": step // 20, "arch": "resnet50", "version": 2}),
    ("fairseq: num_updates in a list", "checkpoint_last.pt", lambda step: {"optimizer_history": [{"num_updates": 5}]}),
    ("Composer: nested", "ep0-ba20-rank0.pt", lambda step: {"state": {"timestamp": {"iteration": 0, "batch": step}}}),
    ("Megatron: iteration", "model_optim_rng.pt", lambda step: {"iteration": step, "num_floating_point": 10**18}),
    ("Lightning, NeMo: optimizer steps", "last.ckpt", lambda step: {"epoch": 0, "global_step": step}),
    ("Lightning: two optimizers", "last.ckpt", lambda step: {"epoch": 0, "global_step": 2 * step}),
    ("DeepSpeed: its own, and the client's micro-steps", "mp_rank_00_model_states.pt",
     lambda step: {"global_steps": step // 4, "global_samples": 8 * step, "skipped_steps": 0, "step": step}),
    ("detectron2: counted from 0", "model_0000019.pth", lambda step: {"iteration": step - 1}),
    ("a loop that saves micro-steps", "ckpt.pt", lambda step: {"step": 8 * step}),
    ("the same, counted from 0", "ckpt.pt", lambda step: {"step": 8 * step - 1}),
    ("a loop that saves samples", "ckpt.pt", lambda step: {"global_step": 512 * step}),
    ("a step within its epoch", "ckpt.pt", lambda step: {"epoch": 1 + step // 30, "step": step % 30}),
    ("a plain pickle", "ckpt.pkl", lambda step: {"step": step, "rng": [1, 2, 3]}),
]  # fmt: skip


def write(folder: Path, name: str, state: dict[str, Any]) -> Path:
    path = folder / name
    path.write_bytes(pickle.dumps(state) if name.endswith(".pkl") else torch_archive(state))
    return path


@pytest.mark.parametrize(("who", "name", "named"), SCRIPTS, ids=[who for who, *_ in SCRIPTS])
def test_what_a_public_script_writes_is_vouched_for(who: str, name: str, named: Any, tmp_path: Path) -> None:
    own = OwnSaves()
    for step in STEPS:
        path = write(tmp_path, name, named(step))
        files = measure(SaveResult(path=path), Clients(), claim=Claim(step=step, own=own)).files
        assert [file.path for file in files] == ["."], who


def test_the_trainers_state_of_hugging_face_counts_optimizer_steps(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_bytes(trainer_state(40))
    assert steps_at(tmp_path) == {"trainer_state.json": (40,)}


@pytest.mark.parametrize("named", [lambda step: step // 4, lambda step: 3 + step // 16], ids=["steps of 4", "coarse"])
def test_a_coarser_count_is_known_by_its_second_save(named: Any, tmp_path: Path) -> None:
    """One number alone may as well be an earlier step's: it is refused until it has moved on in proportion."""
    own = OwnSaves()

    def is_vouched_for(step: int) -> bool:
        path = write(tmp_path, "ckpt.pt", {"step": named(step)})
        try:
            measure(SaveResult(path=path), Clients(), claim=Claim(step=step, own=own))
        except SaveIncomplete:
            return False
        return True

    assert [is_vouched_for(step) for step in (400, 800, 860)] == [False, True, True]


def test_a_later_attempt_without_the_windows_of_an_earlier_one_vouches_for_its_own_saves(tmp_path: Path) -> None:
    """Lightning's own counter is behind by the 200 steps that the plan before this one skipped."""
    own = OwnSaves(0, lambda: [Counted(500, 300)])
    own.learn()
    path = write(tmp_path, "last.ckpt", {"global_step": 320})
    (file,) = measure(SaveResult(path=path), Clients(), claim=Claim(step=520, own=own)).files
    assert file.step == 320, "what a copy of it will name"
    with pytest.raises(SaveIncomplete, match="holds step 320, not 560"):
        measure(SaveResult(path=path), Clients(), claim=Claim(step=560, own=own))


@pytest.mark.parametrize(
    ("step", "number", "known"),
    [
        (40, 31, ()),  # nine steps ago
        (40, 20, ()),  # the save before this one
        (40, 20, [Counted(20, 20)]),
        (40, 80, [Counted(20, 20)]),  # its script counts steps, so this is another one
        (60, 51, [Counted(40, 31, is_sealed=False)]),  # always behind
        (40, 3, [Counted(20, 3, is_sealed=False)]),  # the same file again
        (40, 50, ()),
    ],
)
def test_another_steps_number_is_not_taken_for_this_ones(step: int, number: int, known: Any) -> None:
    assert not fits(step, number, known)
