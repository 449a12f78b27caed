"""Rekindle's rows are what decide() does: a change of a rule or of a policy shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.playbooks import Response
from fleets.answers import Case
from fleets.causes import GPU_MEMORY, HOST, NIC, Symptom
from fleets.decided import Stages, played
from fleets.figures import Setting
from fleets.rekindle_rows import Rekindle
from rekindle.protocol.signals import FaultClass

STAGES = Stages(save_s=20.0, stop_s=20.0, start_s=300.0, step_s=10.0)
SETTING = Setting(nodes=64, gpus_per_node=8, interval_s=3000.0)


def _with(fault: FaultClass, **changes: object) -> Policy:
    rows = tuple(
        replace(row, **changes) if row.fault is fault else row  # type: ignore[arg-type]
        for row in DEFAULT_POLICY.playbooks
    )
    return replace(DEFAULT_POLICY, name="changed", playbooks=rows)


@pytest.mark.parametrize("shows", list(Symptom))
def test_every_kind_of_failure_is_recovered_by_itself_under_a_monitor(shows: Symptom) -> None:
    one = played(shows, STAGES, monitored=True)
    assert one.recovers
    assert one.rules[-1] == "verify.passed"
    assert (one.restarts, one.pages) == (1, 0)
    assert one.down_s >= STAGES.start_s


@pytest.mark.parametrize("shows", [Symptom.CRASH, Symptom.NODE_CRASH, Symptom.NODE_GONE])
def test_without_a_monitor_the_run_is_back_and_called_recovered_by_nothing(shows: Symptom) -> None:
    one = played(shows, STAGES, monitored=False)
    assert not one.recovers
    assert one.rules[-1] == "verify.blind_limit"
    assert one.down_s == pytest.approx(STAGES.start_s)  # it trains all the same


def test_a_named_node_is_kept_out_and_an_unnamed_one_is_not() -> None:
    for shows in (Symptom.NODE_CRASH, Symptom.NODE_GONE, Symptom.HANG):
        assert played(shows, STAGES, monitored=True, names_node=True).cordons
        assert not played(shows, STAGES, monitored=True).cordons
    assert not played(Symptom.CRASH, STAGES, monitored=True, names_node=True).cordons


def test_a_crash_that_comes_again_at_the_same_step_ends_with_a_person() -> None:
    one = played(Symptom.CRASH, STAGES, monitored=True, dies_again=True)
    assert not one.recovers
    assert one.pages == 1
    assert 1 <= one.restarts <= DEFAULT_POLICY.budgets.max_no_progress


def test_a_playbook_that_hands_over_is_played_so() -> None:
    changed = _with(FaultClass.HANG, response=Response.HAND_OVER)
    one = played(Symptom.HANG, STAGES, monitored=True, policy=changed)
    assert not one.recovers
    assert (one.restarts, one.pages) == (0, 1)


def test_stopping_and_starting_take_what_they_are_given() -> None:
    crash = played(Symptom.CRASH, replace(STAGES, start_s=77.0), monitored=True)
    assert crash.down_s == pytest.approx(77.0, abs=5.0)
    hang = played(Symptom.HANG, replace(STAGES, stop_s=500.0), monitored=True)
    assert hang.down_s == pytest.approx(500.0 + STAGES.start_s, abs=60.0)


def test_the_first_rung_is_that_of_the_projects_own_table() -> None:
    ours = Rekindle()
    assert str(ours.answer(Case(cause=GPU_MEMORY, setting=SETTING)).rung) == "reboot"
    assert str(ours.answer(Case(cause=NIC, setting=SETTING)).rung) == "replace"
    assert str(ours.answer(Case(cause=HOST, setting=SETTING)).rung) == "reboot"
    assert str(ours.answer(Case(cause=HOST, setting=SETTING, repaired=True)).rung) == "replace"
