"""Nodes: one observation of a node in Slurm and as an instance, and orders about it. Each order is safe to repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, assert_never

from chalicelib.domain.faults.slurm_states import count_lost
from chalicelib.domain.model.action import ActionResult, CordonNode, Done, action_name
from chalicelib.domain.model.errors import NotAuthorized, Permanent, RecoveryError
from chalicelib.domain.model.hardware_ledger import HardwareRecord
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import (
    ClusterView,
    EarlierRepair,
    GroupRole,
    InstanceState,
    InstanceView,
    Load,
    Machines,
    NodeView,
    is_in_service,
)
from chalicelib.domain.model.node_actions import (
    CheckNode,
    MoveRuns,
    NodeAction,
    RebootNode,
    ReplaceNode,
    UncordonNode,
)
from chalicelib.domain.model.repair import HISTORY, NodeRepair, Route, Rung
from chalicelib.domain.node.memory import slurm_state
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.platforms import ClusterNodes, HeadNodes
from chalicelib.services.observe.repair_load import read_repair_load
from chalicelib.services.reporting.hardware_ledger import HardwareLedgers, marks_to_ask
from rekindle.protocol.cluster.documents import NodeFacts, NodesDoc
from rekindle.protocol.cluster.orders import Order, Outcome, Repair, Verb, token_of

# An order that waits longer than this for an agent could meet a node that has been repaired meanwhile.
ORDER_VALID: Final = timedelta(minutes=10)
_PAST: Final = 10
_CHECK_SHOWS: Final = timedelta(minutes=2)  # until an instance's state says that it is being checked
_ASKED: Final = 32  # instances that tell whether a check of many is over
_WORKABLE: Final = (InstanceState.RUNNING, InstanceState.FAILURE)
_ROLES: Final = (GroupRole.CONTROLLER, GroupRole.LOGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Reads nodes and carries out orders about them. What cannot be read is Unknown, never a failure of the look."""

    head_nodes: HeadNodes
    cluster_nodes: ClusterNodes
    store: IncidentStore
    clock: Clock
    hardware_ledgers: HardwareLedgers | None = None

    # ---- a look ----------------------------------------------------------------------------------------------------

    def view(self, incident: Incident) -> Maybe[NodeView]:
        """Everything that the next decision about the node needs."""
        cluster, node = incident.cluster or "", incident.node or ""
        repair = incident.repair or NodeRepair()
        agent = self.head_nodes.agent(cluster)
        listed = self.head_nodes.nodes(cluster)
        nodes = listed.value.nodes if isinstance(listed, Known) else ()
        found = next((shown for shown in nodes if shown.name == node), None)
        facts: Maybe[NodeFacts | None] = Known(found) if isinstance(listed, Known) else Unknown(listed.why)
        group = repair.group or (found.group if found is not None else None)
        machines = Machines.UNKNOWN
        if isinstance(agent, Known):
            machines = Machines.HYPERPOD if agent.value.cluster_arn else Machines.OWN
        pod, instance = self._machine(cluster, incident, facts, machines)
        is_wanted = repair.wanted_at is not None and incident.phase in (Phase.OPEN, Phase.HOLDING)
        is_wanted = is_wanted or repair.another is not None
        down, load = self._down_and_load(incident, listed, is_wanted=is_wanted)
        return Known(
            NodeView(
                machines=machines,
                listed=facts,
                cluster=pod,
                instance=instance,
                total=len(nodes),
                down=down,
                load=load,
                past=self._past(incident) if incident.phase is Phase.OPEN else (),
                group_total=sum(shown.group == group for shown in nodes) or None if group else None,
                records=self._records(incident, facts, instance, nodes),
            )
        )

    def _machine(
        self, cluster: str, incident: Incident, facts: Maybe[NodeFacts | None], machines: Machines
    ) -> tuple[Maybe[ClusterView | None], Maybe[InstanceView | None]]:
        """The cluster and the instance behind the node, where they are HyperPod's."""
        if machines is Machines.OWN:
            return Known(None), Unknown("plain Slurm has no instances of HyperPod")
        try:
            reference, pod = self._own(cluster)
        except RecoveryError as err:
            unread = Unknown(str(err)[:300])
            return unread, unread
        return Known(pod), self._instance(reference, incident, facts)

    def _records(
        self,
        incident: Incident,
        facts: Maybe[NodeFacts | None],
        instance: Maybe[InstanceView | None],
        nodes: Sequence[NodeFacts],
    ) -> Maybe[tuple[HardwareRecord, ...]]:
        """What the node's hardware has had: at the Incident's begin, and of what came in its place."""
        repair = incident.repair or NodeRepair()
        seen = facts.value if isinstance(facts, Known) else None
        now_id = instance.value.instance_id if isinstance(instance, Known) and instance.value is not None else None
        now_id = now_id or (seen.instance_id if seen is not None else None)
        begins = incident.phase in (Phase.OPEN, Phase.HOLDING)
        is_another = repair.step is not None and repair.step.rung is Rung.REPLACE and now_id != repair.step.instance_id
        if self.hardware_ledgers is None or not (begins or (is_another and incident.phase is Phase.REPAIRING)):
            return Unknown("not needed now")
        marks = marks_to_ask(seen, nodes=nodes, known=repair.hardware if begins else (), instance_id=now_id)
        return self.hardware_ledgers.records(marks) if marks else Unknown("nothing tells which hardware this is")

    def _own(self, cluster: str) -> tuple[str, ClusterView | None]:
        """What HyperPod is asked by (the ARN that the agent tells, else the name), and its cluster of that name.

        The ARN is the head node's word. A head node that named its neighbour's would have the neighbour's nodes
        repaired, so the named cluster itself must confirm it: by its own name, or by its owner's tag.

        Raises:
            Permanent: the cluster that the agent names is not known to be this one.
        """
        agent = self.head_nodes.agent(cluster)
        reference = agent.value.cluster_arn or cluster if isinstance(agent, Known) else cluster
        pod = self.cluster_nodes.cluster(reference)
        if pod is None or cluster in (reference, pod.name) or self.cluster_nodes.alias(reference) == cluster:
            return reference, pod
        raise Permanent(
            f"cluster_arn: the head node of {cluster} says that it is HyperPod's cluster {pod.name}, which does not"
            f" say so itself: tag that cluster rekindle:cluster={cluster} if it is"
        )

    def _instance(
        self, reference: str, incident: Incident, facts: Maybe[NodeFacts | None]
    ) -> Maybe[InstanceView | None]:
        repair = incident.repair or NodeRepair()
        mapped = facts.value.instance_id if isinstance(facts, Known) and facts.value is not None else None
        try:
            return Known(
                self.cluster_nodes.instance(
                    reference,
                    node=incident.node or "",
                    instance_id=mapped or repair.instance_id,
                    logical_id=repair.logical_id,
                )
            )
        except RecoveryError as err:
            return Unknown(str(err)[:200])

    def _down_and_load(
        self, incident: Incident, listed: Maybe[NodesDoc], *, is_wanted: bool
    ) -> tuple[int, Maybe[Load]]:
        """How many nodes are down, those in our own repair left out, and the load, where it `is_wanted`. The Incidents
        that both go by are read once, and only where one of them needs it.
        """
        nodes = listed.value.nodes if isinstance(listed, Known) else ()
        down = count_lost(nodes)
        many_down = 1 < down < len(nodes)  # where none is reached, a repair of one explains nothing
        if not (is_wanted or many_down):
            return down, Unknown("not needed yet")
        counted = read_repair_load(self.store, now=self.clock.now())
        if isinstance(counted, Unknown):
            return down, counted  # more nodes count as down, and less is done
        if many_down:
            in_repair = counted.value.nodes_in_repair(incident, listed)
            down = count_lost(shown for shown in nodes if shown.name not in in_repair)
        return down, Known(counted.value.load_for(incident, listed)) if is_wanted else Unknown("not needed yet")

    def _past(self, incident: Incident) -> tuple[EarlierRepair, ...]:
        try:
            earlier = self.store.list_for_node(incident.cluster or "", incident.node or "", limit=_PAST + 1)
        except RecoveryError:
            return ()  # asked once more at the next look, as long as the Incident is OPEN
        steps = [
            EarlierRepair(at=step.at, rung=step.rung.value, instance_id=step.instance_id)
            for past in earlier
            if past.repair is not None and past.incident_id != incident.incident_id
            for step in past.repair.steps
        ]
        recent = [step for step in steps if self.clock.now() - step.at < HISTORY]
        return tuple(sorted(recent, key=lambda step: step.at, reverse=True)[:_PAST])

    # ---- acts ------------------------------------------------------------------------------------------------------

    def act(self, action: NodeAction | CordonNode, incident: Incident) -> ActionResult:
        """Carry out one Action. Raises: Retryable; repeated, it looks first at what the first try has done."""
        match action:
            case CordonNode():
                return self._order(action, incident, Verb.DRAIN, f"{_serial(incident)}", instance_id=_meant(incident))
            case UncordonNode():
                return self._order(action, incident, Verb.RESUME, f"{_serial(incident)}")
            case RebootNode() | ReplaceNode() if action.route is Route.SLURM_REASON:
                wanted = Repair.REBOOT if isinstance(action, RebootNode) else Repair.REPLACE
                number = f"{action.number}"
                return self._order(action, incident, Verb.MARK, number, wanted, instance_id=action.instance_id)
            case RebootNode() if action.route is Route.SLURM_REBOOT:
                return self._order(action, incident, Verb.REBOOT, f"{action.number}", instance_id=action.instance_id)
            case RebootNode() | ReplaceNode():
                return self._repair(action, incident)
            case CheckNode():
                return self._check(action, incident)
            case MoveRuns():
                return _result(action, Done.REFUSED, "runs are moved by their own Incidents")
            case _:
                assert_never(action)

    def _order(
        self,
        action: NodeAction | CordonNode,
        incident: Incident,
        verb: Verb,
        number: str,
        repair: Repair | None = None,
        *,
        instance_id: str | None = None,
    ) -> ActionResult:
        """To the head node's agent. The same number is the same order, however often it is sent."""
        now = self.clock.now()
        order = Order(
            token=token_of(incident.incident_id, verb.value, number),
            verb=verb,
            cluster=action.cluster,
            issued_at=now,
            expires_at=now + ORDER_VALID,
            node=action.node,
            instance_id=instance_id,
            repair=repair,
            incident_id=incident.incident_id,
        )
        answer = self.head_nodes.order(order)
        if answer is None:
            return _result(action, Done.PENDING, f"{action.node}: not answered yet")
        text = f"{action.node}: {answer.detail}"
        # "Expired" says nothing about the node: nothing was done, and another order may be.
        if answer.outcome is Outcome.FAILED or (answer.outcome is Outcome.REFUSED and "expired" in answer.detail):
            return _result(action, Done.UNAVAILABLE, text)
        done = {Outcome.DONE: Done.DONE, Outcome.ALREADY: Done.ALREADY}.get(answer.outcome, Done.REFUSED)
        return _result(action, done, text)

    def _repair(self, action: RebootNode | ReplaceNode, incident: Incident) -> ActionResult:
        """Look first: these calls take no token, and an instance that is gone must not be repaired a second time."""
        reference, pod = self._own(action.cluster)
        seen = self.cluster_nodes.instance(
            reference,
            node=action.node,
            instance_id=action.instance_id,
            logical_id=incident.repair.logical_id if incident.repair else None,
        )
        if action.instance_id is None or seen is None:
            return _result(action, Done.ALREADY, f"{action.instance_id} is in no list: it is being replaced")
        if seen.instance_id != action.instance_id:
            return _result(action, Done.ALREADY, f"{action.instance_id} was replaced already, by {seen.instance_id}")
        if seen.state not in _WORKABLE:
            return _result(action, Done.ALREADY, f"{seen.instance_id} is {seen.state} already")
        if pod is not None and pod.role(seen.group) in _ROLES:
            return _result(action, Done.REFUSED, f"{seen.group} is a {pod.role(seen.group)} group: never repaired")
        if isinstance(action, ReplaceNode):
            return self.cluster_nodes.replace(reference, [action.instance_id])[action.instance_id]
        # A reboot leaves no trace in the id: an execution that repeats this after a crash must not reboot twice.
        if not self.store.claim(incident.incident_id, token=f"reboot-{action.number}"):
            return _result(action, Done.UNAVAILABLE, "asked for before; whether it was taken is not known")
        return self.cluster_nodes.reboot(reference, [action.instance_id])[action.instance_id]

    def _check(self, action: CheckNode, incident: Incident) -> ActionResult:
        if not self.store.claim(incident.incident_id, token=f"check-{action.number}"):
            return _result(action, Done.ALREADY, "asked for before")
        try:
            return self.cluster_nodes.check(
                self._own(action.cluster)[0], group=action.group, instance_ids=[action.instance_id]
            )
        except NotAuthorized as err:
            return _result(action, Done.REFUSED, str(err)[:400])
        except Permanent as err:
            return _result(action, Done.REFUSED, str(err)[:400])

    def check_suspects(self, cluster: str, names: Sequence[str], incident: Incident, *, of: str) -> str:
        """Have these nodes of an attempt checked, once. What is under way, in words; "" once nothing is, or where
        HyperPod has none of them, another check of the cluster is under way, or it is refused.

        Raises:
            RecoveryError: it is not known.
        """
        listed = self.head_nodes.nodes(cluster)
        nodes = listed.value.nodes if isinstance(listed, Known) else ()
        there = [node for node in nodes if node.name in names and node.instance_id and is_in_service(node)]
        groups = Counter(node.group for node in there if node.group)
        if not groups:
            return ""
        group = groups.most_common(1)[0][0] or ""
        suspects = [node for node in there if node.group == group]
        reference, text = self._own(cluster)[0], f"a deep health check of {len(suspects)} nodes is under way"
        if self.store.claim(incident.incident_id, token=f"suspects-{of}"):
            ids = [node.instance_id or "" for node in suspects]
            return text if self.cluster_nodes.check(reference, group=group, instance_ids=ids).done is Done.DONE else ""
        since = incident.resubmission.capacity_since
        if since is not None and self.clock.now() - since < _CHECK_SHOWS:
            return text
        return text if any(self._is_checked(reference, node) for node in suspects[:_ASKED]) else ""

    def _is_checked(self, reference: str, node: NodeFacts) -> bool:
        """HyperPod shows a health check of it under way."""
        seen = self.cluster_nodes.instance(reference, node=node.name, instance_id=node.instance_id, logical_id=None)
        return seen is not None and seen.state is InstanceState.CHECKING


