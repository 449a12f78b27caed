"""Orders about a run on Slurm: stopped for good in every state of its job, kept away from nodes, moved if saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from chalicelib.domain.model.action import Done, ExcludeNodes, ResubmitJob
from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.node_actions import MoveRuns
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import DEFAULT_POLICY
from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.orders import Verb
from rekindle.protocol.signals import FaultClass
from tests.services.slurm_world import NODES, SlurmWorld


@pytest.fixture
def w() -> SlurmWorld:
    made = SlurmWorld()
    for _ in range(4):
        made.breathe()
    return made


def breathe(w: SlurmWorld, times: int) -> None:
    for _ in range(times):
        w.breathe()


def stop(w: SlurmWorld, *, checkpoint: bool = False) -> None:
    w.orders.stop(w.job_id, who="ada", key="s", checkpoint=checkpoint)


def is_over_for_good(w: SlurmWorld) -> None:
    w.settle()
    job = w.registry.get(w.job_id)
    assert (job.active, job.halted_by) == (False, "ada"), w.story()
    starts = len(w.model.jobs)
    alive = [job for job in w.model.jobs.values() if job.state in (SlurmState.RUNNING, SlurmState.PENDING)]
    assert alive == [], w.story()
    for fault in (FaultClass.SOFTWARE_CRASH, FaultClass.NODE_LOST, FaultClass.HANG):
        w.claim(job.current_attempt, fault)
    breathe(w, 10)
    assert len(w.model.jobs) == starts
    assert w.open_incidents == []


def nothing(w: SlurmWorld) -> None:
    del w


def crashed(w: SlurmWorld) -> None:
    w.crash()
    breathe(w, 1)


def hung(w: SlurmWorld) -> None:
    w.hang_run()
    breathe(w, 3)


def lost_a_node(w: SlurmWorld) -> None:
    w.lose(w.running[0].nodes[0])
    breathe(w, 2)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("trouble", [nothing, crashed, hung, lost_a_node])
def test_a_stop_ends_the_job_whatever_is_under_way_and_leaves_nothing_in_the_queue(
    w: SlurmWorld, trouble: Callable[[SlurmWorld], None], checkpoint: bool
) -> None:
    trouble(w)
    stop(w, checkpoint=checkpoint)
    is_over_for_good(w)
    assert w.last.outcome == "order.stop", w.story()


def test_a_stop_takes_what_an_earlier_stop_of_ours_has_left_held_in_the_queue(w: SlurmWorld) -> None:
    w.orders.resubmit(w.job_id, who="bob", key="r", from_step=None, skip=[])
    for _ in range(30):
        w.breathe(10)
        if w.last.phase in (Phase.STOPPING, Phase.RESUBMITTING):
            break
    stop(w)
    is_over_for_good(w)


def test_a_resubmission_brings_a_stopped_job_back(w: SlurmWorld) -> None:
    stop(w, checkpoint=True)
    is_over_for_good(w)
    w.orders.resubmit(w.job_id, who="bob", key="r", from_step=None, skip=[])
    w.settle()
    assert w.last.phase is Phase.RECOVERED, w.story()
    job = w.registry.get(w.job_id)
    assert (job.active, job.halted_by) == (True, "")
    assert len(w.running) == 1


# ---- nodes to avoid --------------------------------------------------------------------------------------------------


def test_a_resubmission_without_named_nodes_gets_none_of_them_and_keeps_away_from_them(w: SlurmWorld) -> None:
    on = w.running[0].nodes[0]
    w.orders.resubmit(w.job_id, who="ada", key="r", from_step=None, skip=[], exclude=[on, on])
    w.settle()
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert on not in w.running[0].nodes
    sent = [action for each in w.decisions for action in each.actions if isinstance(action, ResubmitJob)]
    assert sent[-1].exclude == (on,)
    assert not any(isinstance(action, ExcludeNodes) for each in w.decisions for action in each.actions), "never lifted"
    assert any(f"Not on {on}, as was ordered." in each.reason for each in w.decisions)


@pytest.mark.parametrize("nodes", [["ip-9"], ["ip-1", "a b"], ["$(rm)"], [f"n{number}" for number in range(17)]])
def test_nodes_that_do_not_exist_are_refused_by_their_place(w: SlurmWorld, nodes: list[str]) -> None:
    w.orders = _with_nodes(w)
    with pytest.raises(InvalidRequest) as refused:
        w.orders.resubmit(w.job_id, who="ada", key="r", from_step=None, skip=[], exclude=nodes)
    assert refused.value.field.startswith("exclude")
    assert w.open_incidents == []


def _with_nodes(w: SlurmWorld) -> Any:
    return dataclasses.replace(w.orders, head_nodes=w.head)


# ---- moved off a node ------------------------------------------------------------------------------------------------


def move(w: SlurmWorld, node: str) -> None:
    """As a node's own Incident asks for it (services.moves)."""
    w.intake.receive(
        Signal(
            kind=SignalKind.ORDER_RESUBMIT,
            source=SignalSource.OPERATOR,
            occurred_at=w.clock.now(),
            dedupe_key=f"move:inc-node:{node}",
            summary=f"ada ordered {node} to be repaired",
            job_id=w.job_id,
            attempt=w.registry.get(w.job_id).current_attempt,
            cluster="ml",
            node=node,
            fault=FaultClass.OPERATOR_ORDER,
            evidence={"who": "ada", "move": node},
        )
    )
    w.adopt()


