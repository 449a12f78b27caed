"""Each kind of loss trouble, and each thing that looks like one and is none."""

from __future__ import annotations

import math
import random

import pytest

from rekindle.detectors.health import Health
from rekindle.detectors.points import Point, Severity, Trouble
from rekindle.detectors.watch import LossWatch
from tests.detectors.curves import acts, falling, lifted, rows_of, spiked, verdicts

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("height", "tau", "latest"), [(0.4, 20.0, 535), (0.7, 8.0, 515), (3.0, 5.0, 501)])
def test_a_spike_that_comes_down_slowly_is_acted_on_once(seed: int, height: float, tau: float, latest: int) -> None:
    (row, kind), *others = acts(rows_of(spiked(falling(1000, seed=seed), 500, height, tau)))
    assert (kind, others) == ("loss_spike", [])
    assert 501 <= row <= latest


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("height", "length"), [(0.3, 5), (0.5, 3), (1.0, 2), (1.0, 15), (0.4, 60)])
def test_hard_data_that_lifts_the_loss_and_lets_it_fall_at_once_is_watched(
    seed: int, height: float, length: int
) -> None:
    losses = lifted(falling(1000, seed=seed), 500, lambda i: height if i < length else 0.0)
    watch = LossWatch()
    assert {v.severity for _, v in verdicts(rows_of(losses), watch)} == {Severity.WATCH}
    assert (watch.health, watch.onset_step, watch.healed_step) == (Health.OK, None, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_swings_about_far_up_is_acted_on(seed: int) -> None:
    chance = random.Random(seed)
    losses = lifted(falling(1000, seed=seed), 500, lambda i: chance.uniform(0.1, 0.5) if i < 60 else 0.0)
    (row, kind), *others = acts(rows_of(losses))
    assert (kind, others) == ("loss_spike", [])
    assert 505 <= row <= 530


def test_a_spike_is_a_watch_first_and_its_evidence_can_be_worked_out_by_hand() -> None:
    losses = spiked(falling(600), 500, 0.8, 6.0)
    (first_row, first), (second_row, second) = verdicts(rows_of(losses))
    assert (first_row, first.severity, second.severity) == (501, Severity.WATCH, Severity.ACT)
    assert 505 <= second_row <= 515
    told = second.evidence
    assert told["onset_step"] == 500
    rise = math.log(float(told["loss"]) / float(told["baseline"]))
    assert rise == pytest.approx(told["rise"])
    by_baseline = (rise - float(told["usual_rise"])) / float(told["spread"])
    assert float(told["score"]) >= by_baseline * (1 - 1e-9)
    assert float(told["peak_score"]) > float(told["threshold"])


def test_onset_heal_and_health_follow_a_spike() -> None:
    losses = lifted(falling(600), 500, lambda i: 3.0 if i < 10 else 0.0)
    watch = LossWatch()
    seen: list[Health] = []
    for point in rows_of(losses):
        watch.update(point)
        if not seen or seen[-1] is not watch.health:
            seen.append(watch.health)
    assert seen == [Health.UNKNOWN, Health.OK, Health.WATCH, Health.SPIKING, Health.WATCH, Health.OK]
    assert watch.onset_step == 500
    assert watch.healed_step is not None
    assert 510 < watch.healed_step < 520
    assert watch.baseline is not None
    assert 2.5 < watch.baseline < 3.5


@pytest.mark.parametrize("gap", [1, 100])
def test_a_row_that_is_back_is_no_longer_called_bad_before_the_spike_is_called_over(gap: int) -> None:
    """Whoever acts on a second verdict must not take the first good one for it."""
    losses = lifted(falling(600), 500, lambda i: 4.0 if i < 3 else 0.0)
    watch = LossWatch()
    after: list[Health] = []
    for row, loss in enumerate(losses):
        watch.update(Point(step=row * gap, loss=loss))
        if row >= 503 and watch.onset_step is not None and watch.healed_step is None:
            after.append(watch.health)
    assert after
    assert set(after) == {Health.WATCH}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lone_far_row_of_a_per_step_log_is_told_by_the_health_alone(seed: int) -> None:
    """One bad batch is nobody's affair; but a state of that very step is not called good."""
    chance = random.Random(seed)
    losses = falling(2000, seed=seed)
    far = [row + chance.randrange(20) for row in range(100, 2000, 100)]
    for row in far:
        losses[row] *= chance.uniform(1.5, 5.0)
    watch = LossWatch()
    for row, point in enumerate(rows_of(losses)):
        assert watch.update(point) == ()
        if row in far[:2]:  # later ones are a habit of the run
            assert watch.health is Health.WATCH


@pytest.mark.parametrize("seed", SEEDS)
def test_a_small_rise_over_several_rows_is_watched_and_never_acted_on(seed: int) -> None:
    losses = lifted(falling(600, seed=seed, noise=0.01), 500, lambda i: 0.12 if i < 6 else 0.0)
    watch = LossWatch()
    found = verdicts(rows_of(losses[:506]), watch)
    assert [(v.severity, v.rule) for _, v in found] == [(Severity.WATCH, "several rows")]
    assert watch.health is Health.WATCH
    assert verdicts(rows_of(losses[506:], first_step=506), watch) == []
    assert 501 <= found[0][0] <= 505


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spike_after_one_that_left_the_run_on_a_higher_level_is_seen_and_acted_on(seed: int) -> None:
    """The first spike heals to a level that is 15 % higher; its record must not swallow the next one."""
    losses = spiked(falling(900, seed=seed), 500, 3.0, 12.0)
    losses = [loss * 1.15 if row >= 500 else loss for row, loss in enumerate(losses)]
    losses = spiked(losses[:640], 615, 3.0, 6.0) + losses[640:]
    found = acts(rows_of(losses, first_step=30_000))
    assert [500 <= row <= 510 or 615 <= row <= 625 for row, _ in found] == [True, True]


@pytest.mark.parametrize(("way", "is_acted_on"), [([0.1, 0.25, 0.4, 0.55, 0.7, 0.85], True), ([0.85] * 6, False)])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_climb_row_by_row_is_the_weights_and_a_box_is_data(seed: int, way: list[float], is_acted_on: bool) -> None:
    losses = lifted(falling(700, seed=seed, noise=0.01), 600, lambda i: way[i] if i < len(way) else 0.0)
    assert bool(acts(rows_of(losses))) is is_acted_on


def test_the_first_spike_of_a_run_that_goes_on_excuses_no_second_one() -> None:
    """A watcher is new where a run goes on; the run is as old as its steps say, and has that much to lose."""
    losses = spiked(falling(900), 300, 1.2, 6.0)
    losses = spiked(losses[:600], 500, 1.2, 6.0) + losses[600:]
    assert len(acts(rows_of(losses))) == 1
    assert len(acts(rows_of(losses, first_step=30_000))) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_where_a_row_stands_for_many_steps_one_far_row_or_two_rows_are_enough(seed: int) -> None:
    far = lifted(falling(120, seed=seed), 90, lambda i: 0.8 if i == 0 else 0.0)
    assert acts(rows_of(far, every=100)) == [(90, "loss_spike")]
    assert acts(rows_of(far, every=1)) == []
    two = lifted(falling(120, seed=seed), 90, lambda i: (0.3, 0.15)[i] if i < 2 else 0.0)
    assert acts(rows_of(two, every=100)) == [(91, "loss_spike")]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lone_row_of_a_coarse_log_that_is_not_far_up_is_watched(seed: int) -> None:
    lone = lifted(falling(120, seed=seed, noise=0.01), 90, lambda i: 0.3 if i == 0 else 0.0)
    assert acts(rows_of(lone, every=100)) == []


def test_a_short_run_is_judged_from_its_first_rows() -> None:
    losses = spiked(falling(40, noise=0.005), 20, 4.0, 3.0)
    assert acts(rows_of(losses)) == [(21, "loss_spike")]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_acted_on_at_its_first_row_and_once(value: float) -> None:
    losses = [*falling(60), *[value] * 40]
    watch = LossWatch()
    assert acts(rows_of(losses), watch) == [(60, "non_finite")]
    assert (watch.health, watch.onset_step, watch.healed_step) == (Health.NON_FINITE, 60, None)


def test_the_very_first_row_may_be_bad() -> None:
    assert acts(rows_of([math.nan])) == [(0, "non_finite")]


def test_a_run_that_recovers_from_a_bad_value_is_healed_and_may_be_bad_again() -> None:
    losses = [*falling(60), math.inf, *falling(30, first=3.0), math.nan]
    watch = LossWatch()
    points = rows_of(losses)
    assert acts(points[:70], watch) == [(60, "non_finite")]
    assert (watch.health, watch.healed_step) == (Health.OK, 65)
    assert acts(points[70:], watch) == [(21, "non_finite")]


def test_a_spike_that_stays_is_a_divergence_with_the_spikes_onset() -> None:
    watch = LossWatch()
    losses = lifted(falling(900), 500, lambda i: 3.0)
    assert acts(rows_of(losses), watch) == [(501, "loss_spike"), (599, "divergence")]
    assert (watch.health, watch.onset_step, watch.healed_step) == (Health.DIVERGING, 500, None)


def test_a_spike_that_is_slowly_on_its_way_back_is_no_divergence() -> None:
    losses = spiked(falling(1200, noise=0.01), 600, 3.0, 60.0)
    assert {kind for _, kind in acts(rows_of(losses, every=100))} == {Trouble.LOSS_SPIKE.value}
    stuck = lifted(falling(1200, noise=0.01), 600, lambda i: 3.0 if i < 5 else 0.8)  # and one that stays there
    assert acts(rows_of(stuck, every=100))[1:] == [(898, "divergence")]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_calm_rise_that_takes_back_half_of_what_was_learned_is_a_divergence_when_it_stays(seed: int) -> None:
    watch = LossWatch()
    assert acts(rows_of(lifted(falling(900, seed=seed), 500, lambda i: 0.7)), watch) == [(599, "divergence")]
    assert (watch.health, watch.onset_step, watch.healed_step) == (Health.DIVERGING, 500, None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", [40, 60])
def test_a_calm_spike_to_twice_the_loss_is_found_while_it_lasts(seed: int, rows: int) -> None:
    losses = lifted(falling(900, seed=seed), 500, lambda i: 1.0 if i < rows else 0.0)
    ((row, kind),) = acts(rows_of(losses))
    assert kind == "loss_spike"
    assert row < 500 + rows
    steps_known = acts(rows_of(losses[::2], every=2))  # as many steps in half as many rows
    assert [kind for _, kind in steps_known] == ["loss_spike"]
    assert steps_known[0][0] < (500 + rows) // 2


@pytest.mark.parametrize("every", [1, 300])
def test_a_loss_many_times_the_first_needs_no_baseline(every: int) -> None:
    for rows in (3, 8, 60):  # before anything is known of the noise, and after a run that has never fallen
        losses = [*[2.0 + 0.05 * (i % 3) for i in range(rows)], 27 * 2.1]
        assert acts(rows_of(losses, every=every)) == [(rows, "loss_spike")]
        near_zero = [loss / 1000 for loss in losses]  # a penalty that begins near zero
        assert acts(rows_of(near_zero, every=every)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_calm_level_of_twice_the_loss_that_stays_is_told_once(seed: int) -> None:
    watch = LossWatch()
    ((row, kind),) = acts(rows_of(lifted(falling(900, seed=seed), 500, lambda i: 1.0)), watch)
    assert (row, kind) == (535, "loss_spike")
    assert (watch.health, watch.onset_step, watch.healed_step) == (Health.DIVERGING, 500, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_calm_rise_to_a_new_level_is_watched_and_a_spike_from_there_is_found(seed: int) -> None:
    losses = lifted(falling(2000, seed=seed), 500, lambda i: 0.35)
    assert acts(rows_of(losses)) == []
    assert acts(rows_of(spiked(losses, 1500, 1.0, 8.0))) != []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_climb_without_any_far_row_is_a_divergence(seed: int) -> None:
    losses = lifted(falling(3000, seed=seed), 500, lambda i: i / 3000)
    found = acts(rows_of(losses))
    assert [kind for _, kind in found] == ["divergence"]


@pytest.mark.parametrize("every", [1, 100])
def test_a_run_that_goes_on_with_fresh_weights_is_a_restart_discontinuity(every: int) -> None:
    losses = [*falling(1000), *falling(1000, seed=1)]
    (row, kind), *others = acts(rows_of(losses, every=every))
    assert (kind, others) == ("restart_discontinuity", [])
    assert row == 1000 if every == 100 else 1001 <= row <= 1030


def test_rows_that_a_resumed_run_repeats_raise_nothing() -> None:
    points = [*rows_of(falling(1000)), *rows_of(falling(1500, seed=1)[150:], first_step=150)]
    assert acts(points) == []


def test_a_run_that_begins_again_at_step_zero_raises_nothing() -> None:
    assert acts([*rows_of(falling(1000)), *rows_of(falling(1000, seed=1))]) == []


def test_a_resumed_run_that_has_lost_its_weights_is_found_though_its_steps_repeat() -> None:
    points = [*rows_of(falling(1000)), *rows_of(falling(300, seed=1), first_step=800)]
    assert [kind for _, kind in acts(points)] == ["restart_discontinuity"]


def _mixup(chance: random.Random, share: float) -> list[float]:
    return [loss * (2 if chance.random() < share else 1) for loss in falling(2000, seed=chance.randrange(99))]


HEALTHY = {
    "heavy tails": lambda r: [
        loss * math.exp(0.04 * r.gauss(0, 1) * (3 if r.random() < 0.1 else 1)) for loss in falling(2000)
    ],
    "one sequence a step": lambda r: [0.5 * math.exp(r.gauss(0, 0.5)) for _ in range(2000)],
    "fine-tuning near zero": lambda r: [1e-3 * math.exp(r.gauss(0, 1)) for _ in range(2000)],
    "rewards around zero": lambda r: [r.gauss(0, 1) for _ in range(2000)],
    "a falling likelihood": lambda r: [-1000 * (1 - math.exp(-i / 300)) + r.gauss(0, 5) for i in range(2000)],
    "epochs like a saw": lambda r: [loss * (1.1 - 0.1 * (i % 200) / 200) for i, loss in enumerate(falling(2000))],
    "a drop of the learning rate": lambda r: [loss * (0.7 if i > 900 else 1) for i, loss in enumerate(falling(2000))],
    "a hump in the warm-up": lambda r: [
        loss * (1 + 0.15 * math.exp(-(((i - 300) / 80) ** 2))) for i, loss in enumerate(falling(2000))
    ],
    "harder data": lambda r: [loss * (1.1 if i > 1000 else 1) for i, loss in enumerate(falling(2000))],
    "growing noise": lambda r: [loss * (1 + r.gauss(0, 0.01 + i / 20_000)) for i, loss in enumerate(falling(2000))],
    "rounded": lambda r: [round(loss, 1) for loss in falling(2000)],
    "always the same": lambda r: [1.25] * 2000,
    "always zero": lambda r: [0.0] * 2000,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_raises_nothing(name: str, seed: int) -> None:
    assert acts(rows_of(HEALTHY[name](random.Random(seed)))) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("every", [1, 100])
def test_a_run_with_mixup_raises_nothing_once_its_first_rows_have_shown_it(seed: int, every: int) -> None:
    found = acts(rows_of(_mixup(random.Random(seed), 0.4), every=every))
    assert [row for row, _ in found if row > 50] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_habit_of_lone_far_rows_is_learned_in_a_coarse_log_too(seed: int) -> None:
    found = acts(rows_of(_mixup(random.Random(seed), 0.15), every=100))
    assert [row for row, _ in found if row > 160] == []


def test_a_plateau_then_a_fall_and_a_new_cadence_raise_nothing_but_the_spike_after_them() -> None:
    chance = random.Random(3)
    plateau = [Point(step=i, loss=30 + chance.gauss(0, 0.5)) for i in range(100)]
    later = [1.5 + 20 * math.exp(-i / 3) + chance.gauss(0, 0.03) for i in range(60)]
    later[40:46] = [5.0, 4.5, 4.0, 3.0, 2.5, 2.0]
    points = [*plateau, *rows_of(later, every=500, first_step=600)]
    assert acts(points) == [(140, "loss_spike")]


def test_a_likelihood_that_collapses_is_found_on_plain_values() -> None:
    chance = random.Random(2)
    falling_to = [-100 * (1 - math.exp(-i / 60)) + chance.gauss(0, 2) for i in range(700)]
    found = verdicts(rows_of([loss + (300 if 500 <= i < 510 else 0) for i, loss in enumerate(falling_to)]))
    assert [(row, v.kind) for row, v in found if v.severity is Severity.ACT] == [(501, Trouble.LOSS_SPIKE)]
    assert found[-1][1].evidence["scale"] == "plain"


def test_empty_cells_are_not_bad_values_and_do_not_break_a_spike_up() -> None:
    losses: list[float | None] = list(spiked(falling(600), 500, 1.0, 10.0))
    with_gaps = [loss if i % 3 else None for i, loss in enumerate(losses)]
    assert [kind for _, kind in acts(rows_of(with_gaps))] == ["loss_spike"]


def test_a_loss_far_beyond_the_first_ones_is_dated_from_the_first_row_that_was() -> None:
    """Two rows tell, and the trouble began with the first of them."""
    losses = [2.0 + 0.001 * (step % 40) for step in range(400)] + [20.0] * 3
    found = [verdict for _, verdict in verdicts(rows_of(losses), LossWatch()) if verdict.severity is Severity.ACT]
    assert [verdict.evidence["onset_step"] for verdict in found] == [rows_of(losses)[400].step]
