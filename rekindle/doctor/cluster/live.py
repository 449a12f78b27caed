"""A live cluster, and Rekindle's own side of it. Pure: `now` is handed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rekindle.doctor.base.checks import OURS, SCALING, Area, check
from rekindle.doctor.base.facts import Found, Missing, NodeFacts, NotInspected
from rekindle.doctor.base.findings import Finding, counted, error, listed, quoted, unknown, warning
from rekindle.doctor.base.subject import Subject
from rekindle.protocol.cluster.documents import SILENT_AFTER, AgentDoc, NodesDoc
from rekindle.protocol.cluster.node_states import NodeStanding, StateMeaning, standing_of, that_say, words_of
from rekindle.protocol.cluster.queue_place import will_lose_text

_BROKEN: Final = ("Failed", "RollingBack", "Deleting")
_BROKEN_GROUP: Final = ("Failed", "Degraded", "Deleting")
_OUT: Final = that_say(
    StateMeaning.DRAINED, StateMeaning.FAILING, StateMeaning.DOWN, StateMeaning.SILENT, StateMeaning.INVALID
)


@check("cluster-exists", Area.LIVE, "botocore, DescribeCluster")
def cluster_exists(answer: Missing | NotInspected, label: str, region: str | None) -> Iterator[Finding]:
    """The cluster exists.

    The name may be mistyped.
    """
    match answer:
        case Missing():
            yield error(label, f"does not exist in {region or 'this region'}")
        case NotInspected(why):
            yield unknown(label, f"was not looked at: {why}")


def cluster_findings(subject: Subject, nodes: list[NodeFacts] | NotInspected) -> Iterator[Finding]:
    """What DescribeCluster and ListClusterNodes say."""
    yield from _status(subject)
    yield from _counts(subject)
    for group in subject.groups:
        yield from _software(subject, group.at, group.name, group.software)
    yield from _nodes(subject, nodes)


@check("cluster-status", Area.LIVE, "botocore, DescribeCluster")
def _status(subject: Subject) -> Iterator[Finding]:
    """It and its groups are in service.

    Repairs wait until they are.
    """
    if subject.status in _BROKEN:
        why = f": {quoted(subject.failure, 200)}" if subject.failure else ""
        yield error(subject.path("ClusterStatus"), f"the cluster is {subject.status}{why}")
    elif subject.status != "InService":
        message = f"the cluster is {subject.status}: nodes cannot be replaced or rebooted now"
        yield warning(subject.path("ClusterStatus"), message)
    for group in subject.groups:
        if group.status in _BROKEN_GROUP:
            yield error(subject.path(f"{group.at}.Status"), f"{quoted(group.name)} is {group.status}")


@check("cluster-counts", Area.LIVE, SCALING)
def _counts(subject: Subject) -> Iterator[Finding]:
    """Each group has as many instances as it should.

    InService does not say so under Continuous.
    """
    for group in subject.groups:
        if group.count is not None and group.current is not None and group.current != group.count:
            where = subject.path(f"{group.at}.CurrentCount")
            yield warning(where, f"{quoted(group.name)} has {group.current} of {group.count} instances")


@check("cluster-software", Area.LIVE, "SageMaker API, BatchReplaceClusterNodes")
def _software(subject: Subject, at: str, name: str | None, status: str | None) -> Iterator[Finding]:
    """The software was updated once, and the last update went well.

    BatchReplaceClusterNodes and BatchRebootClusterNodes refuse the cluster otherwise.
    """
    where = subject.path(f"{at}.SoftwareUpdateStatus")
    if status is None:
        yield warning(
            where,
            f"{quoted(name)} has no software update on record: the APIs that replace and reboot nodes refuse a "
            "cluster that was never patched with UpdateClusterSoftware",
        )
    elif status == "Failed":
        yield error(where, f"{quoted(name)}: the last software update failed")
    elif status != "Succeeded":
        yield warning(where, f"{quoted(name)}: its software update is {status}")


@check("cluster-nodes", Area.LIVE, "botocore, ListClusterNodes")
def _nodes(subject: Subject, nodes: list[NodeFacts] | NotInspected) -> Iterator[Finding]:
    """Every node runs.

    A failed node reduces capacity.
    """
    if isinstance(nodes, NotInspected):
        yield unknown(subject.label, f"nodes were not looked at: {nodes.why}")
        return
    for node in nodes:
        if node.status == "Failure":
            text = f": {quoted(node.message, 160)}" if node.message else ""
            yield error(subject.path(node.id), f"{node.id} of {quoted(node.group)} has failed{text}")
    others = Counter(node.status for node in nodes if node.status not in ("Running", "Failure"))
    for status, count in sorted(others.items()):
        ids = listed((node.id for node in nodes if node.status == status), 4)
        yield warning(subject.label, f"{counted(count, 'node')} {status}: {ids}")


@check("cluster-matches-config", Area.LIVE, OURS)
def difference_findings(request: Subject, live: Subject) -> Iterator[Finding]:
    """Groups, counts, types, roles and plans are those of `--config`.

    The next update would revert manual changes.
    """
    ours = {group.name: group for group in request.groups if group.name is not None}
    theirs = {group.name: group for group in live.groups if group.name is not None}
    for name in sorted(set(ours) - set(theirs)):
        yield warning(request.path(ours[name].at), f"{quoted(name)} is not in {live.label}")
    for name in sorted(set(theirs) - set(ours)):
        yield warning(live.path(theirs[name].at), f"{quoted(name)} is not in {request.label}")
    for name in sorted(set(ours) & set(theirs)):
        group, live_group = ours[name], theirs[name]
        for what, here, there in (
            ("InstanceCount", group.count, live_group.count),
            ("InstanceType", listed(group.types), listed(live_group.types)),
            ("ExecutionRole", group.role, live_group.role),
            ("TrainingPlanArn", group.plan, live_group.plan),
        ):
            if here != there:
                where = request.path(f"{group.at}.{what}")
                yield warning(where, f"{quoted(here)} here, {quoted(there)} in {live.label}")
    if request.recovery is not None and live.recovery is not None and request.recovery != live.recovery:
        where = request.path("NodeRecovery")
        yield warning(where, f"{request.recovery} here, {live.recovery} in {live.label}")


def agent_findings(
    label: str, agent: Found[AgentDoc], queue: Found[str], nodes: Found[NodesDoc], *, now: datetime
) -> Iterator[Finding]:
    """Rekindle's agent on the head node, the queue of its orders, and the nodes as it sees them."""
    yield from agent_heartbeat(label, agent, now)
    yield from _queue(label, queue, is_expected=isinstance(agent, AgentDoc))
    yield from _slurm_nodes(label, nodes)


