"""What stands in the bucket about a cluster's lease, as S3 answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rekindle.protocol.cluster.lease import MAX_TERM_S, LeaseDoc, StandbyDoc, lease_key, standby_key, standby_prefix
from rekindle.protocol.store_clock import age_s
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.aws import AwsError, code_of

ROUNDING_S: Final = 2.0  # Date and Last-Modified are whole seconds each
NOT_THERE: Final = frozenset({"NoSuchKey", "404"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """This agent. `last_epoch` is the one under which it last held the lease, as its own state says; 0: never."""

    cluster: str
    agent_id: str
    host: str
    boot: str
    version: str = ""
    last_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLease:
    """What stands in the bucket. `doc` None with an `etag`: it is no lease, `why` says in what."""

    etag: str
    age_s: float
    doc: LeaseDoc | None
    why: str = ""


def read_lease(s3: Any, bucket: str, cluster: str) -> StoredLease | None:
    """What stands there; None: nothing. Raises: botocore's errors."""
    try:
        answer = s3.get_object(Bucket=bucket, Key=lease_key(cluster))
        raw: bytes = answer["Body"].read(LeaseDoc.LIMIT_BYTES + 1)
    except AwsError as err:
        if code_of(err) in NOT_THERE:
            return None
        raise
    doc: LeaseDoc | None = None
    etag, age, why = str(answer["ETag"]), age_s(answer) - ROUNDING_S, ""
    try:
        doc = LeaseDoc.from_json(raw)
    except MailboxError as err:
        why = str(err)[:200]
    if doc is not None and doc.cluster != cluster:
        why = f"cluster: is {doc.cluster}"
        doc = None
    return StoredLease(etag=etag, age_s=age, doc=doc, why=why)


def standing_by(s3: Any, bucket: str, cluster: str) -> list[tuple[str, str]]:
    """Key and id of each agent whose mark is fresh by the store's clock. Raises: botocore's errors."""
    prefix = standby_prefix(cluster)
    answer: Mapping[str, Any] = s3.list_objects_v2(Bucket=bucket, Prefix=prefix)
    found = []
    for item in answer.get("Contents", ()):
        about = {"LastModified": item.get("LastModified"), "ResponseMetadata": answer.get("ResponseMetadata", {})}
        if item.get("Size", 0) > 0 and age_s(about) <= MAX_TERM_S:
            found.append((str(item["Key"]), str(item["Key"])[len(prefix) :].removesuffix(".json")))
    return found


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
