"""Routes about Slurm clusters."""

from __future__ import annotations

from chalicelib.api.operation import Operation
from chalicelib.api.parts import Parts
from chalicelib.api.problems import Answer, ok
from chalicelib.api.request import Request
from chalicelib.api.routes_jobs import taken
from chalicelib.api.schema import flag, record, ref, text, word
from chalicelib.domain.model.node_orders import Rung


def list_clusters(parts: Parts, _: Request) -> Answer:
    """Slurm clusters whose agents have reported."""
    return ok({"clusters": parts.slurm_clusters.listing()})


def get_cluster(parts: Parts, request: Request) -> Answer:
    """One Slurm cluster: agent, nodes, runs."""
    return ok(parts.slurm_clusters.one(request.names["cluster"]))


def repair_node(parts: Parts, request: Request) -> Answer:
    """Reboot or replace a node."""
    body = request.body
    outcome = parts.orders.repair_node(
        request.names["cluster"],
        request.names["node"],
        do=body["do"],
        who=request.who,
        key=request.key,
        why=body.get("why", ""),
        force=bool(body.get("force", False)),
    )
    return taken(parts, outcome)


def list_lemons(parts: Parts, _: Request) -> Answer:
    """Hardware with faults."""
    return ok({"lemons": parts.lemons.listing()})


OPERATIONS = (
    Operation(
        name="list_clusters",
        method="GET",
        path="/clusters",
        tag="clusters",
        summary="Slurm clusters and their agents",
        run=list_clusters,
        answers={200: ref("Clusters")},
    ),
    Operation(
        name="get_cluster",
        method="GET",
        path="/clusters/{cluster}",
        tag="clusters",
        summary="One Slurm cluster with its nodes and runs",
        run=get_cluster,
        answers={200: ref("Cluster")},
        refuses=(400,),
    ),
    Operation(
        name="repair_node",
        method="POST",
        path="/clusters/{cluster}/nodes/{node}/repair",
        tag="clusters",
        summary="Reboot or replace a node; no job on it is ever killed",
        said="`node` is its name in Slurm, or its instance id. `force` passes over the policy's budgets, nothing else.",
        run=repair_node,
        forms={
            "": record(
                {
                    "do": word("what is done", (Rung.REBOOT, Rung.REPLACE)),
                    "why": text("for the record", high=300),
                    "force": flag("pass over the budgets of repairs"),
                },
                may=("why", "force"),
            )
        },
        answers={202: ref("Taken")},
        is_order=True,
        example={"do": "reboot", "why": "ECC errors by the hundred"},
    ),
    Operation(
        name="list_lemons",
        method="GET",
        path="/lemons",
        tag="clusters",
        summary="Hardware with faults, across Jobs, clusters and replacements; repeated ones first",
        run=list_lemons,
        answers={200: ref("Lemons")},
    ),
)
