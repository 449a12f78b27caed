"""Whoever may put events on the bus changes nothing about a run whose own heartbeat denies them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from chalicelib.domain.faults.heartbeat_claims import CLAIMS, FRESH, WAIT, is_denied
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, TRAINING, AttemptStatus
from chalicelib.domain.model.signal import SignalKind, SignalSource
from rekindle.detectors.health import Health
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, checkpoint, incident, look, seen, signal, view

FORGED = {
    SignalKind.STALL: FaultClass.HANG,
    SignalKind.NON_FINITE: FaultClass.NON_FINITE,
    SignalKind.LOSS_SPIKE: FaultClass.LOSS_SPIKE,
    SignalKind.DIVERGENCE: FaultClass.DIVERGENCE,
    SignalKind.MONITOR_STARTED: FaultClass.SOFTWARE_CRASH,
}
WELL = {"heartbeat_at": NOW - timedelta(seconds=5), "work": TRAINING, "loss_state": "finite", "loss_health": Health.OK}
BORNE_OUT = {
    SignalKind.STALL: {"work": STALLED},
    SignalKind.NON_FINITE: {"loss_state": "nan", "loss_health": Health.NON_FINITE},
    SignalKind.LOSS_SPIKE: {"loss_health": Health.SPIKING},
    SignalKind.DIVERGENCE: {"loss_health": Health.DIVERGING},
}
SAID = {"step": 100, "onset_step": 100, "life": 2}


def test_every_claim_that_opens_an_incident_is_forged_here() -> None:
    assert {*FORGED, SignalKind.LOSS_RECOVERED} == CLAIMS


@pytest.mark.parametrize("kind", FORGED)
@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.WATCHING, Phase.HOLDING])
def test_a_claim_that_the_heartbeat_denies_is_waited_with_and_then_noted(kind: SignalKind, phase: Phase) -> None:
    forged = signal(FORGED[kind], kind=kind, step=100, evidence=SAID)
    case = incident(phase, signals=(forged,), phase_entered_at=NOW - timedelta(seconds=5))
    decision = look(case, seen(view(**WELL)))
    assert (decision.rule, decision.actions) == ("claim.denied", ())
    assert decision.incident.is_open
    assert not decision.incident.is_poisoned
    old = incident(Phase.HOLDING, signals=(forged,), phase_entered_at=NOW - WAIT)
    decision = look(old, seen(view(**WELL)))
    assert (decision.rule, decision.incident.phase) == ("claim.refuted", Phase.STOPPED)
    assert {type(action).__name__ for action in decision.actions} <= {"Notify"}


@pytest.mark.parametrize("kind", FORGED)
def test_a_claim_about_the_new_attempt_is_not_acted_on_either(kind: SignalKind) -> None:
    forged = signal(FORGED[kind], kind=kind, attempt="lm-r2", step=95, evidence=SAID)
    case = incident(Phase.VERIFYING, FaultClass.HANG, signals=(forged,))
    decision = look(case, seen(view(name="lm-r2", step=95, **WELL), new_signals=(forged,)))
    assert decision.incident.phase is Phase.VERIFYING
    assert not {type(action).__name__ for action in decision.actions} & {"StopJob", "RequestCheckpoint", "ResubmitJob"}
    assert not decision.incident.is_poisoned


# Of a true start anew see domain/test_lives.py.
@pytest.mark.parametrize("kind", sorted(FORGED.keys() - {SignalKind.MONITOR_STARTED}))
def test_the_same_claim_counts_once_the_heartbeat_bears_it_out(kind: SignalKind) -> None:
    true = signal(FORGED[kind], kind=kind, step=100, evidence=SAID)
    case = incident(Phase.HOLDING, signals=(true,))
    what = view(**{**WELL, "onset_step": 100, **BORNE_OUT[kind]})
    decision = look(case, seen(what, checkpoints=Known(())))
    assert not decision.rule.startswith("claim.")
    assert decision.incident.fault is FORGED[kind]


@pytest.mark.parametrize("kind", FORGED)
def test_of_a_run_that_sends_no_heartbeat_the_bus_is_all_there_is(kind: SignalKind) -> None:
    claim = signal(FORGED[kind], kind=kind, evidence=SAID)
    for silent in (view(), view(**{**WELL, "heartbeat_at": NOW - FRESH}), view(AttemptStatus.FAILED, **WELL)):
        assert not is_denied(claim, silent, now=NOW)


def test_only_what_came_over_the_bus_is_denied() -> None:
    claim = signal()
    assert is_denied(claim, view(**WELL), now=NOW)
    assert not is_denied(replace(claim, source=SignalSource.SWEEP), view(**WELL), now=NOW)


def test_another_source_that_says_the_same_is_heard() -> None:
    """A forged claim beside a true death of the run takes nothing from it."""
    forged = signal(FaultClass.NON_FINITE, kind=SignalKind.NON_FINITE)
    dead = view(AttemptStatus.FAILED, failure_reason="AlgorithmError: exit code 1", ended_at=NOW - MINUTE, **WELL)
    decision = look(incident(signals=(forged,)), seen(dead, checkpoints=Known((checkpoint(90),))))
    assert not decision.rule.startswith("claim.")


@pytest.mark.parametrize("kind", FORGED)
@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.CHECKPOINTING])
def test_a_claim_about_a_run_without_heartbeats_stops_it_only_after_a_person_has_agreed(
    kind: SignalKind, phase: Phase
) -> None:
    """It has no mailbox that could agree, and while it trains the platform does not: the bus is anybody's."""
    forged = signal(FORGED[kind], kind=kind, step=100, evidence=SAID)
    case = incident(phase, FORGED[kind], signals=(forged,), phase_entered_at=NOW - 60 * MINUTE)
    if case.halt.ask is not None:
        case = replace(case, halt=replace(case.halt, ask=replace(case.halt.ask, deadline_at=NOW)))
    told = {"checkpoints": Known((checkpoint(90), checkpoint(80))), "new_signals": (forged,)}
    decision = look(case, seen(view(step=None), **told))
    names = {type(action).__name__ for action in decision.actions}
    assert "StopJob" not in names, decision.rule
    if kind is SignalKind.MONITOR_STARTED and phase is Phase.CHECKPOINTING:
        assert decision.rule == "checkpoint.began_anew"  # what is said to have just been started is watched
        return
    own = seen(view(step=100, heartbeat_at=NOW, **BORNE_OUT.get(kind, {})), **told)
    if "StopJob" in {type(action).__name__ for action in look(case, own).actions}:
        assert (decision.rule, "AskApproval" in names) == ("guard.approval", True)


def test_a_metric_that_counts_bad_values_of_a_run_without_heartbeats_is_asked_about() -> None:
    """Whoever may send the monitor's metrics may send them in any Job's name: CloudWatch narrows to a namespace."""
    counted = signal(FaultClass.NON_FINITE, kind=SignalKind.STATE_REREAD, step=100, source=SignalSource.SWEEP)
    told = {"checkpoints": Known((checkpoint(90), checkpoint(80))), "new_signals": (counted,)}
    decision = look(incident(), seen(view(step=None), **told))
    assert decision.rule == "guard.approval"
    assert "AskApproval" in {type(action).__name__ for action in decision.actions}
