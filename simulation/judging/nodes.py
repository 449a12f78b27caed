"""Repairs of nodes, and runs that are left to people on a broken one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.node import is_in_service
from simulation.judging.bill import NOT_WORKING
from simulation.judging.scene import Part, Scene
from simulation.runs.truth import MISSES_NOTHING, TrueNode, TrueRun
from simulation.slurm.cluster import SICK, Cluster

MANY_OUT: Final = 2  # nodes that Slurm cannot reach at once: then its network is at fault, or itself
MANY_ON_ONE: Final = 3  # deaths of ours on one broken node: after the second one it is to be left out


class Nodes(Part):
    """`spares`: by attempt, how many well nodes it could have had. `open_nodes`: open Incidents about a node."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._repaired: list[datetime] = []
        self.open_nodes: set[str] = set()
        self.spares: dict[str, int] = {}

    def repairs(self, node: TrueNode, how: str) -> None:
        cluster, policy = self._world.cluster, self._world.policy
        if cluster is None:
            return
        self._repaired.append(self._now)
        self._scene.judge_pause(f"a {how}", node.name)
        is_condemned = node.condemned or node.is_acquittal_lost or node.is_announced(self._now)
        is_ordered, node.is_ordered = node.is_ordered, False
        is_out = node.is_broken or node.runs_unseen or self._is_out_alone(node)
        if not (is_ordered or is_out or is_condemned or self.just_repaired(node)):
            self._count("node_repaired_well", node.name, f"{how} of a node with which nothing was wrong")
        others = [other.name for other in cluster.nodes.values() if other.in_our_repair and other is not node]
        room = self._room(cluster)
        if len(others) >= room:
            self._count("too_many_at_once", node.name, f"{len(others)} nodes are in repair; {room} are allowed")
        today = [at for at in self._repaired if self._now - at < timedelta(days=1)]
        if len(today) > policy.budgets.max_repairs_per_day:
            self._count("budget_exceeded", node.name, f"{len(today)} repairs within a day")

    def _room(self, cluster: Cluster) -> int:
        return max(1, int(len(cluster.nodes) * self._world.policy.budgets.max_nodes_in_repair_percent / 100))

    def just_repaired(self, node: TrueNode) -> bool:
        late = self._world.source_faults.head_late()
        shown = [at + late for at in (node.repaired_at, node.reachable_since) if at is not None]
        ends = [*shown, node.condemned_until] if node.condemned_until is not None else shown
        return any(self._now - at < MISSES_NOTHING for at in ends)

    def _is_out_alone(self, node: TrueNode) -> bool:
        """Slurm has not reached it for a while, and only few: no job can run on such a node until it is rebooted."""
        cluster, since = self._world.cluster, node.unreachable_since
        if cluster is None or since is None or self._now - since <= MISSES_NOTHING:
            return False
        out = sum(other.unreachable_since is not None for other in cluster.nodes.values())
        return out < MANY_OUT or out <= self._room(cluster)

    def judge_nodes(self, run: TrueRun) -> None:
        """Count a run that is left to people on a node that breaks each of its starts, ours among them."""
        cluster = self._world.cluster
        if cluster is None or run.ill is None or run.ill.kind not in NOT_WORKING or run.owner_took_it:
            return
        if run.spec.plan != "obeyed" or self.open_nodes:  # then another node is held to be the bad one, or it as well
            return
        broken = [node for node in cluster.nodes.values() if node.is_broken]
        if len(broken) == 1 and broken[0].broken_since is not None:  # by halves, two look like none
            self._judge_starts_on(broken[0], broken[0].broken_since, run, self.idle_nodes(cluster))

    def _judge_starts_on(self, node: TrueNode, since: datetime, run: TrueRun, idle: int) -> None:
        starts = [
            attempt
            for attempt in run.attempts.values()
            if (attempt.job.ended_at or self._now) >= since and attempt.nodes
        ]
        ours = [attempt for attempt in starts if attempt.is_ours and attempt.job.failure_reason == SICK]
        is_everywhere = all(node in attempt.nodes for attempt in starts)
        # It could have been left out of one of the later starts: a run that was between two attempts as this one was
        # given up has left no spares.
        spares = min(idle, max((self.spares.get(attempt.name, 0) for attempt in ours[MANY_ON_ONE - 1 :]), default=0))
        beside_it = max(run.spec.instances // 2, 1) - 1  # well ones that are left out with it
        if len(ours) >= MANY_ON_ONE and is_everywhere and spares - beside_it >= run.spec.instances:
            self._count("kept_on_bad_node", run.name, f"{len(starts)} starts on {node.name}, {spares} idle")

    def idle_nodes(self, cluster: Cluster) -> int:
        """How many well nodes nothing runs on, without those that are back for less than a minute."""
        busy = {node.name for other in self._world.runs.values() for attempt in other.live for node in attempt.nodes}
        return sum(
            facts.state == "idle"
            and is_in_service(facts)
            and name not in busy
            and not (cluster.nodes[name].is_broken or self.just_repaired(cluster.nodes[name]))
            for name, facts in cluster.model.node_facts.items()
        )
