"""The example's model, data, exchange and checkpoints, each alone."""

import socket
import threading
from pathlib import Path

import checkpoint
import corpus
import gang
import lm
import numpy as np
import pytest


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    corpus.write_dataset(folder, batches=500, size_bytes=20_000)
    return folder


def test_the_hand_written_gradient_agrees_with_finite_differences() -> None:
    shape = lm.Shape(vocabulary=11, window=6, width=8, heads=2, hidden=12)
    model = lm.LanguageModel(shape, seed=3, dtype=np.float64)
    random = np.random.default_rng(4)
    model.flat += random.standard_normal(model.flat.shape) * 0.1
    inputs, targets = random.integers(0, 11, (3, 6)), random.integers(0, 11, (3, 6))
    _, gradient = model.loss_and_gradient(inputs, targets, 0.7)
    start = 0
    for name, parameter_shape in shape.parameters().items():
        size = int(np.prod(parameter_shape))
        for index in start + random.choice(size, min(size, 12), replace=False):
            keep, step = model.flat[index], 1e-6
            model.flat[index] = keep + step
            above, _ = model.loss_and_gradient(inputs, targets, 0.7)
            model.flat[index] = keep - step
            below, _ = model.loss_and_gradient(inputs, targets, 0.7)
            model.flat[index] = keep
            assert gradient[index] == pytest.approx((above - below) / (2 * step), rel=2e-5, abs=1e-8), name
        start += size


def test_the_model_is_between_fifty_and_two_hundred_thousand_parameters() -> None:
    assert 50_000 < lm.Shape(vocabulary=corpus.VOCABULARY).size() < 200_000


def test_the_text_is_the_same_on_every_call_and_of_the_size_asked_for() -> None:
    text = corpus.python_reference(100_000)
    assert len(text) == 100_000
    assert text == corpus.python_reference(100_000)
    assert corpus.encode(text).max() < corpus.VOCABULARY


def test_a_restored_sampler_reads_on_where_the_saved_one_stopped_across_epochs(dataset: Path) -> None:
    def sampler() -> corpus.Sampler:
        return corpus.Sampler(dataset, rows=50, window=16, seed=9)

    undisturbed, first = sampler(), sampler()
    expected = [undisturbed.next_batch()[0].copy() for _ in range(70)]  # 24 batches fill an epoch
    for _ in range(30):
        first.next_batch()
    second = sampler()
    second.restore(first.state())
    for batch in range(30, 70):
        assert np.array_equal(second.next_batch()[0], expected[batch])
    assert second.batch == 70


def test_every_epoch_reads_each_window_at_most_once_and_in_another_order(dataset: Path) -> None:
    sampler = corpus.Sampler(dataset, rows=1249, window=16, seed=9)
    first, second = sampler.next_batch()[0], sampler.next_batch()[0]
    assert sorted(map(bytes, first)) == sorted(map(bytes, second))
    assert not np.array_equal(first, second)


def test_a_poisoned_record_is_one_batch_and_only_that_one(dataset: Path) -> None:
    corpus.poison(dataset, 7)
    sampler = corpus.Sampler(dataset, rows=8, window=16, seed=9)
    weights = [sampler.next_batch()[2] for _ in range(20)]
    assert [step for step, weight in enumerate(weights, start=1) if np.isnan(weight)] == [7]


def test_a_poisoned_record_makes_a_real_loss_and_gradient_nan(dataset: Path) -> None:
    corpus.poison(dataset, 1)
    inputs, targets, weight = corpus.Sampler(dataset, rows=2, window=16, seed=9).next_batch()
    model = lm.LanguageModel(lm.Shape(vocabulary=corpus.VOCABULARY, window=16), seed=0)
    loss, gradient = model.loss_and_gradient(inputs, targets, weight)
    assert np.isnan(loss)
    assert np.isnan(gradient).any()


def test_the_mean_is_taken_in_the_order_of_the_ranks_and_is_the_same_bits_everywhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    random = np.random.default_rng(1)
    vectors = [random.standard_normal(1000).astype(np.float32) * 10.0**rank for rank in range(3)]
    got: dict[int, np.ndarray] = {}

    def work(rank: int) -> None:
        member = gang.Gang.join(rank, 3, "127.0.0.1", port)
        got[rank] = member.mean(vectors[rank])
        member.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    expected = gang.mean_in_rank_order(vectors)
    assert all(np.array_equal(got[rank], expected) for rank in range(3))


def test_a_peer_that_leaves_breaks_the_gang_and_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    def leave() -> None:
        gang.Gang.join(1, 2, "127.0.0.1", port).close()

    thread = threading.Thread(target=leave)
    thread.start()
    member = gang.Gang.join(0, 2, "127.0.0.1", port)
    thread.join(120)
    with pytest.raises(gang.GangBroken, match="rank 0"):
        member.mean(np.zeros(4, dtype=np.float32))


def test_a_checkpoint_comes_back_bit_for_bit_and_replaces_an_older_one_of_the_same_name(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    place = (tmp_path / "checkpoints" / "step 5").as_uri()
    for seed in range(2):
        vectors = [random.standard_normal(100).astype(np.float32) for _ in range(3)]
        saved = checkpoint.Checkpoint(
            parameters=vectors[0], first=vectors[1], second=vectors[2], position={"step": 5, "seed": seed}
        )
        checkpoint.save(saved, place)
        loaded = checkpoint.load(place)
        assert loaded.position == saved.position
        for name in ("parameters", "first", "second"):
            assert np.array_equal(getattr(loaded, name), getattr(saved, name))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step 5"]
