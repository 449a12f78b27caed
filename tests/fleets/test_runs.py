"""One run under one policy: what must hold for every history."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node_findings import Rung
from fleets.answers import Answer, Case, Rules
from fleets.causes import (
    FLAKY,
    FLAKY_HANG,
    GPU,
    GPU_MEMORY,
    HOST,
    NETWORK,
    NIC,
    SILENT_CORRUPTION,
    SOFTWARE,
    Cause,
)
from fleets.costs import mean_of_plays
from fleets.figures import HUMAN, NCCL, NODE_BY_PERSON, RESTART, Setting
from fleets.histories import llama3, meta512, poisson
from fleets.plan import PlanRequest, plan_of
from fleets.rekindle_rows import Rekindle
from fleets.rivals import AutoResume, ByteRobust, Nvrx, OperatorLogRules, RestartAlways, TimeoutAndPerson
from fleets.runs import DAY_S, Failure, play

SETTING = Setting(nodes=64, gpus_per_node=8, interval_s=3000.0)
CAUSES = (GPU, GPU_MEMORY, HOST, NETWORK, NIC, SOFTWARE, SILENT_CORRUPTION, FLAKY, FLAKY_HANG)
EVERY: tuple[Rules, ...] = (
    Rekindle(),
    Rekindle(spares=2),
    Rekindle(monitored=False),
    TimeoutAndPerson(),
    AutoResume(),
    OperatorLogRules(spares=1),
    RestartAlways(),
    Nvrx(spares=1),
    ByteRobust(spares=8),
)
by_name = pytest.mark.parametrize("rules", EVERY, ids=lambda rules: str(rules.name))


def _drawn(rng: random.Random, *, wall_s: float, mean_s: float) -> list[Failure]:
    found, at = [], rng.expovariate(1 / mean_s)
    while at < wall_s:
        cause = rng.choice(CAUSES)
        lasts = cause in (FLAKY, FLAKY_HANG)
        node = rng.randrange(3) if lasts else rng.randrange(64)
        found.append(Failure(at_s=at, cause=cause, node=node, lasts=lasts))
        at += rng.expovariate(1 / mean_s)
    return found


@by_name
def test_every_second_is_trained_saved_or_lost(rules: Rules) -> None:
    rng = random.Random(1)
    for _ in range(60):
        wall_s = rng.uniform(1, 40) * DAY_S
        setting = replace(SETTING, interval_s=rng.uniform(60, 20_000), save_s=rng.choice((0.0, 1.0, 30.0, 300.0)))
        done = play(_drawn(rng, wall_s=wall_s, mean_s=rng.uniform(600, 200_000)), rules, setting, wall_s=wall_s)
        assert done.trained_s + done.saving_s + sum(done.lost_s) == pytest.approx(wall_s, abs=1e-3)
        assert 0.0 <= done.ettr <= 1.0
        assert done.trained_s >= 0.0
        assert 0 <= done.by_itself <= done.incidents
        assert all(seconds >= 0.0 for seconds in done.recovery_s)
        assert done.ettr == pytest.approx(max(0.0, done.trained_s) / wall_s, abs=1e-6)


@by_name
def test_a_run_without_failures_loses_only_its_saves(rules: Rules) -> None:
    done = play([], rules, SETTING, wall_s=30 * DAY_S)
    share = rules.save_share if rules.save_share is not None else 30.0 / 3030.0
    assert done.ettr == pytest.approx(1.0 - share, abs=1e-3)
    assert (done.incidents, done.pages, done.unsafe) == (0, 0, 0)


@pytest.mark.parametrize("rules", [TimeoutAndPerson(), Rekindle(), AutoResume()], ids=lambda rules: str(rules.name))
def test_one_more_failure_never_leaves_a_run_further_ahead(rules: Rules) -> None:
    """Failures so far apart that none falls into another's recovery, which would hide it."""
    rng = random.Random(2)
    for _ in range(200):
        slots = rng.sample(range(60), rng.randint(1, 40))
        cause = (GPU, GPU_MEMORY, HOST, NETWORK, NIC, SOFTWARE)
        all_of_them = sorted(
            Failure(at_s=slot * 20_000 + rng.uniform(0, 5_000), cause=rng.choice(cause), node=number)
            for number, slot in enumerate(slots)
        )
        left_out = rng.choice(all_of_them)
        fewer = [one for one in all_of_them if one is not left_out]
        wall_s = 60 * 20_000 + 20_000.0
        setting = replace(SETTING, interval_s=rng.uniform(300, 8000))
        more_done, fewer_done = (play(one, rules, setting, wall_s=wall_s) for one in (all_of_them, fewer))
        assert more_done.trained_s <= fewer_done.trained_s + 1e-6
        assert more_done.gpu_hours_lost >= fewer_done.gpu_hours_lost - setting.save_s * 40 * setting.gpus / 3600


