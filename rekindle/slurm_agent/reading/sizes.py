"""How many nodes a job asks for, and whether it can do with fewer. Pure. Tried on Slurm 22.05; see ADR 0021."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.comment import Comment

MIN_NODES: Final = "min_nodes"  # the comment's key: the run's script can do with so many
MAX_COUNT: Final = 10**6
MAX_GPUS: Final = 10**7
_GPU: Final = re.compile(r"gres[:/]gpu(?:[:=]|\Z)")
# A requeued job runs with the environment of its submission, and there its number of tasks stands once and for all:
# srun would start all of them on the nodes that are left.
_TASKS: Final = ("SLURM_NTASKS", "SLURM_NPROCS")


def asked_min(asked: Comment) -> int | None:
    """The fewest nodes by the job's comment (`min_nodes`); None where it is absent, no number, or over MAX_COUNT."""
    given = dict(asked.others).get(MIN_NODES, "")
    return int(given) if text.is_number(given) and 0 < int(given) <= MAX_COUNT else None


def fewest_nodes(detail: Mapping[str, str]) -> int | None:
    """The fewest nodes that a pending job asks for. `NumNodes` still shows those of the start before a requeue."""
    for key in ("ReqTRES", "TRES"):  # 23.02 and later, before that
        for part in detail.get(key, "").split(","):
            name, _, given = part.partition("=")
            if name == "node" and text.is_number(given) and int(given) <= MAX_COUNT:
                return int(given)
    return None


def gpus_in(detail: Mapping[str, str]) -> int | None:
    """All GPUs of the job; None where Slurm does not tell, which is not "none".

    Slurm counts `gres/gpu` of a whole job only where AccountingStorageTRES names it (slurm.conf manual page); else what
    it asks for on each node is listed (`TresPerNode`), times its nodes.
    """
    for key in ("AllocTRES", "ReqTRES", "TRES"):  # 23.02 and later, before that
        for part in detail.get(key, "").split(","):
            name, _, given = part.partition("=")
            if name == "gres/gpu" and text.is_number(given) and 0 < int(given) <= MAX_GPUS:
                return int(given)
    nodes = fewest_nodes(detail)
    each = [_gpus_each(part) for part in detail.get("TresPerNode", "").split(",") if _GPU.match(part.strip())]
    if not nodes or not each or None in each:
        return None
    total = nodes * sum(count for count in each if count is not None)
    return total if 0 < total <= MAX_GPUS else None


def _gpus_each(part: str) -> int | None:
    """`gres:gpu:8`, `gres/gpu:8`, `gres/gpu:h100:8`, `gres/gpu=8`; a bare `gres/gpu` is one."""
    last = part.strip().replace("=", ":").split(":")[-1]
    if last in ("gpu", "gres/gpu"):
        return 1
    return int(last) if text.is_number(last) and len(last) <= 6 else None


def cpus_for(detail: Mapping[str, str], nodes: int) -> int | None:
    """The CPUs that go with so many nodes, as many for each as it asks for now: Slurm keeps the old sum otherwise."""
    cpus, now = detail.get("NumCPUs", "").partition("-")[0], fewest_nodes(detail)
    if not text.is_number(cpus) or not now:
        return None
    return -(-int(cpus) * nodes // now) or None


def cannot_shrink(detail: Mapping[str, str], environment: Mapping[str, str] | None) -> str:
    """Why fewer nodes would not give a smaller run; empty where they would."""
    per_node = detail.get("NtasksPerN:B:S:C", "").partition(":")[0]
    if text.is_number(per_node) and int(per_node) > 0:
        return "--ntasks-per-node fixes its number of tasks"
    if environment is None:
        return "whether its number of tasks is fixed cannot be read"
    fixed = next((name for name in _TASKS if environment.get(name)), None)
    return f"its number of tasks is fixed ({fixed}={environment[fixed][:12]})" if fixed else ""