def node_facts(view: NodeView) -> dict[str, Any]:
    """What a look saw of the node, for its line in the timeline."""
    facts: dict[str, Any] = {}
    if isinstance(view.listed, Known):
        facts["slurm"] = slurm_state(view.listed.value) if view.listed.value is not None else "no such node"
    else:
        facts["slurm"] = {"unknown": view.listed.why}
    if isinstance(view.instance, Known):
        instance = view.instance.value
        facts["instance"] = f"{instance.instance_id} {instance.state}" if instance is not None else "none"
    elif view.machines is not Machines.OWN:
        facts["instance"] = {"unknown": view.instance.why}
    if isinstance(view.load, Known):
        facts["load"] = view.load.value.to_wire(defaults=True)
    return facts


def _meant(incident: Incident) -> str | None:
    """The machine that a cordon is about: none, once it may have been replaced by our own order."""
    repair = incident.repair
    is_replaced = repair is None or any(step.rung is Rung.REPLACE for step in repair.steps)
    return None if repair is None or is_replaced else repair.instance_id


def _serial(incident: Incident) -> int:
    return incident.repair.serial if incident.repair else 1


def _result(action: NodeAction | CordonNode, done: Done, detail: str) -> ActionResult:
    return ActionResult(action=action_name(action), done=done, detail=detail[:400])
