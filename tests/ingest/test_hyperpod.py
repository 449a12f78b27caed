"""Cluster events: descriptions read through the catalogue, reasons fetched, scaling told from loss."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from chalicelib.domain.model.errors import Noise
from chalicelib.domain.model.signal import Signal
from chalicelib.ingest.dispatch import parse
from chalicelib.ingest.hyperpod import enrich
from chalicelib.ingest.hyperpod_catalogue import CATALOGUE, Outcome, find_row, read_description
from rekindle.protocol.signals import FaultClass
from tests.ingest import golden

NODE = "i-0a1b2c3d4e5f60718"


def _event(name: str = "null_metadata") -> dict[str, Any]:
    return golden.load(f"sagemaker_cluster_event_{name}")


def _bare() -> Signal:
    return parse(_event())[0]


def _answer(metadata: dict[str, Any]) -> dict[str, Any]:
    return {"EventDetails": {"EventId": "x", "EventDetails": {"EventMetadata": metadata}}}


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.example[:50])
def test_a_catalogue_row_is_the_first_to_match_its_own_example(row: Any) -> None:
    found = find_row(row.example)
    assert found is not None
    assert found[0] is row
    assert row.source


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.example[:50])
def test_only_a_failure_suggests_a_fault(row: Any) -> None:
    if row.fault is not None:
        assert row.outcome is Outcome.FAILED or row.area == "scaling"


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.example[:50])
def test_group_may_be_abbreviated_or_spelled_out(row: Any) -> None:
    for spelled in (row.example.replace(" IG ", " InstanceGroup "), row.example.replace(" InstanceGroup ", " IG ")):
        assert read_description(spelled).outcome is row.outcome
        assert read_description(spelled).area is row.area


def test_an_unknown_description_is_unknown_not_healthy() -> None:
    assert not read_description("All is well with the flux").is_known
    assert not read_description(None).is_known
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
