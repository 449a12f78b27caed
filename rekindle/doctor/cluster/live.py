"""A live cluster, and Rekindle's own side of it. Pure: `now` is handed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rekindle.doctor.base.facts import Missing, NodeFacts, NotInspected
from rekindle.doctor.base.findings import Finding, counted, error, listed, quoted, unknown, warning
from rekindle.doctor.base.ids import Id
from rekindle.doctor.base.subject import Subject
from rekindle.protocol.cluster.documents import SILENT_AFTER, AgentDoc, NodesDoc
from rekindle.protocol.cluster.node_states import NodeStanding, StateMeaning, standing_of, that_say, words_of

_BROKEN: Final = ("Failed", "RollingBack", "Deleting")
_BROKEN_GROUP: Final = ("Failed", "Degraded", "Deleting")
_OUT: Final = that_say(
    StateMeaning.DRAINED, StateMeaning.FAILING, StateMeaning.DOWN, StateMeaning.SILENT, StateMeaning.INVALID
)


def cluster_findings(subject: Subject, nodes: list[NodeFacts] | NotInspected) -> Iterator[Finding]:
    """What DescribeCluster and ListClusterNodes say. Sources: botocore; docs/facts-sagemaker.md#node-states."""
    if subject.status in _BROKEN:
        why = f": {quoted(subject.failure, 200)}" if subject.failure else ""
        yield error(Id.CLUSTER_STATUS, subject.path("ClusterStatus"), f"the cluster is {subject.status}{why}")
    elif subject.status != "InService":
        message = f"the cluster is {subject.status}: nodes cannot be replaced or rebooted now"
        yield warning(Id.CLUSTER_STATUS, subject.path("ClusterStatus"), message)
    for group in subject.groups:
        if group.status in _BROKEN_GROUP:
            yield error(
                Id.CLUSTER_STATUS, subject.path(f"{group.at}.Status"), f"{quoted(group.name)} is {group.status}"
            )
        if group.count is not None and group.current is not None and group.current != group.count:
            where = subject.path(f"{group.at}.CurrentCount")
            yield warning(
                Id.CLUSTER_COUNTS, where, f"{quoted(group.name)} has {group.current} of {group.count} instances"
            )
        yield from _software(subject, group.at, group.name, group.software)
    yield from _nodes(subject, nodes)


def _software(subject: Subject, at: str, name: str | None, status: str | None) -> Iterator[Finding]:
    """BatchReplace and BatchReboot want a cluster that was patched once (docs/facts-sagemaker.md#node-repair)."""
    where = subject.path(f"{at}.SoftwareUpdateStatus")
    if status is None:
        yield warning(
            Id.CLUSTER_SOFTWARE,
            where,
            f"{quoted(name)} has no software update on record: the APIs that replace and reboot nodes refuse a "
            "cluster that was never patched with UpdateClusterSoftware",
        )
    elif status == "Failed":
        yield error(Id.CLUSTER_SOFTWARE, where, f"{quoted(name)}: the last software update failed")
    elif status != "Succeeded":
        yield warning(Id.CLUSTER_SOFTWARE, where, f"{quoted(name)}: its software update is {status}")


def _nodes(subject: Subject, nodes: list[NodeFacts] | NotInspected) -> Iterator[Finding]:
    if isinstance(nodes, NotInspected):
        yield unknown(Id.CLUSTER_NODES, subject.label, f"nodes were not looked at: {nodes.why}")
        return
    for node in nodes:
        if node.status == "Failure":
            text = f": {quoted(node.message, 160)}" if node.message else ""
            yield error(Id.CLUSTER_NODES, subject.path(node.id), f"{node.id} of {quoted(node.group)} has failed{text}")
    others = Counter(node.status for node in nodes if node.status not in ("Running", "Failure"))
    for status, count in sorted(others.items()):
        ids = listed((node.id for node in nodes if node.status == status), 4)
        yield warning(Id.CLUSTER_NODES, subject.label, f"{counted(count, 'node')} {status}: {ids}")


