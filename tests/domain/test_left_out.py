"""Nodes that a start leaves out without a name; a wait for Spot; who hears of runs that ended alike."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import Notify, ResubmitJob, Severity
from chalicelib.domain.model.incident import Failure, Phase
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import NodesSeen
from chalicelib.domain.model.observation import AttemptStatus, JobRecord
from chalicelib.domain.model.start_view import BadNode
from chalicelib.domain.run.bad_nodes import with_bad_nodes
from chalicelib.domain.run.job_record import job_record
from rekindle.protocol.signals import FaultClass as F
from tests.domain import slurm_looks
from tests.domain.looks import MINUTE, NOW, a_try, incident, look, seen, signal, view
from tests.domain.test_restarts import A_JOB

NODES = ("ip-1", "ip-2", "ip-3", "ip-4")
S = AttemptStatus


def excluded(fault: F, before: tuple[str, ...], idle: int, machine: str = "") -> tuple[str, ...]:
    tries = (slurm_looks.try_of(left_nodes=before, ended=True),)
    evidence = {"instance_id": "i-old"}
    claims = (signal(F.NODE_HARDWARE, attempt=slurm_looks.R0, node="ip-9", evidence=evidence),) if machine else ()
    case = slurm_looks.case(
        Phase.RESUBMITTING, fault, attempt=slurm_looks.R1, tries=tries, not_before=NOW, signals=claims
    )
    dead = slurm_looks.start(S.FAILED, slurm_looks.R1, nodes=NODES)
    facts = (slurm_looks.node("ip-9", instance_id=machine or None),)
    spares = Known(NodesSeen(facts=facts, total=8, idle=idle))
    decision = slurm_looks.decided(
        case, dataclasses.replace(slurm_looks.sees(dead, checkpoints=Known(())), nodes=spares)
    )
    (order,) = (action for action in decision.actions if isinstance(action, ResubmitJob))
    return order.exclude


@pytest.mark.parametrize(
    ("fault", "before", "idle", "half"),
    [
        (F.NODE_HARDWARE, NODES, 4, ("ip-1", "ip-2")),
        (F.NODE_HARDWARE, NODES, 1, ("ip-1",)),
        (F.NODE_HARDWARE, NODES, 0, ()),
        (F.NODE_HARDWARE, (), 4, ()),  # it died of hardware once
        (F.NODE_HARDWARE, ("ip-3", "ip-4", "ip-9"), 4, ("ip-3", "ip-4")),  # what both deaths share
        (F.NODE_HARDWARE, ("ip-8", "ip-9"), 4, ()),
        (F.SOFTWARE_CRASH, NODES, 4, ()),
    ],
)
def test_a_second_death_of_hardware_on_one_set_leaves_half_of_it_out_as_far_as_spares_allow(
    fault: F, before: tuple[str, ...], idle: int, half: tuple[str, ...]
) -> None:
    assert excluded(fault, before, idle) == half


def test_a_death_on_a_node_that_was_named_and_replaced_since_makes_no_suspects_of_the_others() -> None:
    assert excluded(F.NODE_HARDWARE, ("ip-1", "ip-9"), 4) == ("ip-1",)
    assert "ip-1" in excluded(F.NODE_HARDWARE, ("ip-1", "ip-9"), 4, machine="i-old")
    assert "ip-1" not in excluded(F.NODE_HARDWARE, ("ip-1", "ip-9"), 4, machine="i-new")


def test_the_nodes_that_two_failures_of_hardware_share_are_left_out_before_what_several_hangs_had() -> None:
    hung, failed = ("ip-2", "ip-7", "ip-8"), ("ip-1", "ip-2", "ip-9")
    tries = (slurm_looks.try_of(clone_of="3", left_nodes=hung), slurm_looks.try_of(left_nodes=failed, ended=True))
    why = Failure(attempt=slurm_looks.R0, signature="uncorrectable ECC error", step=Known(20))
    assert ordered_after(F.NODE_HARDWARE, tries=tries, died_on=(hung, hung)).left_out == ("ip-2",)
    both = ordered_after(F.NODE_HARDWARE, tries=tries, failures=(why,), died_on=(hung, hung))
    assert set(both.left_out) == {"ip-1", "ip-2"}


def waiting(minutes: int, phase: Phase) -> Any:
    base = incident(phase, F.SOFTWARE_CRASH, phase_entered_at=NOW - minutes * MINUTE)
    return base.changed(seen_as=f"{base.attempt}:repairing", seen_since=NOW - minutes * MINUTE)


@pytest.mark.parametrize("phase", [Phase.HOLDING, Phase.VERIFYING])
def test_a_wait_for_spot_is_left_to_its_users_own_limit_and_told_once(phase: Phase) -> None:
    case = waiting(300, phase)
    spot = view(S.REPAIRING, name=case.attempt, detail="InProgress/Interrupted")
    decision = look(case, seen(spot))
    assert decision.rule == "wait.spot"
    assert [action.severity for action in decision.actions if isinstance(action, Notify)] == [Severity.WARNING]
    assert not look(decision.incident, seen(spot)).actions
    assert look(waiting(300, phase), seen(view(S.REPAIRING, name=case.attempt))).rule == "defer.grace_over"


def test_pages_of_runs_that_ended_in_the_same_words_are_alike() -> None:
    dead = view(S.FAILED, name="lm-r2", step=20, failure_reason="boom", ended_at=NOW)
    before = (Failure(attempt="lm", signature="boom", step=Known(20)),)
    case = incident(Phase.VERIFYING, F.SOFTWARE_CRASH, failures=before, tries=(a_try(ended=True),))
    (page,) = (action for action in look(case, seen(dead)).actions if isinstance(action, Notify))
    assert (page.severity, page.alike) == (Severity.PAGE, "crash.same_again: boom")


@pytest.mark.parametrize(
    ("item", "shown", "is_kept"),
    [
        ({}, ("idle",), False),  # it was away, was given back, and is in service
        ({}, ("allocated",), False),
        ({}, ("idle", "drain"), True),  # its own Incident still has it
        ({}, ("down", "not_responding"), True),
        ({"reported_at": NOW - MINUTE}, ("idle",), True),  # its cordon may be under way
        ({"reported_at": None}, ("idle",), True),
        ({"is_away": False}, ("idle",), True),  # nothing withdraws what was found of its hardware
        ({"is_reported": False, "reported_at": NOW}, ("idle", "drain"), False),  # back before anything was done
    ],
)
def test_a_node_that_its_own_incident_gave_back_is_no_bad_one(
    item: dict[str, Any], shown: tuple[str, ...], is_kept: bool
) -> None:
    usual: dict[str, Any] = {"node": "ip-2", "why": "down", "is_away": True, "is_reported": True}
    bad = BadNode(**(usual | {"reported_at": NOW - 10 * MINUTE} | item))
    nodes = Known(NodesSeen(facts=(slurm_looks.node("ip-2", *shown),), total=4))
    what = dataclasses.replace(slurm_looks.sees(slurm_looks.start(S.RUNNING, slurm_looks.R1)), nodes=nodes)
    case = slurm_looks.case(Phase.VERIFYING, attempt=slurm_looks.R1, bad_nodes=(bad,))
    assert (with_bad_nodes(case, what).resubmission.bad_nodes == (bad,)) is is_kept


DEAD = slurm_looks.start(S.FAILED, slurm_looks.R1, nodes=NODES)
SPARES = Known(NodesSeen(facts=(), total=8, idle=4))


def ordered_after(fault: F, tries: Any = (), failures: Any = (), **record: Any) -> ResubmitJob:
    """The order of an Incident with these tries and failures, for which the Job's record holds `record`."""
    done = {"tries": tries, "failures": failures}
    case = slurm_looks.case(Phase.RESUBMITTING, fault, attempt=slurm_looks.R1, not_before=NOW, **done)
    what = slurm_looks.sees(DEAD, checkpoints=Known(()), record=JobRecord(**record))
    decision = slurm_looks.decided(case, dataclasses.replace(what, nodes=SPARES))
    (order,) = (action for action in decision.actions if isinstance(action, ResubmitJob))
    return order


