"""The other agents of a cluster: how one that stands by shows itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rekindle.protocol.cluster.lease import LeaseDoc, StandbyDoc, standby_key


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """This agent. `last_epoch` is the one under which it last held the lease, as its own state says; 0: never."""

    cluster: str
    agent_id: str
    host: str
    boot: str
    version: str = ""
    last_epoch: int = 0


def leave_mark(s3: Any, bucket: str, who: AgentIdentity, *, at: datetime, lease: LeaseDoc | None, problem: str) -> None:
    """This agent stands by, and why. Raises: botocore's errors."""
    mark = StandbyDoc(
        cluster=who.cluster,
        agent_id=who.agent_id,
        host=who.host,
        at=at,
        version=who.version,
        holder=lease.holder if lease is not None else "",
        problem=problem[:300],
    )
    key = standby_key(who.cluster, who.agent_id)
    s3.put_object(Bucket=bucket, Key=key, Body=mark.to_json(), ContentType="application/json")


def take_mark_away(s3: Any, bucket: str, who: AgentIdentity) -> None:
    """This agent stands by no more: an empty mark, as older policies allow no deletion. Raises: botocore's errors."""
    s3.put_object(Bucket=bucket, Key=standby_key(who.cluster, who.agent_id), Body=b"")
