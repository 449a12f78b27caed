"""Each golden event gives the Signal, or the skip reason, of its row; each malformed twin names its field."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import pytest

from chalicelib.domain.model.errors import MalformedEvent, Noise, NotOurs, Skip
from chalicelib.domain.model.signal import MAX_EVIDENCE_BYTES, MAX_SUMMARY_CHARS, Signal
from chalicelib.domain.model.signal import SignalKind as K
from chalicelib.ingest.dispatch import parse
from chalicelib.ingest.envelope import MAX_EVENT_BYTES
from rekindle.protocol.signals import FaultClass as F
from tests.ingest import golden

JOB, ATTEMPT, CLUSTER, NODE = "lm-7b", "lm-7b-a3", "pretrain", "i-0a1b2c3d4e5f60718"

Expected = dict[str, Any]


def _signal(
    kind: K,
    fault: F | None,
    *,
    triggers: bool,
    job_id: str | None = None,
    attempt: str | None = None,
    cluster: str | None = None,
    node: str | None = None,
) -> Expected:
    return {
        "kind": kind,
        "fault": fault,
        "triggers": triggers,
        "job_id": job_id,
        "attempt": attempt,
        "cluster": cluster,
        "node": node,
    }


def _skip(error: type[Skip], reason: str) -> Expected:
    return {"skip": error, "reason": reason}


FIRST_START, RESTART = "slurm.pretrain.4211", "slurm.pretrain.4211.r1"


def _slurm(fault: F | None, *, attempt: str = FIRST_START, job_id: str | None = None) -> list[Expected]:
    triggers = fault is not None
    return [_signal(K.ATTEMPT_STATE, fault, triggers=triggers, attempt=attempt, job_id=job_id, cluster=CLUSTER)]


def _slurm_node(fault: F | None) -> list[Expected]:
    return [_signal(K.NODE_STATE, fault, triggers=fault is not None, cluster=CLUSTER, node="gpu-1")]


def _answered(*, attempt: str | None = FIRST_START, node: str | None = None) -> list[Expected]:
    return [_signal(K.ORDER_ANSWERED, None, triggers=False, attempt=attempt, node=node, cluster=CLUSTER)]


GOLDEN: dict[str, list[Expected]] = {
    "agent_order_answered_done": _answered(),
    "agent_order_answered_node": _answered(attempt=None, node="gpu-1"),
    "agent_order_answered_refused": _answered(),
    "agent_slurm_job_cancelled_by_user": _slurm(None, attempt="slurm.pretrain.4218"),
    "agent_slurm_job_completed": _slurm(None, attempt="slurm.pretrain.4220"),
    "agent_slurm_job_failed": _slurm(F.SOFTWARE_CRASH, attempt="slurm.pretrain.4212"),
    "agent_slurm_job_failed_oom_text": _slurm(F.OUT_OF_MEMORY, attempt="slurm.pretrain.4213"),
    "agent_slurm_job_gone": _slurm(F.JOB_MISSING, attempt="slurm.pretrain.4219"),
    "agent_slurm_job_node_fail": _slurm(F.NODE_LOST, attempt="slurm.pretrain.4214"),
    "agent_slurm_job_out_of_memory": _slurm(F.OUT_OF_MEMORY, attempt="slurm.pretrain.4215"),
    "agent_slurm_job_pending": _slurm(None),
    "agent_slurm_job_preempted": _slurm(F.PLANNED_END, attempt="slurm.pretrain.4217"),
    "agent_slurm_job_requeued_by_slurm": _slurm(None),
    "agent_slurm_job_requeued_pending": _slurm(None, attempt=RESTART),
    "agent_slurm_job_resubmitted": _slurm(None, attempt="slurm.pretrain.4211-a2", job_id=FIRST_START),
    "agent_slurm_job_running": _slurm(None),
    "agent_slurm_job_timeout": _slurm(F.PLANNED_END, attempt="slurm.pretrain.4216"),
    "agent_slurm_job_unknown_state": _slurm(None),
    "agent_slurm_node_down": _slurm_node(F.NODE_LOST),
    "agent_slurm_node_drain_ours": _slurm_node(None),
    "agent_slurm_node_fail_replace": _slurm_node(F.NODE_HARDWARE),
    "agent_slurm_node_idle": _slurm_node(None),
    "agent_slurm_node_not_responding": _slurm_node(None),
    "agent_slurm_node_rebooting": _slurm_node(None),
    "agent_slurm_node_unmapped": _slurm_node(F.NODE_LOST),
    "agent_started": [_signal(K.AGENT_NEWS, None, triggers=False, cluster=CLUSTER)],
    "cloudwatch_alarm_anomaly": [_signal(K.ALARM, F.LOSS_SPIKE, triggers=True, attempt=ATTEMPT)],
    "cloudwatch_alarm_composite": [_signal(K.ALARM, F.HANG, triggers=True, job_id=JOB)],
    "cloudwatch_alarm_composite_child_convention": [_signal(K.ALARM, F.NON_FINITE, triggers=True, job_id=JOB)],
    "cloudwatch_alarm_composite_suppressed": [_skip(Noise, "suppressed alarm")],
    "cloudwatch_alarm_contributor_own_metric": [_signal(K.ALARM, F.NON_FINITE, triggers=True, job_id=JOB)],
    "cloudwatch_alarm_contributor": [_signal(K.ALARM, F.DIVERGENCE, triggers=True, attempt=ATTEMPT)],
    "cloudwatch_alarm_convention": [_signal(K.ALARM, F.HANG, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "cloudwatch_alarm_host_dimension": [_signal(K.ALARM, F.UNCLEAR, triggers=False, attempt=ATTEMPT)],
    "cloudwatch_alarm_insufficient_data": [_signal(K.ALARM, None, triggers=False, attempt=ATTEMPT)],
    "cloudwatch_alarm_logs_insights": [_signal(K.ALARM, F.UNCLEAR, triggers=False, job_id=JOB)],
    "cloudwatch_alarm_metric_math": [_signal(K.ALARM, F.DIVERGENCE, triggers=True, attempt=ATTEMPT)],
    "cloudwatch_alarm_muted": [_skip(Noise, "muted alarm")],
    "cloudwatch_alarm_no_run": [_skip(NotOurs, "alarm names no run")],
    "cloudwatch_alarm_own_metric": [_signal(K.ALARM, F.NON_FINITE, triggers=True, job_id=JOB)],
    "cloudwatch_alarm_plain": [_signal(K.ALARM, F.UNCLEAR, triggers=False, attempt=ATTEMPT)],
    "cloudwatch_alarm_plain_ok": [_signal(K.ALARM, None, triggers=False, attempt=ATTEMPT)],
    "cloudwatch_alarm_several_runs": [_skip(NotOurs, "alarm names several runs")],
    "ec2_capacity_block_expiration": [_signal(K.CAPACITY_ENDING, F.PLANNED_END, triggers=True)],
    "ec2_capacity_block_reservation_expiration": [_signal(K.CAPACITY_ENDING, F.PLANNED_END, triggers=True)],
    "ec2_capacity_reservation_interruption": [_signal(K.CAPACITY_ENDING, F.PLANNED_END, triggers=True, node=NODE)],
    "ec2_instance_state_pending": [_skip(Noise, "instance starting")],
    "ec2_instance_state_running": [_signal(K.INSTANCE_STATE, None, triggers=False, node=NODE)],
    "ec2_instance_state_terminated": [_signal(K.INSTANCE_STATE, F.NODE_LOST, triggers=True, node=NODE)],
    "ec2_rebalance": [_signal(K.REBALANCE, F.PLANNED_END, triggers=False, node=NODE)],
    "ec2_spot_interruption": [_signal(K.SPOT_INTERRUPTION, F.PLANNED_END, triggers=True, node=NODE)],
    "health_event_account_notification": [_skip(Noise, "account notification")],
    "health_event_backup": [_skip(Noise, "backup event")],
    "health_event_closed": [_signal(K.HEALTH_NOTICE, None, triggers=False, node=NODE)],
    "health_event_drive_degraded": [_signal(K.HEALTH_NOTICE, F.NODE_HARDWARE, triggers=True, node=NODE)],
    "health_event_investigation": [_signal(K.HEALTH_NOTICE, F.UNCLEAR, triggers=False, node=NODE)],
    "health_event_operational_issue": [_signal(K.HEALTH_NOTICE, F.UNCLEAR, triggers=False)],
    "health_event_other_service": [_skip(NotOurs, "health service")],
    "health_event_page_1_of_2": [
        _signal(K.HEALTH_NOTICE, F.PLANNED_END, triggers=True, node=NODE),
        _signal(K.HEALTH_NOTICE, F.PLANNED_END, triggers=True, node="i-0a1b2c3d4e5f60719"),
    ],
    "health_event_page_2_of_2": [_signal(K.HEALTH_NOTICE, F.PLANNED_END, triggers=True, node="i-0a1b2c3d4e5f60720")],
    "health_event_reboot_arn": [_signal(K.HEALTH_NOTICE, F.PLANNED_END, triggers=True, node=NODE)],
    "health_event_retirement": [_signal(K.HEALTH_NOTICE, F.PLANNED_END, triggers=True, node=NODE)],
    "logs_batch_control": [_skip(Noise, "connection test")],
    "logs_batch_hma_eks_replace": [
        _signal(K.AGENT_LOG_FAULT, F.NODE_HARDWARE, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "logs_batch_hma_npd_cleared": [_signal(K.AGENT_LOG_FAULT, None, triggers=False, cluster=CLUSTER, node=NODE)],
    "logs_batch_hma_npd_condition": [
        _signal(K.AGENT_LOG_FAULT, F.NODE_HARDWARE, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "logs_batch_hma_npd_details": [
        _signal(K.AGENT_LOG_FAULT, F.NODE_HARDWARE, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "logs_batch_hma_slurm_app_xid31": [
        _signal(K.AGENT_LOG_FAULT, F.SOFTWARE_CRASH, triggers=False, cluster=CLUSTER, node=NODE)
    ],
    "logs_batch_hma_slurm_unknown_xid": [
        _signal(K.AGENT_LOG_FAULT, F.UNCLEAR, triggers=False, cluster=CLUSTER, node=NODE)
    ],
    "logs_batch_hma_slurm_xid79": [
        _signal(K.AGENT_LOG_FAULT, F.NODE_HARDWARE, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "logs_batch_hma_user_app": [
        _signal(K.AGENT_LOG_FAULT, F.SOFTWARE_CRASH, triggers=False, cluster=CLUSTER, node=NODE)
    ],
    "logs_batch_mixed": [_signal(K.AGENT_LOG_FAULT, F.NODE_HARDWARE, triggers=True, cluster=CLUSTER, node=NODE)],
    "logs_batch_training_ecc": [
        _signal(K.TRAINING_LOG, F.NODE_HARDWARE, triggers=True, attempt=ATTEMPT, node="algo-1"),
        _signal(K.TRAINING_LOG, F.HANG, triggers=False, attempt=ATTEMPT, node="algo-1"),
    ],
    "logs_batch_training_nan": [_signal(K.TRAINING_LOG, F.NON_FINITE, triggers=True, attempt=ATTEMPT, node="algo-1")],
    "logs_batch_training_output": [_skip(Noise, "ordinary log line")],
    "monitor_finished": [_signal(K.MONITOR_FINISHED, None, triggers=False, job_id=JOB, attempt=ATTEMPT)],
    "monitor_loss_divergence": [_signal(K.DIVERGENCE, F.DIVERGENCE, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "monitor_loss_recovered": [_signal(K.LOSS_RECOVERED, None, triggers=False, job_id=JOB, attempt=ATTEMPT)],
    "monitor_loss_spike": [_signal(K.LOSS_SPIKE, F.LOSS_SPIKE, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "monitor_non_finite_inf_grad": [_signal(K.NON_FINITE, F.NON_FINITE, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "monitor_non_finite_nan": [_signal(K.NON_FINITE, F.NON_FINITE, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "monitor_non_finite_one_rank": [_signal(K.NON_FINITE, F.NON_FINITE, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "monitor_reply_cannot": [_signal(K.CHECKPOINT_REPLY, None, triggers=False, job_id=JOB, attempt=ATTEMPT)],
    "monitor_reply_saved": [_signal(K.CHECKPOINT_REPLY, None, triggers=False, job_id=JOB, attempt=ATTEMPT)],
    "monitor_resumed": [_signal(K.PROGRESS_RESUMED, None, triggers=False, job_id=JOB, attempt=ATTEMPT)],
    "monitor_save_failed": [_signal(K.SAVE_FAILED, None, triggers=False, job_id=JOB, attempt=ATTEMPT)],
    "monitor_stall": [_signal(K.STALL, F.HANG, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "monitor_stall_startup": [_signal(K.STALL, F.HANG, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "monitor_started": [_signal(K.MONITOR_STARTED, None, triggers=False, job_id=JOB, attempt=ATTEMPT)],
    "monitor_straggler": [_signal(K.THROUGHPUT, F.THROUGHPUT_DROP, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "monitor_throughput_drop": [_signal(K.THROUGHPUT, F.THROUGHPUT_DROP, triggers=True, job_id=JOB, attempt=ATTEMPT)],
    "s3_object_created_foreign_name": [_skip(NotOurs, "not a mailbox key")],
    "s3_object_created_manifest": [_signal(K.CHECKPOINT_REPLY, None, triggers=False, attempt=ATTEMPT)],
    "s3_object_created_reply": [_signal(K.CHECKPOINT_REPLY, None, triggers=False)],
    "sagemaker_cluster_event_capacity": [_signal(K.CLUSTER_EVENT, F.PLATFORM_ERROR, triggers=True, cluster=CLUSTER)],
    "sagemaker_cluster_event_eks_node_health": [
        _signal(K.CLUSTER_EVENT, F.NODE_HARDWARE, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_cluster_event_info": [_skip(Noise, "info event")],
    "sagemaker_cluster_event_iso_time": [
        _signal(K.CLUSTER_EVENT, F.PLATFORM_ERROR, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_cluster_event_lifecycle_failed": [
        _signal(K.CLUSTER_EVENT, F.UNCLEAR, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_cluster_event_null_metadata": [
        _signal(K.CLUSTER_EVENT, F.PLATFORM_ERROR, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_cluster_event_pair_first": [
        _signal(K.CLUSTER_EVENT, F.PLATFORM_ERROR, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_cluster_event_pair_second": [
        _signal(K.CLUSTER_EVENT, F.PLATFORM_ERROR, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_cluster_event_replacement_failed": [
        _signal(K.CLUSTER_EVENT, F.NODE_LOST, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_cluster_event_scaling_noise": [_signal(K.CLUSTER_EVENT, None, triggers=False, cluster=CLUSTER)],
    "sagemaker_cluster_event_slurm_drift": [_signal(K.CLUSTER_EVENT, F.UNCLEAR, triggers=False, cluster=CLUSTER)],
    "sagemaker_cluster_event_unknown_error": [
        _signal(K.CLUSTER_EVENT, F.UNCLEAR, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_cluster_event_unknown_warn": [
        _signal(K.CLUSTER_EVENT, None, triggers=False, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_cluster_state_failed": [_signal(K.CLUSTER_STATE, F.UNCLEAR, triggers=True, cluster=CLUSTER)],
    "sagemaker_cluster_state_group_degraded": [_signal(K.CLUSTER_STATE, F.UNCLEAR, triggers=True, cluster=CLUSTER)],
    "sagemaker_cluster_state_in_service": [_signal(K.CLUSTER_STATE, None, triggers=False, cluster=CLUSTER)],
    "sagemaker_cluster_state_in_service_scaling": [_skip(Noise, "scaling")],
    "sagemaker_cluster_state_rolling_back": [_signal(K.CLUSTER_STATE, F.UNCLEAR, triggers=True, cluster=CLUSTER)],
    "sagemaker_cluster_state_updating": [_skip(Noise, "scaling")],
    "sagemaker_node_health_healthy": [_signal(K.NODE_HEALTH, None, triggers=False, cluster=CLUSTER, node=NODE)],
    "sagemaker_node_health_replace": [
        _signal(K.NODE_HEALTH, F.NODE_HARDWARE, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_node_health_unhealthy": [
        _signal(K.NODE_HEALTH, F.NODE_HARDWARE, triggers=True, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_node_health_unknown_status": [
        _signal(K.NODE_HEALTH, F.UNCLEAR, triggers=False, cluster=CLUSTER, node=NODE)
    ],
    "sagemaker_training_job_clone_tags": [
        _signal(K.ATTEMPT_STATE, F.SOFTWARE_CRASH, triggers=True, job_id=JOB, attempt=ATTEMPT)
    ],
    "sagemaker_training_job_completed": [_signal(K.ATTEMPT_STATE, None, triggers=False, attempt=ATTEMPT)],
    "sagemaker_training_job_deleting": [_signal(K.ATTEMPT_STATE, None, triggers=False, attempt=ATTEMPT)],
    "sagemaker_training_job_failed_capacity": [
        _signal(K.ATTEMPT_STATE, F.PLATFORM_ERROR, triggers=True, attempt=ATTEMPT)
    ],
    "sagemaker_training_job_failed_client_error": [
        _signal(K.ATTEMPT_STATE, F.SOFTWARE_CRASH, triggers=True, attempt=ATTEMPT)
    ],
    "sagemaker_training_job_failed_crash": [_signal(K.ATTEMPT_STATE, F.SOFTWARE_CRASH, triggers=True, attempt=ATTEMPT)],
    "sagemaker_training_job_failed_cuda_oom": [
        _signal(K.ATTEMPT_STATE, F.OUT_OF_MEMORY, triggers=True, attempt=ATTEMPT)
    ],
    "sagemaker_training_job_failed_internal": [
        _signal(K.ATTEMPT_STATE, F.PLATFORM_ERROR, triggers=True, attempt=ATTEMPT)
    ],
    "sagemaker_training_job_failed_killed": [
        _signal(K.ATTEMPT_STATE, F.SOFTWARE_CRASH, triggers=True, attempt=ATTEMPT)
    ],
    "sagemaker_training_job_failed_nan": [_signal(K.ATTEMPT_STATE, F.NON_FINITE, triggers=True, attempt=ATTEMPT)],
    "sagemaker_training_job_failed_nccl_timeout": [_signal(K.ATTEMPT_STATE, F.HANG, triggers=True, attempt=ATTEMPT)],
    "sagemaker_training_job_failed_no_reason": [_signal(K.ATTEMPT_STATE, F.UNCLEAR, triggers=True, attempt=ATTEMPT)],
    "sagemaker_training_job_failed_xid": [_signal(K.ATTEMPT_STATE, F.NODE_HARDWARE, triggers=True, attempt=ATTEMPT)],
    "sagemaker_training_job_in_progress": [_signal(K.ATTEMPT_STATE, None, triggers=False, attempt=ATTEMPT)],
    "sagemaker_training_job_interrupted_spot": [
        _signal(K.ATTEMPT_STATE, F.PLANNED_END, triggers=False, attempt=ATTEMPT)
    ],
    "sagemaker_training_job_max_runtime": [_signal(K.ATTEMPT_STATE, F.PLANNED_END, triggers=True, attempt=ATTEMPT)],
    "sagemaker_training_job_max_wait": [_signal(K.ATTEMPT_STATE, F.PLANNED_END, triggers=True, attempt=ATTEMPT)],
    "sagemaker_training_job_repairing": [_signal(K.ATTEMPT_STATE, F.NODE_HARDWARE, triggers=False, attempt=ATTEMPT)],
    "sagemaker_training_job_starting": [_signal(K.ATTEMPT_STATE, None, triggers=False, attempt=ATTEMPT)],
    "sagemaker_training_job_stopped": [_signal(K.ATTEMPT_STATE, None, triggers=False, attempt=ATTEMPT)],
    "sagemaker_training_job_stopping": [_signal(K.ATTEMPT_STATE, None, triggers=False, attempt=ATTEMPT)],
}


def _outcome(event: dict[str, Any]) -> list[Expected]:
    try:
        signals = parse(event)
    except Skip as skip:
        return [_skip(type(skip), skip.reason)]
    return [
        _signal(
            signal.kind,
            signal.fault,
            triggers=signal.triggers,
            job_id=signal.job_id,
            attempt=signal.attempt,
            cluster=signal.cluster,
            node=signal.node,
        )
        for signal in signals
    ]


def _all_signals() -> list[tuple[str, Signal]]:
    return [
        (name, signal) for name, rows in GOLDEN.items() if "skip" not in rows[0] for signal in parse(golden.load(name))
    ]


def test_every_golden_event_has_a_row_and_every_row_an_event() -> None:
    assert set(GOLDEN) == set(golden.names())


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_golden_event_gives_what_its_row_says(name: str) -> None:
    assert _outcome(golden.load(name)) == GOLDEN[name]


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_an_event_reads_alike_as_text_bytes_and_object(name: str) -> None:
    text = json.dumps(golden.load(name))
    assert _outcome(text) == _outcome(text.encode()) == GOLDEN[name]  # type: ignore[arg-type]


def test_every_golden_event_says_where_its_shape_comes_from() -> None:
    sources = json.loads((golden.EVENTS / golden.SOURCES_FILE).read_text())
    assert {name.removesuffix(".json") for name in sources} == set(golden.names())
    assert all(line.strip() for line in sources.values())


@pytest.mark.parametrize(("name", "signal"), _all_signals())
def test_a_signal_keeps_its_contract(name: str, signal: Signal) -> None:
    assert signal.occurred_at.tzinfo is UTC
    assert 0 < len(signal.dedupe_key) <= 200
    assert 0 < len(signal.summary) <= MAX_SUMMARY_CHARS
    assert signal.summary.isprintable()
    assert len(json.dumps(signal.evidence, ensure_ascii=False).encode()) <= MAX_EVIDENCE_BYTES + 200
    assert Signal.from_wire(json.loads(json.dumps(signal.to_wire(), allow_nan=False))) == signal
    if signal.triggers:
        assert signal.fault is not None, "news must never open an Incident"


_MALFORMED: dict[str, str] = json.loads((golden.EVENTS / "malformed" / "EXPECTED.json").read_text())


@pytest.mark.parametrize("name", sorted(_MALFORMED))
def test_a_malformed_twin_names_its_field(name: str) -> None:
    with pytest.raises(MalformedEvent) as caught:
        parse(json.loads((golden.EVENTS / "malformed" / name).read_text()))
    assert caught.value.field == _MALFORMED[name]
    assert str(caught.value).startswith(f"{_MALFORMED[name]}: ")


def test_every_malformed_twin_is_expected() -> None:
    on_disk = {path.name for path in (golden.EVENTS / "malformed").glob("*.json")} - {"EXPECTED.json"}
    assert on_disk == set(_MALFORMED)


def test_an_oversized_event_is_refused_as_object_text_and_bytes() -> None:
    event = golden.load("sagemaker_training_job_failed_crash")
    event["detail"]["HyperParameters"] = {"x": "y" * (MAX_EVENT_BYTES - len(json.dumps(event)))}
    event["detail"]["HyperParameters"]["x"] += "é" * 40
    for raw in (event, json.dumps(event), json.dumps(event).encode()):
        with pytest.raises(MalformedEvent, match="event: larger than") as caught:
            parse(raw)
        assert caught.value.field == "event"
    event["detail"]["HyperParameters"]["x"] = "y" * (MAX_EVENT_BYTES - 4096)
    assert parse(event)


def test_a_foreign_account_region_or_owner_is_refused_by_name() -> None:
    event = golden.load("ec2_spot_interruption")
    parse(event, expected_account="111122223333", expected_region="us-west-2")
    with pytest.raises(MalformedEvent) as caught:
        parse(event, expected_account="999999999999")
    assert caught.value.field == "account"
    with pytest.raises(MalformedEvent) as caught:
        parse(event, expected_region="eu-west-1")
    assert caught.value.field == "region"
    with pytest.raises(MalformedEvent) as caught:
        parse(golden.load("logs_batch_mixed"), expected_account="999999999999")
    assert caught.value.field == "awslogs.data.owner"


def test_an_unknown_event_type_is_not_ours() -> None:
    event = golden.load("ec2_spot_interruption") | {"detail-type": "EC2 Instance Sang"}
    with pytest.raises(NotOurs, match="unknown event type"):
        parse(event)


def test_an_object_in_another_bucket_is_not_ours() -> None:
    event = golden.load("s3_object_created_reply")
    assert parse(event, expected_bucket="rekindle-mailbox")
    with pytest.raises(NotOurs, match="another bucket"):
        parse(event, expected_bucket="somebody-else")
