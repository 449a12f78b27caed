"""Routes about Slurm clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from chalicelib.api.fields import line
from chalicelib.api.operation import Operation
from chalicelib.api.operations.shared import order_accepted
from chalicelib.api.parts import Parts
from chalicelib.api.problems import ApiResponse, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import (
    Schema,
    any_object,
    any_text,
    flag,
    listing,
    number,
    or_null,
    record,
    ref,
    table,
    whole,
)
from chalicelib.domain.model.node_findings import Rung
from rekindle.protocol.bounds import OneOf


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRepair:
    """how a node is repaired"""

    do: Annotated[str, OneOf((Rung.REBOOT, Rung.REPLACE)), "what is done"]
    why: Annotated[Annotated[str, line(300)] | None, "for the record"] = None
    force: Annotated[bool, "pass over the budgets of repairs"] = False


def list_clusters(parts: Parts, _: Request) -> ApiResponse:
    """Slurm clusters and their agents."""
    return ok({"clusters": parts.slurm_clusters.listing()})


def get_cluster(parts: Parts, request: Request) -> ApiResponse:
    """One Slurm cluster with its nodes and runs."""
    return ok(parts.slurm_clusters.one(request.names["cluster"]))


def repair_node(parts: Parts, request: Request) -> ApiResponse:
    """Reboot or replace a node; no job on it is ever killed."""
    form: NodeRepair = request.form
    outcome = parts.orders.repair_node(
        request.names["cluster"],
        request.names["node"],
        do=form.do,
        who=request.who,
        key=request.key,
        why=form.why or "",
        force=form.force,
    )
    return order_accepted(parts, outcome)


def list_hardware(parts: Parts, _: Request) -> ApiResponse:
    """Hardware with faults, across Jobs, clusters and replacements; repeated ones first."""
    return ok({"hardware": parts.hardware_ledgers.listing()})


ANSWERS: Final[Mapping[str, Schema]] = {
    "ClusterBrief": record(
        {
            "cluster": any_text(),
            "unknown": {"description": "why nothing is known of it; null: something is"},
            "heartbeat_age_s": or_null(number("age of the agent's last heartbeat")),
            "slurm_read_age_s": or_null(number("since it last read Slurm")),
            "agent_version": any_text(),
            "slurm_version": any_text(),
            "cluster_arn": any_text(),
            "active_host": any_text("the head node whose agent acts"),
            "lease_epoch": whole("how often an agent has taken the cluster's lease; 0: a version without one"),
            "standbys": listing(any_text("an agent that would take over")),
            "problems": listing(any_text()),
            "node_states": or_null(table(whole("nodes"), "state -> how many")),
            "jobs_active": whole("protected Jobs on it"),
        },
        is_open=True,
    ),
    "Clusters": record({"clusters": listing(ref("ClusterBrief"))}),
    "Cluster": {
        "allOf": [
            ref("ClusterBrief"),
            {
                "type": "object",
                "properties": {
                    "nodes": listing(any_object("one node"), "at most 1,000"),
                    "jobs": listing(any_object("one protected Job")),
                },
                "required": ["nodes", "jobs"],
            },
        ]
    },
    "SuspectHardwareList": record({"hardware": listing(ref("SuspectHardware"), "at most 200")}),
    "SuspectHardware": record(
        {
            "identity": any_text("GPU UUID, serial number or instance id"),
            "kind": any_text("which of these"),
            "is_suspect": flag("by the built-in policy"),
            "faults_total": whole("ever"),
            "faults_in_window": whole("lately"),
            "window_days": whole("what lately is"),
            "faults": listing(any_object("one fault, the newest first")),
        }
    ),
}

OPERATIONS = (
    Operation(
        method="GET",
        path="/clusters",
        tag="clusters",
        run=list_clusters,
        answers={200: ref("Clusters")},
    ),
    Operation(
        method="GET",
        path="/clusters/{cluster}",
        tag="clusters",
        run=get_cluster,
        answers={200: ref("Cluster")},
        refuses=(400,),
    ),
    Operation(
        method="POST",
        path="/clusters/{cluster}/nodes/{node}/repair",
        tag="clusters",
        details="`node` is its name in Slurm, or its instance id. `force` passes over the policy's budgets only.",
        run=repair_node,
        forms={
            "": NodeRepair,
        },
        answers={202: ref("Taken")},
        is_order=True,
        example={"do": "reboot", "why": "ECC errors by the hundred"},
    ),
    Operation(
        method="GET",
        path="/hardware",
        tag="clusters",
        run=list_hardware,
        answers={200: ref("SuspectHardwareList")},
    ),
)