@check("agent-heartbeat", Area.LIVE, OURS)
def agent_heartbeat(label: str, agent: Found[AgentDoc], now: datetime) -> Iterator[Finding]:
    """Rekindle's agent on the head node lives and reads Slurm.

    Without it Rekindle cannot observe or act there.
    """
    match agent:
        case Missing():
            yield warning(label, "no agent has ever reported: jobs on this cluster are not protected by Rekindle")
        case NotInspected(why):
            yield unknown(label, f"the agent's heartbeat was not looked at: {why}")
        case AgentDoc() as doc:
            yield from _heartbeat(label, doc, now)
            yield from _queue_losses(label, doc)


@check("agent-queue-losses", Area.LIVE, "docs/slurm-costs.md")
def _queue_losses(label: str, doc: AgentDoc) -> Iterator[Finding]:
    """A job that is started again keeps its place in Slurm's queue.

    A job that was submitted meanwhile may take its nodes.
    """
    if doc.queue_losses:
        yield warning(label, will_lose_text(doc.queue_losses))


@check("agent-queue", Area.LIVE, OURS)
def _queue(label: str, queue: Found[str], *, is_expected: bool) -> Iterator[Finding]:
    """The queue of its orders exists.

    Orders cannot reach it.
    """
    match queue:
        case Missing():
            weighed = error if is_expected else warning
            yield weighed(label, "the agent's queue does not exist: it can be given no order")
        case NotInspected(why):
            yield unknown(label, f"the agent's queue was not looked at: {why}")


@check("agent-nodes", Area.LIVE, OURS)
def _slurm_nodes(label: str, nodes: Found[NodesDoc]) -> Iterator[Finding]:
    """No node is drained, failed or down in Slurm.

    Such a node takes no job.
    """
    if isinstance(nodes, NodesDoc):
        for node in nodes.nodes:
            bad = sorted(_OUT & words_of(node.state, node.flags))
            if bad and standing_of(node.state, node.flags, node.reason) is not NodeStanding.AWAY:
                text = f": {quoted(node.reason, 160)}" if node.reason else ""
                yield warning(f"{label}:{node.name}", f"Slurm has it as {listed(bad)}{text}")
    elif isinstance(nodes, NotInspected):
        yield unknown(label, f"Slurm's nodes were not looked at: {nodes.why}")


def _heartbeat(label: str, doc: AgentDoc, now: datetime) -> Iterator[Finding]:
    if now - doc.at > SILENT_AFTER:
        yield error(label, f"the agent is silent since {doc.at:%Y-%m-%d %H:%M:%S} UTC")
    elif doc.read_at is None or now - doc.read_at > SILENT_AFTER:
        since = f" since {doc.read_at:%Y-%m-%d %H:%M:%S} UTC" if doc.read_at else ""
        yield error(label, f"the agent runs but has not read Slurm{since}")
    for problem in doc.problems:
        yield warning(label, f"the agent says: {quoted(problem, 200)}")
