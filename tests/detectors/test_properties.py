"""What holds for every stream: no exception, no dependence on units or batches, constant memory, pickled state."""

from __future__ import annotations

import math
import pickle
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.detectors.pace import StragglerWatch, ThroughputWatch
from rekindle.detectors.points import Point
from rekindle.detectors.watch import LossWatch
from tests.detectors.curves import falling, rows_of, verdicts
from tests.sizes import examples

ANY = st.floats(allow_nan=True, allow_infinity=True)
OPTIONAL = st.none() | ANY
POINTS = st.builds(
    Point,
    step=st.integers(-(2**40), 2**40),
    loss=OPTIONAL,
    elapsed_s=OPTIONAL,
    step_s=OPTIONAL,
    is_after_evaluation=st.booleans(),
)
# Blocks of like values make rows ready to be judged; single random rows seldom do.
BLOCKS = st.lists(
    st.tuples(ANY | st.sampled_from([0.0, 5e-324, 1.7e308, -1.7e308, 1e-300, 1.0, 100.0]), st.integers(1, 30)),
    max_size=12,
)
SHAPES = st.lists(st.tuples(st.floats(0.1, 20), st.integers(1, 25)), min_size=1, max_size=10)


@given(points=st.lists(POINTS, max_size=120))
def test_no_points_make_a_detector_raise(points: list[Point]) -> None:
    loss, throughput = LossWatch(), ThroughputWatch()
    for point in points:
        loss.update(point)
        throughput.update(point)
        assert loss.health
        assert loss.baseline is None or not math.isnan(loss.baseline)


@given(blocks=BLOCKS, every=st.sampled_from([1, 100]))
def test_no_run_of_values_makes_a_detector_raise(blocks: list[tuple[float, int]], every: int) -> None:
    losses = [value * (1 + i / 1000) for value, count in blocks for i in range(count)]
    for row, verdict in verdicts(rows_of(losses, every=every)):
        assert verdict.step == row * every
        assert not any(isinstance(value, float) and math.isnan(value) for value in verdict.evidence.values())


def _shaped(shape: list[tuple[float, int]]) -> list[float]:
    noise = falling(sum(count for _, count in shape), seed=5)
    heights = [height for height, count in shape for _ in range(count)]
    return [height * value for height, value in zip(heights, noise, strict=True)]


# A loss whose first value is near zero is never judged by it.
@given(shape=SHAPES, exponent=st.integers(-4, 40), every=st.sampled_from([1, 100]))
def test_the_unit_of_the_loss_changes_no_verdict(shape: list[tuple[float, int]], exponent: int, every: int) -> None:
    losses = _shaped(shape)
    scaled = [loss * 3.7 * 2.0**exponent for loss in losses]
    told, told_scaled = verdicts(rows_of(losses, every=every)), verdicts(rows_of(scaled, every=every))
    assert [(row, v.kind, v.severity, v.rule) for row, v in told] == [
        (row, v.kind, v.severity, v.rule) for row, v in told_scaled
    ]


@given(shape=SHAPES, cuts=st.lists(st.integers(0, 250), max_size=6))
def test_the_verdicts_are_the_same_however_the_stream_is_cut_and_kept(
    shape: list[tuple[float, int]], cuts: list[int]
) -> None:
    points = rows_of(_shaped(shape))
    whole = LossWatch()
    expected = verdicts(points, whole)
    watch, got, before = LossWatch(), [], 0
    for cut in [*sorted(cuts), len(points)]:
        got += [(row + before, verdict) for row, verdict in verdicts(points[before:cut], watch)]
        before = max(before, min(cut, len(points)))
        watch = pickle.loads(pickle.dumps(watch))  # noqa: S301 - our own object, to the disk and back
    assert got == expected
    assert (watch.health, watch.onset_step, watch.healed_step) == (whole.health, whole.onset_step, whole.healed_step)


def _bytes(thing: object, seen: set[int] | None = None) -> int:
    """What an object and all it holds take."""
    seen = seen if seen is not None else set()
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    held: list[object] = []
    if isinstance(thing, (list, tuple, set)) or type(thing).__name__ == "deque":
        held += list(thing)  # type: ignore[call-overload]
    elif isinstance(thing, dict):
        held += [*thing.keys(), *thing.values()]
    for name in getattr(type(thing), "__slots__", ()):
        held.append(getattr(thing, name))
    held += list(getattr(thing, "__dict__", {}).values())
    return sys.getsizeof(thing) + sum(_bytes(one, seen) for one in held)


def test_memory_does_not_grow_with_the_run() -> None:
    watch, pace = LossWatch(), ThroughputWatch()
    sizes = []
    for i, loss in enumerate(falling(20_000)):
        point = Point(step=i, loss=loss, step_s=loss)
        watch.update(point)
        pace.update(point)
        if i in (2_000, 19_999):
            sizes.append(_bytes(watch) + _bytes(pace))
    assert sizes[1] < sizes[0] * 1.2
    assert sizes[1] < 150_000


@settings(max_examples=examples(50))
@given(windows=st.lists(st.dictionaries(st.integers(0, 8), ANY), max_size=20))
def test_no_times_of_ranks_make_the_straggler_watch_raise(windows: list[dict[int, float]]) -> None:
    watch = StragglerWatch()
    for step, window in enumerate(windows):
        watch.update(step, window)
