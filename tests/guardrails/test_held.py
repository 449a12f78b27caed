"""What a held decision keeps and says: only what its observation alone knew, and how the run or node is left."""

from __future__ import annotations

import dataclasses

import pytest

from chalicelib.domain.guards.held import keep_learned
from chalicelib.domain.model.incident import CheckpointAsk, Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.repair import NodeRepair, Route, Rung, Step, StepState
from chalicelib.domain.policy.document import DEFAULT_POLICY
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, checkpoint, incident, look, seen, view
from tests.domain.node_looks import OLD, look_at, node_incident, node_view, observed

SHADOW = dataclasses.replace(DEFAULT_POLICY, shadow=True)


def ordered(*states: StepState) -> Incident:
    steps = tuple(
        Step(number=number, rung=Rung.REBOOT, route=Route.API, at=NOW, instance_id=OLD, state=state)
        for number, state in enumerate(states, start=1)
    )
    return dataclasses.replace(node_incident(Phase.REPAIRING), repair=NodeRepair(steps=steps))


@pytest.mark.parametrize("state", list(StepState))
def test_only_an_open_order_takes_what_its_answer_was(state: StepState) -> None:
    kept = keep_learned(ordered(state), ordered(StepState.REFUSED))
    assert kept.repair is not None
    is_open = state in (StepState.ASKED, StepState.DOUBTFUL)
    assert kept.repair.steps[0].state is (StepState.REFUSED if is_open else state)


def test_an_order_that_the_held_decision_would_give_is_not_kept() -> None:
    kept = keep_learned(ordered(StepState.ASKED), ordered(StepState.ASKED, StepState.ASKED))
    assert kept.repair is not None
    assert len(kept.repair.steps) == 1


@pytest.mark.parametrize(("outcome", "other", "kept"), [(None, "", "saved"), ("late", "", "late"), (None, "x", None)])
def test_an_answer_is_kept_for_its_own_request_and_once(outcome: str | None, other: str, kept: str | None) -> None:
    def asked(request_id: str, outcome: str | None) -> Incident:
        ask = CheckpointAsk(
            request_id=request_id, attempt="lm", asked_at=NOW, deadline_at=NOW + MINUTE, outcome=outcome
        )
        return incident(Phase.CHECKPOINTING, FaultClass.HANG, ask=ask)

    result = keep_learned(asked("c1", outcome), asked(f"c1{other}", "saved"))
    assert result.halt.ask is not None
    assert result.halt.ask.outcome == kept


def test_shadow_mode_that_is_switched_on_late_says_how_a_run_is_left_and_how_a_node_is() -> None:
    ended = seen(view(AttemptStatus.FAILED), checkpoints=Known((checkpoint(90),)))
    run = look(incident(Phase.RESUBMITTING), ended, SHADOW)
    left = "lm has ended (failed) and nothing was started in its place"
    assert (run.rule, left in run.reason) == ("guard.shadow", True), run.reason
    node = look_at(node_incident(Phase.DRAINING), observed(node_view()), SHADOW)
    assert (node.rule, "Slurm: idle" in node.reason) == ("guard.shadow", True), node.reason
