"""Sequences that must not end a healthy run: flapping, late words, two troubles at once. Each was once a wrong stop."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.faults.loss import with_stretch
from chalicelib.domain.model.action import ResubmitJob, StopJob
from chalicelib.domain.model.evidence import Stretch
from chalicelib.domain.model.incident import Incident, Phase, SkipWindow
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus as S
from chalicelib.domain.model.signal import SignalKind as K
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.policy.groups import Approvals
from rekindle.protocol.signals import FaultClass as F
from tests.domain.looks import checkpoint, incident, look, seen, signal, view
from tests.domain.tables.test_loss_tables import (
    AGAIN,
    LOOKING,
    NO_FORENSICS,
    OLD,
    again,
    answer,
    forensic,
    recovered,
    saves,
    spike,
    spiking,
    told,
)

ASKED = Phase.CHECKPOINTING


def asked_anew(outcome: str | None = None) -> Incident:
    """A new attempt that was asked for a forensic checkpoint, its spike having lasted."""
    asked = forensic(outcome) | {"onset_attempt": "lm-r2", "onset_step": Known(1180)}
    asked["ask"] = dataclasses.replace(asked["ask"], attempt="lm-r2")
    return spike(ASKED, **(AGAIN | asked))


# --- the loss heals while the forensic checkpoint is made -----------------------------------------------------------


def test_the_answer_does_not_stop_a_run_whose_loss_healed_meanwhile() -> None:
    well = spiking(1045, "ok", healed_step=1042)
    decision = look(spike(ASKED, **forensic()), seen(well, reply=answer(), **OLD))
    assert (decision.rule, decision.incident.phase) == ("spike.healed", Phase.RECOVERED), decision.reason


@pytest.mark.parametrize("reply", [{}, {"reply": answer()}])
def test_a_new_attempt_whose_loss_healed_meanwhile_is_watched_on_and_not_rolled_back(reply: dict[str, Any]) -> None:
    well = again(1240, "ok", healed_step=1220)
    decision = look(asked_anew(), seen(well, **reply, **saves(850)))
    assert (decision.rule, decision.incident.phase, decision.actions) == ("verify.healed", Phase.VERIFYING, ())
    assert not decision.incident.is_poisoned
    assert decision.incident.loss.stretches == (Stretch(attempt="lm-r2", from_step=1180, to_step=1220),)


def test_a_loss_that_is_on_its_way_back_is_waited_for_although_the_answer_is_there() -> None:
    waits = look(spike(ASKED, **forensic()), seen(spiking(1045, "watch"), reply=answer(), **OLD))
    assert (waits.rule, waits.incident.phase, waits.actions) == ("spike.watching", ASKED, ())
    assert waits.incident.halt.ask is not None
    assert waits.incident.halt.ask.outcome == "saved"
    healed = look(waits.incident, seen(spiking(1050, "ok", healed_step=1048), **OLD))
    assert healed.rule == "spike.healed"
    worse = look(waits.incident, seen(spiking(1050), **OLD))
    assert (worse.rule, worse.incident.phase) == ("checkpoint.saved", Phase.STOPPING)


# --- flapping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), (recovered(1020),)])
def test_two_spikes_that_each_heal_are_not_one_that_lasts(words: tuple[Any, ...]) -> None:
    second = spiking(1203, onset_step=1200)
    decision = look(spike(**LOOKING), seen(second, new_signals=words, **OLD), NO_FORENSICS)
    assert (decision.rule, decision.actions) == ("spike.watching", ()), decision.reason
    assert decision.incident.loss.episode is not None
    assert decision.incident.loss.episode.onset_step == Known(1200)
    until = 1020 if words else 1199
    assert decision.incident.loss.stretches == (Stretch(attempt="lm", from_step=1000, to_step=until),)
    lasts = look(decision.incident, seen(spiking(1231, onset_step=1200), **OLD), NO_FORENSICS)
    assert lasts.rule == "spike.lasts"


def test_a_run_that_spikes_and_heals_for_ever_is_never_stopped() -> None:
    case = spike(**LOOKING)
    for onset in range(1100, 3000, 40):
        words = (told(onset + 2, onset_step=onset),)
        decision = look(case, seen(spiking(onset + 3, onset_step=onset), new_signals=words, **OLD), NO_FORENSICS)
        assert decision.actions == (), decision.reason
        case = decision.incident


def test_a_forensic_checkpoint_of_the_last_spike_does_not_let_the_next_one_stop_the_run_at_once() -> None:
    second = spiking(1203, onset_step=1200)
    decision = look(spike(ASKED, **forensic()), seen(second, reply=answer(), **OLD))
    assert (decision.rule, decision.actions) == ("spike.watching", ()), decision.reason


# --- another trouble during a young spike ---------------------------------------------------------------------------


def test_a_stall_that_was_none_does_not_stop_a_run_for_its_young_spike() -> None:
    stuck = look(spike(), seen(spiking(1010), new_signals=(signal(F.HANG, step=1010),)))
    assert stuck.rule == "playbook.checkpoint"
    moves = look(stuck.incident, seen(spiking(1030, "ok", healed_step=1025), **OLD))
    assert (moves.rule, moves.incident.phase) == ("healed", Phase.RECOVERED), moves.reason


@pytest.mark.parametrize(
    "word",
    [signal(F.HANG, step=1010), signal(F.NODE_HARDWARE, kind=K.ALARM), signal(None, kind=K.ORDER_RESUBMIT, step=None)],
)
def test_a_run_replaced_for_another_reason_loses_no_data_to_a_young_spike(word: Any) -> None:
    asked = look(spike(), seen(spiking(1010), new_signals=(word,)))
    assert asked.incident.phase is ASKED
    died = look(asked.incident, seen(view(S.FAILED, step=1012), **saves(990, 1010)))
    (sent,) = (action for action in died.actions if isinstance(action, ResubmitJob))
    assert (sent.resume_step, sent.skips, died.incident.loss.rollbacks) == (Known(990), (), 0)


# --- without end ----------------------------------------------------------------------------------------------------

LEFT_OUT = tuple(SkipWindow(from_step=low, to_step=low + 250) for low in range(10_000, 18_000, 1_000))
ENOUGH = {"skips": LEFT_OUT}
NOT_YET = {"skips": LEFT_OUT[1:]}


def test_a_job_that_goes_bad_for_ever_loses_no_more_data_without_a_person() -> None:
    asked = look(spike(**LOOKING, **ENOUGH), seen(spiking(1031), **OLD), NO_FORENSICS)
    assert (asked.rule, asked.incident.phase) == ("budget.skips", Phase.HANDED_OVER), asked.reason
    goes_on = look(spike(**LOOKING, **NOT_YET), seen(spiking(1031), **OLD), NO_FORENSICS)
    assert goes_on.rule == "spike.lasts"


def test_nor_does_it_when_it_has_ended_by_itself() -> None:
    bad = {"onset_attempt": "lm", "onset_step": Known(1000), "onset_fault": F.LOSS_SPIKE}
    ended = look(spike(Phase.STOPPING, **bad, **ENOUGH), seen(view(S.STOPPED, step=1040), **OLD))
    assert (ended.rule, ended.actions[:-1]) == ("budget.skips", ()), ended.reason


@pytest.mark.parametrize("status", [S.RUNNING, S.FAILED])
def test_a_nan_whose_step_nobody_knows_does_not_go_back_to_an_older_attempt(status: S) -> None:
    case = incident(fault=F.NON_FINITE, attempt="lm-r2", attempt_number=2, **LOOKING)
    both = {"checkpoints": Known((checkpoint(90_000, attempt="lm-r2"), checkpoint(5_000, attempt="lm")))}
    bad = view(status, name="lm-r2", step=None, loss_state="nan")
    decision = look(case, seen(bad, **both))
    if decision.rule == "resubmit.prepare":  # one more look before it is given up
        decision = look(decision.incident, seen(bad, **both))
    assert decision.incident.phase in (Phase.HANDED_OVER, Phase.RESUBMITTING)
    assert not any(isinstance(action, StopJob | ResubmitJob) for action in decision.actions), decision.reason
    assert decision.rule in ("rollback.no_place", "resume.none_fit")


def test_a_bad_loss_that_begins_anew_ends_the_one_that_was_left_open_and_leaves_it_unused() -> None:
    left_open = incident(stretches=(Stretch(attempt="lm", from_step=28),))
    anew = with_stretch(left_open, Stretch(attempt="lm", from_step=88))
    assert anew.loss.stretches == (
        Stretch(attempt="lm", from_step=28, to_step=88),
        Stretch(attempt="lm", from_step=88),
    )
    from_before = with_stretch(left_open, Stretch(attempt="lm", from_step=20, to_step=40))
    assert from_before.loss.stretches == (Stretch(attempt="lm", from_step=20, to_step=40),)
    long_before = with_stretch(left_open, Stretch(attempt="lm", from_step=5, to_step=9))
    assert long_before.loss.stretches == (*left_open.loss.stretches, Stretch(attempt="lm", from_step=5, to_step=9))


def test_what_is_in_doubt_is_left_without_a_person_where_little_is_thrown_away() -> None:
    left_open = incident(stretches=(Stretch(attempt="lm", from_step=1000),))
    dead = view(S.FAILED, step=2000, loss_health="unknown", failure_reason="AlgorithmError: exit code: 1")
    near = look(left_open, seen(dead, **saves(900, 1990)))
    (sent,) = (action for action in near.actions if isinstance(action, ResubmitJob))
    assert (near.rule, sent.resume_step) == ("resubmit.now", Known(900))


@pytest.mark.parametrize("health", ["ok", "unknown"])
def test_a_run_whose_bad_loss_was_left_to_a_person_days_ago_is_not_sent_back_behind_it(health: str) -> None:
    left_open = incident(stretches=(Stretch(attempt="lm", from_step=1000),))
    dead = view(S.FAILED, step=100_000, loss_health=health, failure_reason="AlgorithmError: exit code: 1")
    prepared = look(left_open, seen(dead, **saves(900, 99_000)))
    decision = look(prepared.incident, seen(dead, **saves(900, 99_000)))
    assert (decision.rule, decision.incident.phase) == ("resume.in_doubt", Phase.HANDED_OVER), decision.reason
    nothing_newer = look(left_open, seen(dead, **saves(900)))
    assert nothing_newer.rule == "resubmit.now"
    still_bad = dataclasses.replace(dead, loss_health="spiking", onset_step=1000, judged_step=100_000)
    unasked = dataclasses.replace(DEFAULT_POLICY, approvals=Approvals(max_loss=timedelta(0)))
    goes_back = look(left_open, seen(still_bad, **saves(900, 99_000)), unasked)
    (sent,) = (action for action in goes_back.actions if isinstance(action, ResubmitJob))
    assert sent.resume_step == Known(900)