@by_name
def test_failing_twice_as_often_costs_more_in_the_mean(rules: Rules) -> None:
    price = Known(1.0)
    costs = []
    for mean_s in (800_000.0, 200_000.0, 50_000.0, 12_500.0):
        drawn = [poisson(nodes=64, days=90, mean_s=mean_s, seed=seed) for seed in range(6)]
        done = [play(draw.failures, rules, SETTING, wall_s=draw.wall_s) for draw in drawn]
        costs.append(mean_of_plays(rules.name, done, usd_per_gpu_hour=price).gpu_hours_lost)
    assert costs == sorted(costs)


@pytest.mark.parametrize(
    ("cause", "waits_s"),
    [
        (SOFTWARE, 0.0),
        (NETWORK, NCCL.value),
        (GPU, NCCL.value + NODE_BY_PERSON.value),
        (HOST, NCCL.value + NODE_BY_PERSON.value),
    ],
    ids=lambda value: value.name if isinstance(value, Cause) else "",
)
def test_a_time_out_and_a_person_take_what_the_ledgers_counterfactual_says(cause: Cause, waits_s: float) -> None:
    struck = 100_000.0
    done = play([Failure(at_s=struck, cause=cause)], TimeoutAndPerson(), SETTING, wall_s=10 * DAY_S)
    recomputed = 100_000.0 - int(struck / 3030.0) * 30.0 - int(struck / 3030.0) * 3000.0
    assert done.lost_s[0] == pytest.approx(waits_s + HUMAN.value + RESTART.value + recomputed, abs=31.0)
    assert (done.by_itself, done.pages) == (0, 1)


def test_the_mean_agrees_with_the_closed_formula() -> None:
    """ETTR = 1 / (1 + rate x (waits + half an interval) + save / interval), where every failure waits alike."""
    mean_s, rng = 57.7 * 3600, random.Random(3)
    failures, at = [], 0.0
    while at < 4000 * mean_s:
        at += rng.expovariate(1 / mean_s)
        failures.append(Failure(at_s=at, cause=SOFTWARE))
    setting = replace(SETTING, interval_s=3530.0)
    done = play(failures, TimeoutAndPerson(), setting, wall_s=4000 * mean_s)
    waits = HUMAN.value + RESTART.value + 3530.0 / 2
    assert done.ettr == pytest.approx(1 / (1 + waits / mean_s + 30.0 / 3530.0), abs=0.001)


def test_a_spare_is_taken_at_once_and_a_second_failure_waits_for_the_first_node() -> None:
    rules = Rekindle(spares=1)
    alone = play([Failure(at_s=50_000, cause=GPU, node=1)], rules, SETTING, wall_s=DAY_S)
    none = play([Failure(at_s=50_000, cause=GPU, node=1)], Rekindle(), SETTING, wall_s=DAY_S)
    assert none.lost_s[0] - alone.lost_s[0] == pytest.approx(SETTING.replace_s)
    both = [Failure(at_s=50_000, cause=GPU, node=1), Failure(at_s=50_400, cause=GPU, node=2)]
    waited = play(both, rules, SETTING, wall_s=DAY_S)
    trained_since = 400.0 - (50_030.0 + SETTING.restart_s - 50_000.0)  # the health agent takes 30 s
    back_at = 50_030.0 + SETTING.replace_s
    assert waited.lost_s[1] == pytest.approx(back_at + SETTING.restart_s - 50_400 + trained_since)


def test_a_node_that_fails_again_is_replaced_and_then_fails_no_more() -> None:
    again = [Failure(at_s=20_000.0 * number, cause=FLAKY_HANG, node=7, lasts=True) for number in range(1, 9)]
    done = play(again, Rekindle(spares=1), SETTING, wall_s=3 * DAY_S)
    assert done.incidents == 2  # rebooted for the first, replaced for the second
    assert done.by_itself == 2


def test_a_node_that_nothing_names_is_a_persons_and_a_loop_starts_on_it_again_and_again() -> None:
    struck = [Failure(at_s=40_000, cause=FLAKY, node=3)]
    ours = play(struck, Rekindle(), SETTING, wall_s=3 * DAY_S)
    assert (ours.by_itself, ours.pages, ours.unsafe) == (0, 1, 0)
    loop = play(struck, RestartAlways(), replace(SETTING, restart_s=60.0), wall_s=3 * DAY_S)
    assert (loop.by_itself, loop.pages) == (0, 1)
    assert loop.unsafe > 0


def test_the_newest_checkpoint_after_a_nan_is_poisoned_and_counted() -> None:
    """The operator's rules see a NaN after 300 s; a save in between is what they resume from."""
    setting = replace(SETTING, interval_s=200.0, save_s=1.0)
    struck = [Failure(at_s=40_000, cause=SILENT_CORRUPTION)]
    theirs = play(struck, OperatorLogRules(), setting, wall_s=3 * DAY_S)
    assert theirs.unsafe >= 1
    assert theirs.by_itself == 0
    ours = play(struck, Rekindle(), setting, wall_s=3 * DAY_S)
    assert (ours.unsafe, ours.by_itself) == (0, 1)