def difference_findings(request: Subject, live: Subject) -> Iterator[Finding]:
    """What the live cluster has otherwise than the request that is at hand."""
    ours = {group.name: group for group in request.groups if group.name is not None}
    theirs = {group.name: group for group in live.groups if group.name is not None}
    for name in sorted(set(ours) - set(theirs)):
        yield warning(Id.CLUSTER_MATCHES, request.path(ours[name].at), f"{quoted(name)} is not in {live.label}")
    for name in sorted(set(theirs) - set(ours)):
        yield warning(Id.CLUSTER_MATCHES, live.path(theirs[name].at), f"{quoted(name)} is not in {request.label}")
    for name in sorted(set(ours) & set(theirs)):
        one, other = ours[name], theirs[name]
        for what, here, there in (
            ("InstanceCount", one.count, other.count),
            ("InstanceType", listed(one.types), listed(other.types)),
            ("ExecutionRole", one.role, other.role),
            ("TrainingPlanArn", one.plan, other.plan),
        ):
            if here != there:
                where = request.path(f"{one.at}.{what}")
                yield warning(Id.CLUSTER_MATCHES, where, f"{quoted(here)} here, {quoted(there)} in {live.label}")
    if request.recovery is not None and live.recovery is not None and request.recovery != live.recovery:
        where = request.path("NodeRecovery")
        yield warning(Id.CLUSTER_MATCHES, where, f"{request.recovery} here, {live.recovery} in {live.label}")


def agent_findings(
    label: str,
    agent: AgentDoc | Missing | NotInspected,
    queue: str | Missing | NotInspected,
    nodes: NodesDoc | Missing | NotInspected,
    *,
    now: datetime,
) -> Iterator[Finding]:
    """Rekindle's agent on the head node, the queue of its orders, and the nodes as it sees them."""
    match agent:
        case Missing():
            yield warning(
                Id.AGENT_HEARTBEAT,
                label,
                "no agent has ever reported: jobs on this cluster are not protected by Rekindle",
            )
        case NotInspected(why):
            yield unknown(Id.AGENT_HEARTBEAT, label, f"the agent's heartbeat was not looked at: {why}")
        case AgentDoc() as doc:
            yield from _heartbeat(label, doc, now)
    match queue:
        case Missing():
            beside = error if isinstance(agent, AgentDoc) else warning
            yield beside(Id.AGENT_QUEUE, label, "the agent's queue does not exist: it can be given no order")
        case NotInspected(why):
            yield unknown(Id.AGENT_QUEUE, label, f"the agent's queue was not looked at: {why}")
        case str():
            pass
    if isinstance(nodes, NodesDoc):
        for node in nodes.nodes:
            bad = sorted(_OUT & words_of(node.state, node.flags))
            if bad and standing_of(node.state, node.flags, node.reason) is not NodeStanding.AWAY:
                text = f": {quoted(node.reason, 160)}" if node.reason else ""
                yield warning(Id.AGENT_NODES, f"{label}:{node.name}", f"Slurm has it as {listed(bad)}{text}")
    elif isinstance(nodes, NotInspected):
        yield unknown(Id.AGENT_NODES, label, f"Slurm's nodes were not looked at: {nodes.why}")


def _heartbeat(label: str, doc: AgentDoc, now: datetime) -> Iterator[Finding]:
    if now - doc.at > SILENT_AFTER:
        yield error(Id.AGENT_HEARTBEAT, label, f"the agent is silent since {doc.at:%Y-%m-%d %H:%M:%S} UTC")
    elif doc.read_at is None or now - doc.read_at > SILENT_AFTER:
        since = f" since {doc.read_at:%Y-%m-%d %H:%M:%S} UTC" if doc.read_at else ""
        yield error(Id.AGENT_HEARTBEAT, label, f"the agent lives but has not read Slurm{since}")
    for problem in doc.problems:
        yield warning(Id.AGENT_HEARTBEAT, label, f"the agent says: {quoted(problem, 200)}")
