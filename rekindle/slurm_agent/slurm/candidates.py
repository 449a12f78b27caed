"""Whether a pending job could still start without some nodes, as far as its record and the nodes' tell. Pure.

slurmctld takes any list of excluded nodes, then shows BadConstraints and sets the job's priority to 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rekindle.slurm_agent.copies.compare import hosts_of
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.nodes import Node
from rekindle.slurm_agent.reading.sizes import fewest_nodes


def why_not_without(detail: Mapping[str, str], nodes: Iterable[Node], excluded: Collection[str]) -> str:
    """Why it never starts without the `excluded`; "" where nothing says so. Whatever state nodes are in now, counts."""
    if both := sorted(hosts_of(text.value(detail.get("ReqNodeList"))) & set(excluded)):
        return f"it was submitted for node {both[0]}"
    features = text.value(detail.get("Features"))
    # Of other expressions (`|`, counts, brackets) every node is taken to satisfy them.
    wanted = set(features.split("&")) if features.replace("&", "").replace("_", "").isalnum() else set()
    partitions = set(text.value(detail.get("Partition")).split(","))
    fits = [node.name for node in nodes if node.partitions & partitions and wanted <= node.features]
    left, needed = set(fits) - set(excluded), fewest_nodes(detail)
    if needed is None or len(left) >= needed or len(fits) < needed:
        return ""
    return f"of the {len(fits)} nodes that it can use, {len(left)} would be left, and it needs {needed}"
