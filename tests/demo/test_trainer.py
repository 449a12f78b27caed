"""The same step gives the same loss, bit for bit, whatever happened on the way."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import checkpoint
import corpus
import gang
import numpy as np
import pytest
from trainer import Setup, Trainer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "numpy_lm"


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    corpus.write_dataset(tmp_path / "data", batches=500, size_bytes=20_000)
    return Setup(data=tmp_path / "data", seed=11, workers=2)


def alone(setup: Setup) -> Trainer:
    return Trainer(setup, shares=range(setup.workers))


Windows = tuple[tuple[int, int], ...]


def run(trainer: Trainer, to_step: int, skip: Windows = ()) -> dict[int, str]:
    losses = {}
    while trainer.step < to_step:
        if corpus.in_windows(trainer.step + 1, skip):
            trainer.skip()
        else:
            loss = trainer.train()
            losses[trainer.step] = loss.hex()
    return losses


@pytest.mark.long
def test_the_loss_falls_clearly(setup: Setup) -> None:
    losses = [float.fromhex(loss) for loss in run(alone(setup), 120).values()]
    assert losses[0] > 4.5
    assert np.mean(losses[-10:]) < 3.2


@pytest.mark.long
def test_a_resumed_run_continues_bit_for_bit(setup: Setup, tmp_path: Path) -> None:
    undisturbed = alone(setup)
    expected = run(undisturbed, 60)
    first = alone(setup)
    run(first, 37)
    checkpoint.save(first.checkpoint(), str(tmp_path / "saved"))
    run(first, 45)  # work that is lost and done again
    second = alone(setup)
    second.restore(checkpoint.load(str(tmp_path / "saved")))
    assert second.step == 37
    assert run(second, 60) == {step: loss for step, loss in expected.items() if step > 37}
    assert np.array_equal(second.model.flat, undisturbed.model.flat)


def test_a_checkpoint_is_not_changed_by_the_steps_that_follow(setup: Setup) -> None:
    trainer = alone(setup)
    run(trainer, 3)
    saved = trainer.checkpoint()
    before = saved.parameters.copy()
    run(trainer, 5)
    assert np.array_equal(saved.parameters, before)


def test_a_checkpoint_of_another_model_is_refused(setup: Setup) -> None:
    other = alone(dataclasses.replace(setup, shape=dataclasses.replace(setup.shape, hidden=32)))
    with pytest.raises(ValueError, match="parameters"):
        alone(setup).restore(other.checkpoint())


def test_a_skipped_window_is_really_skipped_and_nothing_else_is(setup: Setup) -> None:
    plain, skipping = alone(setup), alone(setup)
    drawn: list[tuple[int, bytes]] = []
    real = skipping.model.loss_and_gradient

    def watched(inputs: np.ndarray, targets: np.ndarray, weight: float) -> tuple[float, np.ndarray]:
        drawn.append((skipping.sampler.batch, inputs.tobytes()))
        return real(inputs, targets, weight)

    skipping.model.loss_and_gradient = watched
    expected, got = run(plain, 10), run(skipping, 10, skip=((4, 6), (8, 9)))
    assert sorted(got) == [1, 2, 3, 6, 7, 9, 10]
    assert {step: got[step] for step in (1, 2, 3)} == {step: expected[step] for step in (1, 2, 3)}
    assert got[6] != expected[6]
    assert skipping.optimiser.updates == 7
    # The batches that were trained on are the very batches of those steps in the undisturbed order.
    order = corpus.Sampler(setup.data, rows=16, window=32, seed=setup.seed)
    batches = {step: order.next_batch()[0] for step in range(1, 11)}
    for step, rows in drawn:
        assert rows in (batches[step][:8].tobytes(), batches[step][8:].tobytes())
    assert {step for step, _ in drawn} == {1, 2, 3, 6, 7, 9, 10}


def test_a_poisoned_batch_gives_nan_on_every_attempt_until_it_is_skipped(setup: Setup) -> None:
    corpus.poison(setup.data, 5)
    trainer = alone(setup)
    run(trainer, 4)
    saved = trainer.checkpoint()
    for _ in range(2):
        again = alone(setup)
        again.restore(saved)
        assert np.isnan(again.train())
        assert np.isnan(again.train())  # the poison stays in the parameters
    cured = alone(setup)
    cured.restore(saved)
    assert all(np.isfinite(float.fromhex(loss)) for loss in run(cured, 20, skip=((5, 6),)).values())


def test_a_batch_named_as_poisoned_gives_nan_without_touching_the_data(setup: Setup) -> None:
    trainer = alone(dataclasses.replace(setup, poisoned=(3,)))
    losses = [float.fromhex(loss) for loss in run(trainer, 3).values()]
    assert [bool(np.isnan(loss)) for loss in losses] == [False, False, True]


def test_the_reference_process_gives_the_losses_of_an_undisturbed_run_in_pieces(setup: Setup) -> None:
    commands = [{"to": 5}, {"to": 12, "skip": [[7, 9]]}]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "reference.py"), str(setup.data), "11", "2"],
        input="".join(json.dumps(command) + "\n" for command in commands),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    first, second = (json.loads(line)["losses"] for line in done.stdout.splitlines())
    expected = run(alone(setup), 12, skip=((7, 9),))
    assert {int(step): loss for step, loss in (first | second).items()} == expected


def test_mean_in_rank_order_leaves_its_inputs_alone() -> None:
    parts = [np.array([1.0], dtype=np.float32), np.array([3.0], dtype=np.float32)]
    assert gang.mean_in_rank_order(parts)[0] == 2.0
    assert parts[0][0] == 1.0
