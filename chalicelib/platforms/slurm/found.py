"""What registering a Slurm job needs, from its attempt's document. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.platforms.slurm.platform import SLURM
from chalicelib.ports.platforms import DiscoveredJob
from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.protocol.cluster.names import is_slurm, parse_attempt, relay_prefix
from rekindle.protocol.cluster.queue_place import QueueFact, will_lose_text
from rekindle.protocol.wire import MailboxError, Place

_NOT_KEPT: Final = "it cannot be submitted again faithfully: "


def found_of(doc: AttemptDoc, *, bucket: str, queue_losses: Sequence[QueueFact] = ()) -> DiscoveredJob:
    """The first start of a submission names its Job, unless the job's comment names another of the same cluster.

    The agent lets a comment name Jobs of its own user only. A head node that says otherwise must not reach beyond its
    own cluster: neither another cluster's Job nor a training job's is joined, whatever the comment says.
    """
    parts = parse_attempt(doc.attempt)
    first = parts.restarted(0).name
    is_ours = doc.job_id is not None and is_slurm(doc.job_id) and parse_attempt(doc.job_id).cluster == parts.cluster
    job_id = (doc.job_id if is_ours else None) or (first if parts.restart else None)
    return DiscoveredJob(
        name=doc.attempt,
        policy_name=doc.policy or "default",
        job_id=job_id,
        mailbox=service_mailbox(doc, job_id or doc.attempt, bucket=bucket),
        instance_count=doc.node_count,
        created_at=doc.submitted_at or doc.seen_at,
        checkpoints=doc.checkpoints if _place(doc.checkpoints) else "",
        platform=SLURM.name,
        cluster=parts.cluster,
        title="".join(char if char.isprintable() else " " for char in doc.name),  # for terminals and mails
        limits=limits_of(doc, bucket=bucket, queue_losses=queue_losses),
        number=1 + parts.restart,
        user=doc.user,
        size=size_of(doc),
    )


def size_of(doc: AttemptDoc) -> JobSize:
    """Slurm tells GPUs, where it does, and no instance types."""
    if doc.gpu_count is None:
        return JobSize(gpus=Unknown("Slurm does not tell how many GPUs the job has"))
    return JobSize(gpus=Known(doc.gpu_count))


def service_mailbox(doc: AttemptDoc, job_id: str, *, bucket: str) -> str:
    """The mailbox as we reach it: where it lies on a shared path, the copy that the agent keeps of it in S3."""
    place = _place(doc.mailbox)
    if place is None or _is_cluster_state(place, bucket):
        return ""
    if place.bucket is not None:
        return place.uri
    return f"s3://{bucket}/{relay_prefix(doc.cluster, job_id)}"


def _is_cluster_state(place: Place, bucket: str) -> bool:
    """Ours and the agents' part of the bucket: a comment that could point there would have us write another user's
    fence, also on another cluster."""
    return place.bucket == bucket and f"{place.path}/".startswith("clusters/")


def limits_of(doc: AttemptDoc, *, bucket: str, queue_losses: Sequence[QueueFact] = ()) -> tuple[str, ...]:
    """What cannot be done for this job, one sentence each. Notified when it is registered, not when it is too late.

    What each new start loses in the cluster's queue stands beside the job's own; alone it is for the doctor to tell.
    """
    limits = [f"{_NOT_KEPT}{why}" for why in doc.cannot_resubmit]
    if not doc.is_requeueable:
        limits.append("Slurm will not requeue it (Requeue=0), so each recovery is a new submission under a new job id")
    if not doc.mailbox and doc.signal is None:
        limits.append("it cannot be asked for a checkpoint: it has no mailbox, and its script traps no signal")
    elif not doc.mailbox and not doc.checkpoints:
        limits.append("a checkpoint that it is asked for cannot be seen: where its checkpoints appear is not known")
    for name, uri in (("mailbox", doc.mailbox), ("checkpoints", doc.checkpoints)):
        if uri and _place(uri) is None:
            limits.append(f"its {name} is passed over: {uri[:80]!r} is neither s3://bucket/prefix nor an absolute path")
    mailbox = _place(doc.mailbox)
    if mailbox is not None and _is_cluster_state(mailbox, bucket):
        limits.append(f"its mailbox is passed over: {doc.mailbox[:80]!r} is the cluster state, where no run's may lie")
    if queue_losses and limits:
        limits.append(will_lose_text(queue_losses))
    return tuple(limit[:300] for limit in limits[:20])


def _place(uri: str) -> Place | None:
    try:
        return Place.parse(uri) if uri else None
    except MailboxError:
        return None
