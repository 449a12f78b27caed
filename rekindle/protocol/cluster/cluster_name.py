"""How Slurm itself names its cluster, for the agent and for the monitor on the nodes, which must agree. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

ENV_SLURM_CLUSTER: Final = "SLURM_CLUSTER_NAME"  # Source: sbatch manual, OUTPUT ENVIRONMENT VARIABLES
ENV_SLURM_CONF: Final = "SLURM_CONF"
# Source: slurm.conf manual; HyperPod and ParallelCluster have it under /opt/slurm, a node without a file of its own in
# /run.
SLURM_CONFS: Final = (
    "/opt/slurm/etc/slurm.conf",
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",
)
# What jobs of 23.11.4 have in SLURM_CLUSTER_NAME. Seen there, and not on 22.05, 24.11, 25.11 and 26.05.
_NONE: Final = "(null)"
_LINE: Final = re.compile(r"^\s*ClusterName\s*=\s*\"?([^\s#\"]+)", re.IGNORECASE | re.MULTILINE)


def cluster_in_environment(environ: Mapping[str, str]) -> str | None:
    """What Slurm has put into a job's environment; None where that is no name."""
    name = environ.get(ENV_SLURM_CLUSTER)
    return name if name and name != _NONE else None


def cluster_in_conf(text: str) -> str | None:
    """What a slurm.conf says, as slurmctld and jobs have it: in lower case (seen on 23.11 and 26.05).

    Source: slurm.conf manual: keywords are case-insensitive, `#` begins a comment.
    """
    found = _LINE.search(text)
    return found[1].lower() if found else None


def confs_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where slurm.conf may be, by order."""
    named = environ.get(ENV_SLURM_CONF)
    return (named,) if named else SLURM_CONFS
