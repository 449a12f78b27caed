"""What is said of a node counts while it holds by what Slurm shows now."""

from dataclasses import replace
from datetime import timedelta

import pytest

from chalicelib.domain.model.action import StopJob
from chalicelib.domain.model.incident import CheckpointAsk, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import NodesSeen
from chalicelib.domain.model.node_findings import FindingKind, finding_of
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.node.claims import is_over
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, incident, look, seen, signal, view
from tests.domain.node_looks import NEW, OLD, facts, node_view, observed, told

REBOOT = told(SignalKind.NODE_HEALTH, fault=FaultClass.NODE_HARDWARE, repair_action="Reboot", instance_id=OLD)
REPLACE = told(SignalKind.NODE_HEALTH, fault=FaultClass.NODE_HARDWARE, repair_action="Replace", instance_id=OLD)
MARKED = told(SignalKind.NODE_STATE, fault=FaultClass.NODE_HARDWARE, state="idle", flags=["fail"])
AWAY = told(SignalKind.NODE_STATE, fault=FaultClass.NODE_LOST, state="down")
SUSPECT = told(SignalKind.NODE_SUSPECT, fault=FaultClass.NODE_HARDWARE)
OLD_SUSPECT = told(
    SignalKind.NODE_SUSPECT, fault=FaultClass.NODE_HARDWARE, reported_at=(NOW - 9 * MINUTE).isoformat(), instance_id=OLD
)
BOOTED = {"booted_at": NOW}
SEEN = {"seen_at": NOW}


@pytest.mark.parametrize(
    ("claim", "shown", "wanted"),
    [
        (REBOOT, facts(), False),
        (REBOOT, facts(booted_at=NOW - 2 * MINUTE), False),
        (REBOOT, facts(**BOOTED), True),
        (REPLACE, facts(**BOOTED), False),
        (REPLACE, facts(instance_id=NEW), True),
        (SUSPECT, facts(**BOOTED), True),
        (SUSPECT, facts(booted_at=NOW - 2 * MINUTE), False),
        (OLD_SUSPECT, facts(booted_at=NOW - 2 * MINUTE), True),
        (OLD_SUSPECT, facts(booted_at=NOW - 10 * MINUTE), False),
        (MARKED, facts(**SEEN), True),
        (MARKED, facts(), False),
        (MARKED, facts(seen_at=NOW - 2 * MINUTE), False),
        (MARKED, facts("idle", "fail", reason="Action:Reboot", **SEEN), False),
        (AWAY, facts("allocated", **SEEN), True),
        (AWAY, facts("down", **SEEN), False),
        (AWAY, None, False),
    ],
)
def test_a_claim_is_over_once_the_node_was_repaired_or_is_seen_well_since(
    claim: object, shown: object, wanted: bool
) -> None:
    assert is_over(claim, shown) is wanted  # type: ignore[arg-type]


def test_an_explicit_recommendation_counts_before_the_faults_name() -> None:
    said = {"repair_action": "Reboot", "fault_type": "NvidiaErrorTerminate"}
    found = finding_of(told(SignalKind.NODE_HEALTH, **said))
    assert found is not None
    assert found.kind is FindingKind.AGENT_REBOOT
    unnamed = finding_of(told(SignalKind.NODE_HEALTH, **(said | {"repair_action": "None"})))
    assert unnamed is not None
    assert unnamed.kind is FindingKind.AGENT_REPLACE


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.VERIFYING])
def test_no_run_is_stopped_for_a_node_that_was_rebooted_since(phase: Phase) -> None:
    name = "lm" if phase is Phase.OPEN else "lm-r2"
    late = replace(REBOOT, job_id="lm", attempt=name)
    case = incident(phase, signals=(late,), **({"fault": FaultClass.HANG} if phase is Phase.VERIFYING else {}))
    what = seen(
        view(AttemptStatus.RUNNING, name=name), nodes=Known(NodesSeen(facts=(facts(**BOOTED),))), new_signals=(late,)
    )
    decision = look(case, what)
    assert not any(isinstance(action, StopJob) for action in decision.actions)
    assert decision.incident.phase in (Phase.STOPPED, Phase.VERIFYING)


def test_a_node_that_has_booted_since_is_not_rebooted_again() -> None:
    late = told(SignalKind.NODE_HEALTH, repair_action="Reboot", instance_id=OLD, ago=timedelta(minutes=5))
    case = incident(job_id=None, cluster="pretrain", node="ip-10-1-0-2", attempt=None, attempt_number=0)
    decision = look(case, observed(node_view(facts(booted_at=NOW - MINUTE)), late))
    assert (decision.rule, decision.incident.phase) == ("node.theirs_done", Phase.RECOVERED)


