"""Log batches: bombs, cut batches, and the three shapes of the health agent's records."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from chalicelib.domain.model.errors import MalformedEvent, Noise
from chalicelib.domain.model.signal import SignalKind, SignalSource
from chalicelib.ingest import logs
from rekindle.protocol.signals import FaultClass
from tests.ingest import golden

NODE = "i-0a1b2c3d4e5f60718"
_STREAM = f"SagemakerHealthMonitoringAgent/gpu/{NODE}"


def _packed(text: bytes) -> dict[str, Any]:
    return {"awslogs": {"data": base64.b64encode(gzip.compress(text, mtime=0)).decode()}}


def _batch(*messages: Any, stream: str = _STREAM) -> dict[str, Any]:
    body = {
        "messageType": "DATA_MESSAGE",
        "owner": "111122223333",
        "logGroup": "/aws/sagemaker/Clusters/pretrain/k3v9m2x7q1ab",
        "logStream": stream,
        "logEvents": [
            {"id": str(i), "timestamp": 1795168800000 + i, "message": m if isinstance(m, str) else json.dumps(m)}
            for i, m in enumerate(messages)
        ],
    }
    return _packed(json.dumps(body).encode())


def _dcgm(number: int, **more: Any) -> dict[str, Any]:
    data = {"ErrNum": number, **more}
    return {"condition: ": "XID Error", "data: ": data, "HealthMonitoringAgentDetectionEvent": "HealthEvent"}


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    bomb = _packed(b" " * (200 * 1024 * 1024))
    assert len(bomb["awslogs"]["data"]) < 512 * 1024
    with pytest.raises(MalformedEvent, match=f"awslogs.data: holds more than {logs.MAX_TEXT_BYTES} bytes"):
        logs.parse(bomb)


def test_a_batch_just_below_the_limit_is_read() -> None:
    with pytest.raises(Noise, match="ordinary log line"):
        logs.parse(_batch("x" * (logs.MAX_TEXT_BYTES // 200), *["y" * 30_000] * 200))


def test_a_nested_record_is_an_ordinary_line_not_a_crash() -> None:
    with pytest.raises(Noise):
        logs.parse(_batch('{"a":' * 20_000))


def test_group_and_node_come_from_the_stream() -> None:
    signal = logs.parse(golden.load("logs_batch_hma_slurm_xid79"))[0]
    assert (signal.cluster, signal.node, signal.evidence["group"]) == ("pretrain", NODE, "gpu")
    assert (signal.evidence["xid"], signal.evidence["first_response"]) == (79, "reboot")


@pytest.mark.parametrize(
    "stream", ["LifecycleConfig/gpu/i-0a1b2c3d4e5f60718", "SagemakerHealthMonitoringAgent/gpu", "x"]
)
def test_other_streams_are_ordinary_lines(stream: str) -> None:
    with pytest.raises(Noise, match="ordinary log line"):
        logs.parse(_batch(_dcgm(79), stream=stream))


def test_the_agents_recommendation_wins_over_the_table() -> None:
    record = {
        "Event detail": {"Action": "replace", "Reason": "Pending", "Message": "NVRM: Xid (PCI:0000:44:00): 31, x"}
    }
    signal = logs.parse(_batch(record))[0]
    assert (signal.fault, signal.evidence["recommended"]) == (FaultClass.NODE_HARDWARE, "replace")
    assert signal.evidence["first_response"] == "restart_app"


@pytest.mark.parametrize(
    ("number", "fault", "triggers"),
    [
        (79, FaultClass.NODE_HARDWARE, True),
        (31, FaultClass.SOFTWARE_CRASH, False),
        (63, None, False),
        (43, None, False),
        (999, FaultClass.UNCLEAR, False),
    ],
)
def test_only_a_hardware_xid_triggers(number: int, fault: FaultClass | None, triggers: bool) -> None:
    signal = logs.parse(_batch(_dcgm(number)))[0]
    assert (signal.fault, signal.triggers) == (fault, triggers)


def test_a_detection_that_asks_for_nothing_is_unclear_not_a_replacement() -> None:
    record = {"condition: ": "Thermal", "data: ": {"temp": 91}, "HealthMonitoringAgentDetectionEvent": "HealthEvent"}
    signal = logs.parse(_batch(record))[0]
    assert (signal.fault, signal.triggers) == (FaultClass.UNCLEAR, False)


def test_xid_154_follows_its_own_text() -> None:
    text = "NVRM: Xid (PCI:0000:44:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    signal = logs.parse(_batch({"details: ": {"reason": "XidEvent", "message": text}}))[0]
    assert (signal.fault, signal.evidence["first_response"]) == (FaultClass.NODE_HARDWARE, "reboot")


def test_a_record_that_names_a_gpu_by_itself_marks_it() -> None:
    gpu = "GPU-5c89b0a6-2d1e-6a23-9a4b-0123456789ab"
    text = f"NVRM: GPU at PCI:0000:44:00: {gpu}; NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"
    signal = logs.parse(_batch({"details: ": {"reason": "XidEvent", "message": text}}))[0]
    assert signal.evidence["marks"] == [f"gpu:{gpu}"]
    assert "marks" not in logs.parse(_batch(_dcgm(79)))[0].evidence  # a PCI slot is alike on every node


def test_a_batch_of_many_records_gives_one_signal_each_and_repeats_share_a_key() -> None:
    signals = logs.parse(_batch(_dcgm(79), "noise", _dcgm(79), _dcgm(48), _dcgm(79, GpuId=3)))
    keys = [signal.dedupe_key for signal in signals]
    assert len(keys) == 4
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


_NODE_AGENT = f"HyperPodHangDetectionAgent/gpu/{NODE}"
_HUNG = {"event": "HangDetected", "job_id": 4711, "action": "notify", "node": "ip-10-1-2-3"}


@pytest.mark.parametrize(
    "record",
    [
        _HUNG,
        {"msg": "job is hung, no GPU activity for 900 s", "details": {"SlurmJobId": "4711"}},
        {"type": "hang", "slurm_job_id": "4711", "jobId": "4711"},
    ],
)
def test_hyperpods_hung_job_detection_claims_a_hang_of_a_slurm_job(record: dict[str, Any]) -> None:
    """Which members its record has is not documented: what names a job and a hang is read."""
    signal, other = logs.parse(_batch(record, record, stream=_NODE_AGENT))
    assert (signal.kind, signal.source, signal.fault) == (SignalKind.EXTERNAL_ALERT, SignalSource.LOGS, FaultClass.HANG)
    assert (signal.cluster, signal.attempt, signal.triggers) == ("pretrain", "slurm.pretrain.4711", True)
    assert signal.dedupe_key == other.dedupe_key  # every node of the job says so


@pytest.mark.parametrize(
    ("record", "stream"),
    [
        (_HUNG, "LifecycleConfig"),
        (_HUNG, f"job-4711/{NODE}"),
        ("HangDetected job_id=4711", _NODE_AGENT),
        ({"event": "started", "job_id": 4711}, _NODE_AGENT),
        ({"event": "changed", "job_id": 4711}, _NODE_AGENT),  # "hang" within another word
        ({"event": "HangDetected"}, _NODE_AGENT),
        ({"event": "HangDetected", "job_id": True}, _NODE_AGENT),
        ({"event": "HangDetected", "job_id": "4711_3"}, _NODE_AGENT),
        ({"event": "HangDetected", "job_id": 1, "other": {"job_id": 2}}, _NODE_AGENT),
        ({"event": "HangDetected", "job_id": "../4711"}, _NODE_AGENT),
        ({"hang": [[["deep"] * 3] * 3] * 3, "job_id": [4711]}, _NODE_AGENT),
    ],
)
def test_what_names_no_hang_of_one_job_is_an_ordinary_line(record: Any, stream: str) -> None:
    with pytest.raises(Noise):
        logs.parse(_batch(record, stream=stream))