@pytest.mark.parametrize(
    ("fault", "record", "left_out"),
    [
        (F.NODE_HARDWARE, {"died_on": (NODES,)}, ("ip-1", "ip-2")),  # in an earlier Incident of the day
        (F.NODE_HARDWARE, {"died_on": (NODES, ("ip-2", "ip-7"))}, ("ip-2",)),
        # One of the deaths had another reason: as many of them as not share the newest one's nodes.
        (F.NODE_HARDWARE, {"died_on": (("ip-1", "ip-7"), ("ip-3", "ip-4"))}, ("ip-3", "ip-4")),
        (F.NODE_HARDWARE, {"died_on": (NODES,), "left_out": ("ip-8",)}, ("ip-1", "ip-2")),  # it was not ip-8
        (F.SOFTWARE_CRASH, {"died_on": (NODES,)}, ()),
        (F.SOFTWARE_CRASH, {"left_out": ("ip-8", "ip-9")}, ("ip-8", "ip-9")),
    ],
)
def test_what_a_job_s_attempts_died_on_and_left_out_outlives_the_incident(
    fault: F, record: dict[str, Any], left_out: tuple[str, ...]
) -> None:
    order = ordered_after(fault, **record)
    assert (order.exclude, order.left_out) == (left_out, left_out)
    assert order.left_nodes == (NODES if fault is F.NODE_HARDWARE else ())


def test_the_job_s_record_holds_the_suspects_of_the_day_s_attempts() -> None:
    case = incident(Phase.HOLDING, F.SOFTWARE_CRASH)
    old, one, own, newest = (
        Attempt(job_id="lm", number=number, name=f"lm-r{number}", submitted_at=NOW - ago, incident_id=by, **nodes)
        for number, (ago, by, nodes) in enumerate(
            (
                (timedelta(hours=25), "inc-1", {"left_nodes": ("ip-1", "ip-2")}),
                (timedelta(hours=2), "inc-2", {"left_nodes": ("ip-3", "ip-4")}),
                (timedelta(hours=1), case.incident_id, {"left_nodes": ("ip-5", "ip-6")}),
                (MINUTE, "inc-2", {"left_out": ("ip-3",)}),
            ),
            start=2,
        )
    )
    record = job_record(A_JOB, [old, one, own, newest], case, Known(view(S.FAILED)), now=NOW)
    assert (record.died_on, record.left_out) == ((("ip-3", "ip-4"),), ("ip-3",))