CLEAR = told(SignalKind.NODE_HEALTH, fault=None, ago=-MINUTE, health_status="Healthy", instance_id=OLD)
OF_THE_RUN = tuple(replace(signal, job_id="lm", attempt="lm") for signal in (REBOOT, CLEAR))


@pytest.mark.parametrize(
    ("claim", "clear", "wanted"),
    [
        (REBOOT, CLEAR, True),
        (REPLACE, CLEAR, True),
        (REBOOT, replace(CLEAR, occurred_at=REBOOT.occurred_at), False),
        (REBOOT, replace(CLEAR, evidence={"health_status": "Healthy", "instance_id": NEW}), False),
        (REBOOT, replace(CLEAR, evidence={"health_status": "Unhealthy", "instance_id": OLD}), False),
        (AWAY, CLEAR, False),
    ],
)
def test_what_hyperpods_agents_say_is_over_once_they_take_it_back(claim: Signal, clear: Signal, wanted: bool) -> None:
    assert is_over(claim, None, (claim, clear)) is wanted


@pytest.mark.parametrize(
    ("phase", "rule"),
    [
        (Phase.OPEN, "heal.node_mended"),
        (Phase.CHECKPOINTING, "checkpoint.node_mended"),
        (Phase.STOPPING, "stop.moves_again"),
    ],
)
def test_a_run_is_left_alone_once_the_claim_against_its_node_is_taken_back(phase: Phase, rule: str) -> None:
    claim, clear = OF_THE_RUN
    ask = CheckpointAsk(request_id="inc-lm-1-c1", attempt="lm", asked_at=NOW, deadline_at=NOW + 5 * MINUTE)
    case = incident(
        phase,
        fault=FaultClass.NODE_HARDWARE,
        signals=(claim, clear),
        ask=ask if phase is Phase.CHECKPOINTING else None,
        stop_asked_at=NOW - 10 * MINUTE,
    )
    decision = look(case, seen(view(AttemptStatus.RUNNING)))
    assert decision.rule == rule
    assert not any(isinstance(action, StopJob) for action in decision.actions)


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.HOLDING, Phase.CHECKPOINTING, Phase.STOPPING])
def test_a_stall_that_stands_is_what_is_left_of_a_claim_against_a_node_that_is_over(phase: Phase) -> None:
    claim, clear = OF_THE_RUN
    ask = CheckpointAsk(request_id="inc-lm-1-c1", attempt="lm", asked_at=NOW, deadline_at=NOW + 5 * MINUTE)
    case = incident(
        phase,
        fault=FaultClass.NODE_HARDWARE,
        signals=(claim, clear, signal(step=100, at=NOW)),
        ask=ask if phase is Phase.CHECKPOINTING else None,
    )
    left = FaultClass.NODE_HARDWARE if phase is Phase.STOPPING else FaultClass.HANG  # what is done for is not renamed
    assert look(case, seen(view(step=100))).incident.fault is left
    moved_on = look(case, seen(view(step=102, heartbeat_at=NOW)))
    assert moved_on.incident.fault is FaultClass.NODE_HARDWARE


@pytest.mark.parametrize(
    ("phase", "watched", "step", "heartbeat", "rule"),
    [
        (Phase.OPEN, None, 100, 0, "claim.late"),
        (Phase.HOLDING, None, 100, 0, "claim.late"),
        (Phase.HOLDING, 1, 100, 0, "claim.late"),
        (Phase.HOLDING, 60, 101, 0, "claim.late_limit"),
        (Phase.HOLDING, 60, 100, 0, "playbook.checkpoint"),
        (Phase.HOLDING, 60, 100, 61, "claim.late_limit"),
    ],
    ids=["at once", "held for another claim", "watched", "it goes on", "it stands still", "no heartbeat since"],
)
def test_a_claim_that_is_heard_late_waits_for_its_being_taken_back(
    phase: Phase, watched: int | None, step: int, heartbeat: int, rule: str
) -> None:
    opened_at = NOW - 60 * MINUTE if phase is Phase.HOLDING else NOW
    claim = replace(REBOOT, job_id="lm", attempt="lm", occurred_at=opened_at - 30 * MINUTE)
    case = incident(
        phase,
        fault=FaultClass.NODE_HARDWARE,
        signals=(claim,),
        opened_at=opened_at,
        phase_entered_at=opened_at,
        watch_at=None if watched is None else NOW - watched * MINUTE,
        watch_step=Known(100),
    )
    there = view(AttemptStatus.RUNNING, step=step, heartbeat_at=NOW - heartbeat * MINUTE)
    assert look(case, seen(there)).rule == rule
