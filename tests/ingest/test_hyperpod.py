"""Cluster events: descriptions read through the catalogue, reasons fetched, scaling told from loss."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from chalicelib.domain.model.errors import Noise
from chalicelib.domain.model.signal import Signal
from chalicelib.ingest.dispatch import parse
from chalicelib.ingest.hyperpod import enrich
from chalicelib.ingest.hyperpod_catalogue import CATALOGUE, Told, read_description
from rekindle.protocol.signals import FaultClass
from tests.ingest import golden

NODE = "i-0a1b2c3d4e5f60718"


def _event(name: str = "null_metadata") -> dict[str, Any]:
    return golden.load(f"sagemaker_cluster_event_{name}")


def _bare() -> Signal:
    return parse(_event())[0]


def _answer(metadata: dict[str, Any]) -> dict[str, Any]:
    return {"EventDetails": {"EventId": "x", "EventDetails": {"EventMetadata": metadata}}}


# ruff: noqa: E501  the texts of the examples stay whole
# One text for each template of the developer guide's reference of cluster events, with what it tells.
EXAMPLES = (
    (
        Told.SCALING,
        "2 node(s) lost orchestration-ready status. Current: 14/16 orchestration-ready across 1 instance group(s).",
    ),
    (Told.FAILED, "Cluster creation failed: controller and login nodes did not become ready within the expected time"),
    (Told.FAILED, "Slurm configuration drift detected: slurm.conf differs on 1 node"),
    (Told.NEWS, "Slurm configuration drift validation passed"),
    (Told.NEWS, "Slurm was reconfigured successfully. All nodes answered."),
    (Told.NEWS, "provisioning_parameters.json not found in the lifecycle script location"),
    (Told.NEWS, "munge key created"),
    (
        Told.NEWS,
        "Instance i-0a1b2c3d4e5f60718 is starting as part of instance replacement in Cluster pretrain and IG gpu",
    ),
    (
        Told.LOST,
        "Instance i-0a1b2c3d4e5f60718 failed to start as part of instance replacement in Cluster pretrain and IG gpu",
    ),
    (
        Told.NEWS,
        "Instance i-0a1b2c3d4e5f60718 creation completed successfully as part of instance replacement in Cluster pretrain and IG gpu",
    ),
    (Told.NEWS, "Reboot of EC2 Instance i-0a1b2c3d4e5f60718 is currently in progress on Cluster pretrain and IG gpu"),
    (
        Told.FAILED,
        "Failed to submit reboot request for EC2 Instance i-0a1b2c3d4e5f60718 on Cluster pretrain and IG gpu",
    ),
    (
        Told.NEWS,
        "Termination of EC2 Instance i-0a1b2c3d4e5f60718 is currently in progress in Cluster pretrain and IG gpu",
    ),
    (Told.FAILED, "Failed to terminate EC2 Instance i-0a1b2c3d4e5f60718 in Cluster pretrain and IG gpu"),
    (Told.LOST, "Failed instances in IG gpu of Cluster pretrain are queued for node replacement."),
    (Told.FAILED, "Root volume replacement for instance i-0a1b2c3d4e5f60718 failed"),
    (Told.FAILED, "Patching of Cluster pretrain failed"),
    (Told.NEWS, "Patching of Cluster pretrain is scheduled"),
    (Told.FAILED, "FSx creation failed for Cluster pretrain"),
    (Told.NEWS, "FSx creation started for Cluster pretrain"),
    (
        Told.FAILED,
        "Instance lifecycle script execution for EC2 Instance i-0a1b2c3d4e5f60718 has Failed. To view lifecycle script logs, visit log group /aws/sagemaker/Clusters/pretrain/k3v9m2x7q1ab",
    ),
    (Told.NEWS, "Instance lifecycle script execution for EC2 Instance i-0a1b2c3d4e5f60718 has Succeeded"),
    (Told.PLATFORM, "Failed to create Customer ENI in Cluster pretrain and IG gpu"),
    (Told.NEWS, "Successfully created Customer ENI eni-0a1b in Cluster pretrain and IG gpu"),
    (Told.FAILED, "Failed to process Instance Group Network Configuration details for IG gpu in Cluster pretrain"),
    (Told.NEWS, "Found Subnet subnet-0bb for IG gpu"),
    (Told.PLATFORM, "Failed to provision EC2 Instance in Cluster pretrain and IG gpu"),
    (Told.PLATFORM, "Instance creation in Cluster pretrain and InstanceGroup gpu failed"),
    (Told.PLATFORM, "Failed to process CapacityReservationDetails for Cluster pretrain and IG gpu"),
    (Told.NEWS, "No CapacityReservation found for Cluster pretrain and IG gpu, using on-demand pool"),
    (Told.NEWS, "EC2 Instance i-0a1b2c3d4e5f60718 successfully provisioned in Cluster pretrain and IG gpu"),
    (Told.NEWS, "Instance creation started successfully in Cluster pretrain and IG gpu"),
    (Told.FAILED, "Failed to update Kubernetes config for instance i-0a1b2c3d4e5f60718"),
    (Told.NEWS, "Successfully updated Kubernetes config for instance i-0a1b2c3d4e5f60718"),
    (Told.NEWS, "Minimum capacity reached for InstanceGroup gpu in Cluster pretrain"),
    (Told.FAILED, "Rollback initiated for InstanceGroup gpu in Cluster pretrain"),
    (Told.FAILED, "Instance Group gpu update in Cluster pretrain failed"),
    (Told.NEWS, "Instance Group gpu update in Cluster pretrain completed successfully"),
    (Told.NEWS, "InstanceGroup gpu update started successfully in Cluster pretrain"),
    (Told.PLATFORM, "Instance deletion i-0a1b2c3d4e5f60718 in Cluster pretrain and IG gpu failed"),
    (Told.NEWS, "Instance deletion i-0a1b2c3d4e5f60718 in Cluster pretrain and IG gpu completed successfully"),
    (Told.FAILED, "Cluster pretrain update failed"),
    (Told.NEWS, "Cluster pretrain update started successfully"),
    (Told.NEWS, "Cluster pretrain update completed successfully"),
)


@pytest.mark.parametrize(("told", "text"), EXAMPLES, ids=[text[:50] for _, text in EXAMPLES])
def test_a_description_is_read_whether_its_group_is_abbreviated_or_spelled_out(told: Told, text: str) -> None:
    for spelled in (text.replace(" IG ", " InstanceGroup "), text.replace(" InstanceGroup ", " IG ")):
        assert read_description(spelled).told is told


def test_every_row_of_the_catalogue_is_the_first_to_match_some_description() -> None:
    assert {read_description(text).pattern for _, text in EXAMPLES} == {pattern for _, pattern in CATALOGUE}


def test_an_unknown_description_is_unknown_not_healthy() -> None:
    assert read_description("All is well with the flux").told is Told.UNKNOWN
    assert read_description(None).told is Told.UNKNOWN
    warn, error = parse(_event("unknown_warn"))[0], parse(_event("unknown_error"))[0]
    assert (warn.fault, warn.triggers) == (None, False)
    assert (error.fault, error.triggers) == (FaultClass.UNCLEAR, True)
    assert warn.evidence["known"] is error.evidence["known"] is False


def test_the_instance_is_read_from_the_description_where_the_field_is_absent() -> None:
    event = _event("replacement_failed")
    del event["detail"]["EventDetails"]["InstanceId"]
    assert parse(event)[0].node == NODE


def test_lost_nodes_are_noise_while_groups_move_and_a_fault_when_they_do_not() -> None:
    event = _event("scaling_noise")
    with pytest.raises(Noise, match="scaling"):
        parse(event, groups_in_motion=True)
    still = parse(event, groups_in_motion=False)[0]
    assert (still.fault, still.triggers) == (FaultClass.NODE_LOST, True)
    unseen = parse(event, groups_in_motion=None)[0]
    assert (unseen.fault, unseen.triggers, unseen.evidence["needs_groups"]) == (None, False, True)


def test_null_metadata_asks_to_be_enriched_and_full_metadata_does_not() -> None:
    assert _bare().evidence["needs_enrichment"] is True
    assert "needs_enrichment" not in parse(_event("capacity"))[0].evidence


@pytest.mark.parametrize(
    "metadata",
    [
        {"Instance": {"FailureMessage": "We currently do not have sufficient capacity"}, "Cluster": None},
        {"Instance": None, "Cluster": {"FailureMessage": "We currently do not have sufficient capacity"}},
        {"InstanceGroup": {"CapacityReservation": {"FailureMessage": "insufficient capacity"}}},
        {"Later": [{"Deeper": {"FailureMessage": "InsufficientInstanceCapacity"}}]},
    ],
)
def test_a_failure_message_is_found_in_every_subtree(metadata: dict[str, Any]) -> None:
    richer = enrich(_bare(), _answer(metadata))
    assert richer.evidence["reason"] == "capacity"
    assert len(richer.evidence["failure_messages"]) == 1
    assert "needs_enrichment" not in richer.evidence
    assert richer.dedupe_key == _bare().dedupe_key


def test_an_efa_failure_differs_from_a_capacity_failure() -> None:
    message = "EFA health checks did not run successfully"
    assert enrich(_bare(), _answer({"Instance": {"FailureMessage": message}})).evidence["reason"] == "efa"


def test_the_message_that_means_nothing_changes_nothing() -> None:
    message = "Request to service failed. If failure persists after retry, contact customer support."
    richer = enrich(_bare(), _answer({"Cluster": {"FailureMessage": message}}))
    assert (richer.fault, richer.summary) == (_bare().fault, _bare().summary)
    assert "reason" not in richer.evidence


def test_node_health_in_the_answer_is_a_hardware_fault() -> None:
    info = {"HealthStatus": "Unhealthy", "RepairAction": "Reboot", "HealthStatusReason": "NvidiaErrorReboot"}
    richer = enrich(parse(_event("unknown_warn"))[0], _answer({"Instance": {"NodeHealthInfo": info}}))
    assert (richer.fault, richer.triggers) == (FaultClass.NODE_HARDWARE, True)
    assert richer.evidence["repair_action"] == "Reboot"


@pytest.mark.parametrize("answer", [{}, {"EventDetails": None}, {"EventDetails": {"EventDetails": None}}])
def test_an_answer_without_metadata_leaves_the_fault(answer: dict[str, Any]) -> None:
    assert enrich(_bare(), answer).fault is _bare().fault


def test_the_fault_type_is_read_from_the_sentence() -> None:
    signal = parse(golden.load("sagemaker_node_health_replace"))[0]
    assert signal.evidence["fault_type"] == "NvidiaErrorTerminate"
    assert signal.evidence["repair_action"] == "Replace"


def test_a_repair_wish_outranks_an_unknown_status() -> None:
    event = copy.deepcopy(golden.load("sagemaker_node_health_unknown_status"))
    event["detail"]["HealthSummary"]["RepairAction"] = "Replace"
    assert parse(event)[0].fault is FaultClass.NODE_HARDWARE
