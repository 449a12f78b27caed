"""The nodes of a story's cluster: how they break, leave and come back, and what HyperPod and Slurm say of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from localcloud.platforms.hyperpod_cluster import Node
from rekindle.protocol.cluster.documents import NodesDoc
from simulation.runs.truth import TrueNode
from simulation.slurm.site import NAME, Site, name_of

SLURMD_TIMEOUT: Final = timedelta(seconds=90)
HYPERPOD_MARKS: Final = timedelta(seconds=40)
SPOT_AHEAD_S: Final = 120.0  # Source: EC2 user guide, Spot interruption notices
AWAY: Final = timedelta(minutes=10)  # from when AWS takes an instance until another one is there
_RETIRES: Final = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"


class Machines:
    """Changes what is true of the nodes, and tells Slurm's model and the cluster's API."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._clock, self._faults, self._publish = site.clock, site.source_faults, site.publish
        self._model, self._pods, self._nodes, self._watcher = (
            site.model,
            site.pods,
            site.nodes,
            site.watcher,
        )

    def announce(self, node: TrueNode, ahead_s: float) -> None:
        """A Spot warning where it is about to happen, else a notice of AWS Health. Which of them names an instance of
        HyperPod's is not documented; both name EC2 instances.
        """
        now = self._clock.now()
        node.announced_at, node.leaves_at = now, now + timedelta(seconds=ahead_s)
        if ahead_s <= SPOT_AHEAD_S:
            detail: dict[str, Any] = {"instance-id": node.instance_id, "instance-action": "terminate"}
            self._publish("aws.ec2", "EC2 Spot Instance Interruption Warning", detail, [])
            return
        arn = f"arn:aws:health:us-west-2::event/EC2/{_RETIRES}/{node.name}-{now:%H%M%S}"
        detail = {
            "eventArn": arn,
            "communicationId": arn.rpartition("/")[2],
            "service": "EC2",
            "eventTypeCode": _RETIRES,
            "eventTypeCategory": "scheduledChange",
            "statusCode": "upcoming",
            "startTime": f"{node.leaves_at:%a, %d %b %Y %H:%M:%S} GMT",
            "eventDescription": [{"language": "en_US", "latestDescription": "The instance will be retired."}],
            "affectedEntities": [{"entityValue": node.instance_id, "status": "PENDING"}],
        }
        self._publish("aws.health", "AWS Health Event", detail, [node.instance_id])

    def leaves(self, node: TrueNode) -> None:
        """AWS takes the instance, unless it was replaced since; another one is there a while later."""
        now = self._clock.now()
        if node.leaves_at is None or node.leaves_at > now:
            return
        node.announced_at = node.leaves_at = None
        if node.is_broken:
            return
        node.breaks(now, is_dead=True, cure="reboot")
        for run in self._site.runs.values():
            for attempt in run.live:
                if node in attempt.nodes and attempt.trains_since is not None:
                    self._site.training.freezes(attempt, attempt.step_at(now))
        self._clock.after(SLURMD_TIMEOUT, lambda: self.is_lost(node), label=f"Slurm misses {node.name}")
        self._clock.after(AWAY, lambda: self._is_back(node), label=f"{node.name} is back")

    def _is_back(self, node: TrueNode) -> None:
        if node.is_dead and not node.in_our_repair:
            node.repaired(self._clock.now(), by="replace")
            self._model.mend_node(node.name)
            self.show(node.name, booted_at=self._clock.now())
            self._site.soon()

    def bent(self, nodes: NodesDoc) -> NodesDoc:
        """The nodes as Slurm shows them: some seem not to answer."""
        hidden = {node.name for node in nodes.nodes if self._faults.hides_node(node.name)}
        for node in self._nodes.values():
            if node.unreachable_since is not None and node.name not in hidden:
                node.reachable_since = self._clock.now()
            node.unreachable_since = (node.unreachable_since or self._clock.now()) if node.name in hidden else None
        shown = tuple(
            replace(node, state="down", flags=(*node.flags, "not_responding"), reason=node.reason or "Not responding")
            if node.state in ("idle", "allocated") and node.name in hidden
            else node
            for node in nodes.nodes
        )
        return NodesDoc(cluster=nodes.cluster, seen_at=nodes.seen_at, nodes=shown)

    def is_lost(self, node: TrueNode) -> None:
        """slurmd has not answered for long."""
        if node.is_dead and self._model.node_facts[node.name].state != "down":
            self._model.lose_node(node.name)
            self._site.soon()

    def loses(self, node: TrueNode) -> None:
        """Slurm does not reach its slurmd, and takes what runs there for dead."""
        if node.runs_unseen and not node.is_dead:
            self._model.lose_node(node.name)
            self._site.soon()

    def finds(self, node: TrueNode) -> None:
        """slurmd answers again, and ends what it finds of jobs that are over."""
        if node.runs_unseen and not node.in_our_repair and not node.is_dead:
            node.runs_unseen, node.reachable_since = False, self._clock.now()
            self._model.mend_node(node.name)
            self._site.soon()

    def is_seen(self, node: TrueNode) -> None:
        """HyperPod's health agent sees it; its own repair follows where that is switched on."""
        if not node.is_broken:
            return
        self.condemn(node.name, action=node.cure.capitalize())
        if self._pods.clusters[NAME].node_recovery == "Automatic":
            self._clock.after(HYPERPOD_MARKS, lambda: self._mark(node), label=f"HyperPod marks {node.name}")

    def _mark(self, node: TrueNode) -> None:
        if node.is_broken and self._model.node_facts[node.name].state != "down":
            reason = f"Action:{node.cure.capitalize()}"
            self._model.mark_failing(node.name, reason=reason)
            self._pods.slurm_marked(NAME, node.name, reason)
            self._site.soon()

    def condemn(self, name: str, *, action: str = "Reboot") -> None:
        node = self._nodes[name]
        node.condemned, node.condemned_until, node.is_acquittal_lost = True, None, False
        self._pods.report_health(NAME, node.instance_id, fault="NvidiaErrorTerminate", action=action)

    def acquit(self, name: str) -> None:
        node = self._nodes[name]
        if node.condemned and not node.is_broken:
            node.condemned, node.condemned_until = False, self._clock.now() + self._faults.event_delay()
            lost = self._faults.lost
            self._pods.report_health(NAME, node.instance_id, fault="none", status="Healthy")
            node.is_acquittal_lost = self._faults.lost > lost

    def gone(self, _cluster: str, machine: Node) -> None:
        """It goes down to be rebooted or replaced; a drain stays a drain."""
        name = name_of(machine)
        if self._site.repairing:
            self._watcher().repairs(self._nodes[name], self._site.repairing)
            self._nodes[name].in_our_repair = True
        self._nodes[name].runs_unseen = False
        kept = tuple(flag for flag in self._model.node_facts[name].flags if flag == "drain")
        self._model.lose_node(name)
        self.show(name, flags=("not_responding", *kept))
        self._site.soon()

    def rebooted(self, _cluster: str, machine: Node) -> None:
        self._back(machine, by="reboot")

    def replaced(self, _cluster: str, _old: str, _new: str, machine: Node) -> None:
        self._nodes[name_of(machine)].instance_id = machine.instance_id
        self._back(machine, by="replace")

    def _back(self, machine: Node, *, by: str) -> None:
        name = name_of(machine)
        node = self._nodes[name]
        node.repaired(self._clock.now(), by=by)
        if by == "replace":
            node.announced_at = node.leaves_at = None
        node.in_our_repair = False
        facts = self._model.node_facts[name]
        if not node.is_dead:
            drained = tuple(flag for flag in facts.flags if flag == "drain")
            reason = facts.reason if drained else ""
            self.show(name, state="idle", flags=drained, reason=reason, instance_id=machine.instance_id)
            self.show(name, booted_at=self._clock.now())  # slurmd says so with its registration
        else:
            self.show(name, instance_id=machine.instance_id)
        self._site.soon()

    def show(self, name: str, **changes: Any) -> None:
        self._model.node_facts[name] = replace(self._model.node_facts[name], **changes)
