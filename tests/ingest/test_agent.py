"""What the agent really sends is what the parser reads: its own documents and news, through the bus's envelope."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from chalicelib.domain.faults.slurm_states import STATUSES, fault_of_node
from chalicelib.domain.model.node_findings import FindingKind, finding_of
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.ingest import agent
from chalicelib.ingest.dispatch import parse
from chalicelib.services.sweep.clusters import signal_from_node
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, EndedBy, NodeFacts, SlurmState
from rekindle.protocol.cluster.orders import OrderResult, Outcome, Verb
from rekindle.protocol.signals import FaultClass
from rekindle.protocol.wire import WIRE_VERSION
from rekindle.slurm_agent.watching.node_facts import node_news
from tests.fakes.world import START
from tests.ingest import golden

ATTEMPT = "slurm.pretrain.4211"


def _said(detail_type: str, detail: dict[str, Any]) -> Signal:
    event = golden.load("agent_started") | {"detail-type": detail_type, "detail": json.loads(json.dumps(detail))}
    return parse(event)[0]


def _job(**changes: Any) -> Signal:
    doc = AttemptDoc(
        **{
            "attempt": ATTEMPT,
            "cluster": "pretrain",
            "slurm_job": 4211,
            "restart": 0,
            "state": SlurmState.RUNNING,
            "seen_at": START,
            "nodes": ("gpu-1",),
            **changes,
        }
    )
    detail = {"v": WIRE_VERSION} | doc.to_wire() | {"at": (START + timedelta(seconds=3)).isoformat()}
    return _said(agent.JOB, detail)


@pytest.mark.parametrize("state", list(SlurmState))
def test_a_whole_document_is_read_in_every_state(state: SlurmState) -> None:
    signal = _job(state=state, ended_by=EndedBy.SLURM, exit_code=1, exit_signal=9, job_id="slurm.pretrain.7")
    assert (signal.kind, signal.attempt, signal.job_id) == (SignalKind.ATTEMPT_STATE, ATTEMPT, "slurm.pretrain.7")
    assert signal.triggers == (signal.fault is not None)
    status = STATUSES.get(state)
    assert signal.triggers == (status is not None and status.value in ("failed", "expired", "gone"))


@pytest.mark.parametrize("job_id", ["slurm.other.7", "a-training-job"])
def test_news_is_never_of_another_clusters_job(job_id: str) -> None:
    assert _job(state=SlurmState.NODE_FAIL, job_id=job_id).job_id is None


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        (SlurmState.REQUEUED, None),
        (SlurmState.PREEMPTED, None),
        (SlurmState.FAILED, None),
        (SlurmState.NODE_FAIL, FaultClass.NODE_LOST),  # it goes on by itself, and its node is to be mended
    ],
)
def test_a_start_that_was_put_back_is_no_trouble_but_for_its_node(state: SlurmState, fault: FaultClass | None) -> None:
    signal = _job(state=state, successor=f"{ATTEMPT}.r1", requeued_by=EndedBy.SLURM)
    assert (signal.fault, signal.triggers) == (fault, fault is not None)
    assert signal.evidence["successor"] == f"{ATTEMPT}.r1"


def test_the_same_end_told_twice_is_one_fact_and_two_states_are_two() -> None:
    ends = {_job(state=SlurmState.FAILED, seen_at=START + timedelta(seconds=step)).dedupe_key for step in range(2)}
    assert len(ends) == 1
    assert _job(state=SlurmState.PENDING).dedupe_key != _job().dedupe_key


def test_the_heartbeat_at_the_start_is_read() -> None:
    doc = AgentDoc(cluster="pretrain", agent_id="a-1", at=START, started_at=START, problems=("x",))
    signal = _said(agent.STARTED, {"v": WIRE_VERSION} | doc.to_wire())
    assert (signal.kind, signal.cluster, signal.triggers) == (SignalKind.AGENT_NEWS, "pretrain", False)


@pytest.mark.parametrize("verb", list(Verb))
@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_answer_is_read(verb: Verb, outcome: Outcome) -> None:
    answer = OrderResult(token="t.1", verb=verb, cluster="pretrain", outcome=outcome, at=START, incident_id="inc-1")
    signal = _said(agent.ANSWERED, {"v": WIRE_VERSION} | answer.to_wire())
    assert (signal.kind, signal.triggers) == (SignalKind.ORDER_ANSWERED, False)
    assert signal.evidence["incident_id"] == "inc-1"


LOST, BROKEN = FaultClass.NODE_LOST, FaultClass.NODE_HARDWARE
GPUS, MEMORY = "gres/gpu count reported lower than configured (7 < 8)", "Low RealMemory (reported:9 < 99.00% of 20)"


@pytest.mark.parametrize(
    ("state", "flags", "reason", "fault"),
    [
        ("idle", (), "", None),
        ("allocated", ("not_responding",), "", None),
        ("mixed", ("drain",), "bob: bad fan", None),
        ("down", ("not_responding",), "Not responding", LOST),
        ("down*", (), "", LOST),
        ("down", (), "Action:Replace", LOST),
        ("down", (), "bob: bad fan", None),
        ("down", ("drain",), "bob: bad fan : Not responding", None),
        ("down", (), "bob: bad fan : Not responding", LOST),  # the drain was lifted, and its reason stayed
        ("down", ("drain",), "rekindle:inc-1 : Not responding", LOST),
        ("idle", ("fail",), "x y", BROKEN),
        ("down", ("drain", "fail"), "x y", BROKEN),
        ("down", ("reboot_issued",), "rekindle:inc-1 : reboot issued", None),
        ("idle", ("drain", "invalid_reg"), GPUS, BROKEN),
        ("mixed", ("drain", "invalid_registration"), MEMORY, BROKEN),  # as older agents wrote it
        ("idle", ("drain", "invalid_reg"), "rekindle:inc-1", None),
        ("idle", ("drain",), GPUS, None),  # they are back, and only the drain is left
        ("idle", ("drain", "invalid_reg"), "Low TmpDisk", None),
        ("down", ("maintenance", "reserved", "not_responding"), "Not responding", None),
        ("down", ("reserved", "not_responding"), "Not responding", None),
        ("down", ("drain", "reserved"), "rekindle:inc-1 : Not responding", LOST),  # we had found something before
        ("down", ("drain", "maintenance", "reserved"), "rekindle:inc-1 : Not responding", None),
        ("down", ("cloud", "powered_down"), "ResumeTimeout reached", None),
        ("idle", ("cloud", "powering_up"), "", None),
        ("idle", ("powered_down",), "", None),
        ("down", ("cloud", "planned"), "Not responding", LOST),
        ("future", (), "", None),
        ("unknown", (), "", None),
        ("new_word", ("newer",), "", None),
    ],
)
def test_a_node_s_state_says_what_is_wrong_with_it(
    state: str, flags: tuple[str, ...], reason: str, fault: FaultClass | None
) -> None:
    assert fault_of_node(state, flags, reason) is fault
    facts = NodeFacts(name="gpu-1", state=state, flags=flags, reason=reason, instance_id="i-0a1b2c3d4e5f60718")
    signal = _said(agent.NODE, node_news("pretrain", facts, START))
    assert (signal.kind, signal.node, signal.fault) == (SignalKind.NODE_STATE, "gpu-1", fault)
    assert signal.evidence["instance_id"] == "i-0a1b2c3d4e5f60718"
    assert "trouble" not in signal.evidence


@pytest.mark.parametrize(
    ("state", "flags", "reason", "since", "trouble"),
    [
        ("idle", ("drain",), "Kill task failed", None, "Kill task failed"),
        ("mixed", ("completing",), "", START, "COMPLETING since"),
        ("mixed", ("completing",), "", None, ""),
    ],
)
def test_a_cluster_s_own_trouble_with_a_node_is_told_without_a_fault(
    state: str, flags: tuple[str, ...], reason: str, since: datetime | None, trouble: str
) -> None:
    facts = NodeFacts(name="gpu-1", state=state, flags=flags, reason=reason, ending_since=since)
    for signal in (
        _said(agent.NODE, node_news("pretrain", facts, START)),
        signal_from_node("pretrain", facts, now=START),
    ):
        assert bool(trouble) == (signal is not None and signal.triggers)
        found = finding_of(signal) if signal is not None else None
        assert (found is not None and found.kind is FindingKind.CLUSTER_TROUBLE) == bool(trouble)
        assert not trouble or (signal is not None and trouble in signal.evidence["trouble"] and signal.fault is None)
