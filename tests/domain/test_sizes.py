"""A started-again job runs on fewer nodes only where policy, script and Slurm's own reason all say so."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import ActionResult, Done, ResizeJob, read_action
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.start_view import StartView
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.run.sizes import fewest_nodes
from chalicelib.platforms.slurm.pending_reasons import wait_of
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW
from tests.domain.policies import changed
from tests.domain.slurm_looks import R1, case, decided, sees, start, try_of

HALF = changed(resubmission={"min_nodes_percent": 50.0})
RESIZE = ResizeJob(attempt=R1, handle="7", nodes_min=4, nodes_max=8, why="waits for nodes")


def waiting(minutes: int = 31, **more: Any) -> Incident:
    seen = {"seen_as": f"{R1}:{AttemptStatus.STARTING}", "seen_since": NOW - timedelta(minutes=minutes)}
    return case(Phase.VERIFYING, FaultClass.NODE_LOST, **(seen | more))


def view(reason: str = "Resources", **more: Any) -> Any:
    return start(AttemptStatus.STARTING, R1, pending_reason=reason, **({"node_count": 8, "min_nodes": 2} | more))


ASKED = {"tries": (try_of(nodes_min=4, nodes_max=8),)}
SMALL = {"tries": (try_of("slurm.ml.7-a2", nodes_min=4, nodes_max=8), try_of())}
ROWS: list[tuple[str, Incident, Any, Policy, str]] = [
    ("both allow it", waiting(), view(), HALF, "verify.smaller"),
    ("nodes are cordoned", waiting(), view("ReqNodeNotAvail, UnavailableNodes:ip-1"), HALF, "verify.smaller"),
    ("not yet", waiting(29), view(), HALF, "verify.queued"),
    ("the policy does not", waiting(), view(), DEFAULT_POLICY, "verify.queued"),
    ("the script does not", waiting(), view(min_nodes=None), HALF, "verify.queued"),
    ("the script needs all", waiting(), view(min_nodes=8), HALF, "verify.queued"),
    ("its turn has not come", waiting(), view("Priority"), HALF, "verify.queued"),
    ("it waits for another job", waiting(), view("Dependency"), HALF, "verify.queued"),
    ("its account has enough", waiting(), view("AssocGrpNodeLimit"), HALF, "verify.queued"),
    ("held", waiting(), view(held=True), HALF, "verify.held"),
    ("a reservation", waiting(), view("ReqNodeNotAvail, May be reserved for other job"), HALF, "verify.queued"),
    ("shadow", waiting(), view(), dataclasses.replace(HALF, shadow=True), "verify.queued"),
    ("once only", waiting(**ASKED), view(node_count=4), HALF, "verify.queued"),
    ("a small one by the share of the whole", waiting(**SMALL), view(node_count=4), HALF, "verify.queued"),
    ("the first start is its user's", waiting(tries=()), view(), HALF, "verify.queued"),
]


@pytest.mark.parametrize(
    ("incident", "seen", "policy", "rule"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_when_a_job_is_made_smaller(incident: Incident, seen: Any, policy: Policy, rule: str) -> None:
    decision = decided(incident, sees(seen), policy)
    assert decision.rule == rule, decision.reason
    assert any(isinstance(action, ResizeJob) for action in decision.actions) is (rule == "verify.smaller")


def test_it_is_told_and_remembered() -> None:
    decision = decided(waiting(), sees(view()), HALF)
    assert decision.actions[0] == RESIZE
    assert "fewer nodes" in decision.actions[1].title  # type: ignore[union-attr]  # the Notify
    last = decision.incident.resubmission.tries[-1]
    assert (last.nodes_min, last.nodes_max) == (4, 8)
    assert Incident.from_wire(decision.incident.to_wire()).resubmission.tries[-1] == last


@pytest.mark.parametrize(
    ("done", "rule", "actions"),
    [
        (Done.PENDING, "verify.smaller_again", ["ResizeJob"]),
        (Done.UNAVAILABLE, "verify.smaller_again", ["ResizeJob"]),
        (Done.REFUSED, "verify.smaller_refused", ["Notify"]),
        (Done.DONE, "verify.queued", []),
    ],
)
def test_what_became_of_it(done: Done, rule: str, actions: list[str]) -> None:
    results = (ActionResult(action="ResizeJob", done=done, detail="--ntasks-per-node"),)
    decision = decided(waiting(**ASKED), sees(view(), results=results), HALF)
    assert (decision.rule, [type(action).__name__ for action in decision.actions]) == (rule, actions)


@pytest.mark.parametrize(
    ("count", "least", "percent", "fewer"),
    [(8, 2, 50.0, 4), (8, 6, 50.0, 6), (7, 1, 50.0, 4), (8, 2, 1.0, 2), (8, 9, 50.0, None), (0, 1, 50.0, None)],
)
def test_the_comment_bounds_the_policy(count: int, least: int, percent: float, fewer: int | None) -> None:
    policy = changed(resubmission={"min_nodes_percent": percent})
    assert fewest_nodes(StartView(handle="7", node_count=count, min_nodes=least), policy) == fewer


def test_the_action_survives_the_wire() -> None:
    assert read_action(RESIZE.to_wire()) == RESIZE


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("Resources", True),
        ("ReqNodeNotAvail, UnavailableNodes:node[3-5]", True),
        ("ReqNodeNotAvail,_UnavailableNodes:node3", True),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", True),
        ("ReqNodeNotAvail", False),
        ("Priority", False),
        ("PartitionNodeLimit", False),
        ("", False),
        ("SomethingNew", False),
    ],
)
def test_which_reasons_mean_that_nodes_are_missing(reason: str, short: bool) -> None:
    assert wait_of(reason).is_short is short
