"""The agent's settings, from options and the environment: all that is wrong in one error.

A number that cannot be read raises; it never falls back to the default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rekindle.protocol.cluster.cluster_name import (
    CLUSTER_FILE,
    ENV_RESOURCE_CONFIG,
    RESOURCE_CONFIG,
    cluster_named,
    confs_of,
    resource_config,
)
from rekindle.protocol.cluster.names import ENV_CLUSTER, check_cluster
from rekindle.protocol.wire import MailboxError

ENV_BUCKET: Final = "REKINDLE_BUCKET"
ENV_BUS: Final = "REKINDLE_BUS"
ENV_STACK: Final = "REKINDLE_STACK"
ENV_STATE_DIR: Final = "REKINDLE_STATE_DIR"
ENV_POLL: Final = "REKINDLE_POLL_S"
ENV_LEASE: Final = "REKINDLE_LEASE_S"
ENV_ROOT: Final = "REKINDLE_ROOT"  # below which it was installed, in tests and images
ENV_PARTITIONS: Final = "REKINDLE_PARTITIONS"
ENV_ACCOUNTS: Final = "REKINDLE_ACCOUNTS"
ALLOW_FILE: Final = "/etc/rekindle/allow.conf"  # see `privileged.allowed`
DEFAULT_STACK: Final = "rekindle"
DEFAULT_STATE_DIR: Final = "/var/lib/rekindle"
DEFAULT_POLL_S: Final = 10.0  # squeue and scontrol every ten seconds is what one person at a terminal asks of slurmctld
DEFAULT_LEASE_S: Final = 60.0  # a standby takes over after as long without a renewal
_STACK: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?")
_NAME: Final = re.compile(r"[^\s,=|]{1,200}")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ARN: Final = re.compile(r"arn:[a-z-]+:sagemaker:(?P<region>[a-z0-9-]+):[0-9]{12}:cluster/.+")


class SettingsError(Exception):
    """All that is missing or wrong, one line each."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`region` None: boto3 finds it. `resource_config` need not exist. `cluster_from` says who named the cluster."""

    cluster: str
    cluster_from: str
    stack: str
    bucket: str
    bus: str
    region: str | None
    state_dir: Path
    poll_s: float
    resource_config: str
    lease_s: float = DEFAULT_LEASE_S
    allow_file: str = ALLOW_FILE
    partitions: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, environ: Mapping[str, str], options: Mapping[str, str | None]) -> Settings:
        """Options win over the environment. Raises: SettingsError with all that is wrong."""
        lines: list[str] = []

        def get(option: str, variable: str, default: str = "") -> str:
            return options.get(option) or environ.get(variable) or default

        config = environ.get(ENV_RESOURCE_CONFIG) or RESOURCE_CONFIG
        stack = get("stack", ENV_STACK, DEFAULT_STACK)
        if _STACK.fullmatch(stack) is None:
            lines.append(f"{ENV_STACK} (--stack): {stack!r} is no stack's name")
        bucket = get("bucket", ENV_BUCKET)
        if not bucket:
            lines.append(f"{ENV_BUCKET} (--bucket): the stack's bucket is needed, output BucketName of the stack")
        elif _BUCKET.fullmatch(bucket) is None:
            lines.append(f"{ENV_BUCKET} (--bucket): {bucket!r} is no bucket's name")
        text = get("poll_s", ENV_POLL, str(DEFAULT_POLL_S))
        poll_s = _number(text)
        if not 1.0 <= poll_s <= 60.0:
            lines.append(f"{ENV_POLL} (--poll): {text!r} is no number from 1 to 60")
        text = get("lease_s", ENV_LEASE, str(DEFAULT_LEASE_S))
        lease_s = _number(text)
        if not 6.0 <= lease_s <= 60.0:
            lines.append(f"{ENV_LEASE}: {text!r} is no number from 6 to 60")
        named = {name: _names(environ.get(name, ""), name, lines) for name in (ENV_PARTITIONS, ENV_ACCOUNTS)}
        cluster, cluster_from, region = "", "", None
        try:
            cluster, cluster_from = cluster_of(environ, options.get("cluster"))
            region = options.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
            region = region or _region_of(config)
        except (MailboxError, OSError, ValueError) as err:
            lines.append(f"{ENV_CLUSTER} (--cluster): {err}")
        # systemd sets STATE_DIRECTORY where a unit has StateDirectory=; several are separated by colons.
        state_dir = get("state_dir", ENV_STATE_DIR) or environ.get("STATE_DIRECTORY", "").split(":")[0]
        if lines:
            raise SettingsError(lines)
        return cls(
            cluster=cluster,
            cluster_from=cluster_from,
            stack=stack,
            bucket=bucket,
            bus=get("bus", ENV_BUS, stack),
            region=region,
            state_dir=Path(state_dir or DEFAULT_STATE_DIR),
            poll_s=poll_s,
            resource_config=config,
            lease_s=lease_s,
            allow_file=environ.get(ENV_ROOT, "") + ALLOW_FILE,
            partitions=named[ENV_PARTITIONS],
            accounts=named[ENV_ACCOUNTS],
            environ=dict(environ),
        )


def cluster_of(environ: Mapping[str, str], option: str | None) -> tuple[str, str]:
    """The cluster's name and who says so; the monitor on the nodes asks in the same order.

    Raises: MailboxError for a name that cannot be used, ValueError where nothing names it or the file that should is
    broken, OSError where that file cannot be read.
    """
    if option:
        return check_cluster(option), "--cluster"
    if found := cluster_named(environ, passes_over=False):
        return found
    raise ValueError(
        f"nothing names the cluster: no {environ.get(ENV_RESOURCE_CONFIG) or RESOURCE_CONFIG} (HyperPod), no "
        f"{CLUSTER_FILE}, no SLURM_CLUSTER_NAME, no slurm.conf in " + ", ".join(confs_of(environ))
    )


def _region_of(path: str) -> str | None:
    found = _ARN.fullmatch(str(resource_config(path).get("ClusterArn", "")))
    return found["region"] if found else None


def _names(text: str, variable: str, lines: list[str]) -> frozenset[str]:
    """Names of partitions or accounts, separated by commas; what is none is added to `lines`."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    lines += [f"{variable}: {name!r} is no name" for name in found if _NAME.fullmatch(name) is None]
    return frozenset(found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
