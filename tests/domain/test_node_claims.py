"""What is said of a node counts while it holds by what Slurm shows now."""

from dataclasses import replace
from datetime import timedelta

import pytest

from chalicelib.domain.actions import StopJob
from chalicelib.domain.faults import FaultClass
from chalicelib.domain.incidents import Phase
from chalicelib.domain.known import Known
from chalicelib.domain.node_claims import is_over
from chalicelib.domain.node_findings import FindingKind, finding_of
from chalicelib.domain.observations import AttemptStatus
from chalicelib.domain.signals import SignalKind
from tests.domain.looks import MINUTE, NOW, incident, look, seen, view
from tests.domain.node_looks import NEW, OLD, facts, node_view, observed, told

REBOOT = told(SignalKind.NODE_HEALTH, fault=FaultClass.NODE_HARDWARE, repair_action="Reboot", instance_id=OLD)
REPLACE = told(SignalKind.NODE_HEALTH, fault=FaultClass.NODE_HARDWARE, repair_action="Replace", instance_id=OLD)
MARKED = told(SignalKind.NODE_STATE, fault=FaultClass.NODE_HARDWARE, state="idle", flags=["fail"])
AWAY = told(SignalKind.NODE_STATE, fault=FaultClass.NODE_LOST, state="down")
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
    what = seen(view(AttemptStatus.RUNNING, name=name), nodes=Known((facts(**BOOTED),)), new_signals=(late,))
    decision = look(case, what)
    assert not any(isinstance(one, StopJob) for one in decision.actions)
    assert decision.incident.phase in (Phase.STOPPED, Phase.VERIFYING)


def test_a_node_that_has_booted_since_is_not_rebooted_again() -> None:
    late = told(SignalKind.NODE_HEALTH, repair_action="Reboot", instance_id=OLD, ago=timedelta(minutes=5))
    case = incident(job_id=None, cluster="pretrain", node="ip-10-1-0-2", attempt=None, attempt_number=0)
    decision = look(case, observed(node_view(facts(booted_at=NOW - MINUTE)), late))
    assert (decision.rule, decision.incident.phase) == ("node.theirs_done", Phase.RECOVERED)