def test_well_machines_that_are_evicted_are_unsafe_actions() -> None:
    done = play([Failure(at_s=40_000, cause=NETWORK)], ByteRobust(spares=8), SETTING, wall_s=DAY_S)
    assert done.unsafe == 6


def test_more_repairs_a_day_than_the_policy_allows_call_a_person_each() -> None:
    struck = [Failure(at_s=5_000.0 + 5_000 * number, cause=HOST, node=number) for number in range(8)]
    rules = Rekindle(spares=20)
    bound = rules.repairs_per_day
    assert bound is not None
    assert play(struck, rules, SETTING, wall_s=DAY_S).pages == 8 - bound


def test_a_failure_where_nothing_runs_is_none() -> None:
    one = play([Failure(at_s=50_000, cause=SOFTWARE)], TimeoutAndPerson(), SETTING, wall_s=DAY_S)
    two = [Failure(at_s=50_000, cause=SOFTWARE), Failure(at_s=50_600, cause=SOFTWARE)]
    assert play(two, TimeoutAndPerson(), SETTING, wall_s=DAY_S) == one


def test_a_node_that_breaks_in_a_recovery_is_waited_for_within_it() -> None:
    one = play([Failure(at_s=50_000, cause=GPU, node=1)], Rekindle(), SETTING, wall_s=DAY_S)
    two = [Failure(at_s=50_000, cause=GPU, node=1), Failure(at_s=50_600, cause=GPU, node=2)]
    both = play(two, Rekindle(), SETTING, wall_s=DAY_S)
    assert both.incidents == 1
    assert one.lost_s[0] < both.lost_s[0] < 2 * one.lost_s[0]


class _Never:
    """Rules that restart on the same broken node for ever."""

    name, spares, save_share, repairs_per_day, assumptions = "never", 0, None, None, ()

    def answer(self, case: Case) -> Answer:
        return Answer(detect_s=1.0, down_s=0.0)


def test_rules_that_never_end_do_not_hold_up_the_play() -> None:
    done = play([Failure(at_s=10, cause=GPU)], _Never(), SETTING, wall_s=365 * DAY_S)
    assert done.unsafe > 1000


def test_a_failure_at_the_very_end_costs_no_more_than_there_is() -> None:
    for at in (DAY_S - 1.0, DAY_S - 1e-6, 0.0):
        done = play([Failure(at_s=at, cause=GPU)], TimeoutAndPerson(), SETTING, wall_s=DAY_S)
        assert 0.0 <= done.ettr <= 1.0
        assert done.trained_s + done.saving_s + sum(done.lost_s) == pytest.approx(DAY_S)


def test_llama3s_54_days_hold_what_the_goal_says_of_512_gpus_and_order_the_rows() -> None:
    meta = [meta512(seed) for seed in range(4)]
    setting = replace(SETTING, interval_s=3450.0)
    ours = [play(one.failures, Rekindle(spares=1), setting, wall_s=one.wall_s) for one in meta]
    assert sum(one.ettr for one in ours) / 4 >= 0.98
    assert all(one.unsafe == 0 for one in ours)
    large = replace(SETTING, nodes=2048, interval_s=816.0)
    history = llama3(0)
    ettr = {
        rules.name: play(history.failures, rules, large, wall_s=history.wall_s).ettr
        for rules in (Rekindle(spares=1), Rekindle(), AutoResume(), TimeoutAndPerson())
    }
    assert list(ettr.values()) == sorted(ettr.values(), reverse=True)


def test_a_rung_is_only_ours_where_the_node_is_taken_out() -> None:
    for cause in CAUSES:
        for monitored in (True, False):
            answer = Rekindle(monitored=monitored).answer(Case(cause=cause, setting=SETTING))
            assert (answer.rung is not None) <= answer.excludes
            assert answer.rung in (None, Rung.REBOOT, Rung.REPLACE)


@pytest.mark.long
@pytest.mark.parametrize(
    ("gpus", "without", "with_spares"),
    [(128, 0.984, 0.991), (512, 0.955, 0.981), (2048, 0.866, 0.958), (9600, 0.609, 0.895)],
)
def test_the_play_comes_to_what_the_closed_formula_says_at_every_size(
    gpus: int, without: float, with_spares: float
) -> None:
    """Source: docs/fleet.md, the formula with Meta's rate, saves of 30 s, starts of 5 minutes and Young's interval."""
    made = plan_of(PlanRequest(gpus=gpus, instance="ml.p5.48xlarge", spares=2))
    assert made.baselines[0].row.ettr == pytest.approx(without, abs=0.015)
    assert made.chosen.row.ettr == pytest.approx(with_spares, abs=0.01)
