"""Routes about Slurm clusters."""

from __future__ import annotations

from chalicelib.api.operation import Operation
from chalicelib.api.parts import Parts
from chalicelib.api.problems import Answer, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import ref


def list_clusters(parts: Parts, _: Request) -> Answer:
    """Slurm clusters whose agents have reported."""
    return ok({"clusters": parts.slurm_clusters.listing()})


def get_cluster(parts: Parts, request: Request) -> Answer:
    """One Slurm cluster: agent, nodes, runs."""
    return ok(parts.slurm_clusters.one(request.names["cluster"]))


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
)
