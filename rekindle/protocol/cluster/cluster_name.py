"""What a Slurm cluster is called, for the agent, the monitor on the nodes and the command line, which must agree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from rekindle.protocol.cluster.names import ENV_CLUSTER, check_cluster

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
ENV_RESOURCE_CONFIG: Final = "SAGEMAKER_RESOURCE_CONFIG_PATH"
RESOURCE_CONFIG: Final = "/opt/ml/config/resource_config.json"  # Source: HyperPod developer guide, lifecycle scripts
ENV_CLUSTER_FILE: Final = "REKINDLE_CLUSTER_FILE"
# The cluster's name for everybody: infra/lifecycle writes it on every node, where only root may read SageMaker's file.
CLUSTER_FILE: Final = "/etc/rekindle/cluster"
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
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


def cluster_named(environ: Mapping[str, str], *, passes_over: bool) -> tuple[str, str] | None:
    """(the cluster's name, what says so); None where nothing does.

    passes_over: SageMaker's file is passed over where it cannot be read; otherwise a second-best name would be another
    cluster's state. Raises: MailboxError for a name that cannot be used; OSError, ValueError for that file.
    """
    config = environ.get(ENV_RESOURCE_CONFIG) or RESOURCE_CONFIG
    finders: tuple[tuple[str, Callable[[], str | None]], ...] = (
        (ENV_CLUSTER, lambda: environ.get(ENV_CLUSTER)),
        (config, lambda: str(resource_config(config, passes_over=passes_over).get("ClusterName") or "")),
        (CLUSTER_FILE, lambda: _text(environ.get(ENV_CLUSTER_FILE) or CLUSTER_FILE)[:1024].strip()),
        (ENV_SLURM_CLUSTER, lambda: cluster_in_environment(environ)),
        *((path, partial(_in_conf, path)) for path in confs_of(environ)),
    )
    for source, find in finders:
        name = find()
        if name:
            return check_cluster(name, source), source
    return None


def resource_config(path: str, *, passes_over: bool = False) -> Mapping[str, object]:
    """`ClusterConfig` of resource_config.json; {} where there is no such file, or it is passed over.

    Raises: OSError, ValueError.
    """
    try:
        with Path(path).open("rb") as file:
            read = json.loads(file.read(MAX_FILE_BYTES))
        config = read.get("ClusterConfig") if isinstance(read, dict) else None
        if not isinstance(config, dict):
            raise ValueError(f"{path} has no ClusterConfig")  # noqa: TRY004, TRY301  the content
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        if passes_over:
            return {}
        raise
    return config


def _in_conf(path: str) -> str | None:
    return cluster_in_conf(_text(path))


def _text(path: str) -> str:
    """Empty where there is no such file, or it cannot be read."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return ""