def test_a_run_that_saves_goes_on_elsewhere(w: SlurmWorld) -> None:
    on = w.running[0].nodes[0]
    w.model.node_facts[on] = _drained(w, on)
    move(w, on)
    w.settle()
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert "order.move_saved" in w.rules()
    assert any(one.kind == "emergency" for one in w.mailbox.stored)


def test_a_run_that_cannot_save_is_left_running(w: SlurmWorld) -> None:
    before = w.live
    w.hung |= set(before)  # answers that it cannot; nobody has said that anything is wrong
    move(w, NODES[0])
    w.settle()
    assert w.last.outcome == "order.move_unsaved", w.story()
    assert w.live == before
    assert w.registry.get(w.job_id).active


def test_a_run_in_trouble_is_not_moved_but_recovered(w: SlurmWorld) -> None:
    w.hang_run()
    breathe(w, 1)
    move(w, NODES[0])
    w.settle()
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert w.last.order is None
    assert not any(rule.startswith("order.move") for rule in w.rules())


def test_a_run_that_ends_by_itself_while_it_is_asked_is_looked_at_for_its_own_sake(w: SlurmWorld) -> None:
    w.hung |= set(w.live)
    w.mailbox.replies.clear()
    move(w, NODES[0])
    w.crash()
    w.settle()
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert len(w.running) == 1


def test_without_an_intake_nobody_is_moved_and_that_is_said(w: SlurmWorld) -> None:
    action = MoveRuns(cluster="ml", node=NODES[0], number=1, who="ada", why="ordered")
    blind = dataclasses.replace(w.perform, intake=None)
    w.claim(w.job.attempt, FaultClass.NODE_HARDWARE, node="ip-2")
    w.deliver(w.air.pop())
    answer = blind.act(action, incident=w.last, policy=DEFAULT_POLICY, token="t")
    assert answer.done is Done.REFUSED


def test_stops_are_cancellations_and_never_holds(w: SlurmWorld) -> None:
    stop(w)
    is_over_for_good(w)
    verbs = {order.verb for order in w.head.first.values()}
    assert Verb.CANCEL in verbs
    assert Verb.HOLD not in verbs


def _drained(w: SlurmWorld, node: str) -> Any:
    return dataclasses.replace(w.model.node_facts[node], flags=("drain",), reason="rekindle:inc-node")
