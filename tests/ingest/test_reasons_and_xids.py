"""The two tables: what a job says it failed of, and what an Xid asks for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.domain.faults.failure_reasons import classify_failure_reason
from chalicelib.domain.faults.slurm_states import failure_of_end
from chalicelib.ingest import training_logs
from chalicelib.ingest.fields import Fields
from rekindle.protocol.cluster.documents import CauseDoc, SlurmState
from rekindle.protocol.signals import FaultClass
from rekindle.signatures import classify
from rekindle.signatures.rules import RULES, Rule
from rekindle.signatures.xids import (
    CONFLICTED,
    XID_FAULTS,
    FirstResponse,
    fault_of,
    find_xid,
    first_response,
    response_from_text,
)
from rekindle.slurm_agent.files.cause import of_text


@pytest.mark.parametrize("row", RULES, ids=lambda row: row.name)
def test_every_row_comes_to_the_same_on_each_path(row: Rule) -> None:
    """FailureReason, the Slurm agent's finding as it arrives, the log subscription and `classify`."""
    verdict = classify(row.example)
    stated = classify_failure_reason(row.example)
    found = of_text(" ".join(row.example.split("\n")).encode()).cause
    assert verdict.fault is not None
    assert found is not None
    arrived = CauseDoc.from_wire(json.loads(json.dumps(found.to_wire())))
    assert (arrived.label, arrived.fault, arrived.response) == (
        verdict.label.value,
        verdict.fault,
        verdict.first_response.value,
    )
    assert failure_of_end(SlurmState.FAILED, cause=arrived) == stated
    if verdict.fault not in (FaultClass.OPERATOR_ORDER, FaultClass.PLANNED_END):
        assert stated.fault is verdict.fault
    record = Fields("$", {"timestamp": 1_795_000_000_000, "message": row.example})
    (signal,) = training_logs.parse("lm-7b-a3/algo-1-1795168800", [record])
    assert (signal.evidence["label"], signal.evidence["first_response"]) == (
        verdict.label.value,
        verdict.first_response.value,
    )


@pytest.mark.parametrize(
    ("text", "fault", "rule"),
    [
        ("AlgorithmError: , exit code: 1", FaultClass.SOFTWARE_CRASH, "python_exception"),
        ("AlgorithmError: Exit Code: 139", FaultClass.SOFTWARE_CRASH, "segfault"),
        ("AlgorithmError: ValueError: Input contains NaN", FaultClass.SOFTWARE_CRASH, "python_exception"),
        ("AlgorithmError: KeyError: 'InternalServerError'", FaultClass.SOFTWARE_CRASH, "python_exception"),
        ("AlgorithmError: loss is information", FaultClass.SOFTWARE_CRASH, "python_exception"),
        ("AlgorithmError: lm loss: inf", FaultClass.NON_FINITE, "nan_loss"),
        ("AlgorithmError: found NaN in local grad norm", FaultClass.NON_FINITE, "nan_loss"),
        ("AlgorithmError: exitcode  : -9 (pid: 12)", FaultClass.SOFTWARE_CRASH, "killed_9"),
        ("AlgorithmError: NVRM: Xid (PCI:0000:44:00): 79, x", FaultClass.NODE_HARDWARE, "xid_79"),
        ("AlgorithmError: NVRM: Xid (PCI:0000:44:00): 31, x", FaultClass.SOFTWARE_CRASH, "xid_31"),
        ("CUDA out of memory on rank 3; NCCL timeout on rank 0", FaultClass.OUT_OF_MEMORY, "out_of_memory"),
        (
            "AlgorithmError: OSError: [Errno 116] Stale file handle, exit code: 1",
            FaultClass.PLATFORM_ERROR,
            "storage_io",
        ),
        (
            "AlgorithmError: RendezvousConnectionError: The connection to the C10d store has failed",
            FaultClass.PLATFORM_ERROR,
            "store",
        ),
        (
            "AlgorithmError: SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
            FaultClass.BAD_CHECKPOINT,
            "checkpoint_corrupt",
        ),
        (
            "AlgorithmError: _pickle.UnpicklingError: pickle data was truncated",
            FaultClass.BAD_CHECKPOINT,
            "checkpoint_corrupt",
        ),
        ("AlgorithmError: KeyboardInterrupt", FaultClass.SOFTWARE_CRASH, "user_cancelled"),
        ("AlgorithmError: CUDA error: device-side assert triggered", FaultClass.SOFTWARE_CRASH, "device_assert"),
        ("something else entirely", FaultClass.UNCLEAR, "unrecognised"),
        ("", FaultClass.UNCLEAR, "no_reason"),
        (None, FaultClass.UNCLEAR, "no_reason"),
    ],
)
def test_a_text_gets_its_class(text: str | None, fault: FaultClass, rule: str) -> None:
    verdict = classify_failure_reason(text)
    assert (verdict.fault, verdict.rule) == (fault, rule)


