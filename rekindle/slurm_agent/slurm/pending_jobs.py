"""Jobs that wait: for nodes that there must be, or for another job, after whose new start they wait for that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.slurm_agent.base.ports import Repointed, UnknownJob
from rekindle.slurm_agent.copies.compare import hosts_of
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.privileged.changes import Change, ChangeKind
from rekindle.slurm_agent.privileged.gate import Gate
from rekindle.slurm_agent.privileged.remote import RemoteGate
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.jobs import KILL_ON_INVALID, Job, repointed
from rekindle.slurm_agent.reading.nodes import Node
from rekindle.slurm_agent.reading.run_identity import NEVER
from rekindle.slurm_agent.reading.sizes import fewest_nodes


def repoint(reads: CopyReads, gate: Gate | RemoteGate, slurm_job: int, new_job: int, *, others: bool) -> Repointed:
    """Let the jobs that wait for one wait for the other, or again for the same: those of its user, with `others`
    everybody's. Idempotent. What Slurm has canceled because its dependency can never be satisfied
    (`--kill-on-invalid-dep`) is put back into the queue for it."""
    changed, left = [], []
    jobs = reads.jobs()
    owner = next((job.user for job in jobs if job.job == new_job), "")
    for job in jobs:
        expression = repointed(job.dependency, slurm_job, new_job)
        if expression is None or job.job == new_job:
            continue
        was_killed = job.state is SlurmState.CANCELLED and _was_killed_for_its_dependency(reads, job)
        if not was_killed and job.state is not SlurmState.PENDING:
            continue
        if not others and not job.user == owner != "":
            left.append(job.job)
            continue
        if was_killed:
            # Held: else it would be canceled again before it is changed.
            gate.make(Change(kind=ChangeKind.REQUEUE_HELD, job=job.job))
        gate.make(Change(kind=ChangeKind.WAIT_FOR, job=job.job, text=expression, for_job=new_job, of_others=others))
        if was_killed:
            gate.make(Change(kind=ChangeKind.RELEASE, job=job.job))
        changed.append(job.job)
    return Repointed(changed=tuple(changed), left=tuple(left))


def _was_killed_for_its_dependency(reads: CopyReads, job: Job) -> bool:
    """Slurm has canceled it, not its user: one that waits in vain without that option stays in the queue."""
    if job.node_list or not job.may_requeue or job.is_array_task or not job.reason.startswith(NEVER):
        return False
    try:
        return reads.detail(job).get(KILL_ON_INVALID) == "Yes"
    except UnknownJob:
        return False


def why_not_without(detail: Mapping[str, str], nodes: Iterable[Node], excluded: Collection[str]) -> str:
    """Why a pending job never starts without the `excluded`, as far as its record and the nodes' tell; "" where nothing
    says so. Whatever state nodes are in now, counts. slurmctld takes any list of excluded nodes, then shows
    BadConstraints and sets the job's priority to 0."""
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
