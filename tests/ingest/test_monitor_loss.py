"""What the monitor's detectors say arrives with the figures that a decision and a person need."""

from __future__ import annotations

from typing import Any

import pytest

from chalicelib.domain.model.signal import Signal
from chalicelib.ingest.dispatch import parse
from tests.ingest import golden


def signal(name: str, **changed: Any) -> Signal:
    event = golden.load(name)
    event["detail"] |= changed
    [found] = parse(event)
    assert isinstance(found, Signal)
    return found


def test_a_spike_names_its_onset_where_it_was_seen_and_the_figures_behind_it() -> None:
    spike = signal("monitor_loss_spike")
    assert (spike.evidence["onset_step"], spike.evidence["step"]) == (41202, 41203)
    assert spike.evidence["figures"]["threshold"] == 8.0
    assert "7.81, was 2.31" in spike.summary


def test_a_second_spike_is_another_fact_and_a_second_telling_of_one_is_not() -> None:
    first, again, other = (
        signal("monitor_loss_spike", step=step, onset_step=onset)
        for step, onset in ((41203, 41202), (41203, 41202), (41900, 41899))
    )
    assert first.dedupe_key == again.dedupe_key
    assert first.dedupe_key != other.dedupe_key
    assert first.dedupe_key != signal("monitor_loss_divergence").dedupe_key, (
        "what began as a spike may go on to diverge"
    )


def test_a_straggler_is_the_slow_rank_not_the_one_that_says_so() -> None:
    slow = signal("monitor_straggler")
    assert (slow.evidence["rank"], slow.evidence["host"]) == (11, "algo-2")
    assert (slow.evidence["step_s"], slow.evidence["baseline_s"]) == (1.9, 1.2)


def test_a_whole_run_that_slows_down_names_no_host() -> None:
    assert "host" not in signal("monitor_throughput_drop").evidence


@pytest.mark.parametrize(("alone", "said"), [(True, "on rank 5 alone"), (False, "on rank 5 and others"), (None, "5")])
def test_whether_one_rank_alone_has_the_bad_value_is_told_where_it_is_known(alone: bool | None, said: str) -> None:
    found = signal("monitor_non_finite_one_rank", alone=alone)
    assert found.evidence.get("alone") is alone
    assert found.summary.endswith(said)


def test_an_older_monitor_does_not_know_of_alone() -> None:
    assert signal("monitor_non_finite_nan").evidence.get("alone") is None