def test_bad_input_needs_a_person_and_a_crash_does_not() -> None:
    assert classify_failure_reason("ClientError: no such channel").person_needed
    assert not classify_failure_reason("AlgorithmError: , exit code: 1").person_needed


@given(st.text(max_size=6000))
def test_any_text_has_a_verdict(text: str) -> None:
    assert classify_failure_reason(text).rule


def test_a_long_hostile_text_is_read_in_bounded_time() -> None:
    for piece in ("NCCL ", "loss ", "checkpoint ", "Xid (", "RESOURCE_EXHAUSTED ", "changed from "):
        assert classify_failure_reason(piece * 20_000).rule


@pytest.mark.parametrize(
    ("xid", "response"),
    [
        (13, FirstResponse.RESTART_APP),
        (45, FirstResponse.LEAVE_ALONE),
        (48, FirstResponse.RESET_GPU),
        (63, FirstResponse.MONITOR),
        (64, FirstResponse.REPLACE),
        (74, FirstResponse.REBOOT),
        (79, FirstResponse.REBOOT),
        (94, FirstResponse.RESTART_APP),
        (154, FirstResponse.FOLLOW_TEXT),
        (777, FirstResponse.UNKNOWN),
    ],
)
def test_an_xid_has_its_first_response(xid: int, response: FirstResponse) -> None:
    assert first_response(xid) is response


def test_where_authorities_conflict_nothing_is_replaced_at_first_sight() -> None:
    assert all(first_response(xid) is not FirstResponse.REPLACE for xid in CONFLICTED)


def test_every_row_names_its_authorities() -> None:
    for xid, row in XID_FAULTS.items():
        assert row.xid == xid
        assert all((row.meaning, row.nvidia, row.eks, row.kit, row.health_check))


def test_an_unknown_xid_is_unclear_never_healthy() -> None:
    assert fault_of(777) is FaultClass.UNCLEAR
    assert fault_of(154, "no verdict here") is FaultClass.UNCLEAR
    assert fault_of(43) is None


@pytest.mark.parametrize(
    ("text", "xid"),
    [
        ("NVRM: Xid (PCI:0000:44:00): 79, pid=1", 79),
        ("NVRM: Xid (0000:44:00): 31", 31),
        ("XID Error 64", 64),
        ("Xid: 48", 48),
        ("maxid 12", None),
        ("Xid (PCI:0:0): none", None),
        ("", None),
    ],
)
def test_an_xid_is_found_in_a_sentence(text: str, xid: int | None) -> None:
    assert find_xid(text) == xid


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ("changed from 0x2 (Node Reboot Required) to 0x0 (None)", FirstResponse.LEAVE_ALONE),
        ("changed from 0x0 (None) to 0x1 (GPU Reset Required)", FirstResponse.RESET_GPU),
        ("changed from 0x0 (None) to 0x4 (Drain and Reset)", FirstResponse.RESET_GPU),
        ("changed from 0x0 (None) to 0x3 (Drain P2P)", FirstResponse.MONITOR),
        ("Node Reboot Required", FirstResponse.REBOOT),
        ("", FirstResponse.UNKNOWN),
    ],
)
def test_xid_154_says_what_to_do(text: str, response: FirstResponse) -> None:
    assert response_from_text(text) is response


# What other ranks, the launcher and Slurm print once a rank has failed for whatever reason.
CONSEQUENCES = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 600061 milliseconds",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "E0211 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 77)",
    "E0211 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) local_rank: 3 (pid: 77)",
    "slurmstepd: error: *** STEP 52110377.1 ON gn2301 CANCELLED AT 2024-01-09T11:02:41 ***",
    "WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers",
    "srun: error: gn2301: task 1: Exited with exit code 1",
)


@pytest.mark.long
@pytest.mark.parametrize("consequence", CONSEQUENCES, ids=lambda text: classify(text).label.value)
def test_a_cause_beside_its_consequence_is_the_verdict_on_each_path(consequence: str) -> None:
    """Whichever was printed first: another rank's time-out may stand above the line that tells why."""
    later, wrong = classify(consequence), []
    for row in RULES:
        cause = classify(row.example)
        if cause.order >= later.order:
            continue
        line = " ".join(row.example.split("\n"))
        for text in (f"{line}\n{consequence}\n", f"{consequence}\n{line}\n"):
            found = of_text(text.encode()).cause
            agent = found.label if found is not None else None
            stated = classify_failure_reason(text)
            records = [
                Fields("$", {"timestamp": 1_795_000_000_000 + at, "message": message})
                for at, message in enumerate(text.splitlines())
            ]
            signals = training_logs.parse("lm-7b-a3/algo-1-1795168800", records)
            is_log = signals[0].evidence["label"] == cause.label.value and not any(s.triggers for s in signals[1:])
            alone = classify_failure_reason(line)
            if (agent, is_log, stated) != (cause.label.value, True, alone):
                wrong.append((row.name, text, agent, [signal.evidence["label"] for signal in signals], stated))
    assert wrong == []
