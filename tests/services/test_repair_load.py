"""What else of a cluster's Incidents tells of one node."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.repair import RUN_LIVES, NodeRepair, Route, Rung, Step, StepState
from chalicelib.domain.model.signal import SignalKind
from chalicelib.services.observe.repair_load import RepairLoad
from rekindle.protocol.cluster.documents import NodeFacts, NodesDoc
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, incident, signal

AWAY, BUSY, OTHER = "gpu-1", "gpu-2", "gpu-3"


def lost(node: str, *, ago: timedelta = 10 * MINUTE, **more: object) -> Incident:
    """A run's Incident: its cluster has said that it lost the run's node."""
    said = signal(FaultClass.NODE_LOST, kind=SignalKind.NODE_STATE, at=NOW - ago, node=node, cluster="ml")
    return incident(fault=FaultClass.NODE_LOST, signals=(said,), **({"cluster": "ml"} | more))  # type: ignore[arg-type]


GONE_ON = {"phase": Phase.RECOVERED, "closed_at": NOW - MINUTE, "outcome": "healed"}
WEIGHED = {"phase": Phase.HOLDING, "watch_at": NOW - MINUTE}


@pytest.mark.parametrize(
    ("one", "doubted"),
    [
        (lost(BUSY, **GONE_ON), True),
        (lost(BUSY, **WEIGHED), True),
        (lost(BUSY, **GONE_ON | {"closed_at": NOW - 20 * MINUTE}), False),
        (lost(BUSY, ago=16 * MINUTE, **GONE_ON), False),
        (lost(OTHER, **GONE_ON), False),
        (lost(AWAY, **GONE_ON), False),
        (lost(BUSY, **GONE_ON | {"cluster": "another"}), False),
    ],
    ids=["gone on", "weighed", "before it", "not at once", "reached again", "the node itself", "another cluster's"],
)
def test_a_run_that_goes_on_where_the_cluster_reaches_no_node_puts_its_word_in_doubt(
    one: Incident, doubted: bool
) -> None:
    assert doubters(one, ()) == (("lm",) if doubted else ())


@pytest.mark.parametrize("repaired_ago", [20, 5])
def test_so_does_one_on_a_node_that_was_lost_since_the_repair_of_which_the_cluster_tells(repaired_ago: int) -> None:
    one = lost(BUSY, ago=8 * MINUTE, **GONE_ON)
    reboot = Step(number=1, rung=Rung.REBOOT, route=Route.API, at=NOW - repaired_ago * MINUTE, state=StepState.TAKEN)
    assert doubters(one, (reboot,), opened_at=NOW - 30 * MINUTE) == (("lm",) if repaired_ago == 20 else ())


@pytest.mark.parametrize("outcome", [RUN_LIVES, "return.done"])
def test_so_does_one_that_went_on_while_an_earlier_incident_was_about_the_same_silence(outcome: str) -> None:
    """The run on it had gone on, and has ended since for another reason."""
    one = lost(BUSY, ago=60 * MINUTE, **GONE_ON | {"closed_at": NOW - 59 * MINUTE})
    ended = {"phase": Phase.HANDED_OVER, "closed_at": NOW - 58 * MINUTE, "outcome": outcome}
    before = incident(job_id=None, cluster="ml", node=AWAY, opened_at=NOW - 60 * MINUTE, **ended)
    assert doubters(one, (), before) == (("lm",) if outcome == RUN_LIVES else ())


def doubters(one: Incident, steps: tuple[Step, ...], *before: Incident, **more: object) -> tuple[str, ...]:
    repair = NodeRepair(steps=steps)
    away = incident(fault=FaultClass.NODE_LOST, job_id=None, cluster="ml", node=AWAY, repair=repair, **more)
    nodes = tuple(
        NodeFacts(
            name=name, state="idle" if name == OTHER else "down", flags=() if name == OTHER else ("not_responding",)
        )
        for name in (AWAY, BUSY, OTHER)
    )
    listed = Known(NodesDoc(cluster="ml", seen_at=NOW, nodes=nodes))
    opened, closed = ([one], []) if one.is_open else ([], [one])
    return RepairLoad(opened=opened, closed=[*closed, *before], now=NOW).load_for(away, listed).doubted_by
