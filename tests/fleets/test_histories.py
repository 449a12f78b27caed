"""Histories: published rates with their sources."""

from __future__ import annotations

import pytest

from fleets.histories import LLAMA3, lablup, llama3, llama3_mix, mean_s_between_failures, meta512, poisson
from fleets.runs import DAY_S
from rekindle.doctor.stack.runs import FAILURES_PER_NODE_DAY


def test_llama3s_table_has_419_interruptions_each_with_its_source() -> None:
    assert sum(row.count for row in LLAMA3) == 419
    assert all("2407.21783" in row.source for row in LLAMA3)
    history = llama3(0)
    assert len(history.failures) == 419
    assert (history.nodes * history.gpus_per_node, history.wall_s) == (16_384, 54 * DAY_S)
    assert history.mean_s == pytest.approx(3.1 * 3600, rel=0.01)  # the paper's own figure


def test_every_cause_says_where_it_is_from() -> None:
    causes, weights = llama3_mix()
    assert sum(weights) == 419
    assert all(cause.source for cause in causes)


@pytest.mark.parametrize("drawn", [llama3, meta512, lablup])
def test_a_seed_draws_the_same_history_again_and_another_seed_another(drawn: object) -> None:
    assert callable(drawn)
    assert drawn(3) == drawn(3)
    assert drawn(3).failures != drawn(4).failures
    times = [failure.at_s for failure in drawn(3).failures]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= drawn(3).wall_s


def test_the_rate_is_the_doctors_and_a_smaller_node_fails_in_proportion() -> None:
    assert mean_s_between_failures(64) == pytest.approx(DAY_S / (64 * FAILURES_PER_NODE_DAY))
    assert mean_s_between_failures(64, gpus_per_node=1) == pytest.approx(8 * mean_s_between_failures(64))
    drawn = poisson(nodes=64, days=4000, mean_s=mean_s_between_failures(64), seed=1)
    assert drawn.mean_s == pytest.approx(mean_s_between_failures(64), rel=0.1)


def test_half_of_the_504_gpus_failures_are_on_three_nodes() -> None:
    found = lablup(0).failures
    lasting = [failure for failure in found if failure.lasts]
    assert len({one.node for one in lasting}) <= 3
    assert len(lasting) >= len(found) / 2
