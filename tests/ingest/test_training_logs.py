"""What a training job prints becomes Signals: few, the cause first, and none for ordinary lines."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.domain.model.errors import Noise, Skip
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.ingest import logs
from chalicelib.ingest.training_logs import MAX_SIGNALS
from rekindle.protocol.signals import FaultClass
from tests.signatures.corpus_benign import BENIGN_LINES
from tests.signatures.corpus_faults import FAULTS

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
TIMEOUT = "[rank{0}]:[E ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout"
ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


def batch(*messages: str, stream: str = "lm-7b-a3/algo-2-1795168800", group: str = LOG_GROUP) -> dict[str, Any]:
    body = {
        "messageType": "DATA_MESSAGE",
        "owner": "111122223333",
        "logGroup": group,
        "logStream": stream,
        "logEvents": [
            {"id": str(place), "timestamp": 1795168800000 + place, "message": message}
            for place, message in enumerate(messages)
        ],
    }
    return {"awslogs": {"data": base64.b64encode(gzip.compress(json.dumps(body).encode(), mtime=0)).decode()}}


def signals(*messages: str, **where: str) -> list[Signal]:
    return logs.parse(batch(*messages, **where))


def test_job_and_instance_come_from_the_stream() -> None:
    (signal,) = signals("step 4120 loss nan")
    assert (signal.kind, signal.attempt, signal.node) == (SignalKind.TRAINING_LOG, "lm-7b-a3", "algo-2")
    assert (signal.fault, signal.triggers) == (FaultClass.NON_FINITE, True)
    assert (signal.evidence["label"], signal.evidence["step"]) == ("nan_loss", 4120)
    assert signal.evidence["first_response"] == "roll_back"


def test_ordinary_lines_make_no_signal() -> None:
    with pytest.raises(Noise, match="ordinary log line"):
        signals(*BENIGN_LINES)


@pytest.mark.parametrize("stream", ["lm-7b-a3", "lm-7b-a3/data-log", "/algo-1", "a" * 64 + "/algo-1-1", "x/y/algo-1-2"])
def test_a_stream_that_names_no_training_instance_is_passed_over(stream: str) -> None:
    with pytest.raises(Noise):
        signals(ECC, stream=stream)


def test_another_log_group_is_not_read_as_a_training_job() -> None:
    with pytest.raises(Noise):
        signals(ECC, group="/aws/sagemaker/ProcessingJobs")


def test_the_cause_comes_first_and_its_echoes_do_not_trigger() -> None:
    found = signals(*(TIMEOUT.format(rank) for rank in range(8)), ECC, "Traceback (most recent call last):")
    assert [signal.evidence["label"] for signal in found] == [
        "ecc_uncorrectable",
        "nccl_timeout",
        "python_exception_user_code",
    ]
    assert [signal.triggers for signal in found] == [True, False, False]
    assert [signal.evidence.get("is_echo") for signal in found] == [None, True, True]
    assert found[1].evidence["lines"] == 8
    assert "nccl_timeout (8" in found[0].evidence["cause"]
    assert found[0].evidence["rank"] == 3


def test_timeouts_alone_are_a_hang_and_one_fact_on_whatever_instance() -> None:
    first = signals(TIMEOUT.format(0))[0]
    second = signals(TIMEOUT.format(9), stream="lm-7b-a3/algo-7-1795168800")[0]
    assert (first.fault, first.triggers) == (FaultClass.HANG, True)
    assert first.dedupe_key == second.dedupe_key
    assert signals(ECC)[0].dedupe_key != signals(ECC, stream="lm-7b-a3/algo-7-1795168800")[0].dedupe_key


@pytest.mark.parametrize("text", ["KeyError: 'labels'", "CUDA out of memory. Tried to allocate", "Segmentation fault"])
def test_what_ends_the_job_by_itself_is_evidence_and_triggers_nothing(text: str) -> None:
    (signal,) = signals(text)
    assert signal.fault is not None
    assert not signal.triggers


@pytest.mark.parametrize(
    "text", ["KeyboardInterrupt", "NVRM: Xid (PCI:0:1): 63, Row Remapper: New row marked for remapping"]
)
def test_a_persons_will_and_a_mere_record_are_news(text: str) -> None:
    (signal,) = signals(text)
    assert (signal.fault, signal.triggers) == (None, False)


def test_a_batch_of_everything_makes_a_bounded_number_of_signals() -> None:
    found = signals(*(text for texts in FAULTS.values() for text in texts), *BENIGN_LINES)
    assert len(found) == MAX_SIGNALS
    assert len({signal.dedupe_key for signal in found}) == MAX_SIGNALS
    assert sum(signal.triggers for signal in found) == 1


@given(st.lists(st.text(max_size=200), min_size=1, max_size=5))
def test_any_line_is_read_or_passed_over(messages: list[str]) -> None:
    try:
        found = signals(*messages)
    except Skip:
        return
    assert all(signal.summary for signal in found)
